"""The stream: a window, a pool that reads, and a batcher, run together for one consumer.

The story of one record, from its bytes to the device; a dozen functions that matter, in order:

 1. `batches`, below: has the stream make its scheduler, turns the flow, and hands each chunk of blocks to the batcher.
 2. `Window.asks` (feed.window): which chunks may be in flight now, by bytes, and which actor owns what of them.
 3. `RecordScheduler.next_chunk` (plan.scheduling): the positions of the next chunk, and a request for each owner; where
    records are read forwards, `ShardScheduler.next_chunk`.
 4. `Flow.poll` (feed.flow): sends the requests to the pool, `RayPool.send` or `LocalPool`.
 5. `ReaderActor.read` (actors.reader_actor): in the actor, `IndexedStream.read` (read.streams.indexed), or another's.
 6. `ReadRequest.select` (plan.partitions): the positions of the chunk whose records the actor owns, and these records,
    by the order.
 7. `read_records` (read.streams.indexed): their bytes, or columns, from the reader of a format (read.formats).
 8. `transformed` (read.block): decoded, and put through the transforms; `Progress.run` for single elements.
 9. `block_of` (read.block): stacked, as one Block, which waits in the object store.
10. `Flow.receive` (feed.flow): the block is here, lost, or doubted (feed.opinions), and what it told is learned.
11. `Batcher.add` (feed.batches): copies rows to their places in the batch, and says where the stream goes on after it.
12. `BatchProducer.place` (pipeline.producing): puts the batch on the device; `Pipeline` hands it out with its state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from datarax_ray.feed.batches import Batcher, HostBatch
from datarax_ray.feed.bound import DEFAULT_MAX_NBYTES
from datarax_ray.feed.flow import Flow, Pool
from datarax_ray.feed.packing import PackedBatcher, PackedRowSelector
from datarax_ray.feed.row_selection import RowSelector, SelectedRowsScheduler, Selector
from datarax_ray.feed.stall import Stall
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import DEPTH, TARGET_BLOCK_NBYTES, Window
from datarax_ray.plan.amendments import Amendments, yields_from
from datarax_ray.plan.arguments import flag, positive, whole
from datarax_ray.plan.packing import Packing
from datarax_ray.plan.position import MAX_POSITION
from datarax_ray.plan.requests import ANY_NUMBER, Sharing, Wanted
from datarax_ray.plan.scheduling import StreamScheduler
from datarax_ray.plan.state import Extra, StreamState
from datarax_ray.plan.trainer_rows import Share, TrainerPositions, TrainerRows, num_rows_in, rows_of_rank
from datarax_ray.read.block import Block
from datarax_ray.read.errors import Skipped
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

# (start, stop, blocks) of consecutive chunks.
Chunks: TypeAlias = Generator[tuple[int, int, list[Block]], None, None]
# Far beyond what a part takes to read (1 s) and an actor to be replaced (10 s): then a person wants to know.
STALL_AFTER_S = 30.0


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is cut into batches, and how much of it is in flight.

    batch_size: of the global batch. process_index, process_count: which of how many trainers this is. share: what it
    gets of every batch; None to divide batches by rank. drop_remainder: leave out a short last batch. pad_remainder: it
    will be padded at its end, so its rows are dealt to the trainers as those of a full one. packing: how documents are
    made into rows; None for a row for each element. chunk_size: positions read at a time, None to choose. max_nbytes:
    bound on blocks in flight, of which the pool allows a part where others have some of it (Pool.allowance).
    block_nbytes: how large a block should be. stall_after_s: how long a wait for a batch is
    before it is logged who and what is waited for. shares_actors: whether the other trainers ask the same actors, which
    then read once for all what all of them ask for. shares_with_jobs: whether drivers of other jobs do so as well.
    stop: the position to end at, None for the end of the source. digest: whether batches are to have
    one. cancelled: asked now and then while the stream waits; once it is true the stream ends. timings: what counts
    where the time goes. rows: of every batch, that this trainer gets; they follow from the others.
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
    cancelled: Callable[[], bool] | None = field(default=None, compare=False)
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

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled()


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
    wanted = _wanted(description, start, options)
    scheduler = description.scheduler(start, stop, wanted)
    batcher = _batcher(description, start, options)
    if wanted.sharing is not None and wanted.sharing.part == "places":
        found = _selected(description, pool, scheduler, _selector(stop, start.offset, options), options)
    else:
        found = _whole(description, pool, scheduler, options)
    with closing(_delivered(found, scheduler)) as stream:
        for first, last, blocks in stream:
            assert not options.digest or all(b.digests is not None for b in blocks if len(b.positions))
            for batch in batcher.add(first, last, blocks):
                yield _with(batch, scheduler.extra_at(batch.stop), start.amendments)
    if options.is_cancelled:
        return ()
    for batch in batcher.finish():
        yield _with(batch, scheduler.extra_at(batch.stop), start.amendments)
    return batcher.left_over


def chunks(description: Stream, pool: Pool, start: int, options: StreamOptions) -> Chunks:
    """(start, stop, blocks) of consecutive chunks, in order, for who makes no Columns of them; else see batches.

    Of options, it is how much of the stream is in flight that counts. A list of blocks is emptied when the next chunk
    is asked for, or a consumer's variable would keep them outside the bound.
    """
    if (stop := _stop(description, options)) is not None and start >= stop:
        return
    begin = StreamState(start)
    wanted = _wanted(description, begin, replace(options, shares_actors=False))
    scheduler = description.scheduler(begin, stop, wanted)
    yield from _delivered(_whole(description, pool, scheduler, options), scheduler)


def _stop(description: Stream, options: StreamOptions) -> int | None:
    """Where the stream ends; None where it does not."""
    return description.stop if options.stop is None else options.stop


def _whole(description: Stream, pool: Pool, scheduler: StreamScheduler, options: StreamOptions) -> Chunks:
    """The chunks that the scheduler deals, each when all of its blocks are there and it is the first."""
    stall = Stall(description, options.stall_after_s)
    window = Window(
        scheduler,
        chunk_size=options.chunk_size,
        max_nbytes=options.max_nbytes,
        block_nbytes=options.block_nbytes,
        num_sharing=options.process_count,
    )
    flow = Flow(window, pool, stall, options.timings)
    with closing(flow):
        while not flow.is_finished and not options.is_cancelled:
            if flow.poll(pool.actors(), pool.weights()):
                continue
            if not flow.is_ready:
                flow.receive()
                continue
            start, stop, _, blocks = flow.first()
            yield start, stop, blocks
            flow.release()


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
        while not (places.is_finished and rows.is_finished) and not options.is_cancelled:
            reading, weights = pool.actors(), pool.weights()
            is_lost = places.poll(reading, weights) | rows.poll(reading, weights)
            while places.is_ready and selected.is_exhausted:  # what is known is dealt when there is room for it
                selected.add_places(*places.first())
                places.release()
                # rows first: an actor answers in the order in which it is asked, and these cost it nothing
                is_lost |= rows.poll(reading, weights) | places.poll(reading, weights)
            if is_lost:
                continue
            if rows.is_idle:
                places.receive()
                continue
            if not rows.is_ready:
                rows.receive(places if selected.is_exhausted else None)
                continue
            start, stop, _, blocks = rows.first()
            blocks = selected.merged(blocks)
            yield start, stop, blocks
            rows.release()


def _delivered(found: Chunks, scheduler: StreamScheduler) -> Chunks:
    """The chunks, each told to the scheduler when the next one is asked for.

    Raises: RuntimeError where no element will ever come, with the first of the records that are left out as broken.
    """
    with closing(found):
        for start, stop, blocks in found:
            has_elements = any(len(block.positions) for block in blocks)
            skip = next((skip for block in blocks for skip in block.skipped), None)
            yield start, stop, blocks
            blocks.clear()  # or a consumer's variable would keep them, outside the window's bound
            try:
                if message := scheduler.released(stop, has_elements):
                    logger.warning(message)
            except RuntimeError as error:
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
    part: Literal["all", "places"] = "places" if takes_some else "all"
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
    sharing = Sharing(num_trainers, part, num_equal=options.rows.share.num_equal)
    return Wanted(positions, documents, sharing, options.digest, start.amendments)
