"""Digests of rows: a number for each element of a block, from its position, its ordinal and its fields.

XXH3 in 64 bits hashes an element in this order: names, dtypes and shapes of its fields, as the seed; its position and
ordinal with its small dense fields, as one run of bytes; each other field, with the hash so far as the seed. So the
digest of an element depends on no other element of its block.

Also where two streams first differ, by these digests; and the identity of data that has no name or checksum, by SHA-256
of rows that are sampled evenly.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.plan.position import ID_STRIDE, ordinals
from datarax_ray.read.elements.columns import Columns, leaves, named

Digests = NDArray[np.uint64]
_STRIDE = ID_STRIDE.view(np.uint64)

# A copy that joins small fields costs less than hashing each alone (0.15 us), and more where there are more bytes.
_MAX_JOINED_NBYTES = 1024
# Whose repr says all of a value, and the same in every process; bool is an int, and a datetime a date.
_DATES = (datetime.date, datetime.time, datetime.timedelta)
_SAID = (type(None), int, float, complex, np.generic, decimal.Decimal, pathlib.PurePath, *_DATES)
# Of lists of these as well, at a tenth of the time.
_NUMBERS = frozenset({type(None), bool, int, float})


def row_digests(positions: Indices, columns: Columns, lengths: Indices | None = None) -> Digests:
    """The digest of each element: uint64 (k,). positions: int64 (k,), ascending. lengths: of documents; see Block.

    Raises: TypeError for a value that has no bytes which are the same in every process, with its field and position.
    """
    if not len(positions):
        return np.empty(0, np.uint64)
    joined = [_bytes(np.stack([positions, ordinals(positions)], axis=1))]
    others: list[Iterator[Any]] = []
    kinds = []
    for path, array in _fields(columns):
        shape = array.shape[1:]
        kinds.append((path, array.dtype.str, array.dtype.name, shape))
        if lengths is not None:
            others.append(_of_documents(array, lengths))
        elif array.dtype == object:
            others.append(_of_objects(path, array, positions))
        elif array[:1].nbytes <= _MAX_JOINED_NBYTES:
            joined.append(_bytes(array))
        else:
            others.append(iter(_bytes(array)))
    rows = np.concatenate(joined, axis=1)
    seed = xxh3_64_intdigest(repr(kinds).encode())
    found = [xxh3_64_intdigest(row, seed) for row in rows.view(f"V{rows.shape[1]}").ravel().tolist()]
    for values in others:
        found = [xxh3_64_intdigest(value, so_far) for value, so_far in zip(values, found, strict=True)]
    return np.array(found, np.uint64)


def moved(digests: Digests, positions: Indices) -> Digests:
    """The digests of elements at their positions in a mixture, int64 (k,)."""
    found = digests ^ (positions.astype(np.uint64) * _STRIDE)
    found ^= found >> np.uint64(32)
    return found * _STRIDE


def _fields(columns: Columns) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Every array to hash. Records are split into fields, since the bytes between their fields are undefined."""
    for path, array in leaves(columns):
        if array.dtype.names is None:
            # of 80-bit floats neither, between the numbers; and text of any length is not in its array
            yield path, array.astype(object) if array.dtype.char in "gGT" else array
        else:
            yield from _fields({".".join((*path, name)): array[name] for name in array.dtype.names})


def _bytes(array: np.ndarray) -> NDArray[np.uint8]:
    """The bytes of each row, uint8 (k, n)."""
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return flat.view(np.uint8) if flat.shape[1] else np.empty((len(array), 0), np.uint8)


def _of_documents(array: np.ndarray, lengths: Indices) -> Iterator[NDArray[np.uint8]]:
    """The bytes of each document's part of a field, laid end to end."""
    flat = np.ascontiguousarray(array)
    size, data = flat[:1].nbytes, flat.reshape(-1).view(np.uint8)
    ends = np.cumsum(lengths) * size
    for begin, end in zip((ends - lengths * size).tolist(), ends.tolist(), strict=True):
        yield data[begin:end]


def _of_objects(path: tuple[str, ...], array: np.ndarray, positions: Indices) -> Iterator[bytes]:
    row = -1
    try:
        for row, value in enumerate(array):  # noqa: B007 - for the error
            yield _encoded(value)
    except TypeError as error:
        raise TypeError(f"{named(path)} at position {positions[row]}: {error}") from None


