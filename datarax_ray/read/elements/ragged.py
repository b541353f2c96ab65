"""Rows of many lengths on their way to another process: one array of all, and the length of each.

Pickled one by one each is a buffer of its own, which costs more than the rows do: 13 us each, where this is 0.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

_MISSING = -1  # the length of None


@dataclass(frozen=True)
class Joined:
    """A column of rows of many lengths, which is that column again when it is unpickled; see joined.

    flat: all rows, end to end. lengths: int64 (k,) of them, -1 of None.
    """

    flat: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        return _column, (self.flat, self.lengths)


def joined(column: Any) -> Any:
    """A column of objects that are arrays of one axis and one plain native dtype, or None, as Joined; else as it is.

    >>> joined(np.array([np.arange(2), None, np.arange(3)], object))
    Joined(flat=array([0, 1, 0, 1, 2]), lengths=array([ 2, -1,  3]))
    >>> aligned = np.zeros(2, np.dtype("u1,i4", align=True))  # which NumPy would pack
    >>> joined(np.array([aligned, None], object))[0].dtype == aligned.dtype
    True
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
    found = np.empty(len(lengths), object)
    rows = np.empty(len(bounds) - 1, object)
    for index, (lo, hi) in enumerate(pairwise(bounds)):
        rows[index] = flat[lo:hi]
    found[is_there] = rows
    return found
