"""The description of a stream that is read shard by shard, and what an actor does with its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from datarax_ray.plan.amendments import are_skipped
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, InterleavedOrder, ShardEnd, ShardReadRequest
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import ShardScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.read.block import Block, block_of, transformed
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.progress import Call, Progress
from datarax_ray.read.errors import RecordError, message_of
from datarax_ray.read.formats.arrow.elements import with_loose
from datarax_ray.read.laps import lap
from datarax_ray.read.stream import MAX_NAMES
from datarax_ray.read.streams.indexed import ElementStream
from datarax_ray.read.streams.open_shards import Broken, OpenShards, Pick, Portion, ShardReader, gather, rows_at


@dataclass(frozen=True)
class InterleavedStream(ElementStream):
    """What a stream of shards is made of; see ElementStream for its other fields.

    Damage that ends the reading of a shard is an error also with on_error="skip".
    max_actors: that read at the same time, a shard each; None for all. It does not change the stream.
    """

    reader: ShardReader
    order: InterleavedOrder
    max_actors: int | None = None
    _live: OpenShards = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for step in self.steps:
            if step.kind == "decode":
                raise TypeError(
                    f"transform {step.name} decodes stored records, and this stream gives elements; map them"
                )
        object.__setattr__(self, "_live", OpenShards(self.reader, self.order))

    @property
    def yields(self) -> Yields:
        """How many elements its positions give: whether any, is known only when the shards were read."""
        return Yields(False, any(step.kind == "flat_map" for step in self.steps))

    def __str__(self) -> str:
        return f"num_shards={self.order.num_shards}, shuffle={self.order.shuffle!r}"

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> ShardScheduler:
        return ShardScheduler(
            self.order,
            start=start,
            stop=stop,
            wanted=wanted,
            max_actors=self.max_actors,
            droppers=self.droppers(wanted.documents is not None),
        )

    def read(self, request: ShardReadRequest, ended: str = "") -> Block:
        """The elements that the request asks for, by position; see Stream.read.

        ended: fails at the request's start, whatever on_error says: the shard may have ended the process.
        """
        if not ended:
            return _read_shards(self, self._live, request)
        epoch, first = divmod(request.start, EPOCH_POSITIONS)
        ((shard, _),) = request.shards
        ordinal = self.order.count_before(int(self.order.places(epoch)[shard]), first)
        error = ChildProcessError(f"every process that reads it ends: {ended}")
        failure = _end(self, shard, ordinal, request.start, error)
        return Block(np.empty(0, np.int64), None, failure=failure, failure_position=request.start)

    def names(self, request: ShardReadRequest) -> list[str]:
        return [self.reader.locate(shard, 0).rpartition("[")[0] for shard, _ in request.shards[:MAX_NAMES]]

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        return [self._location(*divmod(position, EPOCH_POSITIONS)) for position in positions.tolist()]

    def _location(self, epoch: int, offset: int) -> str:
        place, ordinal = self.order.at(offset)
        shard = int(self.order.shards(epoch)[place])
        length = self._live.length(epoch, shard)
        (source,) = self.order.sources(epoch, shard, ordinal, ordinal + 1, length).tolist()
        return self.reader.locate(shard, source)

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        raise TypeError("a stream has no random access: iterate it, or take a batch from where it stands (get_batch)")

    def close(self) -> None:
        self._live.close()
        super().close()


@dataclass
class _Piece:
    """The rows of one shard in a request. sources: places of the rows in the shard, as stored."""

    shard: int
    positions: Indices
    sources: Indices
    portions: list[Portion]

    def picks(self, places: Indices) -> Iterator[Pick]:
        for portion in self.portions:
            inside = (self.sources >= portion.start) & (self.sources < portion.stop)
            yield Pick(portion.rows, self.sources[inside] - portion.start, places[inside])


def _read_shards(description: InterleavedStream, open_shards: OpenShards, request: ShardReadRequest) -> Block:
    order = description.order
    epoch, first = divmod(request.start, EPOCH_POSITIONS)
    last = first + request.stop - request.start
    places = order.places(epoch)
    pieces: list[_Piece] = []
    ends: list[ShardEnd] = []
    failures: list[RecordError] = []
    for shard, cursor in request.shards:
        place = int(places[shard])
        start, stop = order.count_before(place, first), order.count_before(place, last)
        length = open_shards.length(epoch, shard)
        if length is not None and length <= start:
            ends.append(ShardEnd(shard, cursor, length))
            continue
        live = open_shards.find(epoch, shard, start, cursor)
        with lap("reading"):
            sources, portions = live.take(stop)
        positions = order.positions(epoch, place, np.arange(start, start + len(sources)))
        pieces.append(_Piece(shard, positions, sources, portions))
        ends.append(ShardEnd(shard, live.cursor, live.length))
        if live.failure is not None:
            position = int(order.positions(epoch, place, np.array([live.ordinal]))[0])
            failures.append(_end(description, shard, live.num_read, position, live.failure))
        open_shards.put_back(live)
    block, broken = _block(description, pieces, request.wanted)
    failures += [each for each in (broken, block.failure) if isinstance(each, RecordError)]
    failure = min(failures, key=lambda error: error.position, default=None)
    failed_at = 0 if failure is None else failure.position
    return replace(block, failure=failure, failure_position=failed_at, learned=tuple(ends))


def _block(description: InterleavedStream, pieces: list[_Piece], wanted: Wanted) -> tuple[Block, RecordError | None]:
    """The rows of all shards in the order of their positions, but for those to be left out, through the transforms.

    And the error for the first broken row that on_error does not skip.
    """
    positions = np.concatenate([np.empty(0, np.int64), *(piece.positions for piece in pieces)])
    by_position = np.argsort(positions, kind="stable")
    places = np.empty_like(by_position)
    places[by_position] = np.arange(len(positions))
    ends = np.cumsum([len(piece.positions) for piece in pieces])
    picks = [
        pick
        for piece, end in zip(pieces, ends, strict=True)
        for pick in piece.picks(places[end - len(piece.positions) : end])
    ]
    positions = positions[by_position]

    def locate(position: int) -> str:  # asked only for what failed
        piece = next(piece for piece in pieces if position in piece.positions)
        return description.reader.locate(piece.shard, int(piece.sources[np.searchsorted(piece.positions, position)]))

    picks = [pick for pick in picks if len(pick.places)]
    errors = {int(pick.places[0]): pick.source.error for pick in picks if isinstance(pick.source, Broken)}
    if errors:
        kept = np.setdiff1d(np.arange(len(positions)), [*errors])
        picks = [
            replace(pick, places=np.searchsorted(kept, pick.places))
            for pick in picks
            if not isinstance(pick.source, Broken)
        ]
        errors = {int(positions[place]): error for place, error in sorted(errors.items())}
        positions = positions[kept]
    rows = gather(picks, len(positions))
    if wanted.amendments and (gone := are_skipped(wanted.amendments, positions)).any():
        rows, positions = rows_at(rows, np.flatnonzero(~gone)), positions[~gone]
    is_table = isinstance(rows, Mapping)
    loose = description.reader.loose(rows) if is_table else {}
    elements: Any = rows
    if is_table:
        elements = [dict(zip(loose, row, strict=True)) for row in zip(*loose.values(), strict=True)]
    progress = Progress(elements, positions.tolist(), positions.tolist(), on_error=description.on_error, locate=locate)
    if (decode := description.reader.decode) is not None:
        progress.elements = [decode(element) for element in progress.elements]  # all of them, before the first is due
        with lap("decoding"):
            progress.run([Call(lambda decoded, *_: decoded(), "decoding")])
    columns = _settled(progress, rows, positions, loose) if is_table else None
    columns = transformed(progress, columns, description.steps, description.order.seed, description.as_objects)
    block = block_of(progress, columns, wanted.documents)
    if not errors:
        return block, None
    failing = Progress([], [*errors], [*errors], on_error=description.on_error, locate=locate)
    for index, (position, error) in enumerate(errors.items()):
        is_gone = wanted.amendments and are_skipped(wanted.amendments, np.array([position])).any()
        if not (is_gone or failing.record_failure(index, locate(position), message_of(error), error)):
            break
    may_come, skipped = block.may_come | failing.may_come, (*failing.skipped, *block.skipped)
    return replace(block, may_come=may_come, skipped=skipped), failing.failure


def _settled(progress: Progress, rows: Columns, positions: Indices, loose: Mapping[str, Any]) -> Columns:
    """The columns of what was decoded; None where pictures differ in size, and these are elements."""
    if not loose or not progress.elements:
        return rows if not loose else None
    kept = np.flatnonzero(np.isin(positions, progress.positions))
    columns = rows_at({name: column for name, column in rows.items() if name not in loose}, kept)
    found = with_loose(columns, {name: [element[name] for element in progress.elements] for name in loose})
    if isinstance(found, Mapping):
        return found
    progress.elements = found
    return None


def _end(description: InterleavedStream, shard: int, index: int, position: int, error: BaseException) -> RecordError:
    """Why the shard gives nothing from here on."""
    where = description.reader.locate(shard, index)
    failure = RecordError.of(where, position, f"reading raised {type(error).__name__}: {message_of(error)}", error)
    if description.on_error != "raise":
        failure.add_note(
            "The shard cannot be read on behind this, so on_error has no say in it. What a map or a filter inside the "
            "dataset raises can be left out where it is one of the transforms instead."
        )
    return failure
