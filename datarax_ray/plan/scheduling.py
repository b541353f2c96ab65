"""Scheduling: the next chunk of a stream, and its requests. One scheduler for each kind of stream.

A scheduler cuts the next chunk off a stream and divides it into requests for the owners of its records, or of its
shards. It does no I/O; the window (feed.window) decides when, and who owns the partitions.

Blocks bring newer cursors of shards and, at their ends, lengths. A shard of unknown length is asked as if it never
ended, and gives nothing behind its end. Once the lengths of all shards are known, the next epoch is scheduled while
this one is still being delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders.interleaved import (
    EPOCH_POSITIONS,
    Cursor,
    InterleavedOrder,
    ShardCursors,
    ShardEnd,
    ShardReadRequest,
)
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, Order, Partitioning
from datarax_ray.plan.partitions import ReadRequest, owners_in
from datarax_ray.plan.position import next_multiple, pieces
from datarax_ray.plan.requests import EVERYTHING, Request, Wanted
from datarax_ray.plan.state import StreamState

# Pieces of a split request. A record that ends its process is found in as many dead processes as the logarithm of the
# chunk to this base: 5 of 2**15 positions, where halving takes 15.
NUM_PIECES = 8
# A part of tiny records is bounded by time: 2**15 random records take an actor about 0.1 s.
MAX_PART_RECORDS = 2**15
# Rows of a part where whole groups are read as columns, ten times as fast: 8 MiB of 64-byte rows.
MAX_PART_ROWS = 2**17
# An epoch of a small shuffled dataset costs a table, 3 to 9 ms for any number of records: with 10 records a chunk of
# 2**15 positions would take half a minute. The cipher keeps 64 tables.
MAX_CHUNK_EPOCHS = 64
# The fewest partitions of an actor: shares are even to 6 %.
PARTITIONS_EACH = 16


@dataclass(frozen=True)
class ChunkLimits:
    """Limits of a stream's chunks.

    max_size: positions in the largest chunk that makes sense.
    first_size: positions in the first chunk, when the size of records is not known.
    max_part_size: positions in the largest part for one actor.
    max_actors: actors that may read at a time, None for all.
    is_aligned: chunks end at multiples of their sizes (powers of two by default), so that trainers share chunks.
    share: fraction of a chunk's positions that this trainer reads; other trainers read the rest from the same actors.
    is_anywhere: a request costs all actors about the same, so any actor may get it.
    """

    max_size: int = 2**62
    first_size: int = 2**62
    max_part_size: int = MAX_PART_RECORDS
    max_actors: int | None = None
    is_aligned: bool = False
    share: float = 1.0
    is_anywhere: bool = False


@dataclass(frozen=True)
class Chunk:
    """The chunk [start, stop) and its requests by actor. size: positions with a possible element."""

    start: int
    stop: int
    size: int
    requests: tuple[tuple[int, Request], ...]


class Scheduler:
    """Schedules a stream from its start on, chunk by chunk.

    partitioning: the partitions that actors own; see plan.partitions.assign.
    """

    partitioning: Partitioning
    limits: ChunkLimits

    def fit(self, num_actors: int) -> None:
        """Event: num_actors read. Makes more partitions if shares would be uneven."""

    @property
    def is_exhausted(self) -> bool:
        """Whether everything up to the stop is scheduled, by the known lengths."""
        raise NotImplementedError

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        """The next chunk, of about `size` positions; not when exhausted. owners: the actor of each partition."""
        raise NotImplementedError

    def split(self, request: Any) -> Sequence[Request]:
        """Requests that together equal this one, each for fewer positions; () where it cannot be split."""
        return ()

    def arrived(self, request: Request, learned: Sequence[Any]) -> None:
        """Event: a request's block has arrived. learned: see Block.learned."""


