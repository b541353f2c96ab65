"""The stream: a window, a pool that reads, and a batcher, run together for one consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from datarax_ray.feed.batches import Batcher, HostBatch
from datarax_ray.feed.dealing import RecordDealer
from datarax_ray.feed.lanes import LaneDealer
from datarax_ray.feed.packing import PackedBatcher
from datarax_ray.feed.stall import Stall
from datarax_ray.feed.window import DEPTH, FIRST_CHUNK_RECORDS, TARGET_BLOCK_NBYTES, Part, Window
from datarax_ray.plan.packing import Packing
from datarax_ray.plan.position import Rest, Rows, check_trainers
from datarax_ray.plan.shards import RunRecords, cut, smallest_run
from datarax_ray.read.blocks import Block, timed
from datarax_ray.read.description import Described, Description
from datarax_ray.read.errors import Skipped
from datarax_ray.read.mixture import MixtureDescription
from datarax_ray.read.sampled import SampledDescription
from datarax_ray.read.streams import StreamDescription

logger = logging.getLogger("datarax_ray")

# Of blocks in flight: enough for blocks of the size at which they are cheap from 4 actors; RaySource asks for more.
DEFAULT_MAX_NBYTES = DEPTH * 4 * TARGET_BLOCK_NBYTES
_RUN_NBYTES = 256 * 2**10  # a small part of a block
# Far beyond what a part takes to read (1 s) and an actor to be replaced (10 s): then a person wants to know.
STALL_AFTER_S = 30.0


@dataclass(frozen=True)
class Arrived:
    """A part's block is here."""

    part: Part
    block: Block


@dataclass(frozen=True)
class Lost:
    """A part will not come from where it was asked; reason says why. was_read: whether its actor was at it."""

    part: Part
    reason: str
    was_read: bool = True


class Pool(Protocol):
    """Who reads: actors that are sent parts and answer with blocks."""

    def actors(self) -> tuple[int, ...]:
        """Ids of those that read now. Waits a moment where there is none, and gives () where there still is none."""
        ...

    def weights(self) -> Mapping[int, float]:
        """How much an actor should own of what is even, for those of which that is not 1.0."""
        ...

    def send(self, part: Part) -> Any:
        """Ask part.actor for the part. Does not wait; returns what to receive it by."""
        ...

    def receive(self, sent: Mapping[Part, Any]) -> Arrived | Lost | None:
        """Wait a moment until one of these parts is here or lost; None where none is. sent: what `send` returned."""
        ...

    def lost(self, sent: Mapping[Part, Any]) -> Sequence[Lost]:
        """Those of these parts that are known to be lost now. Does not wait."""
        ...

    def discard(self, sent: Mapping[Part, Any]) -> None:
        """Forget these parts, sent and not received."""
        ...


