"""Mixtures: the pure function from a position to a component and a position in it, in closed form.

The components are the leaves of a binary tree. At every node two sides take turns as evenly as whole numbers can: of
the first m positions, floor((m * a + phase) / w) go left, where a / w is the share of the left side. Light components
lie deep (Huffman's tree), so a position costs about log k divisions for k components, and the errors of the nodes above
a component fade before they reach the component.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.amendments import Amendments, changes_of
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import MAX_SHARE, Order, Partitioning, RunRecords
from datarax_ray.plan.weights import Weights, num_weights, pieces_of, plain_weights

# A component is ahead of its share, or behind it, by fewer records than this. A node adds less than 1 to its part of an
# error from above; in Huffman's tree a side weighs at most half of the node two above, so the sum is below
# 2 * (1 + 1/2 + 1/4 + ...). The largest error seen, over random weights, is 2.1.
MAX_DEVIATION = 4


@dataclass(frozen=True)
class _Stretch:
    """Constant weights from the position `begin` on. before: the number of earlier records of each component."""

    weights: tuple[int, ...]
    seed: int
    begin: int
    before: tuple[int, ...]

    def place(self, positions: Indices) -> tuple[Indices, Indices]:
        components, own = np.empty_like(positions), np.empty_like(positions)
        for leaf, where, counts in _descend(_tree(self.weights, self.seed), positions - self.begin):
            components[where] = leaf
            own[where] = counts + self.before[leaf]
        return components, own

    def counts(self, position: int) -> tuple[int, ...]:
        found = dict(_counts(_tree(self.weights, self.seed), position - self.begin))
        return tuple(count + found.get(c, 0) for c, count in enumerate(self.before))

    def position_of(self, component: int, own: Any) -> Any:
        index = own - self.before[component]
        for node, is_left in reversed(_path(_tree(self.weights, self.seed), component)):
            epochs, below = divmod(index, node.weight if is_left else node.total - node.weight)
            if is_left:  # the smallest m with floor(((m + 1) * a + phase) / w) > below
                index = epochs * node.total - (node.phase - (below + 1) * node.total) // node.weight - 1
            else:  # the smallest m with m + 1 - floor(((m + 1) * a + phase) / w) > below
                index = epochs * node.total + (below * node.total + node.phase) // (node.total - node.weight)
        return index + self.begin


@dataclass(frozen=True)
class Mixture:
    """The component at each position, and the component's own position.

    weights: whole numbers without a common divisor, some may be 0, or a schedule of such; their sum is W.
    seed: sets the phase of every node.
    changes: (position, weights) of each amendment of weights; of two changes the later one holds.

    While weights stay the same, component c has weights[c] / W of the positions, to less than 4 records (less than 1 of
    two components), and weights[c] of every W positions. Each component's positions come in order, also across changes.

    >>> Mixture((3, 1), seed=1).place(np.arange(8))[0].tolist()
    [1, 0, 0, 0, 1, 0, 0, 0]
    >>> Mixture((3, 1), seed=1, changes=((4, (0, 1)),)).place(np.arange(6))[0].tolist()
    [1, 0, 0, 0, 1, 1]
    """

    weights: Weights
    seed: int
    changes: tuple[tuple[int, Weights], ...] = ()

    @property
    def stretches(self) -> tuple[_Stretch, ...]:
        """Stretches of constant weights, ascending, the first from position 0 on."""
        return _stretches(self.weights, self.seed, self.changes)

    def stretches_from(self, position: int) -> Iterator[_Stretch]:
        """The stretch with this position, and those behind it."""
        last = max(index for index, each in enumerate(self.stretches) if each.begin <= position)
        return iter(self.stretches[last:])

    def place(self, positions: Indices) -> tuple[Indices, Indices]:
        """The component at each position and its own position: two int64 arrays (k,). positions: int64 (k,)."""
        positions, stretches = np.asarray(positions, np.int64), self.stretches
        if len(stretches) == 1:
            return stretches[0].place(positions)
        components, own = np.empty_like(positions), np.empty_like(positions)
        numbers = np.searchsorted([each.begin for each in stretches[1:]], positions, "right")
        for number in np.unique(numbers).tolist():
            its = numbers == number
            components[its], own[its] = stretches[number].place(positions[its])
        return components, own

    def counts(self, position: int) -> tuple[int, ...]:
        """The number of records of each component before this position."""
        return next(each for each in reversed(self.stretches) if each.begin <= position).counts(position)

    def position_of(self, component: int, own: Indices) -> Indices:
        """The positions of a component's own positions, int64 (k,); inverse of place."""
        stretches = self.stretches
        if len(stretches) == 1:
            return stretches[0].position_of(component, own)
        # of several that begin at one of them the last has the record
        numbers = np.searchsorted([each.before[component] for each in stretches[1:]], own, "right")
        found = np.empty_like(own)
        for number in np.unique(numbers).tolist():
            its = numbers == number
            found[its] = stretches[number].position_of(component, own[its])
        return found

    def end_of(self, component: int, own: int) -> int | None:
        """The position of one own position of a component; None where it never comes."""
        stretch = next(each for each in reversed(self.stretches) if each.begin == 0 or each.before[component] <= own)
        return int(stretch.position_of(component, own)) if stretch.weights[component] else None


