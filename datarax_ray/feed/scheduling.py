"""Dealing: which part of the stream comes next, and who is asked for what of it. One scheduler for each kind of stream.

Schedulers are machines without I/O, as the window is, which decides when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from datarax_ray.plan.orders.mixture import WeightsStart
from datarax_ray.plan.orders.order import Order, Partitioning
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.plan.position import next_multiple, pieces
from datarax_ray.plan.state import Extra
from datarax_ray.plan.trainer_rows import TrainerPositions
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import ShareableRequest, SharedRequest


class AnyRequest(Protocol):
    """What an actor is asked for of the chunk [start, stop)."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


@dataclass(frozen=True)
class Chunk:
    """The chunk [start, stop) and who is asked for what of it. size: positions that may have an element."""

    start: int
    stop: int
    size: int
    requests: tuple[tuple[int, AnyRequest], ...]


@dataclass(frozen=True)
class Sharing:
    """How many trainers ask for the same, and what each wants of it first; see read.block_cache.Shared."""

    num_trainers: int
    wanted: Literal["all", "places"]


def shared(
    requests: Iterable[tuple[int, ShareableRequest]], sharing: Sharing | None
) -> tuple[tuple[int, AnyRequest], ...]:
    """The actors and their requests, as requests that are shared in this way, or not at all."""
    if sharing is None:
        return tuple(requests)
    return tuple((actor, SharedRequest(request, sharing.num_trainers, sharing.wanted)) for actor, request in requests)


def unshared(request: AnyRequest) -> AnyRequest:
    """What is asked for, by however many."""
    return request.request if isinstance(request, SharedRequest) else request


def with_inner(request: Any, **changes: Any) -> Any:
    """The request with these fields of what it asks for changed, by however many it is shared."""
    if isinstance(request, SharedRequest):
        return replace(request, request=replace(request.request, **changes))  # type: ignore[type-var]
    return replace(request, **changes)


class Scheduler(Protocol):
    """Deals a stream from its start on, chunk by chunk."""

    @property
    def is_exhausted(self) -> bool:
        """Whether everything up to the stop has been dealt, as far as is known now."""
        ...

    @property
    def max_size(self) -> int:
        """Positions in the largest chunk that makes sense."""
        ...

    @property
    def max_part_size(self) -> int:
        """Positions in the largest part that one actor should get."""
        ...

    @property
    def num_actors(self) -> int:
        """Actors that get requests."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other trainers should be dealt the same chunks: of sizes that are powers of two, if not given."""
        ...

    def next_chunk(self, size: int) -> Chunk:
        """The next chunk, of about so many positions. Not when exhausted."""
        ...

    def owner(self, request: AnyRequest) -> int:
        """The actor to ask for a request that was lost."""
        ...

    def split(self, request: AnyRequest) -> Sequence[AnyRequest]:
        """Requests for fewer positions each, which together ask for the same; () for one that cannot be split."""
        ...

    def reassign(self, actors: Sequence[int], weights: Mapping[int, float] | None = None) -> None:
        """Event: these are the actors from now on, with these weights; see plan.partitions.assign."""
        ...

    def arrived(self, request: AnyRequest, block: Block) -> None:
        """Event: a request's block is here."""
        ...

    def extra_at(self, position: int) -> Extra | None:
        """The extra of a state at a position: one in a chunk not released, or behind an element before it."""
        ...

    def released(self, stop: int, has_elements: bool) -> str | None:
        """Event: everything before this position was delivered, the last chunk with some elements or without.

        Returns what to tell people: that nothing came of a whole epoch, and again of 2, 4, 8, ...

        Raises: RuntimeError where nothing ever will; see EmptyEpochs.
        """
        ...


class EmptyEpochs:
    """What to do about epochs that give no element: an endless stream of them would be a wait without an end.

    drops_alike: whether one of them shows that none will (see transforms.drops_alike). Then the stream ends with an
    error, wherever it began and whatever its chunks. Otherwise a later one may give some, so it goes on, and says so.
    """

    def __init__(self, drops_alike: bool) -> None:
        self._drops_alike = drops_alike
        self._next_told = 1

    def seen(self, number: int, what: str, is_empty: bool = False) -> str | None:
        """What to tell people of so many of them in a row, None for nothing. is_empty: whether there is no data.

        Raises: RuntimeError where nothing will ever come.
        """
        if not number:
            self._next_told = 1
        if number < self._next_told:
            return None
        why = "the filters drop everything (as one does that ends without `return`), or every record is broken"
        if self._drops_alike or is_empty:
            raise RuntimeError(f"no element of {what} was kept: {'the data is empty' if is_empty else why}")
        self._next_told = 2 * number
        return (
            f"no element of {what} was kept, nor of {number} epochs in a row: {why}. What drops them is told their "
            "position, or draws random numbers, so the stream goes on: a later epoch may give some."
        )


