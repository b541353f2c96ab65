"""Mixtures: the pure function from a position to a component and a position in it, in closed form.

The components are the leaves of a binary tree; at each node two sides take turns as evenly as whole numbers can:
of the first m that come by, floor((m * a + phase) / w) go left, a of w being the left side's share. Light components
lie deep (Huffman's tree), so that for k components a position costs about log k divisions, and the errors of the nodes
above a component fade before they reach it.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from datarax_ray.plan.amendments import Amendments, changes_of
from datarax_ray.plan.fingerprint import shown
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import Order, Partitioning, RunRecords
from datarax_ray.plan.orders.owned_positions import MAX_SHARE
from datarax_ray.plan.position import is_count
from datarax_ray.plan.state import StreamState, refuse_rest
from datarax_ray.plan.weights import Weights, WeightSchedule, num_weights, pieces_of, plain_weights, weights_of

# By less than this many records a component is ahead of its share, or behind it. A node adds less than 1 to the error
# that comes from above, of which a side takes its share; in Huffman's tree a side weighs at most half of what is two
# nodes up, so the sum is below 2 * (1 + 1/2 + 1/4 + ...). The largest seen, over random weights, is 2.1.
MAX_DEVIATION = 4


@dataclass(frozen=True)
class WeightsStart:
    """Where weights begin to hold: position, and the position of each component there.

    inside: the component of position - 1, where part of its record is still to be delivered; else None.
    """

    position: int
    components: tuple[int, ...]
    inside: int | None = None

    def plain(self) -> dict[str, Any]:
        """As plain values, for a state."""
        return {"origin": {"position": self.position, "components": list(self.components), "inside": self.inside}}

    def at(self, position: int) -> WeightsStart | None:
        """Itself; None at 0, where a stream begins again by the weights that it has now. See Extra."""
        first = self.position - (self.inside is not None)
        if 0 < position < first:
            raise ValueError(
                f"position {position} is before {first}, where these weights begin to hold; seek(0) begins again with "
                "these, and a state from before they were changed goes on with the old ones"
            )
        return self if position else None

    @property
    def whole(self) -> WeightsStart:
        """Itself. See Extra."""
        return self


@dataclass(frozen=True)
class Mixture:
    """Which component stands at each position, and which of its own positions.

    weights: whole numbers without a common divisor, some may be 0; W is their sum. seed: sets the phase of every node.
    origin: where these weights begin to hold, None for the beginning of the stream.

    Of the first n positions after the origin, component c has n * weights[c] / W, to less than 4 records (to less than
    1 with two components), and of every W exactly weights[c]. Each component's own positions come in order, all.

    >>> Mixture((3, 1), seed=1).place(np.arange(8))[0].tolist()
    [1, 0, 0, 0, 1, 0, 0, 0]
    """

    weights: tuple[int, ...]
    seed: int
    origin: WeightsStart | None = None

    def place(self, positions: Indices) -> tuple[Indices, Indices]:
        """The component at each position and its own position: two int64 arrays (k,). positions: int64 (k,).

        Raises: ValueError for a position before the origin.
        """
        positions = np.asarray(positions, np.int64)
        components, own = np.empty_like(positions), np.empty_like(positions)
        index = positions - self.begin
        is_before = index < 0
        if is_before.any():
            self._place_before(positions, is_before, components, own)
        for leaf, where, counts in _descend(_tree(self.weights, self.seed), np.flatnonzero(~is_before), index):
            components[where] = leaf
            own[where] = counts if self.origin is None else counts + self.origin.components[leaf]
        return components, own

    def _place_before(self, positions: Indices, where: Any, components: Indices, own: Indices) -> None:
        start = self._start
        if start.inside is None or (positions[where] != start.position - 1).any():
            raise ValueError(
                f"position {positions[where].min()} is before {start.position}, where these weights begin to hold; "
                "restore a state from before they were changed, with the old weights"
            )
        components[where], own[where] = start.inside, start.components[start.inside] - 1

    def counts(self, position: int) -> tuple[int, ...]:
        """The position of each component at this one: how many of its records stand before it."""
        start, base = self._start, self._start.components
        if start.inside is not None and position < start.position:  # before that record
            base = tuple(count - (c == start.inside) for c, count in enumerate(base))
        found = dict(_counts(_tree(self.weights, self.seed), max(0, position - start.position)))
        return tuple(count + found.get(c, 0) for c, count in enumerate(base))

    def position_of(self, component: int, own: Any) -> Any:
        """Where a component's own position stands, from the origin on; inverse of place. own: an int, or int64 (k,)."""
        index = own - self._start.components[component]
        for node, is_left in reversed(_path(_tree(self.weights, self.seed), component)):
            epochs, below = divmod(index, node.weight if is_left else node.total - node.weight)
            if is_left:  # the smallest m with floor(((m + 1) * a + phase) / w) > below
                index = epochs * node.total - (node.phase - (below + 1) * node.total) // node.weight - 1
            else:  # the smallest m with m + 1 - floor(((m + 1) * a + phase) / w) > below
                index = epochs * node.total + (below * node.total + node.phase) // (node.total - node.weight)
        return index + self.begin

    def end_of(self, component: int, own: int) -> int | None:
        """Where a component's own position stands; None where it never comes. Else as position_of."""
        return int(self.position_of(component, own)) if self.weights[component] else None

    @property
    def parts(self) -> tuple[Mixture, ...]:
        """Itself; see ChangingMixture."""
        return (self,)

    @property
    def begin(self) -> int:
        """The position from which on these weights hold."""
        return self._start.position

    @property
    def _start(self) -> WeightsStart:
        """The origin; where there is none, the beginning of the stream."""
        return self.origin or WeightsStart(0, (0,) * len(self.weights))

    def origin_at(self, position: int, is_inside: bool) -> WeightsStart:
        """Where other weights begin, when the stream stands here; is_inside: with part of this record delivered.

        That record is then still given at its position, and the weights hold from the next one on.
        """
        if not is_inside:
            return WeightsStart(position, self.counts(position))
        component = int(self.place(np.array([position]))[0][0])
        return WeightsStart(position + 1, self.counts(position + 1), component)