class LocalPool:
    """Reads in this process, and only when a part is waited for."""

    def __init__(self, description: Described) -> None:
        self._description = description

    def actors(self) -> tuple[int, ...]:
        return (0,)

    def weights(self) -> Mapping[int, float]:
        return {}

    def send(self, part: Part) -> None:
        pass

    def receive(self, sent: Mapping[Part, Any]) -> Arrived:
        part = next(iter(sent))
        return Arrived(part, timed(self._description.read, part.ticket))

    def lost(self, sent: Mapping[Part, Any]) -> Sequence[Lost]:
        return ()

    def discard(self, sent: Mapping[Part, Any]) -> None:
        pass


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is cut into batches, and how much of it is in flight.

    batch_size: of the global batch. process_index, process_count: which of how many trainers this is; each gets its
    rows of every batch. drop_remainder: leave out a short last batch. pad_remainder: it will be padded at its end, so
    its rows are dealt to the trainers as those of a full one. packing: how documents are made into rows; None for a row
    for each element. chunk_size: positions read at a time, None to choose. max_nbytes: bound on blocks in flight.
    stall_after_s: how long a wait for a batch is before it is logged who and what is waited for. shares_actors: whether
    the other trainers ask the same actors, which then read once for all what all of them ask for. cancelled: asked now
    and then while the stream waits; once it is true the stream ends.
    """

    batch_size: int
    drop_remainder: bool = False
    process_index: int = 0
    process_count: int = 1
    chunk_size: int | None = None
    max_nbytes: int = DEFAULT_MAX_NBYTES
    pad_remainder: bool = False
    packing: Packing | None = None
    stall_after_s: float = STALL_AFTER_S
    shares_actors: bool = False
    cancelled: Callable[[], bool] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_trainers(self.batch_size, self.process_index, self.process_count)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, or None to choose it, got {self.chunk_size}")
        if self.max_nbytes < 1:
            raise ValueError(f"max_nbytes must be at least 1, got {self.max_nbytes}")
        if not self.stall_after_s > 0:
            raise ValueError(f"stall_after_s must be more than 0, got {self.stall_after_s}")

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled()


def batches(
    description: Described, pool: Pool, start: int, options: StreamOptions, rest: Rest = None
) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
    """The batches of the stream from this position on. Reading goes on while a batch is in use, up to the bound.

    Its value (StopIteration.value) is the broken records after the last batch, which no batch tells of. The pool is
    told to forget what is in flight when the iterator is closed.

    Raises: what reading raises, when the batch that it belongs to is due; RuntimeError where the actors keep dying, or
    where no element of a whole epoch is kept.
    """
    offset, others = _offset(description, options.packing, rest)
    stop = description.stop
    if stop is not None and start >= stop:
        return ()
    while not (actors := pool.actors()):
        if options.is_cancelled:
            return ()
    dealer = _dealer(description, actors, start, options, others)
    batcher = _batcher(description, start, offset, options)
    with closing(_dealt(description, pool, actors, dealer, options)) as stream:
        for first, last, blocks in stream:
            for batch in batcher.add(first, last, blocks):
                yield _with(batch, dealer.rest_at(batch.stop))
    if options.is_cancelled:
        return ()
    for batch in batcher.finish():
        yield _with(batch, dealer.lasting)
    return batcher.left_over


def chunks(
    description: Described, pool: Pool, start: int, options: StreamOptions
) -> Generator[tuple[int, int, list[Block]], None, None]:
    """(start, stop, blocks) of consecutive chunks, in order, for who makes no Columns of them; else see batches.

    Of options, it is how much of the stream is in flight that counts. A list of blocks is emptied when the next chunk
    is asked for, or a consumer's variable would keep them outside the bound.
    """
    if description.stop is not None and start >= description.stop:
        return
    while not (actors := pool.actors()):
        if options.is_cancelled:
            return
    yield from _dealt(description, pool, actors, _dealer(description, actors, start, options, {}), options)


def _dealt(
    description: Described,
    pool: Pool,
    actors: tuple[int, ...],
    dealer: RecordDealer | LaneDealer,
    options: StreamOptions,
) -> Generator[tuple[int, int, list[Block]], None, None]:
    """The chunks that the dealer deals, each when all of its blocks are there and it is the first."""
    weights: Mapping[int, float] = {}
    window = Window(
        dealer,
        chunk_size=options.chunk_size,
        # two of them are asked for before the size of an element is known
        first_chunk_size=min(FIRST_CHUNK_RECORDS, smallest_run(run_records(description))),
        max_nbytes=options.max_nbytes,
    )
    sent: dict[Part, Any] = {}
    blocks: list[Block] = []
    stall = Stall(description, options.stall_after_s)
    try:
        while not window.is_finished:
            if options.is_cancelled:
                return
            now_reading, now_weights = pool.actors(), pool.weights()
            if now_reading and (now_reading, now_weights) != (actors, weights):
                actors, weights = now_reading, now_weights
                window.reassign(actors, weights)
            if now_reading:  # or parts would be asked of those who cannot answer
                for part in window.asks():
                    sent[part] = pool.send(part)
            if losses := pool.lost(sent):  # all at once: an actor had a part of every chunk in flight
                for loss in losses:
                    del sent[loss.part]
                    window.lost(loss.part, loss.reason, was_read=loss.was_read)
                continue
            waiting = window.head
            if waiting or not window.num_open:
                going = {part: sent[part] for part in waiting if part in sent}
                event = pool.receive(going) if going else None
                if event is None:
                    if message := stall.waited(time.monotonic(), waiting):
                        logger.warning(message)
                    continue
                del sent[event.part]
                if isinstance(event, Arrived):
                    stall.over()
                    window.arrived(event.part, event.block.nbytes, event.block.read_s)
                    dealer.arrived(event.part.ticket, event.block)
                    blocks.append(event.block)
                else:
                    window.lost(event.part, event.reason, was_read=event.was_read)
                del event  # or it keeps the block of a chunk that was released, outside the window's bound
                continue
            first, last = window.head_range
            has_elements = any(len(block.positions) for block in blocks)
            yield first, last, blocks
            blocks.clear()
            window.release()
            dealer.released(last, has_elements)
    finally:
        pool.discard(sent)


def _with(batch: HostBatch, known: Rest) -> HostBatch:
    """The batch, whose rest says this too."""
    return batch if known is None else replace(batch, rest={**known, **(batch.rest or {})})


def _batcher(description: Described, start: int, offset: int, options: StreamOptions) -> Batcher | PackedBatcher:
    """What makes batches of this stream from `offset` elements, documents or tokens behind the start on."""
    common: dict[str, Any] = {
        "start": start,
        "stop": description.stop,
        "offset": offset,
        "batch_size": options.batch_size,
        "drop_remainder": options.drop_remainder,
        "is_padded": options.pad_remainder,
        "process_index": options.process_index,
        "process_count": options.process_count,
    }
    if options.packing is not None:
        return PackedBatcher(options.packing, **common)
    return Batcher(may_drop=description.may_drop, may_repeat=description.may_repeat, **common)


def _dealer(
    description: Described, actors: Sequence[int], start: int, options: StreamOptions, rest: Rest
) -> RecordDealer | LaneDealer:
    """What deals this kind of stream. rest: what it needs to know to begin there; {} for nothing."""
    stop, packing = description.stop, options.packing
    documents = None if packing is None else packing.documents
    num_readers = options.process_count if options.shares_actors else 1
    if isinstance(description, StreamDescription):
        return LaneDealer(
            description.order,
            actors,
            start=start,
            stop=stop,
            rest=rest,
            documents=documents,
            max_lanes=description.max_lanes,
            num_readers=num_readers,
        )
    assert isinstance(description, Description | MixtureDescription | SampledDescription)
    origin = description.origin_in(rest) if isinstance(description, MixtureDescription) else None
    if rest and origin is None:
        raise ValueError(f"a stream of records goes on from a position and an offset in it, and this state has {rest}")
    rows = None
    if not description.may_drop and packing is None and options.process_count > 1:
        trainer = (options.process_index, options.process_count)
        rows = Rows(start, stop, options.batch_size, *trainer, options.pad_remainder)
        num_readers = 1
    return RecordDealer(
        description.order,
        cut(description.order, run_records(description)),
        actors,
        start=start,
        stop=stop,
        rows=rows,
        documents=documents,
        origin=origin,
        num_readers=num_readers,
    )


def _offset(description: Described, packing: Packing | None, rest: Rest) -> tuple[int, Rest]:
    """How much of the record that the stream begins at was delivered before: elements, or what the packing counts.

    And what else the rest says.
    """
    name = "offset" if packing is None else packing.offset_name
    others = {key: value for key, value in (rest or {}).items() if key != name}
    offset = (rest or {}).get(name, 0)
    if type(offset) is not int or offset < (name in (rest or {})) or any(key.endswith("offset") for key in others):
        raise ValueError(
            f"this stream goes on from a position and the {name} in its record, and the state has {rest}; "
            "restore it with the packing that it was written with, or seek to its position"
        )
    if offset and packing is None and not description.may_repeat:
        raise ValueError(
            f"the state stands behind {offset} elements of one record, and without a flat_map it gives at most one; "
            "restore with the transforms that it was written with, or seek to its position to have all of that record"
        )
    return offset, others


def run_records(description: Described) -> RunRecords:
    """Records that one actor reads in a row in file order: 256 KiB of them, at most the description's bound.

    Of a mixture, those of each component.

    Small, so that every chunk has runs for every actor; large enough that a run is one read. The most where nothing is
    known of their size.
    """
    if isinstance(description, MixtureDescription):
        return tuple(run_records(component) for component in description.components)
    if not isinstance(description, Description | SampledDescription):
        return Description.max_run_records
    mean = max(1, description.reader.mean_nbytes)
    return max(1, min(description.max_run_records, _RUN_NBYTES // mean))
