"""Scheduling the shards of a stream: the next elements, the actor that reads them, and its cursors.

Blocks bring newer cursors of shards and, at their ends, lengths. A shard of unknown length is asked as if it never
ended, and gives nothing behind its end. Once the lengths of all shards are known, the next epoch is scheduled while
this one is still being delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from datarax_ray.plan.orders.interleaved import (
    EPOCH_POSITIONS,
    Cursor,
    InterleavedOrder,
    ShardCursors,
    ShardEnd,
    ShardReadRequest,
)
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.position import next_multiple, pieces
from datarax_ray.plan.requests import EVERYTHING, Request, Wanted
from datarax_ray.plan.scheduling import MAX_PART_ROWS, NUM_PIECES, Chunk, ChunkLimits, EmptyEpochs
from datarax_ray.plan.state import StreamState


@dataclass
class _Epoch:
    """Cursors and lengths known of the shards in one epoch. places: of each shard in the rotation."""

    number: int
    places: list[int]
    cursors: dict[int, Cursor] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def learn(self, end: ShardEnd) -> None:
        if end.cursor.ordinal > self.cursor(end.shard).ordinal:
            self.cursors[end.shard] = end.cursor
        if end.length is not None:
            self.lengths[end.shard] = end.length

    @property
    def known(self) -> ShardCursors:
        return ShardCursors(self.number, dict(self.cursors), dict(self.lengths))

    def cursor(self, shard: int) -> Cursor:
        return self.cursors.get(shard, Cursor())


class ShardScheduler:
    """Schedules positions of an order over shards: each actor reads its shards.

    max_actors: see ChunkLimits. The other arguments are as of a RecordScheduler.
    """

    def __init__(
        self,
        order: InterleavedOrder,
        *,
        start: int | StreamState,
        stop: int | None,
        wanted: Wanted = EVERYTHING,
        max_actors: int | None = None,
        droppers: Sequence[str] = (),
    ) -> None:
        start = StreamState.at(start)
        position, known = start.position, start.extra
        assert known is None or isinstance(known, ShardCursors)
        self.partitioning = Partitioning(1, order.num_shards)
        self.limits = ChunkLimits(
            max_part_size=MAX_PART_ROWS, max_actors=max_actors, is_aligned=wanted.sharing is not None
        )
        self._order = order
        self._next = position
        self._stop = stop
        self._wanted = wanted
        # heard: by all blocks that arrived, for scheduling; delivered: by the delivered blocks alone, for states
        number = position // EPOCH_POSITIONS
        self._heard = {number: self._new_epoch(number, known)}
        self._delivered = self._new_epoch(number, known)
        self._arrived: dict[int, list[ShardEnd]] = {}  # by the start of their chunk
        self._saved = [(position, known)]  # extras of states from a position on; ascending
        self._start, self._last = start, order.last_of(start)
        self._empty = EmptyEpochs(True, droppers, start.amendments)
        self._num_empty, self._last_empty = 0, -1  # epochs in a row that gave nothing
        # of the epoch being delivered, including what was before start
        self._has_elements = self._may_come = position % EPOCH_POSITIONS > 0

    def fit(self, num_actors: int) -> None:
        """Nothing: a shard is read forwards by one actor."""

    @property
    def is_exhausted(self) -> bool:
        self._pass_ended_epochs()
        return self._stop is not None and self._next >= self._stop

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        """About `size` elements of shards without a known end before them; never across the end of an epoch."""
        self._pass_ended_epochs()
        number, first = divmod(self._next, EPOCH_POSITIONS)
        epoch = self._heard[number]
        begins = {shard: self._order.count_before(place, first) for shard, place in enumerate(epoch.places)}
        live = {shard: at for shard, at in begins.items() if at < epoch.lengths.get(shard, EPOCH_POSITIONS)}
        span = -(-size * self._order.num_shards // len(live))
        last = next_multiple(first, span) if self.limits.is_aligned else first + span
        if last > EPOCH_POSITIONS:
            raise RuntimeError(f"epoch {number} is longer than the {EPOCH_POSITIONS} positions kept for it")
        counts = {shard: self._order.count_before(epoch.places[shard], last) - at for shard, at in live.items()}
        start, self._next = self._next, self._next - first + last
        asked: dict[int, list[tuple[int, Cursor]]] = {}
        for shard, count in counts.items():
            if count:
                asked.setdefault(owners[shard], []).append((shard, epoch.cursor(shard)))
        requests = (
            (actor, ShardReadRequest(start, self._next, tuple(shards), self._wanted)) for actor, shards in asked.items()
        )
        return Chunk(start, self._next, max(1, sum(counts.values())), tuple(requests))

    def split(self, request: ShardReadRequest) -> Sequence[ShardReadRequest]:
        """By position; each piece has its shards, with the cursors of the whole request."""
        epoch = request.start // EPOCH_POSITIONS
        places, base = self._order.places(epoch).tolist(), epoch * EPOCH_POSITIONS

        def has_any(shard: int, lo: int, hi: int) -> bool:
            count_before = self._order.count_before
            return count_before(places[shard], lo - base) < count_before(places[shard], hi - base)

        found = []
        for lo, hi in pieces(request.start, request.stop, NUM_PIECES):
            if shards := tuple(pair for pair in request.shards if has_any(pair[0], lo, hi)):
                found.append(replace(request, start=lo, stop=hi, shards=shards))
        return found

    def arrived(self, request: Request, learned: Sequence[ShardEnd]) -> None:
        epoch = self._heard.get(request.start // EPOCH_POSITIONS)
        for end in learned:
            self._arrived.setdefault(request.start, []).append(end)
            if epoch is not None:
                epoch.learn(end)

    def extra_at(self, position: int) -> ShardCursors | None:
        """Cursors at or before the next element of each shard, and lengths of ended shards."""
        if position == self._stop:
            return None
        while len(self._saved) > 1 and self._saved[1][0] <= position:
            self._saved.pop(0)
        return self._saved[0][1]

    def released(self, stop: int, has_elements: bool, may_come: bool = False) -> str | None:
        for start in sorted(start for start in self._arrived if start < stop):
            if (number := start // EPOCH_POSITIONS) > self._delivered.number:  # the first of an epoch
                self._delivered = self._new_epoch(number)
                self._heard = {other: epoch for other, epoch in self._heard.items() if other >= number}
                self._has_elements = self._may_come = False
            for end in self._arrived.pop(start):
                self._delivered.learn(end)
        self._has_elements |= has_elements
        self._may_come |= may_come
        if not has_elements and len(self._saved) > 1:
            self._saved.pop()  # a batch ends at an element, and there was none
        self._saved.append((stop, self._delivered.known))
        epoch = self._delivered
        if self._has_elements:
            self._num_empty = 0
        elif self._is_over(epoch, stop - epoch.number * EPOCH_POSITIONS) and epoch.number != self._last_empty:
            self._num_empty, self._last_empty = self._num_empty + 1, epoch.number
        if self._last is not None and epoch.number == self._start.position // EPOCH_POSITIONS:
            shard, ordinal = self._last
            if (length := epoch.lengths.get(shard)) is not None:
                self._last = None
                if length <= ordinal:
                    return (
                        f"the stream was resumed at position {self._start.position}, behind element {ordinal} (from "
                        f"0) of shard {shard}, which has {length} elements: the shard is shorter than when the state "
                        f"was taken, or the position was made up, so earlier elements of epoch {epoch.number} were "
                        "not read"
                    )
        total = sum(epoch.lengths.values())
        what = f"epoch {epoch.number}, of {total} in {self._order.num_shards} shards,"
        return self._empty.seen(self._num_empty, what, is_empty=not total, may_come=self._may_come)

    def _pass_ended_epochs(self) -> None:
        if self._next == self._stop:
            return
        number, offset = divmod(self._next, EPOCH_POSITIONS)
        if self._is_over(self._heard[number], offset):
            self._next = (number + 1) * EPOCH_POSITIONS
            self._heard[number + 1] = self._new_epoch(number + 1)

    def _is_over(self, epoch: _Epoch, offset: int) -> bool:
        """Whether no shard has an element at or after an offset."""
        return len(epoch.lengths) == self._order.num_shards and all(
            length <= self._order.count_before(epoch.places[shard], offset) for shard, length in epoch.lengths.items()
        )

    def _new_epoch(self, number: int, known: ShardCursors | None = None) -> _Epoch:
        epoch = _Epoch(number, self._order.places(number).tolist())
        if known is not None and known.epoch == number:  # a state at the beginning of an epoch has the last one
            epoch.cursors |= known.cursors
            epoch.lengths |= known.lengths
        return epoch
