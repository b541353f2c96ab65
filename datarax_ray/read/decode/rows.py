"""Row decoders for self-describing records: one msgpack map or JSON object is one element."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, final

import msgpack
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.decode.dense import exact_array, missing_field, no_record, real_dtype_name
from datarax_ray.read.files.sniff import how_to_decode

# Deeper than people write, and far from the depth at which stacking and pickling give up (some 300).
_MAX_DEPTH = 64
_CONTAINERS = frozenset([dict, list])


@dataclass(frozen=True)
class _DecodeRows(NamedArguments):
    """A decoder of self-describing records. kind: what a record is, for people."""

    arrays: Mapping[str, npt.DTypeLike] | None = field(default=None, hash=False)

    kind: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        if self.arrays is not None and not isinstance(self.arrays, Mapping):
            raise TypeError(f"arrays is a dict of field to dtype, {{'tokens': 'int32'}} say, got {self.arrays!r}")
        arrays = {name: real_dtype_name(dtype) for name, dtype in sorted((self.arrays or {}).items())}
        object.__setattr__(self, "arrays", arrays)

    def map(self, record: bytes) -> dict[str, Any]:
        """The element that the record holds.

        Raises: ValueError when the record is not one whole map with text for keys, nests more than 64 deep, holds an
        extension type of msgpack, or lacks a field of `arrays` or holds a number that its dtype cannot.
        """
        encoding, kind = self.kind
        try:
            element = self._parsed(record)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"a record of {len(record)} bytes that begins {bytes(record[:16])!r} is not {encoding}: "
                f"{type(error).__name__}: {str(error).rstrip('.')}.{how_to_decode(record, encoding)}"
            ) from error
        except TypeError as error:
            raise no_record(record) from error
        if not isinstance(element, dict):
            raise ValueError(
                f"a record must be one {kind}, and this one is {reprlib.repr(element)}, a {type(element).__name__}, "
                'which names no fields; write {"name": value, ...}'
            )
        foreign = next((key for key in element if not isinstance(key, str)), None)
        if foreign is not None:
            raise ValueError(f"a {kind} names its fields with text, and this one has the key {foreign!r}")
        _refuse_depth(element, kind)
        for name, dtype in (self.arrays or {}).items():
            if name not in element:
                raise missing_field(name, element)
            element[name] = exact_array(element[name], dtype, name)
        return element

    def _parsed(self, record: bytes) -> Any:
        raise NotImplementedError


@final
@dataclass(frozen=True)
class DecodeMsgpack(_DecodeRows):
    """Read every record as one msgpack map with string keys.

    Text is str and binary is bytes; a timestamp is the int of its nanoseconds since 1970. Extension types are refused,
    as only code could tell their meaning, and no code comes from data.

    arrays: field to dtype (bool, int, uint or float), for the fields whose numbers or rectangular lists become arrays;
        they must be in every record, and their numbers must fit. Every other list stays a list.

    >>> DecodeMsgpack(arrays={"tokens": "int32"}).map(b"\\x82\\xa6tokens\\x92\\x01\\x02\\xa4text\\xa2hi")
    {'tokens': array([1, 2], dtype=int32), 'text': 'hi'}
    """

    kind = ("msgpack", "msgpack map")

    def _parsed(self, record: bytes) -> Any:
        # 2 asks for nanoseconds as an int, the one form of a timestamp that is exact and dense.
        return msgpack.unpackb(record, raw=False, ext_hook=_refuse_extension, timestamp=2)


@final
@dataclass(frozen=True)
class DecodeJson(_DecodeRows):
    """Read every record as one JSON object in UTF-8, such as a line of a JSONL file.

    arrays: field to dtype (bool, int, uint or float), for the fields whose numbers or rectangular lists become arrays;
        they must be in every record, and their numbers must fit. Every other list stays a list.

    >>> DecodeJson(arrays={"tokens": "int32"}).map(b'{"tokens": [1, 2], "text": "hi", "tags": ["a"]}')
    {'tokens': array([1, 2], dtype=int32), 'text': 'hi', 'tags': ['a']}
    """

    kind = ("JSON", "JSON object")

    def _parsed(self, record: bytes) -> Any:
        return json.loads(record)


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(
        f"it holds extension type {code} ({len(data)} bytes), which is not decoded; "
        "write plain numbers, text, binary, lists and maps"
    )


def json_value(data: bytes) -> Any:
    """The value as Python's json reads it. Raises: ValueError for bytes that are no JSON, or nest more than 64 deep."""
    value = json.loads(data)
    _refuse_depth({"": value}, "JSON value")
    return value


def _refuse_depth(value: dict[str, Any], kind: str) -> None:
    """Raise ValueError where lists and maps nest more than 64 deep."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for outer in level:
            items = outer.values() if type(outer) is dict else outer
            if not _CONTAINERS.isdisjoint(map(type, items)):  # passes over long lists of numbers at C's speed
                inner += [item for item in items if type(item) in _CONTAINERS]
        if not inner:
            return
        level = inner
    raise ValueError(f"a {kind} nests lists and maps more than {_MAX_DEPTH} deep, which no later step can handle")
