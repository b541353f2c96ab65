"""Digests of rows: a number for each element of a block, from its position, its ordinal and its fields.

XXH3 in 64 bits hashes an element in this order: names, dtypes and shapes of its fields, as the seed; its position and
ordinal with its small dense fields, as one run of bytes; each other field, with the hash so far as the seed. So the
digest of an element depends on no other element of its block.
"""

from __future__ import annotations

import datetime
import decimal
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from datarax_ray.plan.orders.cipher import Indices
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