@functools.lru_cache(maxsize=64)  # every request asks
def _stretches(weights: Weights, seed: int, changes: tuple[tuple[int, Weights], ...]) -> tuple[_Stretch, ...]:
    found: list[_Stretch] = []
    for position, new in ((0, weights), *changes):
        for start, each in pieces_of(new):
            begin = position + start
            before = next(kept for kept in reversed(found) if kept.begin <= begin).counts(begin) if found else None
            found = [kept for kept in found if kept.begin < begin]
            found.append(_Stretch(each, seed, begin, before or (0,) * len(each)))
    return tuple(found)


class WeightedOrder:
    """The common part of orders by weights."""

    mixture: Mixture

    @property
    def num_components(self) -> int:
        return num_weights(self.mixture.weights)

    def settings(self) -> dict[str, Any]:
        return {"weights": plain_weights(self.mixture.weights), "seed": self.mixture.seed}

    def amended(self, amendments: Amendments) -> Self:
        if not (changes := changes_of(amendments)):
            return self
        return replace(self, mixture=replace(self.mixture, changes=changes))  # type: ignore[type-var]

    def check(self, amendments: Amendments) -> None:
        for _, weights in changes_of(amendments):
            if num_weights(weights) != self.num_components:
                raise ValueError(
                    f"the mixture has {self.num_components} sources, and {num_weights(weights)} weights were given: "
                    f"{plain_weights(weights)}; give one for each"
                )