# That a request is split into. A record that ends its process is found in the logarithm of the chunk to this base of
# dead processes: in 5 of 2**15 positions, where halving takes 15. More pieces are more objects for nothing.
NUM_PIECES = 8
# A part of tiny records is bounded by time, not bytes: 2**15 random records take an actor about 0.1 s.
MAX_PART_RECORDS = 2**15
# Rows of a part where whole groups of them are read as columns, at a tenth of that: 8 MiB of 64-byte rows.
MAX_PART_ROWS = 2**17
# An epoch of a small shuffled dataset costs its whole table, 3 to 9 ms however few its records, so a chunk of 2**15
# positions of 10 records would take half a minute. 64 are kept by the cipher for those who share an order.
MAX_CHUNK_EPOCHS = 64


class RecordScheduler:
    """Deals positions of an order over records: each actor gets those whose record is in its partitions.

    stop: None for an endless stream. rows: the one trainer's rows to ask for, None for all. documents: what to ask for
    where elements are to be packed. origin: where the weights of a mixture begin to hold, None for the beginning.
    sharing: how other trainers ask the same actors for the same; chunks end at multiples of their size then.
    drops_alike: see EmptyEpochs.
    """

    def __init__(
        self,
        order: Order,
        partitioning: Partitioning,
        actors: Sequence[int],
        *,
        start: int,
        stop: int | None,
        rows: TrainerPositions | None = None,
        documents: DocumentSpec | None = None,
        origin: WeightsStart | None = None,
        sharing: Sharing | None = None,
        drops_alike: bool = True,
    ) -> None:
        self._order = order
        self._partitioning = partitioning
        self._owners = assign(partitioning, actors)
        self._next = start
        self._stop = stop
        self._asked = (rows, documents, origin)
        self._sharing = sharing
        self.is_shared = sharing is not None
        self._last_element = start
        self._empty = EmptyEpochs(drops_alike)
        self.max_size = min(MAX_CHUNK_EPOCHS * order.shortest_epoch, 2**62)
        self.max_part_size = MAX_PART_ROWS if partitioning.by_group else MAX_PART_RECORDS

    @property
    def is_exhausted(self) -> bool:
        return self._next == self._stop

    @property
    def num_actors(self) -> int:
        return len(set(self._owners))

    def next_chunk(self, size: int) -> Chunk:
        start = self._next
        stop = next_multiple(start, size) if self.is_shared else start + size
        self._next = stop = stop if self._stop is None else min(stop, self._stop)
        parts = owners_in(self._order, self._partitioning, self._owners, start, stop)
        requests = (
            (actor, ReadRequest(start, stop, self._partitioning, partitions, *self._asked))
            for actor, partitions in parts.items()
        )
        return Chunk(start, stop, stop - start, shared(requests, self._sharing))

    def owner(self, request: AnyRequest) -> int:
        """The owner of its first partition."""
        request = unshared(request)
        assert isinstance(request, ReadRequest)
        assert request.partitions is not None  # none is dealt without
        return self._owners[request.partitions[0]]

    def split(self, request: AnyRequest) -> Sequence[AnyRequest]:
        """By position; some may hold no record of the partitions that are asked for."""
        return [with_inner(request, start=lo, stop=hi) for lo, hi in pieces(request.start, request.stop, NUM_PIECES)]

    def reassign(self, actors: Sequence[int], weights: Mapping[int, float] | None = None) -> None:
        self._owners = assign(self._partitioning, actors, self._owners, weights)

    def arrived(self, request: AnyRequest, block: Block) -> None:
        pass

    def extra_at(self, position: int) -> Extra | None:
        _, _, origin = self._asked
        return origin

    def released(self, stop: int, has_elements: bool) -> str | None:
        rows, _, _ = self._asked
        if has_elements or rows is not None:  # where only a trainer's rows are asked for, nothing is dropped
            self._last_element = stop
        # N positions in a row are not enough: shuffled, the one element that a filter keeps may be the first of one
        # epoch and the last of the next.
        cycle = self._order.cycle
        start = -(-self._last_element // cycle) * cycle
        return self._empty.seen(max(0, stop - start) // cycle, f"the {cycle} positions from {start} on")
