"""Dealing the lanes of a stream: which elements of which lanes come next, who reads them, and from which cursor.

What is known of a lane grows as blocks arrive: how far it can be taken up from, and, at its end, how long it is. Until
then it is asked as if it never ended, and answers with nothing. An epoch is dealt until all its lanes are known to
have ended; the next one is then dealt at once, while this one is still being delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from datarax_ray.feed.scheduling import (
    MAX_PART_ROWS,
    NUM_PIECES,
    AnyTicket,
    Deal,
    EmptyEpochs,
    Sharing,
    shared,
    unshared,
    with_inner,
)
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, Cursor, LaneCursors, LaneOrder, LaneTicket
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.packing import Documents
from datarax_ray.plan.partitions import Layout, assign
from datarax_ray.plan.position import next_multiple, pieces
from datarax_ray.read.block import Block
from datarax_ray.read.streams.interleaved import LaneBlock, LaneEnd


@dataclass
class _Epoch:
    """What is known of the lanes in one epoch. places: of each lane in the rotation."""

    number: int
    places: list[int]
    cursors: dict[int, Cursor] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def learn(self, end: LaneEnd) -> None:
        if end.cursor.ordinal > self.cursor(end.lane).ordinal:
            self.cursors[end.lane] = end.cursor
        if end.length is not None:
            self.lengths[end.lane] = end.length

    @property
    def known(self) -> LaneCursors:
        """What a state says of it."""
        return LaneCursors(self.number, dict(self.cursors), dict(self.lengths))

    def cursor(self, lane: int) -> Cursor:
        return self.cursors.get(lane, Cursor())


class LaneDealer:
    """Deals positions of an order over lanes: each actor gets those of its lanes.

    known: what a state says of the lanes at start; None to read them from their beginning. sharing: as of a
    RecordDealer.
    """

    max_size = 2**62
    max_part_size = MAX_PART_ROWS

    def __init__(
        self,
        order: LaneOrder,
        actors: Sequence[int],
        *,
        start: int,
        stop: int | None,
        known: LaneCursors | None = None,
        documents: Documents | None = None,
        sharing: Sharing | None = None,
        drops_alike: bool = True,
    ) -> None:
        self._order = order
        self._sharing = sharing
        self.is_shared = sharing is not None
        self._layout = Layout(1, order.num_lanes)
        self._owners: tuple[int, ...] = ()
        self.reassign(actors)
        self._next = start
        self._stop = stop
        # What was heard, to deal by; and what was delivered, to save: a state knows nothing of what was read ahead.
        number = start // EPOCH_POSITIONS
        self._heard = {number: self._new_epoch(number, known)}
        self._delivered = self._new_epoch(number, known)
        self._arrived: dict[int, list[LaneEnd]] = {}  # by the start of their chunk
        self._saved = [(start, known)]  # what states say from a position on; ascending
        self._documents = documents
        self._empty = EmptyEpochs(drops_alike)
        self._num_empty, self._last_empty = 0, -1  # epochs in a row that gave nothing
        self._has_elements = start % EPOCH_POSITIONS > 0  # of the epoch being delivered; those before start count

    @property
    def is_exhausted(self) -> bool:
        self._pass_ended_epochs()
        return self._stop is not None and self._next >= self._stop

    @property
    def num_actors(self) -> int:
        return len(set(self._owners))

    def deal(self, size: int) -> Deal:
        """Of the lanes that are not known to have ended, about `size` elements; never across the end of an epoch."""
        self._pass_ended_epochs()
        number, first = divmod(self._next, EPOCH_POSITIONS)
        epoch = self._heard[number]
        begins = {lane: self._order.count_before(place, first) for lane, place in enumerate(epoch.places)}
        live = {lane: at for lane, at in begins.items() if at < epoch.lengths.get(lane, EPOCH_POSITIONS)}
        span = -(-size * self._order.num_lanes // len(live))
        last = next_multiple(first, span) if self.is_shared else first + span
        if last > EPOCH_POSITIONS:
            raise RuntimeError(f"epoch {number} is longer than the {EPOCH_POSITIONS} positions kept for it")
        counts = {lane: self._order.count_before(epoch.places[lane], last) - at for lane, at in live.items()}
        start, self._next = self._next, self._next - first + last
        asked: dict[int, list[tuple[int, Cursor]]] = {}
        for lane, count in counts.items():
            if count:
                asked.setdefault(self._owners[lane], []).append((lane, epoch.cursor(lane)))
        tickets = (
            (actor, LaneTicket(start, self._next, tuple(lanes), self._documents)) for actor, lanes in asked.items()
        )
        return Deal(start, self._next, max(1, sum(counts.values())), shared(tickets, self._sharing))

    def owner(self, ticket: AnyTicket) -> int:
        """The owner of its first lane."""
        ticket = unshared(ticket)
        assert isinstance(ticket, LaneTicket)
        return self._owners[ticket.lanes[0][0]]

    def split(self, ticket: AnyTicket) -> Sequence[AnyTicket]:
        """By position, each with the lanes that have any there.

        All from the cursors of the whole, which are at or before what is wanted.
        """
        inner = unshared(ticket)
        assert isinstance(inner, LaneTicket)
        epoch = ticket.start // EPOCH_POSITIONS
        places, base = self._order.places(epoch).tolist(), epoch * EPOCH_POSITIONS

        def has_any(lane: int, lo: int, hi: int) -> bool:
            count_before = self._order.count_before
            return count_before(places[lane], lo - base) < count_before(places[lane], hi - base)

        found = []
        for lo, hi in pieces(ticket.start, ticket.stop, NUM_PIECES):
            if lanes := tuple(pair for pair in inner.lanes if has_any(pair[0], lo, hi)):
                found.append(with_inner(ticket, start=lo, stop=hi, lanes=lanes))
        return found

    def reassign(self, actors: Sequence[int], weights: Mapping[int, float] | None = None) -> None:
        order = Order(self._order.num_lanes)  # lanes are dealt round robin
        self._owners = assign(self._layout, order, actors, self._owners, weights)

    def arrived(self, ticket: AnyTicket, block: Block) -> None:
        if isinstance(block, LaneBlock):  # a block that failed as a whole says nothing of lanes
            self._arrived.setdefault(ticket.start, []).extend(block.lanes)
            if (epoch := self._heard.get(ticket.start // EPOCH_POSITIONS)) is not None:
                for end in block.lanes:
                    epoch.learn(end)

    def extra_at(self, position: int) -> LaneCursors | None:
        """Cursors at or before what comes next of each lane, and the lengths of those that have ended."""
        if position == self._stop:
            return None
        while len(self._saved) > 1 and self._saved[1][0] <= position:
            self._saved.pop(0)
        return self._saved[0][1]

    def released(self, stop: int, has_elements: bool) -> str | None:
        for start in sorted(start for start in self._arrived if start < stop):
            if start // EPOCH_POSITIONS > self._delivered.number:
                self._begin(start // EPOCH_POSITIONS)
            for end in self._arrived.pop(start):
                self._delivered.learn(end)
        self._has_elements |= has_elements
        if not has_elements and len(self._saved) > 1:
            self._saved.pop()  # a batch ends at an element, and there was none
        self._saved.append((stop, self._delivered.known))
        epoch = self._delivered
        if self._has_elements:
            self._num_empty = 0
        elif self._is_over(epoch, stop - epoch.number * EPOCH_POSITIONS) and epoch.number != self._last_empty:
            self._num_empty, self._last_empty = self._num_empty + 1, epoch.number
        total = sum(epoch.lengths.values())
        what = f"epoch {epoch.number}, of {total} in {self._order.num_lanes} lanes,"
        return self._empty.seen(self._num_empty, what, is_empty=not total)

    def _begin(self, number: int) -> None:
        """The first chunk of an epoch is delivered."""
        self._delivered = self._new_epoch(number)
        self._heard = {other: epoch for other, epoch in self._heard.items() if other >= number}
        self._has_elements = False

    def _pass_ended_epochs(self) -> None:
        """Once nothing is left of an epoch, the next one is dealt."""
        if self._next == self._stop:
            return
        number, offset = divmod(self._next, EPOCH_POSITIONS)
        if self._is_over(self._heard[number], offset):
            self._next = (number + 1) * EPOCH_POSITIONS
            self._heard[number + 1] = self._new_epoch(number + 1)

    def _is_over(self, epoch: _Epoch, offset: int) -> bool:
        """Whether no lane has an element at or behind an offset."""
        return len(epoch.lengths) == self._order.num_lanes and all(
            length <= self._order.count_before(epoch.places[lane], offset) for lane, length in epoch.lengths.items()
        )

    def _new_epoch(self, number: int, known: LaneCursors | None = None) -> _Epoch:
        epoch = _Epoch(number, self._order.places(number).tolist())
        if known is not None and known.epoch == number:  # a state at the begin of an epoch tells of the last one
            epoch.cursors |= known.cursors
            epoch.lengths |= known.lengths
        return epoch
