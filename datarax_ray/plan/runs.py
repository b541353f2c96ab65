"""Runs: some rows of a block's columns, as ranges of them. int64 (m, 2), [begin, end): ascending, apart, not empty.

A trainer's rows of a batch stand behind one another in a block, and so do the tokens of a document: two numbers name
many rows, where a number for each would weigh what a small row does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

NO_RUNS = np.empty((0, 2), np.int64)
# A slice copied costs about what this many rows cost by index.
_MIN_RUN_ROWS = 16


def runs_of(rows: Indices) -> Indices:
    """The runs of these rows. rows: int64 (k,), ascending, each once.

    >>> runs_of(np.array([2, 3, 4, 7])).tolist()
    [[2, 5], [7, 8]]
    """
    return joined_runs(np.stack([rows, rows + 1], axis=1))


def joined_runs(ranges: Indices) -> Indices:
    """The runs of ranges [begin, end) in any order, apart from each other. ranges: int64 (m, 2).

    >>> joined_runs(np.array([[7, 9], [2, 3], [3, 5]])).tolist()
    [[2, 5], [7, 9]]
    """
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if not len(ranges):
        return NO_RUNS
    is_first = np.concatenate([[True], ranges[1:, 0] != ranges[:-1, 1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([ranges[is_first, 0], ranges[is_last, 1]], axis=1)


def num_rows_of(runs: Indices) -> int:
    """Rows in all of the runs."""
    return int((runs[:, 1] - runs[:, 0]).sum())


def rows_of(runs: Indices) -> Indices:
    """All rows of the runs: int64 (k,), ascending.

    >>> rows_of(np.array([[2, 5], [7, 8]])).tolist()
    [2, 3, 4, 7]
    """
    return ranges(runs[:, 0], runs[:, 1] - runs[:, 0])


def ranges(starts: Indices, sizes: Indices) -> Indices:
    """start, start + 1, ... for each start, as many as its size: int64 (sum of sizes,).

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(starts - before, sizes)


def clipped(runs: Indices, num_rows: int) -> Indices:
    """What of the runs is within the first so many rows.

    >>> clipped(np.array([[2, 5], [7, 8]]), 4).tolist()
    [[2, 4]]
    """
    runs = np.minimum(runs, num_rows)
    return runs[runs[:, 0] < runs[:, 1]]


def rows_in(runs: Indices, array: Any) -> Any:
    """The rows of an array that are in the runs: a view where there is one run, else a copy."""
    if len(runs) == 1:
        return array[slice(*runs[0].tolist())]
    if not len(runs) or num_rows_of(runs) < len(runs) * _MIN_RUN_ROWS:
        return array[rows_of(runs)]
    return np.concatenate([array[begin:end] for begin, end in runs.tolist()])