@dataclass(frozen=True)
class ChangingMixture:
    """Mixtures one behind the other, each from where it begins on: weights that change, at positions that are known.

    weights: what it was before anybody changed it, as states say. Else as Mixture, which see; each part goes on with
    the components where the one before it has left them.

    >>> ChangingMixture((Mixture((3, 1), 1),), (3, 1)).then(4, (0, 1)).place(np.arange(6))[0].tolist()
    [1, 0, 0, 0, 1, 1]
    """

    parts: tuple[Mixture, ...]
    weights: Weights

    @property
    def seed(self) -> int:
        return self.parts[0].seed

    @property
    def begin(self) -> int:
        return self.parts[0].begin

    def then(self, position: int, weights: tuple[int, ...]) -> ChangingMixture:
        """The same up to a position, and from there on these weights, whatever was to come."""
        # the first one knows the record that it begins in, also where no more of it is left
        kept = (self.parts[0], *(part for part in self.parts[1:] if part.begin < position))
        origin = WeightsStart(position, self.counts(position))
        return replace(self, parts=(*kept, Mixture(weights, self.seed, origin)))

    def place(self, positions: Indices) -> tuple[Indices, Indices]:
        positions = np.asarray(positions, np.int64)
        components, own = np.empty_like(positions), np.empty_like(positions)
        numbers = self._at(positions)
        for number in np.unique(numbers).tolist():
            its = numbers == number
            components[its], own[its] = self.parts[number].place(positions[its])
        return components, own

    def counts(self, position: int) -> tuple[int, ...]:
        return self.parts[int(self._at(position))].counts(position)

    def position_of(self, component: int, own: Any) -> Any:
        own = np.asarray(own, np.int64)
        begins = [part.origin.components[component] for part in self.parts[1:] if part.origin is not None]
        numbers = np.searchsorted(begins, own, "right")  # of several that begin there the last, which has the record
        found = np.empty_like(own)
        for number in np.unique(numbers).tolist():
            its = numbers == number
            found[its] = self.parts[number].position_of(component, own[its])
        return found

    def end_of(self, component: int, own: int) -> int | None:
        begins = [part.origin.components[component] for part in self.parts[1:] if part.origin is not None]
        return self.parts[bisect.bisect_right(begins, own)].end_of(component, own)

    def _at(self, positions: Any) -> Any:
        """The number of the part that holds at each position."""
        return np.searchsorted([part.begin for part in self.parts[1:]], positions, "right")


