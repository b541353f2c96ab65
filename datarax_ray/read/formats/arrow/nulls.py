"""What becomes of nulls: one word for all fields of a source, and one for each field that is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

from datarax_ray.plan.plain_values import digest

ERROR, HOST = "error", "host"
_MAX_SHOWN = 100  # characters in a fingerprint, of which a state has one for each component


@dataclass(frozen=True)
class OnNull:
    """default: None, "error", "host" or a value, for the fields that by_field does not name, dotted inside structs."""

    default: Any = None
    by_field: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, on_null: Any) -> OnNull:
        """The setting as a source has it. Raises: TypeError for what is neither a word, a value nor a dict of these.

        >>> OnNull.of({"x": 0}), OnNull.of("host")
        (OnNull(default=None, by_field={'x': 0}), OnNull(default='host', by_field={}))
        """
        if not isinstance(on_null, Mapping):
            if on_null is not None and not isinstance(on_null, Number | str | bytes):
                raise TypeError(
                    f"on_null is 'error', 'host', a number, a text, or a dict of these by field; {on_null!r}"
                )
            return cls(on_null)
        if not all(isinstance(name, str) for name in on_null):
            raise TypeError(f"on_null is a dict by field, got {on_null!r}")
        if unset := [name for name, value in on_null.items() if value is None]:
            raise TypeError(f"on_null gives None for {unset}; 'host' keeps such fields on the host, with None")
        return cls(by_field=dict(on_null))

    def says(self, path: str, word: str) -> bool:
        """Whether a field, or the nearest struct around it that is named, has this word; else the default."""
        names = [path] if path in self.by_field else [name for name in self.by_field if path.startswith(f"{name}.")]
        return _is(self.by_field[max(names, key=len)] if names else self.default, word)

    def fills(self, types: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """By field, the value for its nulls; None for a field on the host. types: of the fields, structs too.

        The default is the value for the fields whose type holds it exactly, and not for lists.
        """
        named = {path: None if _is(value, HOST) else value for path, value in self.by_field.items()}
        named = {path: value for path, value in named.items() if not _is(value, ERROR)}
        if self.default is None or _is(self.default, ERROR, HOST):
            return named
        return {path: self.default for path, kind in types if _holds(kind, self.default)} | named

    def identity(self) -> dict[str, str]:
        """The values that stand for nulls, for a fingerprint; {} without any, as the types of columns tell the rest."""
        found = {path: value for path, value in self.by_field.items() if not _is(value, ERROR, HOST)}
        text = repr(dict(sorted(found.items()))) if self.by_field else repr(self.default)
        if not found and (self.default is None or _is(self.default, ERROR, HOST)):
            return {}
        return {"on_null": text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... {digest(text)}"}


def _is(value: Any, *words: str) -> bool:
    return isinstance(value, str) and value in words


def _holds(kind: Any, value: Any) -> bool:
    """Whether a column of this type of numbers or text holds the value as it is."""
    import pyarrow as pa

    t = pa.types
    if t.is_boolean(kind) != isinstance(value, bool) or t.is_nested(kind) or t.is_temporal(kind) or t.is_null(kind):
        return False
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return False
