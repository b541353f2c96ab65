"""Where two streams first differ: the step, the row, the fields, and the place along the row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from datarax_ray.read.elements.columns import Columns, leaves
from datarax_ray.read.elements.row_digests import row_digests


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