@functools.lru_cache(maxsize=8)  # asked for by every request
def changed(mixture: Mixture | ChangingMixture, changes: tuple[tuple[int, Weights], ...]) -> ChangingMixture:
    """The mixture with other weights from each of these positions on: of any two changes the later one holds."""
    found = ChangingMixture(mixture.parts, mixture.weights)
    for position, weights in changes:
        for start, each in pieces_of(weights):
            found = found.then(position + start, each)
    return found


def mixture_of(weights: Weights, seed: int) -> Mixture | ChangingMixture:
    """The mixture that has these weights from the beginning on."""
    if not isinstance(weights, WeightSchedule):
        return Mixture(weights, seed)
    (_, first), *others = weights.pieces
    return changed(ChangingMixture((Mixture(first, seed),), weights), tuple(others))


class WeightedOrder:
    """What orders by weights share.

    allow_new_weights: whether a state with other weights is taken, from where it stands.
    """

    mixture: Mixture | ChangingMixture
    allow_new_weights: bool

    @property
    def num_components(self) -> int:
        return len(self.mixture.parts[0].weights)

    def settings(self) -> dict[str, Any]:
        return {"weights": plain_weights(self.mixture.weights), "seed": self.mixture.seed}

    @property
    def may_differ(self) -> tuple[str, ...]:
        return ("mixture.weights",) if self.allow_new_weights else ()

    def origin_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> WeightsStart | None:
        """Where the weights begin to hold; None for the beginning of the stream. See StatefulOrder.extra_in.

        With allow_new_weights, that is at the state itself where it has others, which have left the components there.
        """
        origin = origin_of(rest["origin"], self.num_components, state) if rest.get("origin") is not None else None
        refuse_rest({key: value for key, value in rest.items() if key != "origin"})
        mixture = saved.get("mixture")
        weights = mixture.get("weights") if isinstance(mixture, Mapping) else None
        changes = changes_of(state.amendments)
        if origin is not None and (
            isinstance(self.mixture, ChangingMixture) or any(at < origin.position for at, _ in changes)
        ):
            raise ValueError(
                f"the state's weights begin to hold at {origin.position}, and a schedule, or an amendment before that, "
                "says what they are; the state is damaged, restore an earlier one"
            )
        if not self.allow_new_weights or weights == plain_weights(self.mixture.weights):
            return origin
        if changes or isinstance(weights, Mapping):
            raise ValueError(
                f"the state's weights change at positions, to {shown(changes or weights)}, and allow_new_weights takes "
                "others from constant ones only. Give MixtureSource the weights that the run began with, restore, and "
                "call pipeline.amend(weights=...)"
            )
        before = Mixture(weights_of(weights, self.num_components), self.mixture.seed, origin)
        return before.origin_at(state.position, is_inside=state.offset > 0)

    def since(self, origin: WeightsStart | None, amendments: Amendments = ()) -> Self:
        """The order of a stream whose weights begin to hold there, with these changes."""
        mixture = self.mixture
        if origin is not None:
            assert isinstance(mixture, Mixture)  # origin_in takes none else
            mixture = replace(mixture, origin=origin)
        if changes := changes_of(amendments):
            mixture = changed(mixture, changes)
        return self if mixture is self.mixture else replace(self, mixture=mixture)  # type: ignore[type-var]

    def check(self, amendments: Amendments) -> None:
        """Raise ValueError for weights of others than its components."""
        for _, weights in changes_of(amendments):
            if num_weights(weights) != self.num_components:
                raise ValueError(
                    f"the mixture has {self.num_components} sources, and {num_weights(weights)} weights were given: "
                    f"{plain_weights(weights)}; give one for each"
                )


