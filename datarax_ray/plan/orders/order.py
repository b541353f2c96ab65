"""An order: the pure function from a position in the endless stream to a record.

An order knows how to cut records into partitions, which partitions a chunk touches, and which positions an owner reads.
No other code asks for the kind of an order.
"""

from __future__ import annotations

import math
import operator
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.owned_positions import OwnedPositions
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.state import StatefulOrder

# Many more partitions than actors: with 1,024 the shares of 64 actors are even to 6 %, and the owners fit in a message.
# For more actors see Partitioning.refined.
MAX_NUM_PARTITIONS = 1024

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
        ...

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All parameters of the order beside the data, in plain values: part of every state."""
        ...

    @abstractmethod
    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """A partitioning that keeps every actor busy. run_records: the shortest run for one actor."""
        ...

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """The partitions with records in the chunk [start, stop), ascending, and perhaps more."""
        return range(partitioning.num_partitions)

    @abstractmethod
    def partitions_of(self, partitioning: Partitioning, records: Indices) -> Indices:
        """The partition of each record. records: int64 (k,). Returns int64 (k,)."""
        ...

    @property
    def home_nodes(self) -> tuple[frozenset[str], ...]:
        """The nodes of each home (see plan.homes) where files lie on some nodes alone; () otherwise."""
        return ()

    def amended(self, amendments: Amendments) -> Self:
        """The order of a stream with these amendments: itself for an order without weights."""
        return self

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        """The positions in [start, stop) with records in these partitions, ascending, and the records.

        None where it is cheaper to compute the order of all positions (owned_among).
        """
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
        """The record at each offset of the epoch of this seed. offsets: int64 (k,), ascending, at least one."""
        ...

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
        """The seed of the permutation of an epoch."""
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
