"""The positions of one owner's records, found by inverting the permutation for those records alone.

Forwards, each of 64 actors computes the order of every position of a chunk and keeps its 64th. Backwards it inverts its
own records once for a span of positions, and remembers them. A span is all positions that are permuted together, or a
part of them where an owner holds more records than it may remember; it then inverts all its records for each span.

Legend: an offset counts the positions of a span; a place is an offset before the permutation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import ranges

# Records of a span: 32 MiB for its two arrays; it takes half a second to make.
MAX_HELD = 2**21
# A chunk may cross two spans. Small spans are kept for several owners: trainers that share an actor may ask it for
# different partitions.
_MIN_SPANS, _MAX_SPANS = 2, 64
# Forwards is as cheap for an owner of nearly everything.
MAX_SHARE = 0.75
# Up to this many positions of a span for each one held, a table of all positions is cheaper than sorting: 7 ns for each
# one held in place of 37, for a half of 4 million.
_MAX_PLACES = 4
# Records inverted at a time: their temporaries are small beside what is remembered.
_STRIP = 2**18


class Span(NamedTuple):
    """Positions [start, start + size). seed: of the epoch. number: of the span in it."""

    start: int
    size: int
    seed: int
    number: int = 0


def num_spans(num_records: int, share: float) -> int | None:
    """The number of spans of positions that are permuted together, for the owner of this share of their records.

    None where forwards is as cheap. So an owner inverts at most sqrt(num_records / MAX_HELD) times what it holds.

    >>> [num_spans(10**9, share) for share in (1 / 1024, 1 / 64, 1 / 2)]
    [1, 8, None]
    """
    count = max(1, math.ceil(num_records * share / MAX_HELD))
    return None if count * share > MAX_SHARE else count


class OwnedPositions:
    """Remembers the records of owners in spans of one order. Pickles empty."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, None] = {}
        self._held: dict[Hashable, tuple[Indices, Indices]] = {}  # ascending offsets, and the record at each

    def __reduce__(self) -> tuple[type[OwnedPositions], tuple[()]]:
        return OwnedPositions, ()

    def find(
        self,
        owner: Hashable,
        num_held: float,
        start: int,
        stop: int,
        spans: Sequence[Span],
        held_in: Callable[[Span], tuple[Indices, Indices]],
    ) -> tuple[Indices, Indices] | None:
        """See Order.owned_positions.

        num_held: about, the owner's records in a span.
        spans: touched by [start, stop), in order.
        held_in: offsets of the owner's records in a span, in any order, and the records.

        None also for an owner without a recent request: a lost or late request of another owner is made once, and must
        neither cost a table nor replace one.
        """
        most = int(min(_MAX_SPANS, max(_MIN_SPANS, _MIN_SPANS * MAX_HELD / num_held)))
        was_asked = owner in self._asked
        _remember(self._asked, owner, None, most // 2 + 1)
        if not was_asked:
            return None
        found = []
        for span in spans:
            held = self._held.get((owner, span))
            if held is None:
                held = ascending(*held_in(span), span.size)
            _remember(self._held, (owner, span), held, most)
            offsets, records = held
            lo, hi = np.searchsorted(offsets, [start - span.start, stop - span.start])
            found.append((offsets[lo:hi] + span.start, records[lo:hi]))
        return np.concatenate([positions for positions, _ in found]), np.concatenate([records for _, records in found])


def ascending(offsets: Indices, records: Indices, size: int) -> tuple[Indices, Indices]:
    """The offsets in order, and the record at each. offsets: int64 (k,), distinct, in [0, size).

    >>> [found.tolist() for found in ascending(np.array([5, 0, 2]), np.array([7, 8, 9]), size=6)]
    [[0, 2, 5], [8, 9, 7]]
    """
    if size > _MAX_PLACES * len(offsets):
        order = np.argsort(offsets)
        return offsets[order], records[order]
    is_held, places = np.zeros(size, bool), np.empty(size, np.int64)
    is_held[offsets], places[offsets] = True, records
    held = np.flatnonzero(is_held)
    return held, places[held]


def _remember(known: dict[Hashable, Any], key: Hashable, value: Any, most: int) -> None:
    """Add one as the last, and forget the first. Threads may do so at once: each step is atomic."""
    known.pop(key, None)
    known[key] = value
    for oldest in list(known.copy())[:-most]:
        known.pop(oldest, None)


def strips(starts: Indices, sizes: Indices, most: int = _STRIP) -> Iterator[Indices]:
    """As ranges, in arrays of at most `most` each; at least one array.

    >>> [strip.tolist() for strip in strips(np.array([5, 0]), np.array([2, 3]), most=4)]
    [[5, 6, 0, 1], [2]]
    """
    ends = np.cumsum(sizes)
    for begin in range(0, max(1, int(ends[-1])), most):
        lo = np.clip(begin - (ends - sizes), 0, sizes)
        hi = np.clip(begin + most - (ends - sizes), 0, sizes)
        some = lo < hi
        yield ranges((starts + lo)[some], (hi - lo)[some])