class EmptyEpochs:
    """Decides about epochs without an element, which could make a trainer wait for ever.

    If all epochs have the same records (are_cycles_alike), one empty epoch behind the last amended position proves that
    all are empty, unless records that it dropped may come elsewhere (see Block): the stream ends with an error.
    Otherwise the stream goes on, and the log says so. droppers: possible reasons, for people.
    """

    def __init__(self, are_cycles_alike: bool, droppers: Sequence[str], amendments: Amendments = ()) -> None:
        is_shown = are_cycles_alike and not any(each.weights is not None for each in amendments)
        ends = [each.positions[-1][1] if each.positions else each.at for each in amendments]
        self._alike_from = max(ends, default=0) if is_shown else None
        may_skip = any(each.positions or each.records for each in amendments)
        self._why = ", or ".join([*droppers, *["all of it was amended away"] * may_skip])
        self.next_reported = 1

    def seen(
        self, number: int, what: str, begin: int = 0, is_empty: bool = False, may_come: bool = False
    ) -> str | None:
        """A line for the log after an empty epoch; None if the log has one already.

        begin: the first position of the last empty epoch.
        is_empty: there is no data.
        may_come: records that the last empty epoch dropped may come elsewhere.

        Raises: RuntimeError if no element will ever come.
        """
        if not number:
            self.next_reported = 1
        if number < self.next_reported:
            return None
        is_proof = self._alike_from is not None and self._alike_from <= begin and not may_come
        if is_empty or is_proof:
            raise RuntimeError(f"no element of {what} was kept: {'the data is empty' if is_empty else self._why}")
        self.next_reported = 2 * number
        return (
            f"no element of {what} was kept, nor of {number} epochs in a row: {self._why}. In a later epoch "
            "that may differ, so the stream goes on."
        )


class RecordScheduler(Scheduler):
    """Schedules positions of an order: an actor reads the positions of the records in its partitions.

    start: a state, or a position.
    stop: None for an endless stream.
    wanted: of every position.
    first_size: see ChunkLimits.
    are_cycles_alike, droppers: see EmptyEpochs.
    is_kept: actors keep decoded records, so no other actor should decode them.
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
        order = order.amended(start.amendments) if start.amendments else order
        self.limits = ChunkLimits(
            min(MAX_CHUNK_EPOCHS * order.shortest_epoch, 2**62),
            first_size,
            MAX_PART_ROWS if partitioning.by_group else MAX_PART_RECORDS,
            is_aligned=wanted.sharing is not None,
            share=1.0 if wanted.positions is None else wanted.positions.share,
            is_anywhere=not is_kept,
        )
        self._order = order
        self._next = self._last_element = start.position
        self._stop = stop
        self._wanted = wanted
        self._may_come_until = 0  # the end of the last chunk that dropped records which may come elsewhere
        self._empty = EmptyEpochs(are_cycles_alike, droppers, start.amendments)

    def fit(self, num_actors: int) -> None:
        if num_actors * PARTITIONS_EACH > MAX_NUM_PARTITIONS:
            self.partitioning = self.partitioning.refined(1 << (num_actors * PARTITIONS_EACH - 1).bit_length())

    @property
    def is_exhausted(self) -> bool:
        return self._next == self._stop

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        start, wanted = self._next, self._wanted.positions
        # positions of other trainers cost nothing, and must not count in the size of the chunk
        first = start if wanted is None else min(wanted.first_from(start), start + self.limits.max_size)
        stop = next_multiple(start, size) if self.limits.is_aligned else first + size
        self._next = stop = stop if self._stop is None else min(stop, self._stop)
        parts = owners_in(self._order, self.partitioning, owners, start, stop, self._wanted.positions)
        requests = (
            (actor, ReadRequest(start, stop, self.partitioning, owned, self._wanted)) for actor, owned in parts.items()
        )
        return Chunk(start, stop, max(1, stop - first), tuple(requests))

    def split(self, request: ReadRequest) -> Sequence[ReadRequest]:
        """By position; a piece may have no record of the partitions."""
        return [replace(request, start=lo, stop=hi) for lo, hi in pieces(request.start, request.stop, NUM_PIECES)]

    def extra_at(self, position: int) -> None:
        """The extra of a state at a position in a chunk not released, or behind an element before it: none here."""

    def released(self, stop: int, has_elements: bool, may_come: bool = False) -> str | None:
        """Event: everything before `stop` was delivered. has_elements, may_come: of the last chunk, see Block.

        Returns a line for the log after 1, 2, 4, ... epochs without an element. Raises: as EmptyEpochs.seen.
        """
        if may_come:
            self._may_come_until = stop
        if has_elements or self._wanted.positions is not None:  # where trainers count positions, nothing is dropped
            self._last_element, self._empty.next_reported = stop, 1
            return None
        # Whole epochs count: the only element that a filter keeps may be the first of one epoch, and the last of the
        # next.
        cycle = self._order.cycle
        start = -(-self._last_element // cycle) * cycle
        number = max(0, stop - start) // cycle
        last = start + (number - 1) * cycle
        may_come = self._may_come_until > last
        return self._empty.seen(number, f"the {cycle} positions from {start} on", last, may_come=may_come)


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


class ShardScheduler(Scheduler):
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


# Each knows the delivered part of its stream, and so its state.
StreamScheduler: TypeAlias = RecordScheduler | ShardScheduler
