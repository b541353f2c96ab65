"""Scheduling: which part of a stream comes next, by which requests. One scheduler for each kind of stream.

To deal is to cut the next chunk off a stream, and to divide it into requests for the actors that own what is in it.
A scheduler is a machine without I/O; the window (feed.window) decides when, and who owns the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from datarax_ray.plan.amendments import Amendments, alike_from
from datarax_ray.plan.homes import by_home
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, Order, Partitioning
from datarax_ray.plan.partitions import ReadRequest, owners_in
from datarax_ray.plan.position import next_multiple, pieces
from datarax_ray.plan.requests import EVERYTHING, Request, Wanted
from datarax_ray.plan.state import Extra, StreamState

# The pieces that a request is split into. A record that ends its process is found in as many dead processes as the
# logarithm of the chunk to this base: 5 of 2**15 positions, where halving takes 15. More are more objects for nothing.
NUM_PIECES = 8
# A part of tiny records is bounded by time, not bytes: 2**15 random records take an actor about 0.1 s.
MAX_PART_RECORDS = 2**15
# Rows of a part where whole groups of them are read as columns, at a tenth of that: 8 MiB of 64-byte rows.
MAX_PART_ROWS = 2**17
# An epoch of a small shuffled dataset costs its whole table, 3 to 9 ms however few its records, so a chunk of 2**15
# positions of 10 records would take half a minute. 64 are kept by the cipher for those who share an order.
MAX_CHUNK_EPOCHS = 64
# Partitions that each actor has at the least: shares are even to 6 %.
PARTITIONS_EACH = 16


@dataclass(frozen=True)
class ChunkLimits:
    """What chunks of a stream may be.

    max_size: positions in the largest that makes sense.
    first_size: likewise of the first, whose records nobody has seen.
    max_part_size: positions in the largest part that one actor should get.
    max_actors: that may read at a time, None for all.
    is_aligned: whether other trainers should be dealt the same ones: they end at multiples of their sizes, which are
        powers of two, if not given.
    share: of a chunk's positions, those that are read for this trainer; the same actors read the others for others.
    is_anywhere: whether a request costs any actor about the same, so that another one than the owner may be asked for
        it.
    homes: see Order.home_nodes.
    """

    max_size: int = 2**62
    first_size: int = 2**62
    max_part_size: int = MAX_PART_RECORDS
    max_actors: int | None = None
    is_aligned: bool = False
    share: float = 1.0
    is_anywhere: bool = False
    homes: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True)
class Chunk:
    """The chunk [start, stop) and who is asked for what of it. size: positions that may have an element."""

    start: int
    stop: int
    size: int
    requests: tuple[tuple[int, Request], ...]


class Scheduler(Protocol):
    """Deals a stream from its start on, chunk by chunk."""

    @property
    def partitioning(self) -> Partitioning:
        """What actors own of it; see plan.partitions.assign."""
        ...

    def fit(self, num_actors: int) -> None:
        """Event: so many actors read. Where what they own cannot be even, it is cut into more partitions."""
        ...

    @property
    def limits(self) -> ChunkLimits: ...

    @property
    def is_exhausted(self) -> bool:
        """Whether everything up to the stop has been dealt, as far as is known now."""
        ...

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        """The next chunk, of about so many positions. Not when exhausted. owners: the actor of each partition."""
        ...

    def split(self, request: Any) -> Sequence[Request]:
        """Requests for fewer positions each, which together ask for the same; () for one that cannot be split."""
        ...

    def arrived(self, request: Request, learned: Sequence[Any]) -> None:
        """Event: a request's block is here. learned: what reading it told of the stream (Block.learned)."""
        ...


class StreamScheduler(Scheduler, Protocol):
    """A scheduler that knows what was delivered, and so where the stream would go on."""

    def extra_at(self, position: int) -> Extra | None:
        """The extra of a state at a position: one in a chunk not released, or behind an element before it."""
        ...

    def released(self, stop: int, has_elements: bool, may_come: bool = False) -> str | None:
        """Event: everything before this position was delivered, the last chunk with some elements or without.
        may_come: whether some of what it left out may come elsewhere, see Block.

        Returns what to tell people: that nothing came of a whole epoch, and again of 2, 4, 8, ...

        Raises: RuntimeError where nothing ever will; see EmptyEpochs.
        """
        ...


