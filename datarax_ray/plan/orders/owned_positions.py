"""The positions of the records that one owner holds, found by inverting the permutation for those records alone.

The forward way computes the order of every position of a chunk and keeps one's own: 64 actors do all of it 64 times.
Backwards each does its 64th, once for a span of positions that are permuted among themselves, and remembers it.

Legend: an offset counts the positions of a span; a place is an offset before the permutation.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.orders.record_groups import slots

if TYPE_CHECKING:  # who selects by what is here
    from datarax_ray.plan.partitions import Partitioning

# 32 MiB for the two arrays of a span, of which two are remembered; it takes half a second to make.
_MAX_HELD = 2**21
# Of small domains the cipher has a table, and the forward way is a lookup.
_MIN_SIZE = 2**13
# Forwards is as cheap for whoever holds nearly everything.
_MAX_SHARE = 0.75


@dataclass(frozen=True)
class _Span:
    """Positions [start, start + size), permuted among themselves. number: of the window in its epoch, or -1."""

    epoch: int
    number: int
    start: int
    size: int


@dataclass(frozen=True)
class _Held:
    """offsets: int64 (k,), ascending. records: int64 (k,), at each."""

    offsets: Indices
    records: Indices


def owned_positions(
    order: Order, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
) -> tuple[Indices, Indices] | None:
    """The positions in [start, stop) whose records are in these partitions, ascending, and the records; two int64 (k,).

    None where the forward way is to be taken: it is cheaper, or this owner was not asked for these positions before. A
    request that another owner lost is asked once, and must not cost a table.
    """
    if order.shuffle == "none" or (order.shuffle == "block" and not partitioning.by_group):
        return None
    if len(partitions) > _MAX_SHARE * partitioning.num_partitions:
        return None
    spans = list(_spans(order, start, stop))
    share = len(partitions) / partitioning.num_partitions
    if any(span.size <= _MIN_SIZE or span.size * share > _MAX_HELD for span in spans):
        return None
    were_asked = [_was_asked(order, partitioning, partitions, span) for span in spans]  # each of them is noted
    if not all(were_asked):
        return None
    parts = [_part(_table(order, partitioning, partitions, span), span, start, stop) for span in spans]
    return np.concatenate([positions for positions, _ in parts]), np.concatenate([records for _, records in parts])


def _spans(order: Order, start: int, stop: int) -> Iterator[_Span]:
    """The spans that [start, stop) touches, in order."""
    for epoch in range(start // order.num_records, -(-stop // order.num_records)):
        first = epoch * order.num_records
        if order.groups is None:
            yield _Span(epoch, -1, first, order.num_records)
            continue
        windows = slots(order.groups, (order.seed + epoch) % 2**32, order.rounds).windows(order.window_blocks)
        ends = [max(start - first, 0), min(stop - first, order.num_records) - 1]
        lo, hi = (np.searchsorted(windows, ends, side="right") - 1).tolist()
        for number in range(lo, hi + 1):
            begin, end = windows[number : number + 2].tolist()
            yield _Span(epoch, number, first + begin, end - begin)


def _part(table: _Held, span: _Span, start: int, stop: int) -> tuple[Indices, Indices]:
    lo, hi = np.searchsorted(table.offsets, [start - span.start, stop - span.start])
    return table.offsets[lo:hi] + span.start, table.records[lo:hi]


def _was_asked(order: Order, partitioning: Partitioning, partitions: tuple[int, ...], span: _Span) -> bool:
    """Whether this is not the first time."""
    asked = _asked(order, partitioning, partitions, span)
    if asked.is_set():
        return True
    asked.set()
    return False


@functools.lru_cache(maxsize=64)
def _asked(order: Order, partitioning: Partitioning, partitions: tuple[int, ...], span: _Span) -> threading.Event:
    """Set once this owner was asked for positions of this span."""
    return threading.Event()


@functools.lru_cache(maxsize=2)  # a chunk may lie across the border of two
def _table(order: Order, partitioning: Partitioning, partitions: tuple[int, ...], span: _Span) -> _Held:
    seed = (order.seed + span.epoch) % 2**32
    if order.groups is None:
        places = records = _in_partitions(partitioning, partitions, order.num_records)
    else:
        places, records = _in_window(order, partitioning, partitions, span, seed)
        seed = order.window_seed(seed, span.number)
    offsets = cipher.invert(places, span.size, seed=seed, rounds=order.rounds)
    ascending = np.argsort(offsets)
    return _Held(offsets[ascending], records[ascending])


def _in_partitions(partitioning: Partitioning, partitions: tuple[int, ...], num_records: int) -> Indices:
    """The records of these partitions, each of which is one run (see partitions.cut)."""
    starts = np.array(partitions, np.int64) * partitioning.run_records
    return _ranges(starts, np.minimum(starts + partitioning.run_records, num_records) - starts)


def _in_window(
    order: Order, partitioning: Partitioning, partitions: tuple[int, ...], span: _Span, seed: int
) -> tuple[Indices, Indices]:
    """The places in a window of the records whose groups are in these partitions, and the records."""
    assert order.groups is not None
    table = slots(order.groups, seed, order.rounds)
    first = span.number * order.window_blocks
    window = np.arange(first, min(first + order.window_blocks, len(table.order)))
    mine = window[np.isin(table.order[window] % partitioning.num_partitions, partitions)]
    sizes = table.begins[mine + 1] - table.begins[mine]
    offsets = _ranges(table.begins[mine], sizes)
    return offsets - table.begins[first], offsets + np.repeat(table.shift[mine], sizes)


def _ranges(starts: Indices, sizes: Indices) -> Indices:
    """start, start + 1, ... for each start, as many as its size: int64 (sum of sizes,).

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(starts - before, sizes)