@dataclass(frozen=True)
class MixtureOrder(WeightedOrder, Order):
    """The record at each position of a mixture.

    orders: of the components. Records are numbered through all components, those of component c from bases[c] on.
    """

    mixture: Mixture
    orders: tuple[Order, ...]
    num_records: int = field(init=False)
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_records", int(self.bases[-1]))
        object.__setattr__(self, "seed", self.mixture.seed)

    @functools.cached_property
    def bases(self) -> Indices:
        """The number of each component's first record, and after the last component the end: int64 (k + 1,)."""
        return np.cumsum([0, *(order.num_records for order in self.orders)], dtype=np.int64)

    @property
    def shortest_epoch(self) -> int:
        """Positions between two permutations of the component that repeats most often."""
        return min(
            order.shortest_epoch * total // weight
            for part in self.mixture.stretches
            for order, weight, total in self._weighted(part)
        )

    @property
    def cycle(self) -> int:
        """Under the last weights, any run of this many positions holds a whole epoch of every component."""
        return max(
            math.ceil((2 * order.cycle + 2 * MAX_DEVIATION) * total / weight)
            for order, weight, total in self._weighted(self.mixture.stretches[-1])
        )

    def _weighted(self, part: _Stretch) -> list[tuple[Order, int, int]]:
        return [(order, w, sum(part.weights)) for order, w in zip(self.orders, part.weights, strict=True) if w]

    def records(self, positions: Indices) -> Indices:
        components, own = self.mixture.place(positions)
        records = np.empty_like(own)
        for component, (order, base) in enumerate(zip(self.orders, self.bases, strict=False)):
            mine = components == component
            records[mine] = order.records(own[mine]) + base
        return records

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """Each component is cut as if it were alone."""
        assert isinstance(run_records, tuple)
        parts = tuple(order.partitioning(run) for order, run in zip(self.orders, run_records, strict=True))
        is_dealt = any(part.is_dealt for part in parts)
        return Partitioning(1, max(part.num_partitions for part in parts), is_dealt=is_dealt, components=parts)

    def partitions_of(self, partitioning: Partitioning, records: Indices) -> Indices:
        found = np.empty_like(records)
        components = np.searchsorted(self.bases, records, "right") - 1
        for index in np.unique(components).tolist():
            its = components == index
            local = records[its] - self.bases[index]
            found[its] = self.orders[index].partitions_of(partitioning.components[index], local)
        return found

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        mixture = self.mixture
        if partitioning.share_of(partitions) > MAX_SHARE:
            return None
        positions, records = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        parts = zip(self.orders, partitioning.components, mixture.counts(start), mixture.counts(stop), strict=True)
        for index, (order, part, first, last) in enumerate(parts):
            its = tuple(partition for partition in partitions if partition < part.num_partitions)
            if first == last or not its:
                continue
            found = order.owned_positions(part, its, first, last)
            own, its_records = found or order.owned_among(part, its, np.arange(first, last))
            positions.append(mixture.position_of(index, own))
            records.append(its_records + self.bases[index])
        ascending = np.argsort(joined := np.concatenate(positions))
        return joined[ascending], np.concatenate(records)[ascending]


@dataclass(frozen=True)
class _Node:
    """Two sides that take turns: `weight` of `total` go left. A side is a component or another node."""

    left: _Node | int
    right: _Node | int
    weight: int
    total: int
    phase: int


