"""The stream: a window, a pool that reads, and a batcher, run together for one consumer.

The story of one record, from its bytes to the device; a dozen steps, in order:

 1. `batches`, below: opens the stream (`_opened`: its scheduler, window and flow), and hands each chunk of blocks to
    the batcher; of a mixture with streams each component is opened so, and `Merger` (read.streams.merging) puts them
    together.
 2. `_Flows._chunks`, below: turns the flow, by 3 and 9, and gives the first chunk once all of its blocks are here.
    `_selected` does so where actors are asked first where the elements are, and then for a trainer's own rows.
 3. `Flow.poll` (feed.flow): sends to the pool, by `RayPool.send` or `LocalPool`, what 4 gives it.
 4. `Window.asks` (feed.window): which chunks may be in flight now, by bytes. Of each that is opened
    `RecordScheduler.next_chunk` (plan.scheduling) says the positions, and makes a request for each actor that owns some
    of it; where records are read forwards, `ShardScheduler.next_chunk`.
 5. `ReaderActor.read` (actors.reader_actor): in the actor. `BlockCache.answer` (read.block_cache) has 6 to 8 make the
    block, or has it from another trainer's request.
 6. `IndexedStream.read` (read.streams.indexed), or another's: `ReadRequest.select` (plan.partitions) says the positions
    of the chunk whose records the actor owns, and these records, by the order.
 7. `read_records` (read.streams.indexed): their bytes, or columns, from the reader of a format (read.formats).
 8. `transformed` (read.block): decoded, and put through the transforms; `Progress.run` for single elements. `block_of`
    (read.block) stacks them, as one Block, which waits in the object store.
 9. `Flow.receive` (feed.flow): the block is here, lost, or doubted (feed.opinions), and what it told is learned.
10. `Batcher.add` (feed.batches): copies rows to their places in the batch, and says where the stream goes on after it.
11. `BatchProducer.place` (pipeline.producing): puts the batch on the device, where the stages run in
    `BatchProducer.finish` (pipeline.producing).
12. `Consumer.take` (feed.consumer): hands the batch out, for `Pipeline`; in `Consumer.commit` (feed.consumer) the state
    moves behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from datarax_ray.feed.batches import Batcher, HostBatch
from datarax_ray.feed.bound import DEFAULT_MAX_NBYTES
from datarax_ray.feed.flow import Flow, LocalPool, Pool
from datarax_ray.feed.packing import PackedBatcher, PackedRowSelector
from datarax_ray.feed.row_selection import RowSelector, SelectedRowsScheduler, Selector
from datarax_ray.feed.stall import Stall
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import DEPTH, TARGET_BLOCK_NBYTES, Window
from datarax_ray.plan.amendments import Amendments, yields_from
from datarax_ray.plan.arguments import flag, positive, whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec, Packing
from datarax_ray.plan.position import MAX_POSITION, earliest
from datarax_ray.plan.requests import ANY_NUMBER, Sharing, Wanted
from datarax_ray.plan.scheduling import StreamScheduler
from datarax_ray.plan.state import Extra, StreamState
from datarax_ray.plan.trainer_rows import Share, TrainerPositions, TrainerRows, num_rows_in, rows_of_rank
from datarax_ray.read.block import Block
from datarax_ray.read.errors import Skipped, UnlikeError
from datarax_ray.read.stream import Stream
from datarax_ray.read.streams.merged import MergedStream
from datarax_ray.read.streams.merging import Merger

logger = logging.getLogger("datarax_ray")

# (start, stop, blocks) of consecutive chunks.
Chunks: TypeAlias = Generator[tuple[int, int, list[Block]], None, None]
# Far beyond what a part takes to read (1 s) and an actor to be replaced (10 s): then a person wants to know.
STALL_AFTER_S = 30.0


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is cut into batches, and how much of it is in flight.

    batch_size: of the global batch.
    process_index, process_count: which of how many trainers this is.
    share: what it gets of every batch; None to divide batches by rank.
    drop_remainder: leave out a short last batch.
    pad_remainder: it will be padded at its end, so its rows are dealt to the trainers as those of a full one.
    packing: how documents are made into rows; None for a row for each element.
    chunk_size: positions read at a time, None to choose.
    max_nbytes: bound on blocks in flight, of which the pool allows a part where others have some of it
        (Pool.allowance).
    block_nbytes: how large a block should be.
    stall_after_s: how long a wait for a batch is before it is logged who and what is waited for.
    shares_actors: whether the other trainers ask the same actors, which then read once for all what all of them ask
        for.
    shares_with_jobs: whether drivers of other jobs do so as well.
    stop: the position to end at, None for the end of the source.
    digest: whether batches are to have one.
    max_waiting: broken records that may wait for a batch; where more do, a batch of no rows (global_rows=0) tells of
        them; None for none such.
    cancelled: asked now and then while the stream waits; once it is true the stream ends.
    timings: what counts where the time goes.
    rows: of every batch, that this trainer gets; they follow from the others.
    """

    batch_size: int
    drop_remainder: bool = False
    process_index: int = 0
    process_count: int = 1
    chunk_size: int | None = None
    max_nbytes: int = DEFAULT_MAX_NBYTES
    block_nbytes: int = TARGET_BLOCK_NBYTES
    pad_remainder: bool = False
    packing: Packing | None = None
    stall_after_s: float = STALL_AFTER_S
    shares_actors: bool = False
    shares_with_jobs: bool = False
    share: Share | None = None
    stop: int | None = None
    digest: bool = False
    max_waiting: int | None = None
    cancelled: Callable[[], bool] = field(default=bool, compare=False)  # which is false
    timings: Timings | None = field(default=None, compare=False)
    rows: TrainerRows = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "process_index", "process_count", "chunk_size"):
            if (value := getattr(self, name)) is not None or name != "chunk_size":
                object.__setattr__(self, name, whole(name, value))
        for name in ("drop_remainder", "pad_remainder", "digest"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        if self.share is None:
            rows = rows_of_rank(self.batch_size, self.process_index, self.process_count, self.pad_remainder)
        else:
            rows = TrainerRows(self.batch_size, self.share, self.pad_remainder)
        object.__setattr__(self, "rows", rows)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, or None to choose it, got {self.chunk_size}")
        whole("max_nbytes", self.max_nbytes, ", in bytes", least=1)
        positive("stall_after_s", self.stall_after_s)


def batches(
    description: Stream, pool: Pool, start: StreamState, options: StreamOptions
) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
    """The batches of the stream from here on. Reading goes on while a batch is in use, up to the bound.

    Its value (StopIteration.value) is the broken records after the last batch, which no batch tells of. The pool is
    told to forget what is in flight when the iterator is closed.

    Raises: what reading raises, when the batch that it belongs to is due; OverflowError where positions end;
    RuntimeError where no actor runs and none can be started, or where no element of any epoch will ever be kept.
    """
    stop = _stop(description, options)
    if stop is not None and start.position >= stop:
        return ()
    batcher = _batcher(description, start, options)
    opened = _opened(description, pool, start, stop, _wanted(description, start, options), options)
    with closing(opened.chunks) as stream:
        for first, last, blocks in stream:
            assert not options.digest or all(b.digests is not None for b in blocks if len(b.positions))
            try:
                for batch in batcher.add(first, last, blocks):
                    yield _with(batch, opened.extra_at(batch.stop), start.amendments)
            except GeneratorExit:  # also at the program's end, when the name below is gone
                raise
            except UnlikeError as error:
                _tell_where(error, description, start)
                raise
            if options.max_waiting is not None and (skipped := batcher.waiting(options.max_waiting)):
                yield HostBatch(None, np.empty(0, np.int64), last, StreamState(last), 0, skipped)
    if options.cancelled():
        return ()
    for batch in batcher.finish():
        yield _with(batch, opened.extra_at(batch.stop), start.amendments)
    return batcher.left_over


def _tell_where(error: UnlikeError, description: Stream, start: StreamState) -> None:
    """Name the records that differ, as far as the order tells which they are."""
    if isinstance(description, MergedStream):  # known only where they are read
        return
    found = description.locations(np.array([error.first, error.position]), start)
    if getattr(description.order, "window_size", 1) > 1:  # their places in a window depend on the shard's length
        found = [name.rpartition("[")[0] for name in found]
    error.add_note(f"position {error.first} is at {found[0]}, position {error.position} at {found[1]}")


def chunks(description: Stream, pool: Pool, start: int, options: StreamOptions) -> Chunks:
    """(start, stop, blocks) of consecutive chunks, in order, for who makes no Columns of them; else see batches.

    Of options, it is how much of the stream is in flight that counts. A list of blocks is emptied when the next chunk
    is asked for, or a consumer's variable would keep them outside the bound.
    """
    yield from chunks_from(description, pool, StreamState(start), options)


def chunks_from(description: Stream, pool: Pool, start: StreamState, options: StreamOptions) -> Chunks:
    """The same from a state on."""
    if (stop := _stop(description, options)) is not None and start.position >= stop:
        return
    wanted = _wanted(description, start, replace(options, shares_actors=False))
    with closing(_opened(description, pool, start, stop, wanted, options).chunks) as found:
        yield from found


def places(
    description: MergedStream, start: StreamState, documents: DocumentSpec | None
) -> Generator[Sequence[tuple[int, Indices, Indices]], None, None]:
    """Where the elements of a merged mixture stand, from there on, read in this process: of each of its chunks, each
    component that has any in it, their positions in the mixture, and their own: int64 (k,).
    """
    taken: list[Sequence[tuple[int, Indices, Indices]]] = []
    flows = _Flows(description, LocalPool(description), StreamOptions(1))
    opened = flows.opened(
        description,
        start,
        description.stop,
        Wanted(documents=documents),
        told=lambda merger: taken.append(merger.taken),
    )
    with closing(flows.until_closed(opened.chunks)) as chunks:
        for _ in chunks:
            yield from taken
            taken.clear()


def _stop(description: Stream, options: StreamOptions) -> int | None:
    """Where the stream ends; None where it does not."""
    return description.stop if options.stop is None else options.stop


@dataclass(frozen=True)
class _Opened:
    """A stream that is read. chunks: to be closed. extra_at: see StreamScheduler."""

    chunks: Chunks
    extra_at: Callable[[int], Extra | None]


def _opened(
    description: Stream, pool: Pool, start: StreamState, stop: int | None, wanted: Wanted, options: StreamOptions
) -> _Opened:
    """The stream from there on."""
    if wanted.sharing is not None and wanted.sharing.part == "places":
        scheduler = description.scheduler(start, stop, wanted)
        found = _selected(description, pool, scheduler, _selector(stop, start.offset, options), options)
        return _Opened(_delivered(found, scheduler), scheduler.extra_at)
    flows = _Flows(description, pool, options)
    opened = flows.opened(description, start, stop, wanted)
    return replace(opened, chunks=flows.until_closed(opened.chunks))


class _Flows:
    """The flows of one stream over one pool: one, or one for each component of a merged mixture. While a chunk of one
    is waited for, the others go on as well.
    """

    def __init__(self, description: Stream, pool: Pool, options: StreamOptions) -> None:
        self._pool = pool
        self._options = options
        self._stall = Stall(description, options.stall_after_s)
        self._flows: list[Flow] = []

    def opened(
        self,
        stream: Any,
        start: StreamState,
        stop: int | None,
        wanted: Wanted,
        share: float = 1.0,
        told: Callable[[Merger], None] = lambda merger: None,
    ) -> _Opened:
        """A stream, or a component of one. share: of what may be in flight. told: called with the merger of a mixture
        when each chunk is taken.
        """
        if isinstance(stream, MergedStream):
            merger = Merger(stream.order, start, earliest([stop, stream.length]))
            parts = []
            of_all = zip(stream.components, merger.states, stream.shares(), strict=True)
            for index, (component, state, its_share) in enumerate(of_all):
                end = component.stop if merger.is_wanted(index) else state.position  # of weight 0 nothing is read
                # amendments are told by the mixture's positions
                its = replace(wanted, amendments=(), components=(*wanted.components, index))
                parts.append(self.opened(component, state, end, its, share * its_share))
            return _Opened(self._merged(merger, parts, told), merger.extra_at)
        scheduler = stream.scheduler(start, None if stop is None else max(stop, start.position), wanted)
        return _Opened(_delivered(self._whole(scheduler, share), scheduler, wanted.components), scheduler.extra_at)

    def until_closed(self, chunks: Chunks) -> Chunks:
        """The chunks; closed, what is in flight of all flows is forgotten."""
        try:
            with closing(chunks):
                yield from chunks
        finally:
            for flow in self._flows:
                flow.close()

    def _whole(self, scheduler: StreamScheduler, share: float) -> Chunks:
        """The chunks that a scheduler deals, each when all of its blocks are there and it is the first."""
        options = self._options
        window = Window(
            scheduler,
            chunk_size=options.chunk_size,
            max_nbytes=max(1, int(options.max_nbytes * share)),
            block_nbytes=options.block_nbytes,
            num_sharing=options.process_count,
        )
        flow = Flow(window, self._pool, self._stall, options.timings)
        self._flows.append(flow)
        return self._chunks(flow)

    def _chunks(self, flow: Flow) -> Chunks:
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

    def _merged(self, merger: Merger, parts: Sequence[_Opened], told: Callable[[Merger], None]) -> Chunks:
        """The chunks of a mixture of these. Each is asked for the next one of its own when that is due."""
        extra_at = [part.extra_at for part in parts]
        while not merger.is_over:
            lacking = merger.lacking
            if lacking is None:
                start, stop, blocks = merger.take(extra_at)
                told(merger)
            elif (chunk := next(parts[lacking].chunks, None)) is not None:
                merger.add(lacking, chunk[2])
                if not (blocks := merger.waiting(lacking, self._options.max_waiting)):
                    continue
                start = stop = merger.position
            elif self._options.cancelled():
                return
            else:
                start, stop, blocks = merger.end(lacking)
            yield start, stop, blocks
            blocks.clear()  # or a consumer's variable would keep them, outside the windows' bounds


def _selected(
    description: Stream, pool: Pool, scheduler: StreamScheduler, selector: Selector, options: StreamOptions
) -> Chunks:
    """The same chunks, whose blocks have columns of this trainer's rows alone: first it is asked where elements are.

    Half of what may be in flight is read ahead, and waits with the actors; the other half is on its way to here. An
    actor keeps four times as much as may wait with it (BlockCache), and would make again what it had to drop. Trainers
    that share actors wait for the same blocks, and take other rows of them: together they have what one has alone.
    """
    stall = Stall(description, options.stall_after_s)
    selected = SelectedRowsScheduler(scheduler, selector)
    half_nbytes = options.max_nbytes // 2 * (options.process_count if options.shares_actors else 1)
    max_nbytes, max_actor_nbytes = max(1, half_nbytes), DEPTH * options.block_nbytes // 2
    ahead = Window(
        scheduler,
        chunk_size=options.chunk_size,
        max_nbytes=max_nbytes,
        max_actor_nbytes=max_actor_nbytes,
        block_nbytes=options.block_nbytes,
        num_sharing=options.process_count,
    )
    places = Flow(ahead, pool, stall, options.timings)
    share = num_rows_in(options.rows.full) / options.batch_size
    mine = [max(1, int(nbytes * share)) for nbytes in (max_nbytes, max_actor_nbytes)]
    rows = Flow(
        Window(selected, chunk_size=1, max_nbytes=mine[0], max_actor_nbytes=mine[1]), pool, stall, options.timings
    )
    with closing(places), closing(rows):
        while not (places.window.is_finished and rows.window.is_finished) and not options.cancelled():
            reading, weights = places.readers()
            is_lost = places.poll(reading, weights) | rows.poll(reading, weights)
            while places.window.is_ready and selected.is_exhausted:  # what is known is dealt when there is room for it
                selected.add_places(*places.first())
                places.release()
                # rows first: an actor answers in the order in which it is asked, and these cost it nothing
                is_lost |= rows.poll(reading, weights) | places.poll(reading, weights)
            if is_lost:
                continue
            if not rows.window.num_open:  # nothing is in flight
                places.receive()
                continue
            if not rows.window.is_ready:
                rows.receive(places if selected.is_exhausted else None)
                continue
            start, stop, _, blocks = rows.first()
            blocks = selected.merged(blocks)
            yield start, stop, blocks
            rows.release()


def _delivered(found: Chunks, scheduler: StreamScheduler, components: tuple[int, ...] = ()) -> Chunks:
    """The chunks, each told to the scheduler when the next one is asked for. components: see Wanted.

    Raises: RuntimeError where no element will ever come, with the first of the records that are left out as broken.
    """
    with closing(found):
        for start, stop, blocks in found:
            has_elements = any(len(block.positions) for block in blocks)
            may_come = any(block.may_come for block in blocks)
            skip = next((skip for block in blocks for skip in block.skipped), None)
            yield start, stop, blocks
            blocks.clear()  # or a consumer's variable would keep them, outside the window's bound
            try:
                if message := scheduler.released(stop, has_elements, may_come=may_come):
                    logger.warning(
                        "%s%s", "".join(f"component {each} of the mixture: " for each in components), message
                    )
            except RuntimeError as error:
                for each in reversed(components):
                    error.add_note(f"in component {each} of the mixture, which would wait for it for ever")
                if skip is not None:
                    error.add_note(f"left out as broken: {skip.where} (position {skip.position}): {skip.reason}")
                raise


def _with(batch: HostBatch, extra: Extra | None, amendments: Amendments) -> HostBatch:
    """The batch, whose state says these too. Raises: OverflowError for one whose state could not be gone on from."""
    if batch.stop > MAX_POSITION:
        raise OverflowError(
            f"positions end at 2**62, and the next batch stands at [{batch.start}, {batch.stop}): no stream would take "
            "its state. seek(0) begins again; a new run with another seed has another order"
        )
    if extra is None and not amendments:
        return batch
    return replace(batch, state=batch.state._replace(extra=extra, amendments=amendments))


def _batcher(description: Stream, start: StreamState, options: StreamOptions) -> Batcher | PackedBatcher:
    """What makes batches of this stream from there on."""
    common: dict[str, Any] = {
        "start": start.position,
        "stop": _stop(description, options),
        "offset": start.offset,
        "drop_remainder": options.drop_remainder,
    }
    if options.packing is not None:
        return PackedBatcher(options.packing, options.rows, **common)
    yields = yields_from(description.yields, start.amendments, start.position)
    return Batcher(options.rows, yields=yields, **common)


def _selector(stop: int | None, offset: int, options: StreamOptions) -> Selector:
    """What says which rows of a stream's blocks are for this trainer."""
    is_fixed = options.drop_remainder or options.pad_remainder or stop is None
    if options.packing is not None:
        return PackedRowSelector(options.packing, options.rows, stop=stop, offset=offset, is_fixed=is_fixed)
    return RowSelector(options.rows, stop=stop, offset=offset, is_fixed=is_fixed)


def _wanted(description: Stream, start: StreamState, options: StreamOptions) -> Wanted:
    """What actors are asked for of the elements from this state on.

    Where every position gives one row, this trainer's alone. Where nobody knows that before (behind filters, packed),
    and trainers ask the same actors: first where the elements are. All of them, where all rows are this trainer's.
    """
    positions, num_trainers = None, options.process_count
    takes_some = num_rows_in(options.rows.full) < options.batch_size
    is_merged = isinstance(description, MergedStream)  # of one, every trainer takes whole blocks
    part: Literal["all", "places"] = "places" if takes_some and not is_merged else "all"
    yields = yields_from(description.yields, start.amendments, start.position)
    if options.packing is None and yields.is_one_to_one:
        num_trainers, part = options.rows.share.num_equal, "all"  # others want other rows
        if takes_some:
            positions = TrainerPositions(start.position, _stop(description, options), options.rows)
    is_shared = options.shares_actors and options.process_count > 1 and num_trainers > 1
    documents = None if options.packing is None else options.packing.documents
    if not (is_shared or options.shares_with_jobs):
        return Wanted(positions, documents, is_digested=options.digest, amendments=start.amendments)
    num_trainers = ANY_NUMBER if options.shares_with_jobs else num_trainers
    num_equal = options.process_count if is_merged else options.rows.share.num_equal
    sharing = Sharing(num_trainers, part, num_equal=num_equal)
    return Wanted(positions, documents, sharing, options.digest, start.amendments)
