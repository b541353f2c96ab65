"""The positions of the records that one owner holds, found by inverting the permutation for those records alone.

The forward way computes the order of every position of a chunk and keeps one's own: 64 actors do all of it 64 times.
Backwards each does its 64th, once for a span of positions that are permuted among themselves, and remembers it.

Legend: an offset counts the positions of a span; a place is an offset before the permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices

# 32 MiB for the two arrays of a span, of which two are remembered; it takes half a second to make.
_MAX_HELD = 2**21
# A chunk may lie across the border of two spans.
_MAX_SPANS = 2
_MAX_ASKED = 64
# Forwards is as cheap for whoever holds nearly everything.
_MAX_SHARE = 0.75


class Span(NamedTuple):
    """Positions [start, start + size), permuted among themselves. seed: of the epoch. number: of the window in it."""

    start: int
    size: int
    seed: int
    number: int = 0


class OwnedPositions:
    """What owners hold of the spans of one order, remembered for those who ask again. Pickles without."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, None] = {}  # owners and spans, the last ones
        self._held: dict[Hashable, tuple[Indices, Indices]] = {}  # ascending offsets, and the record at each

    def __reduce__(self) -> tuple[type[OwnedPositions], tuple[()]]:
        return OwnedPositions, ()

    def find(
        self,
        owner: Hashable,
        share: float,
        start: int,
        stop: int,
        spans: Iterable[Span],
        held_in: Callable[[Span], tuple[Indices, Indices]],
    ) -> tuple[Indices, Indices] | None:
        """See Order.owned_positions. share: of all records, that the owner holds. spans: those that [start, stop)
        touches, in order. held_in: the offsets in a span of the owner's records, in any order, and the records.

        None also where this owner was not asked for these positions before. A request that another owner lost is asked
        once, and must not cost a table.
        """
        if share > _MAX_SHARE:
            return None
        keys = {span: (owner, span) for span in spans}
        # of small spans the cipher has a table, and the forward way is a lookup
        if any(span.size <= cipher.TABLE_LIMIT or span.size * share > _MAX_HELD for span in keys):
            return None
        if not all(key in self._asked for key in keys.values()):
            _remember(self._asked, dict.fromkeys(keys.values()), _MAX_ASKED)
            return None
        found = []
        for span, key in keys.items():
            held = self._held.get(key)
            if held is None:
                offsets, records = held_in(span)
                ascending = np.argsort(offsets)
                held = offsets[ascending], records[ascending]
                _remember(self._held, {key: held}, _MAX_SPANS)
            offsets, records = held
            lo, hi = np.searchsorted(offsets, [start - span.start, stop - span.start])
            found.append((offsets[lo:hi] + span.start, records[lo:hi]))
        return np.concatenate([positions for positions, _ in found]), np.concatenate([records for _, records in found])


def _remember(known: dict[Hashable, Any], more: dict[Any, Any], most: int) -> None:
    """Add some, and forget the oldest. Threads may do so at the same time: each step is one of the interpreter's."""
    known.update(more)
    for oldest in list(known.copy())[:-most]:
        known.pop(oldest, None)


def ranges(starts: Indices, sizes: Indices) -> Indices:
    """start, start + 1, ... for each start, as many as its size: int64 (sum of sizes,).

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(starts - before, sizes)
