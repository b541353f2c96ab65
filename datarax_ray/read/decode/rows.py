"""Row decoders for self-describing records: one msgpack map or JSON object is one element."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

import msgpack
import numpy.typing as npt

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.read.decode.dense import array_dtypes, exact_array, missing_field, no_record
from datarax_ray.read.formats.sniff import how_to_decode

# Deeper than people write, and far from the depth at which stacking and pickling give up (some 300).
_MAX_DEPTH = 64
_CONTAINERS = frozenset([dict, list])


@final
@dataclass(frozen=True)
class DecodeMsgpack(NamedArguments):
    """Read every record as one msgpack map with string keys.

    Text is str and binary is bytes; a timestamp is the int of its nanoseconds since 1970. Extension types are refused,
    as only code could tell their meaning, and no code comes from data.

    arrays: field to dtype (bool, int, uint or float), for the fields whose numbers or rectangular lists become arrays;
        they must be in every record, and their numbers must fit. Every other list stays a list.

    >>> DecodeMsgpack(arrays={"tokens": "int32"}).map(b"\\x82\\xa6tokens\\x92\\x01\\x02\\xa4text\\xa2hi")
    {'tokens': array([1, 2], dtype=int32), 'text': 'hi'}
    """

    arrays: Mapping[str, npt.DTypeLike] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", array_dtypes(self.arrays))

    def map(self, record: bytes) -> dict[str, Any]:
        """The element that the record holds.

        Raises: ValueError when the record is not one whole map with string keys, nests more than 64 deep, holds an
        extension type, or lacks a field of `arrays` or holds a number that its dtype cannot.
        """
        try:
            # 2 asks for nanoseconds as an int, the one form of a timestamp that is exact and dense.
            value = msgpack.unpackb(record, raw=False, ext_hook=_refuse_extension, timestamp=2)
        except ValueError as error:
            raise _undecodable(record, "msgpack", error) from error
        except TypeError as error:
            raise no_record(record) from error
        return _element(value, "msgpack map", self.arrays or {})


@final
@dataclass(frozen=True)
class DecodeJson(NamedArguments):
    """Read every record as one JSON object in UTF-8, such as a line of a JSONL file.

    arrays: field to dtype (bool, int, uint or float), for the fields whose numbers or rectangular lists become arrays;
        they must be in every record, and their numbers must fit. Every other list stays a list.

    >>> DecodeJson(arrays={"tokens": "int32"}).map(b'{"tokens": [1, 2], "text": "hi", "tags": ["a"]}')
    {'tokens': array([1, 2], dtype=int32), 'text': 'hi', 'tags': ['a']}
    """

    arrays: Mapping[str, npt.DTypeLike] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", array_dtypes(self.arrays))

    def map(self, record: bytes) -> dict[str, Any]:
        """The element that the record holds.

        Raises: ValueError when the record is not one whole JSON object, nests more than 64 deep, or lacks a field of
        `arrays` or holds a number that its dtype cannot.
        """
        try:
            value = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise _undecodable(record, "JSON", error) from error
        except TypeError as error:
            raise no_record(record) from error
        return _element(value, "JSON object", self.arrays or {})


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(
        f"it holds extension type {code} ({len(data)} bytes), which is not decoded; "
        "write plain numbers, text, binary, lists and maps"
    )


def _undecodable(record: bytes, kind: str, error: Exception) -> ValueError:
    return ValueError(
        f"a record of {len(record)} bytes that begins {bytes(record[:16])!r} is not {kind}: "
        f"{type(error).__name__}: {str(error).rstrip('.')}.{how_to_decode(record, kind)}"
    )


def _element(value: Any, kind: str, arrays: Mapping[str, npt.DTypeLike]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(
            f"a record must be one {kind}, and this one is {reprlib.repr(value)}, a {type(value).__name__}, "
            'which names no fields; write {"name": value, ...}'
        )
    foreign = next((key for key in value if not isinstance(key, str)), None)
    if foreign is not None:
        raise ValueError(f"a {kind} names its fields with text, and this one has the key {foreign!r}")
    _refuse_depth(value, kind)
    for name, dtype in arrays.items():
        if name not in value:
            raise missing_field(name, value)
        value[name] = exact_array(value[name], dtype, name)
    return value


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
