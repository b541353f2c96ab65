"""Elements as bytes: one msgpack map each, which `DecodeMsgpack` reads, and so does any language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_KINDS = frozenset("biuf")
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


class EncodeMsgpack:
    """An element, a dict of values by name, as a msgpack map.

    None, numbers, text, bytes, and lists and dicts of these come back as they were, NumPy's arrays and numbers as
    numbers in lists: `DecodeMsgpack(arrays={"x": "float32"})` makes them arrays again.

    >>> EncodeMsgpack().map({"x": np.array([1, 2], np.int8)})
    b'\\x81\\xa1x\\x92\\x01\\x02'
    """

    def map(self, element: Mapping[str, Any]) -> bytes:
        """Raises: ValueError for a value that msgpack has no place for, by the name of its field."""
        import msgpack

        if not isinstance(element, Mapping):
            raise ValueError(f"an element is a dict of fields, got {type(element).__name__}")
        try:
            found: bytes = msgpack.packb({name: _plain(value, name) for name, value in element.items()})
        except OverflowError as error:  # an int of more than 64 bits
            raise ValueError(f"one of {sorted(element)} does not fit in msgpack: {error}") from error
        return found

    def __repr__(self) -> str:
        return "EncodeMsgpack()"


def _plain(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _KINDS:
        return value.tolist()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_plain(each, name) for each in value]
    if isinstance(value, list | tuple):
        return [_plain(each, name) for each in value]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"field {name!r} has the key {odd[0]!r}; a msgpack map that is read here has text")
        return {key: _plain(each, f"{name}.{key}") for key, each in value.items()}
    what = f"{value.dtype} array" if isinstance(value, np.ndarray | np.generic) else type(value).__name__
    raise ValueError(
        f"field {name!r} is a {what}, which msgpack has no place for: write Parquet, or make it a number or text"
    )