@dataclass(frozen=True)
class MixtureOrder(WeightedOrder, Order):
    """Which record stands at each position of a mixture.

    orders: of the components. Records are numbered through all components, those of component c from bases[c] on.
    """

    mixture: Mixture | ChangingMixture
    orders: tuple[Order, ...]
    allow_new_weights: bool = False
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
            for part in self.mixture.parts
            for order, weight, total in self._weighted(part)
        )

    @property
    def cycle(self) -> int:
        """So many positions hold a whole epoch of every component, wherever they begin, by the last weights."""
        return max(
            math.ceil((2 * order.cycle + 2 * MAX_DEVIATION) * total / weight)
            for order, weight, total in self._weighted(self.mixture.parts[-1])
        )

    def _weighted(self, part: Mixture) -> list[tuple[Order, int, int]]:
        return [(order, w, sum(part.weights)) for order, w in zip(self.orders, part.weights, strict=True) if w]

    def records(self, positions: Indices) -> Indices:
        """The number of the record at each position. positions: int64 (k,), ascending. Returns int64 (k,)."""
        components, own = self.mixture.place(positions)
        records = np.empty_like(own)
        for component, (order, base) in enumerate(zip(self.orders, self.bases, strict=False)):
            mine = components == component
            records[mine] = order.records(own[mine]) + base
        return records

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> WeightsStart | None:
        """Where the weights begin to hold; None for the beginning of the stream. See StatefulOrder."""
        return self.origin_in(rest, state, saved)

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
        """Of each component in its own positions, which are then found in the mixture."""
        mixture = self.mixture
        is_inside = start < mixture.begin  # in a record that began by other weights
        if is_inside or partitioning.share_of(partitions) > MAX_SHARE:
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


def origin_of(plain: Any, num_components: int, state: StreamState) -> WeightsStart:
    """The origin that a saved state names. state: its position and offset.

    Raises: ValueError for what is none, or none of a stream that stands there.
    """
    found = plain if isinstance(plain, Mapping) else {}
    position, components, inside = found.get("position"), found.get("components"), found.get("inside")
    if (
        position is None
        or not isinstance(components, list)
        or len(components) != num_components
        or not all(map(is_count, [position, *components]))
        or not (inside is None or (is_count(inside) and inside < num_components and components[inside]))
    ):
        raise ValueError(
            f"the state's origin must have the positions of {num_components} components, got {shown(plain)}"
        )
    origin = WeightsStart(position, tuple(components), inside)
    if sum(components) != position:
        raise ValueError(
            f"the state's origin stands at position {position}, and its components at {shown(components)}, which are "
            f"{sum(components)} together; the state is damaged, restore an earlier one"
        )
    if state.position < position - (inside is not None):
        raise ValueError(
            f"the state stands at position {state.position}, and its origin, where its weights begin to hold, at "
            f"{position}; the state is damaged, restore an earlier one"
        )
    return origin


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


def _descend(node: _Node | int, where: Indices, index: Indices) -> list[tuple[int, Indices, Indices]]:
    """[(component, which of the positions are its own, its count at each)]. index: what has come by before each."""
    out: list[tuple[int, Indices, Indices]] = []
    todo: list[tuple[_Node | int, Indices, Indices]] = [(node, where, index[where])]
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
    """[(component, how many of the first `index` are its own)]."""
    if isinstance(node, int):
        return [(node, index)]
    lefts = (index * node.weight + node.phase) // node.total
    return _counts(node.left, lefts) + _counts(node.right, index - lefts)


def _path(node: _Node | int, component: int) -> list[tuple[_Node, bool]]:
    """The nodes above a component, from the root on, each with whether it is on the left; [] too where it is none."""
    if isinstance(node, int):
        return []
    for side, is_left in ((node.left, True), (node.right, False)):
        if side == component or (below := _path(side, component)):
            return [(node, is_left), *([] if side == component else below)]
    return []