class EmptyEpochs:
    """What to do about epochs that give no element: an endless stream of them would be a wait without an end.

    are_cycles_alike: whether each has the same records. Then one shows that none will, but for what was amended, if
    nothing that it left out may come elsewhere (see Block), and the stream ends with an error, wherever it began and
    whatever its chunks; so it does where every one of its num_records was amended away. Otherwise a later one may give
    some, so it goes on, and says so. droppers: what may leave all of them out, for people (see ElementStream.droppers),
    beside what was amended.
    """

    def __init__(
        self,
        are_cycles_alike: bool,
        droppers: Sequence[str],
        amendments: Amendments = (),
        num_records: int = 0,
    ) -> None:
        self._alike_from = alike_from(amendments, num_records, are_cycles_alike)
        self._gone_from = alike_from(amendments, num_records, False)
        may_skip = any(each.positions or each.records for each in amendments)
        self._why = ", or ".join([*droppers, *["all of it was amended away"] * may_skip])
        self._next_told = 1

    def seen(
        self, number: int, what: str, begin: int = 0, is_empty: bool = False, may_come: bool = False
    ) -> str | None:
        """What to tell people of so many of them in a row, None for nothing.

        begin: the first position of the last of them.
        is_empty: whether there is no data.
        may_come: whether some of what the last of them left out may come elsewhere.

        Raises: RuntimeError where nothing will ever come.
        """
        if not number:
            self._next_told = 1
        if number < self._next_told:
            return None
        shown_from = self._gone_from if may_come else self._alike_from
        if is_empty or (shown_from is not None and shown_from <= begin):
            raise RuntimeError(f"no element of {what} was kept: {'the data is empty' if is_empty else self._why}")
        self._next_told = 2 * number
        return (
            f"no element of {what} was kept, nor of {number} epochs in a row: {self._why}. In a later epoch "
            "that may be otherwise, so the stream goes on."
        )


class RecordScheduler:
    """Deals positions of an order over records: each actor gets those whose record is in its partitions.

    start: a state, or a position.
    stop: None for an endless stream.
    wanted: of every position.
    first_size: see ChunkLimits.
    are_cycles_alike, droppers: see EmptyEpochs.
    is_kept: whether actors keep what they have decoded for later reads, so that nobody else should decode it too.
    """

    def __init__(
        self,
        order: Order,
        partitioning: Partitioning,
        *,
        start: int | StreamState,
        stop: int | None,
        wanted: Wanted = EVERYTHING,
        first_size: int = 2**62,
        are_cycles_alike: bool = True,
        droppers: Sequence[str] = (),
        is_kept: bool = False,
    ) -> None:
        start = StreamState.at(start)
        self.partitioning = partitioning
        order = order.amended(start.amendments)
        self.limits = ChunkLimits(
            min(MAX_CHUNK_EPOCHS * order.shortest_epoch, 2**62),
            first_size,
            MAX_PART_ROWS if partitioning.by_group else MAX_PART_RECORDS,
            is_aligned=wanted.sharing is not None,
            share=1.0 if wanted.positions is None else wanted.positions.share,
            is_anywhere=not is_kept and not order.home_nodes,
            homes=order.home_nodes,
        )
        self._order = order
        self._next = self._last_element = start.position
        self._stop = stop
        self._wanted = wanted
        self._may_come_until = 0  # the end of the last chunk that left out what may come elsewhere
        self._empty = EmptyEpochs(are_cycles_alike, droppers, start.amendments, order.num_records)

    def fit(self, num_actors: int) -> None:
        if num_actors * PARTITIONS_EACH > MAX_NUM_PARTITIONS and not self.limits.homes:  # which stay as they are
            self.partitioning = self.partitioning.refined(1 << (num_actors * PARTITIONS_EACH - 1).bit_length())

    @property
    def is_exhausted(self) -> bool:
        return self._next == self._stop

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        start, wanted = self._next, self._wanted.positions
        # Positions of other trainers cost nothing: counted, they would say that those behind them cost nothing either.
        first = start if wanted is None else min(wanted.first_from(start), start + self.limits.max_size)
        stop = next_multiple(start, size) if self.limits.is_aligned else first + size
        self._next = stop = stop if self._stop is None else min(stop, self._stop)
        parts = owners_in(self._order, self.partitioning, owners, start, stop, self._wanted.positions)
        homes = self.limits.homes  # a request is for one, or nobody might have all of it once its actor is lost
        requests = (
            (actor, ReadRequest(start, stop, self.partitioning, tuple(some), self._wanted))
            for actor, owned in parts.items()
            for some in (by_home(self.partitioning, homes, owned) if homes else [owned])
        )
        return Chunk(start, stop, max(1, stop - first), tuple(requests))

    def split(self, request: ReadRequest) -> Sequence[ReadRequest]:
        """By position; some may hold no record of the partitions that are asked for."""
        return [replace(request, start=lo, stop=hi) for lo, hi in pieces(request.start, request.stop, NUM_PIECES)]

    def arrived(self, request: Request, learned: Sequence[Any]) -> None:
        pass

    def extra_at(self, position: int) -> None:
        """None: a position is all."""

    def released(self, stop: int, has_elements: bool, may_come: bool = False) -> str | None:
        if may_come:
            self._may_come_until = stop
        if has_elements or self._wanted.positions is not None:  # of some positions' elements alone, nothing is dropped
            self._last_element = stop
        # N positions in a row are not enough: shuffled, the one element that a filter keeps may be the first of one
        # epoch and the last of the next.
        cycle = self._order.cycle
        start = -(-self._last_element // cycle) * cycle
        number = max(0, stop - start) // cycle
        last = start + (number - 1) * cycle
        may_come = self._may_come_until > last
        return self._empty.seen(number, f"the {cycle} positions from {start} on", last, may_come=may_come)