def _encoded(value: Any) -> bytes:
    """A value of an object column, as bytes that no other value has."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    elif isinstance(value, np.ndarray | np.generic) and _says_all(value.dtype):
        data = f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        data = _together([part for pair in value.items() for part in pair])
    elif isinstance(value, list | tuple):
        data = repr(value).encode() if _NUMBERS.issuperset(map(type, value)) else _together(value)
    elif isinstance(value, np.ndarray | np.void) and value.dtype.names:
        data = _together([part for name in value.dtype.names for part in (name, value[name])])
    elif isinstance(value, np.ndarray):
        data = _together([value.shape, *value.flat])
    elif isinstance(value, set | frozenset):
        data = b"".join(sorted(map(_encoded, value)))
    elif isinstance(value, _SAID):
        data = repr(value).encode()
    else:
        raise TypeError(
            f"a {type(value).__name__} has no bytes that are the same in every process, so there is no digest of "
            "it; make numbers, text or bytes of it in a transform, or leave out digest=True"
        )
    return f"{type(value).__name__}:{len(data)}:".encode() + data


def _says_all(dtype: np.dtype) -> bool:
    """Whether the bytes of an array are its values alone: no addresses, and no padding."""
    base = dtype.base  # of a subarray
    if base.names is None:
        return base.char not in "OgGT"
    kinds = [base[name] for name in base.names]
    return sum(kind.itemsize for kind in kinds) == base.itemsize and all(map(_says_all, kinds))


def _together(values: Sequence[Any]) -> bytes:
    return b"".join(map(_encoded, values))


class Difference(NamedTuple):
    """The first row that differs, in kind or in a bit.

    step: of the batch.
    row: of the global batch.
    fields: the fields that differ; () where only one of the streams has the row.
    place: the first place along the row that differs, where all fields are arrays; else None.
    """

    step: int
    row: int
    fields: tuple[str, ...] = ()
    place: int | None = None


def first_difference(one: Iterator[Columns], other: Iterator[Columns], step: int = 0) -> Difference | None:
    """The first of two streams of global batches, which begin at this step; None where there is none."""
    for left, right in zip_longest(one, other):
        if left is None or right is None:
            return Difference(step, 0)
        mine, yours = dict(leaves(left)), dict(leaves(right))
        kinds = [{path: (array.dtype, array.shape[1:]) for path, array in each.items()} for each in (mine, yours)]
        odd = [path for path in sorted(mine.keys() | yours.keys()) if kinds[0].get(path) != kinds[1].get(path)]
        if odd:
            return Difference(step, 0, tuple(map(".".join, odd)))
        rows = [len(next(iter(each.values()))) for each in (mine, yours)]
        firsts = {path: _first(array[: min(rows)], yours[path][: min(rows)]) for path, array in mine.items()}
        found = [row for row in firsts.values() if row is not None]
        if found:
            row = min(found)
            places = None
            if all(array.ndim > 1 and array.dtype != object for array in mine.values()):
                places = [_first(array[row], yours[path][row]) for path, array in mine.items() if firsts[path] == row]
            fields = tuple(".".join(path) for path, first in firsts.items() if first == row)
            return Difference(step, row, fields, None if places is None else min(p for p in places if p is not None))
        if rows[0] != rows[1]:
            return Difference(step, min(rows))
        step += 1
    return None


def _first(one: np.ndarray, other: np.ndarray) -> int | None:
    numbers = np.arange(len(one))
    unequal = row_digests(numbers, one) != row_digests(numbers, other)
    return int(unequal.argmax()) if unequal.any() else None


MAX_WHOLE = 20_000  # of so few small rows all are looked at, once: some tenths of a second
_PIECE = 64 * 1024  # elements that are looked at together
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the repr of an object, another one in every process


def evenly_spaced(num_records: int, count: int) -> Indices:
    """At most `count` indices of [0, num_records), at least 2 if there are so many: the ends and evenly between.

    >>> evenly_spaced(101, 5).tolist()
    [0, 25, 50, 75, 100]
    """
    count = max(2, min(num_records, count))
    found = np.linspace(0, num_records - 1, count).astype(np.int64)
    return found[np.diff(found, prepend=-1) > 0]  # np.unique of what is in order, in a twentieth of the time


def rows_digest(columns: Columns) -> str:
    """A digest of the names, dtypes, shapes and values of these rows."""
    parts = [[".".join(path), str(array.dtype), list(array.shape[1:]), _hash(array)] for path, array in leaves(columns)]
    return digest(parts)


def _hash(array: np.ndarray) -> str:
    if array.dtype == object:
        return hashlib.sha256(ADDRESS.sub("", repr(array.tolist())).encode()).hexdigest()
    return hash_array(array)


def hash_array(array: np.ndarray | np.generic) -> str:
    """SHA-256 of the elements in C order, as hex, whatever the layout, without a copy of them. Not of objects, whose
    bytes are addresses.
    """
    found = hashlib.sha256()
    if array.size and array.itemsize:
        options = ["external_loop", "buffered"]
        for piece in np.nditer(array, options, order="C", buffersize=_PIECE):  # type: ignore[call-overload]
            found.update(piece.tobytes())
    return found.hexdigest()
