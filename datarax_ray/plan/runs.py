"""Runs: many numbers (rows, positions, records) as few ranges [begin, end).

Functions take int64 (m, 2) or pairs, ascending, with gaps between them, none empty, and return arrays. Values that are
compared or saved hold pairs, as `pairs` makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices

Pairs: TypeAlias = "tuple[tuple[int, int], ...]"
Runs: TypeAlias = "Indices | Pairs"

NO_RUNS = np.empty((0, 2), np.int64)
# A slice copied costs about what this many rows cost by index.
_MIN_RUN_ROWS = 16


def joined_runs(ranges: Any) -> Indices:
    """The runs of ranges [begin, end) in any order, which may overlap or be empty. ranges: int64 (m, 2), or pairs.

    >>> joined_runs([(7, 9), (2, 4), (3, 5), (5, 6), (1, 1)]).tolist()
    [[2, 6], [7, 9]]
    """
    ranges = _array(ranges)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return NO_RUNS
    begins, ends = ranges[np.argsort(ranges[:, 0], kind="stable")].T
    ends = np.maximum.accumulate(ends)
    is_first = np.concatenate([[True], begins[1:] > ends[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([begins[is_first], ends[is_last]], axis=1)


def runs_of(rows: Indices) -> Indices:
    """The runs of these rows. rows: int64 (k,).

    >>> runs_of(np.array([2, 3, 4, 7])).tolist()
    [[2, 5], [7, 8]]
    """
    return joined_runs(np.stack([rows, rows + 1], axis=1))


def pairs(runs: Indices) -> Pairs:
    return tuple((begin, end) for begin, end in runs.tolist())


def num_rows_of(runs: Runs) -> int:
    if isinstance(runs, tuple):  # of each batch, a few
        return sum(end - begin for begin, end in runs)
    return int((runs[:, 1] - runs[:, 0]).sum())


def num_below(runs: Runs, row: int) -> int:
    """Rows of the runs before this row: its place among all rows of the runs.

    >>> num_below(((2, 4), (6, 9)), 7)
    3
    """
    return num_rows_of(np.minimum(_array(runs), row))


def rows_of(runs: Runs) -> Indices:
    """All rows of the runs: int64 (k,), ascending.

    >>> rows_of(((2, 5), (7, 8))).tolist()
    [2, 3, 4, 7]
    """
    runs = _array(runs)
    return ranges(runs[:, 0], runs[:, 1] - runs[:, 0])


def ranges(starts: Indices, sizes: Indices) -> Indices:
    """start, start + 1, ... for each start, as many as its size: int64 (sum of sizes,).

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(starts - before, sizes)


def rows_in(runs: Runs, array: Any) -> Any:
    """The rows of an array that are in the runs: a view where there is one run, else a copy."""
    if len(runs) == 1:
        return array[runs[0][0] : runs[0][1]]
    if num_rows_of(runs) < max(1, len(runs)) * _MIN_RUN_ROWS:
        return array[rows_of(runs)]
    return np.concatenate([array[begin:end] for begin, end in _array(runs).tolist()])


def within(runs: Pairs, numbers: Indices) -> NDArray[np.bool_]:
    """Whether each number is in one of the runs. numbers: int64 (k,). Returns bool (k,).

    >>> within(((0, 2), (4, 5)), np.arange(6)).tolist()
    [True, True, False, False, True, False]
    """
    found: NDArray[np.bool_] = np.searchsorted(_edges(runs), numbers, "right") % 2 == 1
    return found


@functools.lru_cache(maxsize=64)  # an amended stream may have thousands, and each request asks
def _edges(runs: Pairs) -> Indices:
    return _array(runs).reshape(-1)


def without(runs: Pairs, others: Iterable[tuple[int, int]]) -> Pairs:
    """The runs of the numbers that are in `runs` and in none of the other ranges, which may overlap.

    >>> without(((0, 10), (20, 22)), [(2, 4), (20, 30)])
    ((0, 2), (4, 10))
    """
    others = pairs(joined_runs(list(others)))
    edges = np.unique(np.concatenate([_edges(runs), _edges(others)]))
    is_left = within(runs, edges) & ~within(others, edges)
    return pairs(joined_runs(np.stack([edges[:-1], edges[1:]], axis=1)[is_left[:-1]]))


def _array(runs: Any) -> Indices:
    return np.asarray(runs, np.int64).reshape(-1, 2)
