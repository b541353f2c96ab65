"""A merged mixture: of streams, whose elements have no number, beside records that are read by index.

Each component is scheduled, read and transformed as if it were alone. Its elements are counted as they arrive in
blocks, and the mixture says where the next elements of each component stand. No element is copied: blocks are cut, and
their parts get other positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from datarax_ray.plan.amendments import are_skipped
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.merged import ComponentState, ComponentStates, MergedOrder, given_then, next_components
from datarax_ray.plan.orders.mixture import Mixture
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Request, Wanted
from datarax_ray.plan.runs import runs_of
from datarax_ray.plan.scheduling import StreamScheduler
from datarax_ray.plan.state import BEGIN, Extra, StreamState
from datarax_ray.plan.weights import pieces_of, plain_weights
from datarax_ray.read.block import Block, first_failure
from datarax_ray.read.elements.documents import sizes_of
from datarax_ray.read.errors import RecordError, Skipped, gives_fewer
from datarax_ray.read.stream import is_endless
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.interleaved import InterleavedStream
from datarax_ray.read.streams.mixture import Mixed, MixtureStream, component_name


@dataclass(frozen=True)
class MergedStream(Mixed):
    """A mixture with a stream in it. Positions count elements; requests go to the components."""

    components: tuple[Any, ...]  # each AnyComponent

    @property
    def order(self) -> MergedOrder:
        """The element of a component at each position, with these weights from the beginning on."""
        return self._order

    @functools.cached_property
    def _order(self) -> MergedOrder:
        return MergedOrder(Mixture(self.weights, self.seed), self.components, self.weights_by)

    @property
    def stop(self) -> int | None:
        """The position after the last; None where a component may end before that, or there is none."""
        return self.length if all(map(is_endless, self.components)) else None

    @property
    def is_endless(self) -> bool:
        return self.length is None and all(map(is_endless, self.components))

    def __str__(self) -> str:
        return f"weights={plain_weights(self.weights)}, components={len(self.components)}"

    @property
    def yields(self) -> Yields:
        """An element each; but where they end, or people leave some out, is known only when they come."""
        return Yields(is_one_to_one=False)

    def shares(self) -> list[float]:
        """The part of the bytes in flight of each component: half by weight, half evenly."""
        pieces = [weights for _, weights in pieces_of(self.weights)]
        most = [max(weights[index] / sum(weights) for weights in pieces) for index in range(len(self.components))]
        return [(each / sum(most) + 1 / len(most)) / 2 for each in most]

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> StreamScheduler:
        """Raises: TypeError. The components have schedulers; feed.stream turns them."""
        raise TypeError("the components of a mixture of streams are scheduled one by one")

    def read(self, request: Request, ended: str = "") -> Block:
        """The block that the request asks for, by the positions of its component; see Stream.read."""
        component, its = self._component(request)
        return component.read(its, ended)

    def expect(self, request: Request) -> None:
        component, its = self._component(request)
        if component.traits.reads_ahead:
            component.expect(its)

    def names(self, request: Request) -> list[str]:
        component, its = self._component(request)
        name = component_name(request.wanted.components[0])
        return [f"{name}: {each}" for each in component.names(its)]

    def _component(self, request: Any) -> tuple[Any, Any]:
        """The component of a request, and the request for the component."""
        index, *inner = request.wanted.components
        return self.components[index], replace(request, wanted=replace(request.wanted, components=tuple(inner)))

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """Raises: TypeError. What stands at a position is known only when it is read; see feed.origins."""
        raise TypeError("which records stand at positions of a mixture of streams is known only when they are read")

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        raise TypeError(
            "a mixture with a stream in it, or with weights_by, has no random access: iterate it, or take a batch "
            "from where it stands (get_batch)"
        )


AnyMixture: TypeAlias = MixtureStream | MergedStream
AnyComponent: TypeAlias = IndexedStream | InterleavedStream | AnyMixture


def mixed(components: tuple[AnyComponent, ...], *given: Any, weights_by: str | None = None) -> AnyMixture:
    """The mixture of these: by records, where all are read by index, else by elements. given: else as Mixed."""
    if weights_by is None and all(isinstance(each, IndexedStream | MixtureStream) for each in components):
        return MixtureStream(components, *given)  # type: ignore[arg-type]
    return replace(MergedStream(components, *given), weights_by=weights_by)


# Elements of no size in a row, after which a component will hardly ever reach its share.
_MAX_EMPTY = 2**16
_NONE = np.empty(0, np.int64)


@dataclass
class _Supply:
    """What is there of one component.

    name: of the component, for people.
    taken: elements of it before the next position of the mixture.
    state: where it can be taken up.
    drop: elements that still come, and were taken before.
    own: the positions of the elements of its chunk, int64 (k,), ascending; done: how many of these were taken.
    weights_by: see Mixed; sizes: of the elements of its chunk by that field, int64 (k,), else empty.
    parts: each block, and the ranks of its elements among these.
    skipped: broken records, each with the rank of the element that comes next.
    failure: why nothing comes behind the chunk's elements.
    is_begun: whether any chunk has come.
    num_empty: elements of no size in a row.
    """

    name: str
    taken: int
    state: ComponentState
    drop: int
    own: Indices = field(default_factory=lambda: _NONE)
    done: int = 0
    parts: list[tuple[Block, Indices]] = field(default_factory=list)
    skipped: list[tuple[int, Skipped]] = field(default_factory=list)
    failure: Exception | None = None
    failed_at: int = 0
    is_begun: bool = False
    weights_by: str | None = None
    sizes: Indices = field(default_factory=lambda: _NONE)
    num_empty: int = 0

    @property
    def available(self) -> int:
        return len(self.own) - self.done

    def add(self, blocks: Sequence[Block]) -> None:
        """Add the next chunk. Called once the last chunk was taken."""
        self.failed_at, self.failure = first_failure(blocks, 0)
        found = [block for block in blocks if len(block.positions)]
        own = np.concatenate([_NONE, *(block.positions for block in found)])
        order = np.argsort(own, kind="stable")  # all of a position are in one block, and in order there
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        own = own[order]
        if self.weights_by is not None:
            self._weigh(found, order)
        if self.failure is not None:
            own = own[: np.searchsorted(own, self.failed_at)]
            self.sizes = self.sizes[: len(own)]
        waiting = [(0, skip) for _, skip in self.skipped]
        position, offset = self.state.state.position, self.state.state.offset
        if not self.is_begun and np.count_nonzero(own == position) < offset:
            error = gives_fewer(position, offset)
            error.add_note(f"in {self.name} of a mixture")
            raise error
        self.is_begun = True
        self.own, self.done = own, min(self.drop, len(own))
        self.drop -= self.done
        self.parts = list(
            zip(found, np.split(ranks, np.cumsum([len(block.positions) for block in found])), strict=False)
        )
        new = sorted((skip for block in blocks for skip in block.skipped), key=lambda skip: skip.position)
        at = np.searchsorted(own, [skip.position for skip in new]).tolist()
        skips = [*waiting, *zip(at, new, strict=True)]
        self.skipped = [(rank, skip) for rank, skip in skips if rank >= self.done]

    def _weigh(self, blocks: Sequence[Block], order: Indices) -> None:
        """Know the sizes of the elements of these blocks. order: see add."""
        try:
            sizes = [sizes_of(block.columns, block.lengths, self.weights_by or "") for block in blocks]
            self.sizes = np.concatenate([_NONE, *sizes])[order]
            self.num_empty = 0 if self.sizes.any() else self.num_empty + len(order)
            if self.num_empty >= _MAX_EMPTY:
                raise ValueError(
                    f"weights_by={self.weights_by!r} has size 0 in {self.num_empty:,} elements in a row, so no other "
                    "component would ever have its turn; leave these elements out by a filter"
                )
        except ValueError as error:
            error.add_note(f"in {self.name} of a mixture")
            raise

    def take(self, at: Indices, gone: Indices) -> list[Block]:
        """The next elements, at these positions of the mixture, without the positions in `gone`."""
        lo, hi = self.done, self.done + len(at)
        kept = runs_of(lo + np.flatnonzero(~np.isin(at, gone))).tolist() if len(gone) else [(lo, hi)]
        blocks = []
        for block, ranks in self.parts:
            for first, last in kept:
                start, stop = np.searchsorted(ranks, (first, last)).tolist()
                if start < stop:
                    blocks.append(block.part(start, stop, at[ranks[start:stop] - lo]))
        self.done, self.taken = hi, self.taken + len(at)
        if due := [self.skip_at(int(at[rank - lo]), skip) for rank, skip in self.skipped if rank < hi]:
            blocks.append(Block(_NONE, None, tuple(due)))
            self.skipped = [(rank, skip) for rank, skip in self.skipped if rank >= hi]
        if not self.available:
            self.parts = []  # or they would be held while the next chunk is waited for
        return blocks

    def skip_at(self, position: int, skip: Skipped) -> Skipped:
        """A broken record of it, at this position of the mixture."""
        return skip.moved(self.name, position)

    def settle(self, extra_at: Callable[[int], Extra | None]) -> None:
        """Move the resume state behind the taken elements."""
        last, offset = int(self.own[self.done - 1]), 0
        if self.available and self.own[self.done] == last:  # a record of which more is to come
            offset = self.done - int(np.searchsorted(self.own, last))
        position = last + (offset == 0)
        self.state = ComponentState(self.taken, StreamState(position, offset, extra=extra_at(position)))


class Merger:
    """Puts the chunks of components together, from a state of the mixture on. stop: where to end, None for no end.

    A component's next chunk is asked for when there is nothing left of its last one, and its next element is due.
    """

    def __init__(self, order: MergedOrder, start: StreamState, stop: int | None) -> None:
        extra = start.extra
        assert extra is None or isinstance(extra, ComponentStates)
        self._mixture = order.amended(start.amendments).mixture
        self._amendments = start.amendments
        self._by_size, counts = order.weights_by is not None, self._mixture.counts(start.position)
        states = (ComponentState(),) * len(counts) if extra is None else extra.components
        if self._by_size:  # which elements come before the start is known by the sizes of those alone
            counts = tuple(state.count for state in states)
        self._supplies = [
            _Supply(component_name(index), count, state, count - state.count + state.state.offset, weights_by=by)
            for by in (order.weights_by,)
            for index, (count, state) in enumerate(zip(counts, states, strict=True))
        ]
        self._given = tuple(state.given for state in states)
        self._start = start.position
        self._next = sum(counts)
        self._found: tuple[Indices, int] | None = None  # by size, see _turns
        # of the chunk taken last, by size: the weights, and what each component gave
        self.given: tuple[tuple[int, ...], list[int]] | None = None
        self._stop = stop
        self._saved = [ComponentStates(start.position, states)]  # ascending
        self.is_over = start.position == stop
        # of each component that has any in the chunk taken last: their positions, and their own
        self.taken: list[tuple[int, Indices, Indices]] = []

    @property
    def states(self) -> list[StreamState]:
        """Where to begin with each component."""
        return [supply.state.state for supply in self._supplies]

    def is_wanted(self, component: int) -> bool:
        """Whether any element of it is, from here on."""
        if self._by_size:
            return any(stretch.weights[component] for stretch in self._mixture.stretches_from(self._next))
        return self._mixture.end_of(component, self._supplies[component].taken) is not None

    @property
    def lacking(self) -> int | None:
        """The component whose element stands next, where it is not there; None where chunks can be taken.

        At first every one of which elements before the start are still to come: where it has not so many, the start is
        behind the end of the mixture, and there is nothing to take.
        """
        for index, supply in enumerate(self._supplies):
            if supply.drop and supply.failure is None and self.is_wanted(index):
                return index
        ready, component = self._ready
        is_there = ready > self._next or component is None or self._supplies[component].failure is not None
        return None if is_there else component

    def add(self, component: int, blocks: Sequence[Block]) -> None:
        """Event: the next chunk of a component that is lacking."""
        self._found = None
        self._supplies[component].add(blocks)

    def skipped_of(self, component: int) -> list[Skipped]:
        """The broken records of a component before its next element."""
        if self._next < self._start:  # which were told before
            return []
        supply = self._supplies[component]
        return [supply.skip_at(self._next, skip) for _, skip in supply.skipped]

    def end(self, component: int) -> tuple[int, int, list[Block]]:
        """Event: a component that is lacking has no chunk any more: the mixture's end. What is left to say, as `take`.

        Raises: ValueError where it gives less than it has given.
        """
        supply = self._supplies[component]
        if supply.drop or self._next < self._start:
            raise ValueError(
                f"the stream goes on at position {self._start}, behind {supply.taken} elements of component "
                f"{component}, and that gives {supply.taken - supply.drop}: the position is behind the end, or the "
                "component gives fewer than when the state was taken"
            )
        self.is_over = True
        return self._next, self._next, [Block(_NONE, None, tuple(self.skipped_of(component)))]

    def take(self, extra_at: Sequence[Callable[[int], Extra | None]]) -> tuple[int, int, list[Block]]:
        """What stands next, as far as it is there: (start, stop, blocks). Not while a component is lacking.

        extra_at: of each component, see StreamScheduler.
        """
        start, (stop, component) = self._next, self._ready
        if start == stop:
            assert component is not None
            self.is_over = True
            return start, start + 1, [self._failed(component)]
        self.taken = []
        positions = np.arange(start, stop)
        if self._by_size:
            components = self._turns[0][: len(positions)]
            self._give(components)
        else:
            components, _ = self._mixture.place(positions)
        gone = positions[are_skipped(self._amendments, positions)]
        blocks = []
        for index, supply in enumerate(self._supplies):
            if len(at := positions[components == index]):
                self.taken.append((index, at, supply.own[supply.done : supply.done + len(at)]))
                blocks += supply.take(at, gone)
                supply.settle(extra_at[index])
        self._next, self._found = stop, None
        states = (replace(each.state, given=given) for each, given in zip(self._supplies, self._given, strict=True))
        self._saved.append(ComponentStates(stop, tuple(states)))
        self.is_over = stop == self._stop
        if stop <= self._start:  # all of it was delivered before
            self.given, self.taken = None, []
            return self._start, self._start, []
        return start, stop, blocks

    def extra_at(self, position: int) -> ComponentStates:
        """Where the components can be taken up for what stands at a position; asked for ascending ones."""
        while len(self._saved) > 1 and self._saved[1].position <= position:
            self._saved.pop(0)
        return self._saved[0]

    @property
    def _ready(self) -> tuple[int, int | None]:
        """The position up to which elements are there, and the component that lacks the next; None at the stop."""
        if self._by_size:
            components, lacking = self._turns
            cuts = [self._start, *(stretch.begin for stretch in self._mixture.stretches), self._stop]
            cut = min((each for each in cuts if each is not None and each > self._next), default=None)
            ready = self._next + len(components)
            return (ready, lacking) if cut is None or ready < cut else (cut, None)
        ends = [
            (end, index)
            for index, supply in enumerate(self._supplies)
            if (end := self._mixture.end_of(index, supply.taken + supply.available)) is not None
        ]
        ready, component = min(ends)
        if self._stop is not None and ready >= self._stop:
            return self._stop, None
        return max(ready, self._next), component

    @property
    def _turns(self) -> tuple[Indices, int]:
        """See plan.orders.merged.next_components: of the elements that are there, by the weights of the next one."""
        if self._found is None:
            weights, given = self._weights_and_given
            there = [each.sizes[each.done :] for each in self._supplies]
            self._found = next_components(weights, given, there)
        return self._found

    @property
    def _weights_and_given(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        stretch = next(self._mixture.stretches_from(self._next))
        return stretch.weights, (0,) * len(self._given) if stretch.begin == self._next else self._given

    def _give(self, components: Indices) -> None:
        """Count the sizes of the next elements, which these components give."""
        weights, given = self._weights_and_given
        counts = np.bincount(components, minlength=len(weights)).tolist()
        more = [
            int(each.sizes[each.done : each.done + count].sum())
            for each, count in zip(self._supplies, counts, strict=True)
        ]
        self.given, self._given = (weights, more), given_then(weights, given, more)

    def _failed(self, component: int) -> Block:
        supply = self._supplies[component]
        failure = supply.failure
        if isinstance(failure, RecordError):
            failure.move(supply.name, supply.failed_at, self._next)
            failure.add_note(
                "A broken record gives a mixture with streams no element that amend(skip=...) could leave out; "
                'on_error="skip" of its source leaves it out'
            )
        return Block(_NONE, None, failure=failure, failure_position=self._next)
