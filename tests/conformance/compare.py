"""Two runs compared: which rows are missing, come twice, or stand in another batch or place."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import NamedTuple

# The numbers of the records in each global batch, row for row: those of trainer 0 first.
Batches = list[list[int]]


class Difference(NamedTuple):
    """lost, repeated: rows that a run has too few of, and too many. other_batches: batches of other rows.
    other_rows: batches of the same rows in another order.
    """

    lost: int
    repeated: int
    other_batches: int
    other_rows: int


def compare(wanted: Batches, seen: Batches) -> Difference:
    """What differs of what was seen from what was wanted.

    >>> compare([[1, 2], [3, 4]], [[2, 1], [3, 3]])
    Difference(lost=1, repeated=1, other_batches=1, other_rows=1)
    """
    want, got = (Counter(row for batch in run for row in batch) for run in (wanted, seen))
    pairs = list(zip_longest(wanted, seen, fillvalue=None))
    is_other = [a is None or b is None or sorted(a) != sorted(b) for a, b in pairs]
    return Difference(
        (want - got).total(),
        (got - want).total(),
        sum(is_other),
        sum(a != b for (a, b), other in zip(pairs, is_other, strict=True) if not other),
    )


def joined(trainers: list[Batches]) -> Batches:
    """The global batches of what each trainer had of them; as many as the one with the fewest has.

    >>> joined([[[1], [2]], [[3], [4]]])
    [[1, 3], [2, 4]]
    """
    return [[row for rows in batch for row in rows] for batch in zip(*trainers, strict=False)]
