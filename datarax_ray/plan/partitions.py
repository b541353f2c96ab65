"""Partitions and who owns them: how the records of one epoch are dealt to actors, and what one actor reads of a chunk.

The order does not depend on ownership, so an assignment may be replaced between any two chunks and the stream stays
the same: join, leave, crash and rebalance are one mechanism.

Legend: a run is `run_records` consecutive records, or a group of the order; run k belongs to partition k mod
num_partitions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.mixture import AnyOrder, MixtureOrder, WeightsStart
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.orders.owned_positions import owned_positions
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.trainer_rows import TrainerPositions

# Many more partitions than actors: at 1,024 an actor's share of 64 is even to 6 %, and the owners still fit in a
# message.
MAX_NUM_PARTITIONS = 1024


@dataclass(frozen=True)
class Partitioning:
    """How records are cut into partitions: record r is in partition (r // run_records) % num_partitions.

    run_records: records in a run, at least 1. num_partitions: at least 1. by_group: runs are the order's groups
    instead, so that each is read by one actor. components: of a mixture, the partitioning of each; these say where a
    record is then.
    """

    run_records: int
    num_partitions: int
    by_group: bool = False
    components: tuple[Partitioning, ...] = field(default=(), repr=False)

    def partition_of(self, records: Indices) -> Indices:
        """The partition of each record, where runs are not groups. records: int64 (k,). Returns int64 (k,)."""
        return records // self.run_records % self.num_partitions


# Records in a run, of one source, or of each component of a mixture.
RunRecords: TypeAlias = "int | tuple[RunRecords, ...]"


def cut(order: AnyOrder, run_records: RunRecords) -> Partitioning:
    """The partitioning that keeps every actor busy under this order.

    Under a global shuffle every chunk touches every partition, so a partition is one large run: few files to an actor.
    In file order consecutive runs of `run_records` are dealt to different partitions, or one actor would work while the
    rest wait; in block order the runs are the blocks, so that one actor reads the whole of a group. Where the order has
    groups, they are the runs of both. A mixture's components are each dealt as if they were alone.

    >>> cut(Order(num_records=10_000, shuffle="global"), run_records=64)
    Partitioning(run_records=10, num_partitions=1000, by_group=False)
    >>> cut(Order(num_records=10_000), run_records=64)
    Partitioning(run_records=64, num_partitions=1024, by_group=False)
    """
    if isinstance(order, MixtureOrder):
        assert isinstance(run_records, tuple)
        parts = tuple(cut(each, run) for each, run in zip(order.orders, run_records, strict=True))
        return Partitioning(1, max(part.num_partitions for part in parts), components=parts)
    assert isinstance(run_records, int)
    if order.groups is not None and order.shuffle != "global":
        return Partitioning(1, MAX_NUM_PARTITIONS, by_group=True)
    if order.shuffle == "none":
        return Partitioning(max(1, run_records), MAX_NUM_PARTITIONS)
    if order.shuffle == "block":
        return Partitioning(order.block_size, MAX_NUM_PARTITIONS)
    run = math.ceil(order.num_records / MAX_NUM_PARTITIONS)
    return Partitioning(run, math.ceil(order.num_records / run))


def smallest_run(run_records: RunRecords) -> int:
    """The fewest records in a run, of any component."""
    return run_records if isinstance(run_records, int) else min(map(smallest_run, run_records))


def assign(
    partitioning: Partitioning,
    order: AnyOrder,
    actors: Sequence[int],
    before: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
) -> tuple[int, ...]:
    """The owner of every partition, as even as can be and with the fewest moves.

    actors: ids, distinct, at least one. before: the assignment so far; () at the start. weights: how much each actor is
    to have of what is even, at least 0 and not all 0; 1.0 where it is not named. Returns the owner of partition s at
    index s. Every actor has its share, num_partitions * weight / sum of weights, rounded down or up: with equal weights
    no two differ by more than one partition. A partition stays with its owner unless the owner is gone or has more than
    its share.

    >>> assign(Partitioning(1, 5), Order(5, shuffle="global"), actors=[0, 1])
    (0, 0, 0, 1, 1)
    >>> assign(Partitioning(1, 5), Order(5, shuffle="global"), actors=[0, 1, 2], before=(0, 0, 0, 1, 1))
    (0, 0, 2, 1, 1)
    >>> assign(Partitioning(1, 6), Order(6, shuffle="global"), [0, 1], before=(0, 0, 0, 1, 1, 1), weights={1: 0.5})
    (0, 0, 0, 1, 1, 0)
    """
    if not actors:
        raise ValueError("partitions need at least one actor to own them")
    n = partitioning.num_partitions
    is_dealt = order.shuffle != "global"  # neighbours lie with different owners, also when they move
    if not before:
        even = (s % len(actors) if is_dealt else s * len(actors) // n for s in range(n))
        before = tuple(actors[index] for index in even)
        if weights is None:
            return tuple(before)
    held = {a: [s for s, owner in enumerate(before) if owner == a] for a in actors}
    quota = _quotas(n, actors, {a: len(partitions) for a, partitions in held.items()}, weights or {})
    owners: list[int | None] = [None] * n
    for actor, partitions in held.items():
        for s in _kept(partitions, quota[actor], is_dealt):
            owners[s] = actor
    missing = {a: quota[a] - min(quota[a], len(held[a])) for a in actors}
    places = [(j / missing[a] if is_dealt else 0.0, i, a) for i, a in enumerate(actors) for j in range(missing[a])]
    needy = iter([a for *_, a in sorted(places)])
    return tuple(next(needy) if owner is None else owner for owner in owners)


def _quotas(n: int, actors: Sequence[int], held: Mapping[int, int], weights: Mapping[int, float]) -> dict[int, int]:
    """Partitions for each actor: n * weight / sum, rounded down, and one more for those with the largest remainders.

    Among equal remainders those that hold most, so that no partition moves only to even them out.
    """
    weight = {a: float(weights.get(a, 1.0)) for a in actors}
    total = sum(weight.values())
    if min(weight.values()) < 0 or not total > 0:
        raise ValueError(f"weights must be at least 0 and not all 0, got {weight}")
    exact = {a: n * weight[a] / total for a in actors}
    quota = {a: math.floor(exact[a]) for a in actors}
    by_need = sorted(actors, key=lambda a: (-round(exact[a] - quota[a], 9), -held[a]))
    for a in by_need[: n - sum(quota.values())]:
        quota[a] += 1
    return quota


def _kept(partitions: list[int], quota: int, is_dealt: bool) -> list[int]:
    """The partitions that stay: the first, or spread evenly over all, so that what moves is no run of neighbours."""
    count = len(partitions)
    if count <= quota or not is_dealt:
        return partitions[:quota]
    return [s for i, s in enumerate(partitions) if (i + 1) * quota // count > i * quota // count]


@dataclass(frozen=True)
class ReadRequest:
    """What one actor is asked to read: its part of one chunk. A pure function, so it may be sent again anywhere.

    start, stop: the chunk, positions [start, stop). partitions: the partitions to read of it, None for all.
    rows: restricts it to one trainer's rows of each batch, None for all. documents: what to make of the elements where
    they are to be packed. origin: where the weights of a mixture begin to hold, None for the beginning. only: of these
    the positions to read, ascending; None for all.
    """

    start: int
    stop: int
    partitioning: Partitioning | None = None
    partitions: tuple[int, ...] | None = None
    rows: TrainerPositions | None = None
    documents: DocumentSpec | None = None
    origin: WeightsStart | None = None
    only: tuple[int, ...] | None = None

    @property
    def asked(self) -> Hashable:
        """What decides the block: equal for requests that ask for the same."""
        return self

    def select(self, order: AnyOrder) -> tuple[Indices, Indices]:
        """The positions to read, ascending, and the record at each: two int64 arrays of one length."""
        positions, records = self._select(order)
        if self.only is None:
            return positions, records
        wanted = np.isin(positions, np.array(self.only, np.int64))
        return positions[wanted], records[wanted]

    def _select(self, order: AnyOrder) -> tuple[Indices, Indices]:
        if isinstance(order, Order) and self.partitioning is not None and self.partitions is not None:
            found = owned_positions(order, self.partitioning, self.partitions, self.start, self.stop)
            if found is not None:
                kept = slice(None) if self.rows is None else self.rows.contain(found[0])
                return found[0][kept], found[1][kept]
        positions = np.arange(self.start, self.stop, dtype=np.int64)
        if self.rows is not None:
            positions = positions[self.rows.contain(positions)]
        records = order.records(positions)
        if self.partitioning is None or self.partitions is None:
            return positions, records
        owned: NDArray[np.bool_] = np.zeros(self.partitioning.num_partitions, bool)
        owned[list(self.partitions)] = True
        mine = _owned(order, self.partitioning, owned, records)
        return positions[mine], records[mine]


def _owned(
    order: AnyOrder, partitioning: Partitioning, owned: NDArray[np.bool_], records: Indices
) -> NDArray[np.bool_]:
    """Which of the records are in the partitions that are owned."""
    if isinstance(order, MixtureOrder):
        mine = np.empty(len(records), bool)
        component = np.searchsorted(order.bases, records, "right") - 1
        for index in np.unique(component).tolist():
            its = component == index
            local = records[its] - order.bases[index]
            mine[its] = _owned(order.orders[index], partitioning.components[index], owned, local)
        return mine
    if partitioning.by_group and order.groups is not None:  # a division for each group, not for each record
        return owned[np.arange(len(order.groups)) % partitioning.num_partitions][order.groups.of(records)]
    return owned[partitioning.partition_of(records)]


def owners_in(
    order: AnyOrder, partitioning: Partitioning, owners: Sequence[int], start: int, stop: int
) -> dict[int, tuple[int, ...]]:
    """Who has records in the chunk [start, stop), and which of their partitions to read: {actor: partitions}.

    Under a global shuffle that is everyone, without computing the order; in file order only the runs that it crosses,
    in block order of groups those of its windows.

    >>> file_order = Order(num_records=10)
    >>> owners_in(file_order, Partitioning(run_records=4, num_partitions=3), owners=(7, 8, 9), start=2, stop=6)
    {7: (0,), 8: (1,)}
    """
    if isinstance(order, MixtureOrder):
        return _by_owner(tuple(range(partitioning.num_partitions)), tuple(owners))
    if partitioning.by_group and order.groups is not None:
        return _by_owner(
            tuple(np.unique(order.groups_in(start, stop) % partitioning.num_partitions).tolist()), tuple(owners)
        )
    if order.shuffle == "none":
        partitions = np.unique(
            partitioning.partition_of(order.records(_one_in_each_run(order, partitioning, start, stop)))
        ).tolist()
        return _by_owner(tuple(partitions), tuple(owners))
    return _by_owner(tuple(range(partitioning.num_partitions)), tuple(owners))


@functools.lru_cache(maxsize=8)  # the same for every chunk of a shuffled stream, and 0.5 ms for 1,024 partitions
def _by_owner(partitions: tuple[int, ...], owners: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    parts: dict[int, list[int]] = {}
    for partition in partitions:
        parts.setdefault(owners[partition], []).append(partition)
    return {actor: tuple(owned) for actor, owned in parts.items()}


def _one_in_each_run(order: Order, partitioning: Partitioning, start: int, stop: int) -> Indices:
    """Positions of [start, stop), at least one in every run of the file order that it crosses.

    A step of run_records meets every whole run; the first and last record of an epoch meet the cut ones.
    """
    n = order.num_records
    epoch_starts = np.arange(-(-start // n) * n, stop, n, dtype=np.int64)
    steps = np.arange(start, stop, partitioning.run_records, dtype=np.int64)
    return np.concatenate([steps, epoch_starts, epoch_starts[epoch_starts > start] - 1, [stop - 1]])
