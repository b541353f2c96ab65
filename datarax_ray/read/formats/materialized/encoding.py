"""Elements as bytes, and back: the same values of the same types, bit for bit. What is read here runs no code.

A stored record holds what became of one record of a source: a byte for its kind, then

    NOTHING   no element: it was left out
    ELEMENT   an element: its head and its payload
    ROW       a row of columns, likewise
    SEVERAL   what a flat_map gave, and what failed: msgpack of [[ordinal, record], ...] and [[where, reason], ...]

A head is a length (u32) and so many bytes of msgpack: the element's shape, fields and dtypes, which mostly are those of
the record before. The payload is its values, one after the other. Numbers are little-endian, NumPy's as they are.

The head of a row is ["R", fields], in their order: [path, "a", dtype, shape] for values of one size, which come first
in the payload, and [path, "O"] for those of object columns, of which each has a size before it, and then its own head
behind a size, and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.read.elements.columns import Columns, Path, named, ragged_row
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.materialized.arrays import Decoder, decode_array, decode_first, dtype_node
from datarax_ray.read.formats.materialized.values import (
    LENGTH,
    cached_by_head,
    decode_sized,
    decoder_of,
    node_of,
    packed,
    unpacked,
)

NOTHING, ELEMENT, ROW, SEVERAL = range(4)
PREFIX = struct.Struct("<BI")  # kind, length of the head


@dataclass(frozen=True)
class Failed:
    """A record that on_error left out, or one of the elements that it gave.

    where: its place in the source's own files.
    reason: what was wrong, for people.
    """

    where: str
    reason: str


def record_of(elements: Sequence[tuple[int, bytes]], failed: Sequence[Failed]) -> bytes:
    """The stored record. elements: the ordinal of each, and its bytes, of encoded or encoded_rows."""
    if not elements and not failed:
        return bytes([NOTHING])
    if len(elements) == 1 and not failed and not elements[0][0]:
        return elements[0][1]
    failures = [[failure.where, failure.reason] for failure in failed]
    return bytes([SEVERAL]) + packed([list(map(list, elements)), failures])  # ordinals as they are: some may be missing


def encoded(element: Any) -> bytes:
    """An element as bytes.

    Raises: UnwritableError for a value of a type that would not come back, with its field and the remedy.
    """
    payload: list[bytes] = []
    head = packed(node_of(element, (), payload))
    return b"".join([PREFIX.pack(ELEMENT, len(head)), head, *payload])


def encoded_rows(columns: Columns, count: int) -> list[bytes]:
    """Each row of columns as bytes. Values of one size come first, those of object columns behind them."""
    fields, dense, objects = [], [], []
    for path, column in _fields_of(columns):
        if column.dtype == object:
            fields.append([list(path), "O"])
            objects.append((path, column))
            continue
        if not column.dtype.isnative:
            raise UnwritableError(
                f"{named(path)} is {column.dtype.str}, whose bytes are not in this machine's order; return "
                "column.astype(column.dtype.newbyteorder('='))"
            )
        fields.append([list(path), "a", dtype_node(column.dtype, path), list(column.shape[1:])])
        dense.append(np.ascontiguousarray(column).reshape(count, -1).view(np.uint8).reshape(count, -1))
    head = packed(["R", fields])
    begin = PREFIX.pack(ROW, len(head)) + head
    rows = np.concatenate(dense, axis=1) if dense else np.empty((count, 0), np.uint8)
    records = []
    for index in range(count):
        parts = [begin, rows[index].tobytes()]
        for path, column in objects:
            payload: list[bytes] = []
            node = packed(node_of(column[index], path, payload))
            value = b"".join([LENGTH.pack(len(node)), node, *payload])
            parts += [LENGTH.pack(len(value)), value]
        records.append(b"".join(parts))
    return records


def _fields_of(columns: Columns, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every column with its path, in the order that they have."""
    if not isinstance(columns, Mapping):
        yield path, columns
        return
    for key, column in columns.items():
        yield from _fields_of(column, (*path, key))


def parts_of(record: bytes) -> list[list[Any]]:
    """What a stored record holds: [ordinal, bytes] of each element, and [None, where, reason] of what failed.

    Raises: ValueError for what is no such record.
    """
    kind = record[0] if record else -1
    if kind in (ELEMENT, ROW):
        return [[0, record]]
    if kind == NOTHING:
        return []
    if kind != SEVERAL:
        raise ValueError(f"this record was not written by materialize: it begins with {record[:1]!r}")
    try:
        elements, failed = unpacked(record[1:])
        return [*elements, *([None, where, reason] for where, reason in failed)]
    except Exception as error:  # whatever msgpack and Python make of other bytes
        raise _damaged(error) from error


def value_of(record: bytes) -> Any:
    """The element of a stored record that holds one. Raises: ValueError for one that is damaged."""
    try:
        kind, length = PREFIX.unpack_from(record)
        start = PREFIX.size + length
        decoder = _row_decoder if kind == ROW else decoder_of
        value, end = decoder(record[PREFIX.size : start])(record, start)
    except Exception as error:  # whatever msgpack, struct and NumPy make of other bytes
        raise _damaged(error) from error
    if end != len(record):
        raise ValueError(f"a record has {len(record)} bytes, and its fields end at {end}; it is damaged")
    return value


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"this record was not written by materialize, or is damaged: {error}")


@cached_by_head
def _row_decoder(head: bytes) -> Decoder:
    """As unstack has it: numbers of columns as NumPy's, arrays as rows, and what an object column held."""
    _, fields = unpacked(head)
    order = [tuple(path) for path, *_ in fields]
    stored = sorted(fields, key=lambda field: field[1] == "O")
    readers = [(tuple(path), _row_field(*layout)) for path, *layout in stored]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: dict[Path, Any] = {}
        for path, reader in readers:
            values[path], at = reader(data, at)
        return nested({path: values[path] for path in order}), at

    return read


def _row_field(code: str, dtype: Any = None, shape: Any = ()) -> Decoder:
    if code == "O":
        return decode_sized(_object)
    return decode_array(dtype, shape) if shape else decode_first(dtype)


def objects_of(record: bytes, at: int, count: int) -> list[Any]:
    """What so many object columns hold in the row that a record is, from byte `at` on."""
    values = []
    for _ in range(count):
        value, at = _OBJECT(record, at)
        values.append(value)
    return values


def _object(data: bytes) -> Any:
    length, start = LENGTH.unpack_from(data)[0], LENGTH.size
    value, _ = decoder_of(data[start : start + length])(data, start + length)
    return ragged_row(value) if isinstance(value, np.ndarray) else value


_OBJECT = decode_sized(_object)


def nested(fields: dict[Path, Any]) -> Any:
    """The dict of these fields, in their order."""
    if () in fields:
        return fields[()]
    columns: dict[str, Any] = {}
    for path, value in fields.items():
        within = columns
        for key in path[:-1]:
            within = within.setdefault(key, {})
        within[path[-1]] = value
    return columns
