"""The stream: a window, the pool or process that reads, and a batcher, run together for one consumer.

The story of one record, from its bytes to the device; a dozen steps, in order:

 1. `batches`, below: opens the stream, and hands each chunk of blocks to the batcher.
 2. `_Reading`, below: makes the scheduler and the window. In one process, `read_in_process`, below, gives the chunks,
    by steps 4 and 6. With actors, `_Reading._received` turns a flow, by steps 3 and 9. `_Reading._selected` turns two
    flows: one asks for the places of the elements, one for a trainer's own rows. The components of a mixture with
    streams are opened in the same way, and `Merger` (read.streams.merged) puts them together.
 3. `Flow.poll` (feed.flow): sends the parts of step 4 to the actors, by `RayPool.send` (actors.pool).
 4. `Window.asks` (feed.window): opens as many chunks as the bound in bytes allows. `RecordScheduler.next_chunk`
    (plan.scheduling) makes a request for each owner of records of a chunk; for shards, `ShardScheduler.next_chunk`.
 5. `ReaderActor.read` (actors.reader_actor): runs in the actor. `BlockCache.answer` (read.block_cache) has the block
    from another trainer's request, or makes it by steps 6 to 8.
 6. `IndexedStream.read` (read.streams.indexed), or another stream's: `ReadRequest.select` (plan.partitions) gives the
    positions of the chunk whose records the actor owns, and these records, by the order.
 7. `read_records` (read.streams.indexed): reads their bytes, or columns, by the reader of a format (read.formats).
 8. `transformed` (read.block): decodes, and applies the transforms, single elements by `Progress.run`
    (read.elements.progress). `block_of` (read.block) stacks the elements as one Block. The object store keeps it.
 9. `Flow.receive` (feed.flow): receives the block, or learns that it is lost or doubted (feed.second_reads).
10. `Batcher.add` (feed.batches): copies rows to their places in the batch, and gives the state after the batch.
    `by_length` (feed.by_length) cuts batches by length from such a batch of many rows.
11. `BatchProducer.place` (pipeline.producing): puts the batch on the device, where the stages run in
    `BatchProducer.finish` (pipeline.producing).
12. `Consumer.take` (feed.consumer): hands the batch out; `Consumer.commit` (feed.consumer) moves the state behind it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from datarax_ray.feed.batches import Batcher, Chunks, HostBatch
from datarax_ray.feed.by_length import Batches, by_length
from datarax_ray.feed.flow import Flow, Pool, Stall
from datarax_ray.feed.packing import PackedBatcher, PackedRowSelector
from datarax_ray.feed.row_selection import RowSelector, Select, SelectedRowsScheduler
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import (
    DEFAULT_MAX_NBYTES,
    DEPTH,
    OWN_BLOCK_NBYTES,
    TARGET_BLOCK_NBYTES,
    Part,
    Window,
)
from datarax_ray.plan.amendments import yields_from
from datarax_ray.plan.arguments import flag, positive, whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.mixture import Proportions
from datarax_ray.plan.packing import AnyPacking, DocumentSpec, LengthBatches, Packing
from datarax_ray.plan.position import MAX_POSITION, earliest
from datarax_ray.plan.requests import Sharing, Wanted
from datarax_ray.plan.runs import num_rows_of
from datarax_ray.plan.scheduling import Scheduler, StreamScheduler
from datarax_ray.plan.state import Extra, PoolState, StreamState
from datarax_ray.plan.trainer_rows import WHOLE, Share, TrainerPositions, TrainerRows, rows_of_rank
from datarax_ray.read.block import Block, timed
from datarax_ray.read.elements.columns import leaves, odd_one
from datarax_ray.read.errors import UnlikeError
from datarax_ray.read.skipped_records import NO_LIMIT, SkipLimit
from datarax_ray.read.stream import Stream, locks_of
from datarax_ray.read.streams.merged import MergedStream, Merger
from datarax_ray.read.streams.mixture import Mixed

logger = logging.getLogger("datarax_ray")

# Far beyond what a part takes to read (1 s) and an actor to be replaced (10 s): then a person wants to know.
STALL_AFTER_S = 30.0


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is cut into batches, and how much of it is in flight.

    batch_size: rows of the global batch.
    process_index, process_count: the rank of this trainer, and the number of trainers.
    share: this trainer's parts of every batch; None to divide batches by rank.
    drop_remainder: skip a short last batch.
    pad_remainder: the caller pads a short last batch, so its rows are divided like those of a full batch.
    packing: how documents become rows, or elements become batches of one length; None for one row per element.
    chunk_size: positions per chunk; None to choose.
    max_nbytes: bound on the bytes in flight; Pool.allowance may change it.
    block_nbytes: wanted size of a block.
    stall_after_s: seconds of waiting for a batch before the log names actors and files.
    shares_actors: other trainers ask the same actors, which then read once for all.
    is_pool: give whole pools, where packing is LengthBatches.
    stop: the position to end at, None for the end of the source.
    digest: give every batch a digest.
    limit: of broken records, even where no batch comes.
    cancelled: polled while the stream waits; once true, the stream ends.
    timings: counts where the time goes.
    rows: this trainer's rows of every batch, derived from the others.
    """

    batch_size: int
    drop_remainder: bool = False
    process_index: int = 0
    process_count: int = 1
    chunk_size: int | None = None
    max_nbytes: int = DEFAULT_MAX_NBYTES
    block_nbytes: int = TARGET_BLOCK_NBYTES
    pad_remainder: bool = False
    packing: AnyPacking | None = None
    stall_after_s: float = STALL_AFTER_S
    shares_actors: bool = False
    share: Share | None = None
    is_pool: bool = False
    stop: int | None = None
    digest: bool = False
    limit: SkipLimit = NO_LIMIT
    cancelled: Callable[[], bool] = field(default=bool, compare=False)  # which is false
    timings: Timings | None = field(default=None, compare=False)
    rows: TrainerRows = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "process_index", "process_count"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.chunk_size is not None:
            object.__setattr__(self, "chunk_size", whole("chunk_size", self.chunk_size, least=1))
        for name in ("drop_remainder", "pad_remainder", "digest"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        if self.share is None:
            rows = rows_of_rank(self.batch_size, self.process_index, self.process_count, self.pad_remainder)
        else:
            rows = TrainerRows(self.batch_size, self.share, self.pad_remainder)
        object.__setattr__(self, "rows", rows)
        whole("max_nbytes", self.max_nbytes, ", in bytes", least=1)
        positive("stall_after_s", self.stall_after_s)


def batches(description: Stream, pool: Pool | None, start: StreamState, options: StreamOptions) -> Batches:
    """The batches of the stream from a state on. Reading goes on while a batch is in use, up to the bound.

    pool: the actors that read; None to read in this process.

    The value of the iterator (StopIteration.value) is the broken records after the last batch. When the iterator is
    closed, the pool forgets its requests in flight.

    Raises: the errors of reading, when the batch of the failed record is due; OverflowError where positions end;
    RuntimeError if no actor runs and none can be started, or if no element of any epoch will ever be kept.
    """
    if isinstance(lengths := options.packing, LengthBatches) and not options.is_pool:
        # each trainer has whole pools, for lengths of all rows say which are its own
        size = options.batch_size * lengths.num_batches
        pools = replace(options, batch_size=size, share=WHOLE, is_pool=True, drop_remainder=False, pad_remainder=False)
        return (
            yield from by_length(
                batches(description, pool, start._replace(pool=PoolState()), pools),
                start,
                lengths,
                options.rows,
                seed=getattr(description.order, "seed", 0),
                drop_remainder=options.drop_remainder,
                padded=(options.timings or Timings()).padded,
            )
        )
    options = options if options.stop is not None else replace(options, stop=description.stop)
    if options.stop is not None and start.position >= options.stop:
        return ()
    limit = options.limit
    common: dict[str, Any] = {
        "start": start.position,
        "stop": options.stop,
        "offset": start.offset,
        "drop_remainder": options.drop_remainder,
    }
    if isinstance(options.packing, Packing):
        batcher: Batcher | PackedBatcher = PackedBatcher(options.packing, options.rows, **common)
    else:
        yields = yields_from(description.yields, start.amendments, start.position)
        batcher = Batcher(options.rows, yields=yields, **common)
    reading = _Reading(description, pool, start, options, _wanted(description, start, options))
    with closing(reading):
        for first, last, blocks in reading.chunks:
            assert not options.digest or all(b.digests is not None for b in blocks if len(b.positions))
            try:
                for batch in batcher.add(first, last, blocks):
                    yield _complete(batch, reading, start)
                    limit = limit.plus(batch.skipped)
            except GeneratorExit:  # also at the program's end, when the name below is gone
                raise
            except UnlikeError as error:
                _name_records(error, description, start)
                raise
            limit.after(batcher.intake.skipped)
    if options.cancelled():
        return ()
    for batch in batcher.finish():
        yield _complete(batch, reading, start)
    return batcher.intake.skipped_before(None)


def chunks(description: Stream, pool: Pool | None, start: StreamState, options: StreamOptions) -> Chunks:
    """(start, stop, blocks) of consecutive chunks, in order, for callers that need blocks and no batches.

    Only the options that bound the bytes in flight count. A list of blocks is emptied when the next chunk is asked for:
    otherwise a consumer's variable would keep the blocks outside the bound.
    """
    stop = description.stop if options.stop is None else options.stop
    options = replace(options, stop=stop, shares_actors=False)
    if stop is None or start.position < stop:
        with closing(_Reading(description, pool, start, options, _wanted(description, start, options))) as reading:
            yield from reading.chunks


def places(
    description: MergedStream, start: StreamState, documents: DocumentSpec | None
) -> Generator[Sequence[tuple[int, Indices, Indices]], None, None]:
    """Where the elements of a merged mixture come from, read in this process from a state on.

    Of each chunk and component: (component, positions in the mixture, positions in the component), int64 (k,) both.
    """
    options = StreamOptions(1, stop=description.stop)
    with closing(_Reading(description, None, start, options, Wanted(documents=documents))) as reading:
        assert reading.merger is not None
        for _ in reading.chunks:
            if reading.merger.taken:
                yield reading.merger.taken


class _Reading:
    """A stream that is read over one pool: one component, or the several components of a merged mixture.

    While the stream waits for a chunk of one component, the other components go on.

    chunks: of the stream. extra_at: see StreamScheduler. merger: of a merged mixture.
    """

    def __init__(
        self, description: Stream, pool: Pool | None, start: StreamState, options: StreamOptions, wanted: Wanted
    ) -> None:
        self._description = description
        self._pool = pool
        self._options = options
        self._stall = Stall(description, options.stall_after_s)
        self._flows: list[Flow] = []
        self.merger: Merger | None = None
        self._proportions = _proportions(description, start, options)
        self.chunks, self.extra_at = self._opened(description, start, options.stop, wanted)
        if self._proportions is not None:
            self.chunks = _counted(self.chunks, self._proportions, wanted, self.merger)
        if options.timings is not None:
            options.timings.mixed(self._proportions)

    def close(self) -> None:
        self.chunks.close()
        for flow in self._flows:
            flow.close()

    def _opened(
        self, stream: Any, start: StreamState, stop: int | None, wanted: Wanted, share: float = 1.0
    ) -> tuple[Chunks, Callable[[int], Extra | None]]:
        """The chunks of a stream, or of a component, and its extra. share: the part of the bytes that it may use."""
        if isinstance(stream, MergedStream):
            merger = Merger(stream.order, start, earliest([stop, stream.length]))
            parts = []
            of_all = zip(stream.components, merger.states, stream.shares(), strict=True)
            for index, (component, state, its_share) in enumerate(of_all):
                end = component.stop if merger.is_wanted(index) else state.position  # of weight 0 nothing is read
                # amendments are recorded by the positions of the mixture
                its = replace(wanted, amendments=(), components=(*wanted.components, index))
                parts.append(self._opened(component, state, end, its, share * its_share))
            self.merger = merger  # the outermost
            return self._merged(merger, parts), merger.extra_at
        scheduler = stream.scheduler(start, None if stop is None else max(stop, start.position), wanted)
        options = self._options
        if wanted.sharing is not None and wanted.sharing.part == "places":
            is_fixed = options.drop_remainder or options.pad_remainder or options.stop is None
            given: dict[str, Any] = {"stop": options.stop, "offset": start.offset, "is_fixed": is_fixed}
            if isinstance(options.packing, Packing):
                found = self._selected(scheduler, PackedRowSelector(options.packing, options.rows, **given).select)
            else:
                found = self._selected(scheduler, RowSelector(options.rows, **given).select)
        elif self._pool is not None:
            found = self._received(self._flow(_window(scheduler, options, options.max_nbytes * share)))
        else:
            cuts = None if wanted.components or options.packing else (start.position, options.batch_size)
            own = replace(options, block_nbytes=min(OWN_BLOCK_NBYTES, options.block_nbytes))
            window = _window(scheduler, own, options.max_nbytes * share, batches=cuts)
            found = read_in_process(window, self._description, options.timings, options.cancelled)
        return _released(found, scheduler, wanted.components), scheduler.extra_at

    def _flow(self, window: Window) -> Flow:
        assert self._pool is not None
        self._flows.append(Flow(window, self._pool, self._stall, self._options.timings))
        return self._flows[-1]

    def _received(self, flow: Flow) -> Chunks:
        """The chunks of a flow in order, each once all of its blocks are here."""
        while not flow.window.is_finished and not self._options.cancelled():
            actors, weights = flow.readers()
            lost = [each.poll(actors, weights) for each in self._flows]
            if any(lost):
                continue
            if not flow.window.is_ready:
                flow.receive()
                continue
            start, stop, _, blocks = flow.first()
            yield start, stop, blocks
            flow.release()

    def _selected(self, scheduler: StreamScheduler, select: Select) -> Chunks:
        """The chunks, whose blocks have the columns of this trainer's rows alone.

        Actors are first asked for the places of the elements. Half of the bytes in flight are read ahead and wait with
        the actors; the other half are on their way to this trainer. An actor keeps four times the bytes that may wait
        with it (BlockCache), and would make a dropped block again. Trainers that share actors wait for the same blocks
        and take different rows: together they have the bytes of one trainer alone.
        """
        options = self._options
        selected = SelectedRowsScheduler(scheduler, select)
        max_nbytes = max(1, options.max_nbytes // 2 * (options.process_count if options.shares_actors else 1))
        max_actor_nbytes = DEPTH * options.block_nbytes // 2
        ahead = _window(scheduler, options, max_nbytes, max_actor_nbytes=max_actor_nbytes)
        share = num_rows_of(options.rows.full) / options.batch_size
        mine = [max(1, int(nbytes * share)) for nbytes in (max_nbytes, max_actor_nbytes)]
        own = Window(selected, chunk_size=1, max_nbytes=mine[0], max_actor_nbytes=mine[1])
        places, rows = self._flow(ahead), self._flow(own)
        while not (ahead.is_finished and own.is_finished) and not options.cancelled():
            actors, weights = places.readers()
            is_lost = places.poll(actors, weights) | rows.poll(actors, weights)
            while ahead.is_ready and selected.is_exhausted:  # known places are scheduled when there is room for them
                selected.add_places(*(known := places.first()))
                if self._proportions is not None and not self._proportions.is_exact:
                    self._proportions.add(known[1], [block.positions for block in known[3]])
                places.release()
                # rows first: an actor answers in the order in which it is asked, and these cost it nothing
                is_lost |= rows.poll(actors, weights) | places.poll(actors, weights)
            if is_lost:
                continue
            if own.is_ready:
                start, stop, _, blocks = rows.first()
                blocks = selected.merged(blocks)
                yield start, stop, blocks
                rows.release()
            elif own.num_open:
                rows.receive(places if selected.is_exhausted else None)
            else:  # no rows are in flight
                places.receive()

    def _merged(self, merger: Merger, parts: Sequence[tuple[Chunks, Callable[[int], Extra | None]]]) -> Chunks:
        """The chunks of a mixture. A component is asked for a chunk when its next element is due."""
        found, extra_at = zip(*parts, strict=True)
        with ExitStack() as stack:
            for each in found:
                stack.enter_context(closing(each))
            while not merger.is_over:
                lacking = merger.lacking
                if lacking is None:
                    start, stop, blocks = merger.take(extra_at)
                elif (chunk := next(found[lacking], None)) is not None:
                    merger.add(lacking, chunk[2])
                    if self._options.limit.is_bound:
                        self._options.limit.after(merger.skipped_of(lacking))
                    continue
                elif self._options.cancelled():
                    return
                else:
                    start, stop, blocks = merger.end(lacking)
                yield start, stop, blocks
                blocks.clear()  # or a consumer's variable would keep them, outside the windows' bounds


def _window(scheduler: Scheduler, options: StreamOptions, max_nbytes: float, **given: Any) -> Window:
    """The window over a scheduler. max_nbytes: below the size of a chunk, one chunk is in flight."""
    return Window(
        scheduler,
        chunk_size=options.chunk_size,
        max_nbytes=max(1, int(max_nbytes)),
        block_nbytes=options.block_nbytes,
        num_sharing=options.process_count,
        **given,
    )


def read_in_process(
    window: Window, description: Stream, timings: Timings | None, cancelled: Callable[[], bool]
) -> Chunks:
    """The chunks of a window, read in this process: a part of a chunk when the stream comes to it."""
    locks, timings, reads_ahead = locks_of(description), timings or Timings(), description.traits.reads_ahead
    waiting: deque[Part] = deque()
    blocks: list[Block] = []
    window.reassign((0,))
    while not window.is_finished and not cancelled():
        asked = window.asks()
        waiting += asked
        for part in asked if reads_ahead else ():
            description.expect(part.request)
        if window.is_ready:
            yield *window.head_range, blocks
            blocks = []
            window.release()
            continue
        part = waiting.popleft()
        with timings.making.lap("waiting"), ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            blocks.append(timed(description.read, part.request))
        window.arrived(part, blocks[-1].memory_nbytes, blocks[-1].read_s)
        window.scheduler.arrived(part.request, blocks[-1].learned)
        timings.arrived(0, blocks[-1])


def _released(found: Chunks, scheduler: StreamScheduler, components: tuple[int, ...] = ()) -> Chunks:
    """The chunks; the scheduler learns of a chunk when the next one is asked for. components: see Wanted.

    Raises: RuntimeError if no element will ever come, with the first record that was skipped as broken.
    """
    seen: dict[str, tuple[int, Any]] = {}
    with closing(found):
        for start, stop, blocks in found:
            if any(block.taken for block in blocks):
                _fail_odd_ones(blocks, seen)
            has_elements = any(len(block.positions) for block in blocks)
            may_come = any(block.may_come for block in blocks)
            skip = next((skip for block in blocks for skip in block.skipped), None)
            yield start, stop, blocks
            blocks.clear()  # or a consumer's variable would keep them, outside the window's bound
            try:
                message = scheduler.released(stop, has_elements, may_come=may_come)
            except RuntimeError as error:
                for each in reversed(components):
                    error.add_note(f"in component {each} of the mixture, which would wait for it for ever")
                if skip is not None:
                    error.add_note(f"skipped as broken: {skip.where} (position {skip.position}): {skip.reason}")
                raise
            if message:
                logger.warning("%s%s", "".join(f"component {each} of the mixture: " for each in components), message)


def _fail_odd_ones(blocks: list[Block], seen: dict[str, tuple[int, Any]]) -> None:
    """Let a block fail where a transform took columns unlike those of an earlier block, which its result may hide.

    Within a block unlike elements do not stack, and blocks are larger or smaller by actors, and where a resume begins.
    seen: the position and the spec that each transform took first.
    """
    taken = [(first, name, like, at) for at, block in enumerate(blocks) for name, first, like in block.taken]
    for first, name, like, at in sorted(taken, key=itemgetter(0, 1)):
        position, so_far = seen.setdefault(name, (first, like))
        block = blocks[at]
        if so_far == like or (block.failure is not None and block.failure_position <= first):
            continue
        if (odd := odd_one(dict(leaves(so_far)), position, like, first)) is not None:
            odd.add_note(f"in front of transform {name}")
            blocks[at] = replace(block, failure=odd, failure_position=first)


def _proportions(stream: Stream, start: StreamState, options: StreamOptions) -> Proportions | None:
    """What counts the elements of each component of a mixture; None for another stream."""
    if not isinstance(stream, Mixed):
        return None
    of_elements = isinstance(stream, MergedStream)  # by weight, whatever filters drop; who gives none is an error
    return Proportions(
        stream.order.amended(start.amendments).mixture,
        start.position,
        [each.order.num_records for each in stream.components] if not of_elements else (),
        [each.droppers(isinstance(options.packing, Packing)) for each in stream.components],
        is_exact=of_elements or yields_from(stream.yields, start.amendments, start.position).is_one_to_one,
        is_strict=stream.is_strict,
        counted="elements" if stream.weights_by is None else f"by {stream.weights_by!r}",
    )


def _counted(found: Chunks, proportions: Proportions, wanted: Wanted, merger: Merger | None) -> Chunks:
    """The chunks, counted. With places, those were counted before, and blocks have this trainer's rows alone."""
    is_known = proportions.is_exact or (wanted.sharing is not None and wanted.sharing.part == "places")
    with closing(found):
        for start, stop, blocks in found:
            proportions.add(stop, () if is_known else [block.positions for block in blocks])
            if merger is not None and merger.given is not None:
                proportions.give(*merger.given)
            yield start, stop, blocks
            for line in proportions.empty(stop):
                logger.warning(line)


def _complete(batch: HostBatch, reading: _Reading, start: StreamState) -> HostBatch:
    """The batch, with extra and amendments in its state. Raises: OverflowError where no stream could go on from it."""
    stop = batch.state.position
    if stop > MAX_POSITION:
        raise OverflowError(
            f"positions end at 2**62, and the next batch stands at [{batch.start}, {stop}): no stream would take "
            "its state. seek(0) begins again; a new run with another seed has another order"
        )
    extra = reading.extra_at(stop)
    if extra is None and not start.amendments:
        return batch
    return batch._replace(state=batch.state._replace(extra=extra, amendments=start.amendments))


def _name_records(error: UnlikeError, description: Stream, start: StreamState) -> None:
    """Add the records that differ, where the order gives them without reading."""
    if isinstance(description, MergedStream):
        return
    found = description.locations(np.array([error.first, error.position]), start)
    if getattr(description.order, "window_size", 1) > 1:  # the place in a window depends on the shard's length
        found = [name.rpartition("[")[0] for name in found]
    error.add_note(f"position {error.first} is at {found[0]}, position {error.position} at {found[1]}")


def _wanted(description: Stream, start: StreamState, options: StreamOptions) -> Wanted:
    """The part of the elements that this trainer wants, from a state on.

    If every position gives one row, only this trainer's positions are asked for. With filters or packing, rows are
    known only when elements are made. Then trainers that share actors first ask for the places of the elements; a
    trainer that takes all rows asks for the elements at once.
    """
    positions, num_trainers = None, options.process_count
    takes_some = num_rows_of(options.rows.full) < options.batch_size
    # of these every trainer takes whole blocks
    is_merged = isinstance(description, MergedStream) or isinstance(options.packing, LengthBatches)
    part: Literal["all", "places"] = "places" if takes_some and not is_merged else "all"
    yields = yields_from(description.yields, start.amendments, start.position)
    if options.packing is None and yields.is_one_to_one:
        num_trainers, part = options.rows.share.num_equal, "all"  # the others want different rows
        if takes_some:
            positions = TrainerPositions(start.position, options.stop, options.rows)
    documents = None if options.packing is None else options.packing.documents
    sharing = None
    if options.shares_actors and options.process_count > 1 and num_trainers > 1:
        num_equal = options.process_count if is_merged else options.rows.share.num_equal
        sharing = Sharing(num_trainers, part, num_equal=num_equal)
    return Wanted(positions, documents, sharing, options.digest, start.amendments)
