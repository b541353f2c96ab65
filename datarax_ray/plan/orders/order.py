"""An order: the pure function from a position in the endless stream to a record.

An order knows how to cut records into partitions, which partitions a chunk touches, and which positions an owner reads.
No other code asks for the kind of an order.

Forwards, each of 64 actors computes the order of every position of a chunk and keeps its 64th. Backwards it inverts its
own records once for a span of positions, and remembers them (OwnedPositions). A span is all positions that are permuted
together, or a part of them where an owner holds more records than it may remember; all its records are then inverted
for every span.

Legend: an offset counts the positions of an epoch, or of a span; a place is an offset before the permutation.
"""

from __future__ import annotations

import math
import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.runs import ranges
from datarax_ray.plan.state import StatefulOrder

# Many more partitions than actors: with 1,024 the shares of 64 actors are even to 6 %, and the owners fit in a message.
# For more actors see Partitioning.refined.
MAX_NUM_PARTITIONS = 1024

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

# Records in a run, of one source, or of each component of a mixture.
RunRecords: TypeAlias = "int | tuple[RunRecords, ...]"


@dataclass(frozen=True)
class Partitioning:
    """How records are cut into partitions: record r is in partition (r // run_records) % num_partitions.

    run_records: records in a run, at least 1.
    num_partitions: at least 1.
    by_group: runs are the order's groups, so that one actor reads the whole of each group.
    is_dealt: neighbouring partitions have different owners, also after moves.
    components: of a mixture, the partitioning of each component.
    """

    run_records: int
    num_partitions: int
    by_group: bool = False
    is_dealt: bool = True
    components: tuple[Partitioning, ...] = ()

    def partition_of(self, records: Indices) -> Indices:
        """The partition of each record, where runs are not groups. Int64 (k,) to int64 (k,)."""
        return records // self.run_records % self.num_partitions

    def refined(self, num_partitions: int) -> Partitioning:
        """The same records in this many partitions, if there are fewer now and enough records.

        >>> Partitioning(10, 100, is_dealt=False).refined(500)
        Partitioning(run_records=2, num_partitions=500, by_group=False, is_dealt=False, components=())
        """
        if num_partitions <= self.num_partitions:
            return self
        if self.components:
            parts = tuple(part.refined(num_partitions) for part in self.components)
            return replace(self, components=parts, num_partitions=max(part.num_partitions for part in parts))
        if self.is_dealt:
            return replace(self, num_partitions=num_partitions)
        end = self.run_records * self.num_partitions
        run = math.ceil(end / num_partitions)
        return replace(self, run_records=run, num_partitions=math.ceil(end / run))

    def coarser(self, partition: int, before: Partitioning) -> int:
        """The partition, before this refinement, of the first records of a partition."""
        if self.is_dealt:
            return partition % before.num_partitions
        return min(partition * self.run_records // before.run_records, before.num_partitions - 1)

    def share_of(self, partitions: Sequence[int]) -> float:
        """The fraction of all records in these partitions."""
        return len(partitions) / self.num_partitions


class Order(StatefulOrder, Protocol):
    """The record at each position. Immutable; pickles. Methods with a body are right for any order.

    num_records: records in one epoch, at least 1.
    seed: 32 bits; random transforms are keyed by it as well.
    shortest_epoch: positions between two permutations; sys.maxsize without permutations.
    cycle: this many positions, from the beginning of an epoch on, hold every record.
    """

    num_records: int
    seed: int

    @property
    def shortest_epoch(self) -> int: ...

    @property
    def cycle(self) -> int: ...

    @abstractmethod
    def records(self, positions: Indices) -> Indices:
        """The record at each position. positions: int64 (k,), ascending, >= 0. Returns int64 (k,), in [0, N)."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All parameters of the order beside the data, in plain values: part of every state."""

    @abstractmethod
    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """A partitioning that keeps every actor busy. run_records: the shortest run for one actor."""

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """The partitions with records in the chunk [start, stop), ascending, and perhaps more."""
        return range(partitioning.num_partitions)

    @abstractmethod
    def partitions_of(self, partitioning: Partitioning, records: Indices) -> Indices:
        """The partition of each record. records: int64 (k,). Returns int64 (k,)."""

    def amended(self, amendments: Amendments) -> Self:
        """The order of a stream with these amendments: itself for an order without weights."""
        return self

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        """The positions of these partitions, ascending, and their records; None where owned_among is cheaper."""
        return None

    def owned_among(
        self, partitioning: Partitioning, partitions: tuple[int, ...], positions: Indices
    ) -> tuple[Indices, Indices]:
        """As owned_positions, among these positions: int64 (k,), ascending."""
        records = self.records(positions)
        owned = np.zeros(partitioning.num_partitions, bool)
        owned[list(partitions)] = True
        mine = np.flatnonzero(owned[self.partitions_of(partitioning, records)])  # a mask costs three times as much
        return positions[mine], records[mine]


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


@dataclass(frozen=True)
class EpochOrder(Order):
    """An order in which every epoch is a permutation of the records, by the seed of the epoch.

    num_records: N, records in one epoch.
    seed: epoch e is ordered by (seed + e) mod 2**32.
    rounds: of the cipher, even; 4 is for Grain's order.
    groups: stored groups of different sizes, such as row groups; None for none. An order may ignore them.
    """

    num_records: int
    seed: int = 0
    rounds: int = 8
    groups: RecordGroups | None = None

    shuffle: ClassVar[str]  # its name in settings
    is_shuffled: ClassVar[bool] = True
    _owned: OwnedPositions = field(default_factory=OwnedPositions, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if each.type == "int"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))  # NumPy's overflow, and are not JSON
        cipher.check(self.num_records, seed=self.seed, rounds=self.rounds)
        if self.groups is not None and self.groups.num_records != self.num_records:
            raise ValueError(
                f"groups of {self.groups.num_records} records in all do not fit num_records={self.num_records}; groups "
                "cover every record"
            )

    @property
    def shortest_epoch(self) -> int:
        return self.num_records if self.is_shuffled else sys.maxsize

    @property
    def cycle(self) -> int:
        return self.num_records

    @abstractmethod
    def permuted(self, offsets: Indices, seed: int) -> Indices:
        """The records at these offsets of the epoch of this seed. offsets: int64 (k,), ascending, at least one."""

    def records(self, positions: Indices) -> Indices:
        positions = np.asarray(positions, np.int64)
        if not positions.size:
            return positions
        first, last = int(positions[0]) // self.num_records, int(positions[-1]) // self.num_records
        records = np.empty_like(positions)
        cuts = np.searchsorted(positions, np.arange(first, last + 2) * self.num_records)
        for epoch, start, stop in zip(range(first, last + 1), cuts, cuts[1:], strict=False):
            if start < stop:
                offsets = positions[start:stop] - epoch * self.num_records
                records[start:stop] = self.permuted(offsets, self.epoch_seed(epoch))
        return records

    def epoch_seed(self, epoch: int) -> int:
        return (self.seed + epoch) % 2**32

    def in_epochs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """[start, stop) by epoch: (number, first offset, last offset)."""
        for epoch in range(start // self.num_records, -(-stop // self.num_records)):
            begin = epoch * self.num_records
            yield epoch, max(start - begin, 0), min(stop - begin, self.num_records) - 1

    def partitions_of(self, partitioning: Partitioning, records: Indices) -> Indices:
        if not partitioning.by_group:
            return partitioning.partition_of(records)
        assert self.groups is not None  # a division for each group, not for each record
        return (np.arange(len(self.groups)) % partitioning.num_partitions)[self.groups.of(records)]
