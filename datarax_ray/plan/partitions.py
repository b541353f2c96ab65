"""Shards and who owns them: how the records of one epoch are dealt to actors, and what one actor reads of a chunk.

The order does not depend on ownership, so an assignment may be replaced between any two chunks and the stream stays
the same: join, leave, crash and rebalance are one mechanism.

Legend: a run is `run_records` consecutive records, or a group of the order; run k belongs to shard k mod num_shards.
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
from datarax_ray.plan.orders.mixture import AnyOrder, MixtureOrder, Origin
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.orders.owned_positions import held
from datarax_ray.plan.packing import Documents
from datarax_ray.plan.trainer_rows import TrainerPositions

# Many more shards than actors: at 1,024 an actor's share of 64 is even to 6 %, and the owners still fit in a message.
MAX_NUM_SHARDS = 1024


@dataclass(frozen=True)
class Layout:
    """How records are cut into shards: record r is in shard (r // run_records) % num_shards.

    run_records: records in a run, at least 1. num_shards: at least 1. by_group: runs are the order's groups instead, so
    that each is read by one actor. components: of a mixture, the layout of each; these say where a record is then.
    """

    run_records: int
    num_shards: int
    by_group: bool = False
    components: tuple[Layout, ...] = field(default=(), repr=False)

    def shard_of(self, records: Indices) -> Indices:
        """The shard of each record, where runs are not groups. records: int64 (k,). Returns int64 (k,)."""
        return records // self.run_records % self.num_shards


# Records in a run, of one source, or of each component of a mixture.
RunRecords: TypeAlias = "int | tuple[RunRecords, ...]"


def cut(order: AnyOrder, run_records: RunRecords) -> Layout:
    """The layout that keeps every actor busy under this order.

    Under a global shuffle every chunk touches every shard, so a shard is one large run: few files to an actor. In file
    order consecutive runs of `run_records` are dealt to different shards, or one actor would work while the rest wait;
    in block order the runs are the blocks, so that one actor reads the whole of a group. Where the order has groups,
    they are the runs of both. A mixture's components are each dealt as if they were alone.

    >>> cut(Order(num_records=10_000, shuffle="global"), run_records=64)
    Layout(run_records=10, num_shards=1000, by_group=False)
    >>> cut(Order(num_records=10_000), run_records=64)
    Layout(run_records=64, num_shards=1024, by_group=False)
    """
    if isinstance(order, MixtureOrder):
        assert isinstance(run_records, tuple)
        parts = tuple(cut(each, run) for each, run in zip(order.orders, run_records, strict=True))
        return Layout(1, max(part.num_shards for part in parts), components=parts)
    assert isinstance(run_records, int)
    if order.groups is not None and order.shuffle != "global":
        return Layout(1, MAX_NUM_SHARDS, by_group=True)
    if order.shuffle == "none":
        return Layout(max(1, run_records), MAX_NUM_SHARDS)
    if order.shuffle == "block":
        return Layout(order.block_size, MAX_NUM_SHARDS)
    run = math.ceil(order.num_records / MAX_NUM_SHARDS)
    return Layout(run, math.ceil(order.num_records / run))


def smallest_run(run_records: RunRecords) -> int:
    """The fewest records in a run, of any component."""
    return run_records if isinstance(run_records, int) else min(map(smallest_run, run_records))


def assign(
    layout: Layout,
    order: AnyOrder,
    actors: Sequence[int],
    before: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
) -> tuple[int, ...]:
    """The owner of every shard, as even as can be and with the fewest moves.

    actors: ids, distinct, at least one. before: the assignment so far; () at the start. weights: how much each actor is
    to have of what is even, at least 0 and not all 0; 1.0 where it is not named.
    Returns the owner of shard s at index s. Every actor has its share, num_shards * weight / sum of weights, rounded
    down or up: with equal weights no two differ by more than one shard. A shard stays with its owner unless the owner
    is gone or has more than its share.

    >>> assign(Layout(1, 5), Order(5, shuffle="global"), actors=[0, 1])
    (0, 0, 0, 1, 1)
    >>> assign(Layout(1, 5), Order(5, shuffle="global"), actors=[0, 1, 2], before=(0, 0, 0, 1, 1))
    (0, 0, 2, 1, 1)
    >>> assign(Layout(1, 6), Order(6, shuffle="global"), [0, 1], before=(0, 0, 0, 1, 1, 1), weights={1: 0.5})
    (0, 0, 0, 1, 1, 0)
    """
    if not actors:
        raise ValueError("shards need at least one actor to own them")
    n = layout.num_shards
    is_dealt = order.shuffle != "global"  # consecutive shards lie with different owners, and must when they move too
    if not before:
        even = (s % len(actors) if is_dealt else s * len(actors) // n for s in range(n))
        before = tuple(actors[index] for index in even)
        if weights is None:
            return tuple(before)
    held = {a: [s for s, owner in enumerate(before) if owner == a] for a in actors}
    quota = _quotas(n, actors, {a: len(shards) for a, shards in held.items()}, weights or {})
    owners: list[int | None] = [None] * n
    for actor, shards in held.items():
        for s in _kept(shards, quota[actor], is_dealt):
            owners[s] = actor
    missing = {a: quota[a] - min(quota[a], len(held[a])) for a in actors}
    places = [(j / missing[a] if is_dealt else 0.0, i, a) for i, a in enumerate(actors) for j in range(missing[a])]
    needy = iter([a for *_, a in sorted(places)])
    return tuple(next(needy) if owner is None else owner for owner in owners)


def _quotas(n: int, actors: Sequence[int], held: Mapping[int, int], weights: Mapping[int, float]) -> dict[int, int]:
    """Shards for each actor: n * weight / sum, rounded down, and one more for those with the largest remainders.

    Among equal remainders those that hold most, so that no shard moves only to even them out.
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


def _kept(shards: list[int], quota: int, is_dealt: bool) -> list[int]:
    """The shards that stay: the first ones, or spread evenly over all, so that what moves is no run of neighbours."""
    count = len(shards)
    if count <= quota or not is_dealt:
        return shards[:quota]
    return [s for i, s in enumerate(shards) if (i + 1) * quota // count > i * quota // count]


@dataclass(frozen=True)
class Ticket:
    """What one actor is asked to read: its part of one chunk. A pure function, so it may be sent again anywhere.

    start, stop: the chunk, positions [start, stop). shards: the shards to read of it, None for all.
    rows: restricts it to one trainer's rows of each batch, None for all. documents: what to make of the elements where
    they are to be packed. origin: where the weights of a mixture begin to hold, None for the beginning. only: of these
    the positions to read, ascending; None for all.
    """

    start: int
    stop: int
    layout: Layout | None = None
    shards: tuple[int, ...] | None = None
    rows: TrainerPositions | None = None
    documents: Documents | None = None
    origin: Origin | None = None
    only: tuple[int, ...] | None = None

    @property
    def asked(self) -> Hashable:
        """What decides the block: equal for tickets that ask for the same."""
        return self

    def select(self, order: AnyOrder) -> tuple[Indices, Indices]:
        """The positions to read, ascending, and the record at each: two int64 arrays of one length."""
        positions, records = self._select(order)
        if self.only is None:
            return positions, records
        wanted = np.isin(positions, np.array(self.only, np.int64))
        return positions[wanted], records[wanted]

    def _select(self, order: AnyOrder) -> tuple[Indices, Indices]:
        if isinstance(order, Order) and self.layout is not None and self.shards is not None:
            found = held(order, self.layout, self.shards, self.start, self.stop)
            if found is not None:
                kept = slice(None) if self.rows is None else self.rows.contain(found[0])
                return found[0][kept], found[1][kept]
        positions = np.arange(self.start, self.stop, dtype=np.int64)
        if self.rows is not None:
            positions = positions[self.rows.contain(positions)]
        records = order.records(positions)
        if self.layout is None or self.shards is None:
            return positions, records
        owned: NDArray[np.bool_] = np.zeros(self.layout.num_shards, bool)
        owned[list(self.shards)] = True
        mine = _owned(order, self.layout, owned, records)
        return positions[mine], records[mine]


def _owned(order: AnyOrder, layout: Layout, owned: NDArray[np.bool_], records: Indices) -> NDArray[np.bool_]:
    """Which of the records are in the shards that are owned."""
    if isinstance(order, MixtureOrder):
        mine = np.empty(len(records), bool)
        component = np.searchsorted(order.bases, records, "right") - 1
        for index in np.unique(component).tolist():
            its = component == index
            local = records[its] - order.bases[index]
            mine[its] = _owned(order.orders[index], layout.components[index], owned, local)
        return mine
    if layout.by_group and order.groups is not None:  # a division for each group, not for each record
        return owned[np.arange(len(order.groups)) % layout.num_shards][order.groups.of(records)]
    return owned[layout.shard_of(records)]


def owners_in(
    order: AnyOrder, layout: Layout, owners: Sequence[int], start: int, stop: int
) -> dict[int, tuple[int, ...]]:
    """Who has records in the chunk [start, stop), and which of their shards to read: {actor: shards}.

    Under a global shuffle that is everyone, without computing the order; in file order only the runs that it crosses,
    in block order of groups those of its windows.

    >>> file_order = Order(num_records=10)
    >>> owners_in(file_order, Layout(run_records=4, num_shards=3), owners=(7, 8, 9), start=2, stop=6)
    {7: (0,), 8: (1,)}
    """
    if isinstance(order, MixtureOrder):
        return _by_owner(tuple(range(layout.num_shards)), tuple(owners))
    if layout.by_group and order.groups is not None:
        return _by_owner(tuple(np.unique(order.groups_in(start, stop) % layout.num_shards).tolist()), tuple(owners))
    if order.shuffle == "none":
        shards = np.unique(layout.shard_of(order.records(_one_in_each_run(order, layout, start, stop)))).tolist()
        return _by_owner(tuple(shards), tuple(owners))
    return _by_owner(tuple(range(layout.num_shards)), tuple(owners))


@functools.lru_cache(maxsize=8)  # the same for every chunk of a shuffled stream, and 0.5 ms for 1,024 shards
def _by_owner(shards: tuple[int, ...], owners: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    parts: dict[int, list[int]] = {}
    for shard in shards:
        parts.setdefault(owners[shard], []).append(shard)
    return {actor: tuple(owned) for actor, owned in parts.items()}


def _one_in_each_run(order: Order, layout: Layout, start: int, stop: int) -> Indices:
    """Positions of [start, stop), at least one in every run of the file order that it crosses.

    A step of run_records meets every whole run; the first and last record of an epoch meet the cut ones.
    """
    n = order.num_records
    epoch_starts = np.arange(-(-start // n) * n, stop, n, dtype=np.int64)
    steps = np.arange(start, stop, layout.run_records, dtype=np.int64)
    return np.concatenate([steps, epoch_starts, epoch_starts[epoch_starts > start] - 1, [stop - 1]])
