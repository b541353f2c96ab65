"""Rows in cheap forms: records of one size in one array, and rows of many lengths as one array and their lengths.

Also a test, repeated now and then, that a transform of columns makes each row from its own row.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

_MISSING = -1  # the length of None
# How many blocks each transform has mapped in this process, by its id.
_BLOCKS: dict[int, tuple[weakref.ref[Any], int]] = {}
# Relative to the largest number of a column: a matrix product rounds by how many rows it has. V: bfloat16 and its like.
_TOLERANCES = {"e": 1e-2, "f": 1e-4, "F": 1e-4, "V": 1e-2}


class FixedRecords(Sequence[bytes]):
    """Records that all have `size` bytes. rows: uint8 (k, size), contiguous. As a sequence, its items are bytes.

    A decoder with `takes_fixed_records = True` receives FixedRecords in place of a list of bytes. It returns arrays
    that nobody else holds, in new memory or in the writable rows. These arrays are not copied.
    """

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self.rows = rows

    @property
    def size(self) -> int:
        return self.rows.shape[1]

    def writable(self) -> npt.NDArray[np.uint8]:
        """The rows, as a copy where others read them too."""
        return self.rows if self.rows.flags.writeable else self.rows.copy()

    def tolist(self) -> list[bytes]:
        if not self.size:
            return [b""] * len(self)
        return self.rows.view(f"V{self.size}").ravel().tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FixedRecords(self.rows[index]).tolist()
        return self.rows[index].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())


@dataclass(frozen=True)
class Joined:
    """A column of rows of many lengths on its way to another process; unpickled, it is the column again. See joined.

    Pickled one by one, each row would be a buffer of its own, at 13 us in place of 0.6.

    flat: all rows, end to end.
    lengths: int64 (k,) of the rows, -1 of None.
    """

    flat: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        return _column, (self.flat, self.lengths)


def joined(column: Any) -> Any:
    """Joined, for a column of arrays with one axis and one plain native dtype, and None; any other column as it is.

    >>> joined(np.array([np.arange(2), None, np.arange(3)], object))
    Joined(flat=array([0, 1, 0, 1, 2]), lengths=array([ 2, -1,  3]))
    """
    if not isinstance(column, np.ndarray) or column.dtype != object or column.ndim != 1:
        return column
    values = column.tolist()
    rows = [row for row in values if row is not None]
    if not rows or not all(type(row) is np.ndarray and row.ndim == 1 for row in rows):
        return column
    dtype = rows[0].dtype
    is_plain = dtype.isnative and not dtype.hasobject and dtype.names is None  # joined, it is native and packed
    if not is_plain or any(row.dtype != dtype for row in rows):
        return column
    lengths = [_MISSING if row is None else len(row) for row in values]
    return Joined(np.concatenate(rows), np.array(lengths, np.int64))


def _column(flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The rows: read-only views of the one array, and None."""
    flat.flags.writeable = False
    is_there = lengths != _MISSING
    bounds = [0, *np.cumsum(lengths[is_there]).tolist()]
    rows = [flat[start:stop] for start, stop in pairwise(bounds)]
    found = np.empty(len(lengths), object)
    found[is_there] = np.fromiter(rows, object, len(rows))
    return found


def look_due(transform: Any) -> int:
    """The number of this test, from 1 on, where the block that `transform` maps now is due for one; else 0.

    Blocks 1, 2, 4, 8 and so on are due: the first rows of sorted data may all be equal, and each test costs a call.
    """
    key = id(transform)
    known, before = _BLOCKS.get(key, (lambda: None, 0))
    count = before + 1 if known() is transform else 1
    try:
        _BLOCKS[key] = weakref.ref(transform, lambda _: _BLOCKS.pop(key, None)), count
    except TypeError:  # of a class with slots: every block is its first
        return 1
    return 0 if count & (count - 1) else count.bit_length()


def are_alike(many: np.ndarray, row: int, one: np.ndarray) -> bool:
    """Whether a row of a column equals the one row of another column, up to rounding.

    Objects that are no arrays, numbers, text, or lists and dicts of these, are compared by their type alone.
    """
    of_many = many[row : row + 1]
    is_text = many.dtype.kind == one.dtype.kind and many.dtype.kind in "US"  # of any length
    if (many.dtype != one.dtype and not is_text) or of_many.shape != one.shape:
        return False
    if many.dtype.kind in "fcV" and not many.dtype.names:
        wide = np.complex128 if many.dtype.kind == "c" else np.float64
        rtol = _TOLERANCES.get("V" if many.dtype.kind == "V" else many.dtype.char, 1e-8)
        sizes = np.abs(many.astype(wide))
        largest = sizes[np.isfinite(sizes)].max(initial=0.0)
        return bool(np.allclose(one.astype(wide), of_many.astype(wide), rtol, rtol * largest, equal_nan=True))
    return _is_same(of_many.tolist(), one.tolist())


def _is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray | np.generic):
        return are_alike(np.asarray(left)[None], 0, np.asarray(right)[None])
    if isinstance(left, float):
        return bool(np.isclose(left, right, rtol=1e-4, atol=1e-6, equal_nan=True))
    return left == right if isinstance(left, bool | int | str | bytes) else True