@functools.lru_cache(maxsize=1024)  # a schedule has many
def _tree(weights: tuple[int, ...], seed: int) -> _Node | int:
    """Huffman's tree over the components with a weight."""
    heap: list[tuple[int, int, Any]] = [(weight, c, c) for c, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    number = len(weights)  # ties go to what was there first
    while len(heap) > 1:
        (a, _, left), (b, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        phase = int.from_bytes(hashlib.sha256(f"mixture/{seed}/{number}".encode()).digest()[:8], "big") % (a + b)
        heapq.heappush(heap, (a + b, number, _Node(left, right, a, a + b, phase)))
        number += 1
    return heap[0][2]


def _descend(node: _Node | int, index: Indices) -> list[tuple[int, Indices, Indices]]:
    """[(component, indices of its positions, its count at each)]. index: positions before each."""
    out: list[tuple[int, Indices, Indices]] = []
    todo: list[tuple[_Node | int, Indices, Indices]] = [(node, np.arange(len(index)), index)]
    while todo:
        node, where, index = todo.pop()
        if isinstance(node, int):
            out.append((node, where, index))
            continue
        epochs, rest = np.divmod(index, node.total)
        turns = rest * node.weight + node.phase
        lefts = epochs * node.weight + turns // node.total
        is_left = turns % node.total >= node.total - node.weight
        todo.append((node.left, where[is_left], lefts[is_left]))
        todo.append((node.right, where[~is_left], (index - lefts)[~is_left]))
    return out


def _counts(node: _Node | int, index: int) -> list[tuple[int, int]]:
    """[(component, number of its positions among the first `index`)]."""
    if isinstance(node, int):
        return [(node, index)]
    lefts = (index * node.weight + node.phase) // node.total
    return _counts(node.left, lefts) + _counts(node.right, index - lefts)


def _path(node: _Node | int, component: int) -> list[tuple[_Node, bool]]:
    """(node, whether the component is on its left) from the root to a component; [] where there is no path."""
    if isinstance(node, int):
        return []
    for side, is_left in ((node.left, True), (node.right, False)):
        if side == component or (below := _path(side, component)):
            return [(node, is_left), *([] if side == component else below)]
    return []


# A component may take days for a pass: if so many records in a row gave nothing, a person is told.
_EARLY = 10_000
# Constant weights repeat the order of components after the sum of the weights: to look it up takes a tenth of `place`.
_MAX_TABLE = 2**16


@dataclass(frozen=True)
class ComponentShare:
    """The positions that its weight gives a component, and the elements there, behind filters and broken records.

    With weights_by, the part of all sizes that its weight asks for, and the sizes of its elements.
    """

    num_positions: int = 0
    num_elements: int = 0

    def __add__(self, other: ComponentShare) -> ComponentShare:
        return ComponentShare(self.num_positions + other.num_positions, self.num_elements + other.num_elements)


class Proportions:
    """Counts the elements of each component from a position on, and finds components that give none.

    pass_sizes: the records in one pass of each component. droppers: what may drop them, for people.
    is_exact: each position gives one element, so nothing needs to be counted.
    is_strict: a component that gives nothing in a whole pass is an error.
    counted: what is counted, for people.
    """

    def __init__(
        self,
        mixture: Mixture,
        start: int,
        pass_sizes: Sequence[int],
        droppers: Sequence[Sequence[str]],
        *,
        is_exact: bool,
        is_strict: bool,
        counted: str = "elements",
    ) -> None:
        self.is_exact, self.counted = is_exact, counted
        self._mixture, self._stop = mixture, start
        self._before = mixture.counts(start)
        self._pass_sizes, self._droppers, self._is_strict = pass_sizes, droppers, is_strict
        self._elements = np.zeros(len(self._before), np.int64)
        self._told: set[int] = set()
        self._sizes: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None  # by weight, and given
        size = sum(mixture.stretches[0].weights) if len(mixture.stretches) == 1 else 0
        self._table = mixture.place(np.arange(size))[0] if not is_exact and 0 < size <= _MAX_TABLE else None

    def add(self, stop: int, positions: Iterable[Indices]) -> None:
        """Event: the elements before `stop` are known, the new ones at these positions, int64 (k,) each."""
        self._stop = max(self._stop, stop)
        for each in positions:
            table = self._table
            components = self._mixture.place(each)[0] if table is None else table[each % len(table)]
            self._elements += np.bincount(components, minlength=len(self._elements))

    def give(self, weights: Sequence[int], sizes: Sequence[int]) -> None:
        """Event: the components gave elements of these sizes, by these weights, which count from now on."""
        wanted, given = self._sizes or (np.zeros(len(sizes)), np.zeros(len(sizes), np.int64))
        self._sizes = wanted + sum(sizes) * np.asarray(weights) / sum(weights), given + sizes

    def shares(self) -> tuple[ComponentShare, ...]:
        """The counts so far, of each component."""
        if self._sizes is not None:
            wanted, given = self._sizes
            return tuple(map(ComponentShare, np.rint(wanted).astype(np.int64).tolist(), given.tolist()))
        due = self._due(self._stop)
        return tuple(map(ComponentShare, due, due if self.is_exact else self._elements.tolist()))

    def empty(self, stop: int) -> Iterator[str]:
        """A line, once, for each component without an element. Raises: RuntimeError for a whole pass, if strict."""
        if self.is_exact or self._elements.all():
            return
        for index, due in enumerate(self._due(stop)):
            if self._elements[index] or due < min(_EARLY, size := self._pass_sizes[index]):
                continue
            whole = f", a whole pass of its {size:,} records" if due >= size else ""
            said = (
                f"component {index} of the mixture gave no element at {due:,} positions{whole}: "
                f"{', or '.join([*self._droppers[index], 'all of it was amended away'])}"
            )
            if self._is_strict and whole:
                raise RuntimeError(f"{said}. MixtureSource(strict=False) goes on without it")
            if index not in self._told:
                self._told.add(index)
                yield f"{said}. The others go on without it; MixtureSource(strict=True) makes a whole pass an error"

    def _due(self, stop: int) -> list[int]:
        return [now - before for now, before in zip(self._mixture.counts(stop), self._before, strict=True)]
