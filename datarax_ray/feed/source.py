"""A source: a description, the pool or process that reads it, and its position. Lies under every source."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Protocol, Self

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Begin, Consumed, Consumer, Delivery, LazySession, deliveries
from datarax_ray.feed.flow import Pool
from datarax_ray.feed.sample import REMEDY, sampled
from datarax_ray.feed.stream import StreamOptions, batches, chunks
from datarax_ray.feed.trail import RowRun, Trail, digested, of_blocks
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.evidence import FIRST_PLACE, Evidence, RowsDigested
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.packing import AnyPacking
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.closing import Uncopied
from datarax_ray.read.elements.columns import Columns, spec, unstack
from datarax_ray.read.errors import RecordError, Skipped, SkippedError, UnlikeError
from datarax_ray.read.skipped_records import COUNT_ALONE, SkipOptions
from datarax_ray.read.stream import Stream, held, transforms_of

logger = logging.getLogger("datarax_ray")

_SINCE = "since the checkpoint was written"
_SAMPLE_S = 0.1  # in which the first elements are made, and made again
# Elements fetched at once where they are handed out one by one.
_ELEMENTS_AHEAD = 256
# Those of batches of one size, which are asked for again and again: checking them costs a tenth of a small batch.
_options_of = lru_cache(16, typed=True)(StreamOptions)


class Describes(Protocol):
    """A source for actors: one picklable value decides the stream."""

    def describe(self) -> Stream: ...


def source_under(given: Any) -> Any:
    """The source itself, or the source that a Pipeline reads; anything else as given."""
    return given if hasattr(given, "describe") else getattr(given, "source", given)


class Source(Uncopied):
    """The elements of a description, one by one or in batches, from a position that moves with them.

    Iteration goes on from the position: after `set_state` as after a `break`. It stops at the end of the last epoch.
    Several threads may take from one source; each element goes to one thread.
    """

    instead = "Make another one of the same description, and give it the state: set_state(get_state())."

    def __init__(self, description: Stream, pool: Pool | None = None, skip_options: SkipOptions = COUNT_ALONE) -> None:
        self.description = description
        self.skip_options = skip_options
        self._pool = pool  # None to read in this process
        self._consumer = Consumer(skip_options)
        self._is_sampled = pool is not None or not transforms_of(description)  # actors sample their own

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 broken records skipped since the last seek, before the position."""
        return self._consumer.skipped

    @property
    def num_skipped(self) -> int:
        """How many broken records were skipped since the last seek."""
        return self._consumer.consumed.num_reported

    @property
    def state(self) -> StreamState:
        """The place where the stream goes on, as one value; safe to read at any time."""
        return self._consumer.consumed.state

    @property
    def position(self) -> int:
        """The position of the first record that was not handed out as a whole: the stream goes on there."""
        return self._consumer.consumed.state.position

    def __len__(self) -> int:
        """Records in one epoch, before filters. Raises: TypeError for a stream, where nobody knows."""
        return self.description.order.num_records

    def __iter__(self) -> Self:
        self.warn_if_over()
        return self

    def __next__(self) -> Any:
        return self.next_element()

    def warn_if_over(self) -> None:
        """Log a warning if the stream is over: a loop that begins now gets no element."""
        stop = self.description.stop
        if self._consumer.consumed.is_end or (stop is not None and self.position >= stop):
            logger.warning(
                "the stream is at its end (position %d), so this loop gets no element; make another source to begin "
                "again, or set num_epochs",
                self.position,
            )

    def next_element(self, finish: Callable[[Any], Any] | None = None) -> Any:
        """The next element. finish: applied first; where it fails, the element comes again. Raises: StopIteration."""
        return self._take("elements", self._elements, lambda element: (finish(element) if finish else element, 1))

    def get_batch(
        self, batch_size: int | None = None, *, size: int | None = None, finish: Callable[[Any], Any] | None = None
    ) -> Columns:
        """The next `batch_size` elements, stacked: arrays of shape (batch_size, ...), fewer at the end, {} after it.

        size: another name for batch_size. finish: as of next_element.
        """
        batch_size = one_size(batch_size, size)
        begin = partial(self._batches, _options_of(batch_size))

        def columns(batch: HostBatch) -> tuple[Any, int]:
            return finish(batch.columns) if finish else batch.columns, batch.num_rows

        try:
            return self._take(batch_size, begin, columns)
        except StopIteration:
            return {}

    def _take(self, key: Any, begin: Begin, finish: Callable[[Any], tuple[Any, int]]) -> Any:
        """See Consumer.take. finish: gives what to hand out, and the number of elements."""

        def take() -> Any:
            try:
                given, num_elements = self._consumer.take(key, begin, finish)
            except StopIteration:
                self._gave(0)
                raise
            self._gave(num_elements)
            return given

        return self._consumer.alone(take)

    def _gave(self, num_elements: int) -> None:
        """Event: num_elements were handed out, or the stream ended or moved."""

    def get_batch_at(self, start: int, size: int) -> list[Any]:
        """The elements at positions [start, start + size), as a list; filtered ones are missing.

        Stateless. Positions run on through the epochs, each in its own order; positions after the last epoch are empty.
        A position is a record: with a flat_map the list holds all elements of a record, and may be longer than `size`.

        Raises: ValueError for a negative start or size; TypeError for a stream, which has no random access.
        """
        if start < 0 or size < 0:
            raise ValueError(f"start and size must not be negative, got {start} and {size}")
        stop = start + size if self.description.stop is None else min(start + size, self.description.stop)
        with held(self.description):
            return self.description.read_at(start, max(start, stop), self.state)

    def describe(self) -> Stream:
        """Everything that decides this stream, as a picklable value."""
        return self.description

    def batches(
        self, start: int | StreamState, options: StreamOptions
    ) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
        """The batches from a position or state on; does not move this source's own."""
        return batches(self.description, self._pool, StreamState.at(start), self._bounded(options))

    def chunks(self, start: int, options: StreamOptions) -> Generator[tuple[int, int, list[Block]], None, None]:
        """The blocks of the stream from a position on, chunk by chunk; see feed.stream.chunks."""
        return chunks(self.description, self._pool, StreamState(start), self._bounded(options))

    def element_spec(self) -> Any:
        """A FieldSpec for each field of an element, from the first one of the stream; consumes nothing."""
        stream = batches(self.description, None, StreamState(), StreamOptions(1, chunk_size=16))
        with closing(stream):
            first = next(stream, None)
        if first is None:
            raise ValueError("the source gives no element, so there is nothing to describe")
        return spec(first.columns)

    def get_state(self) -> dict[str, Any]:
        """Position, settings and evidence, in plain values: under 4 KB whatever the dataset."""
        return self.state.to_json(self.description.settings()) | self.evidence()

    def evidence(self) -> dict[str, Any]:
        """The part of a state about the last rows; see Consumed.evidence."""
        return self._consumer.consumed.evidence(self.description.order)

    def set_state(self, state: Mapping[str, Any], allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state. Raises: DriftError for a state of another stream; ValueError, TypeError for no state."""
        description = self.description
        found = Consumed.from_json(state, description, description.settings(), allow_drift=allow_drift)
        self._consumer.go_to(Consumed(found.state, trail=found.trail))

    def seek(self, position: int | StreamState) -> None:
        """Go on from a position or a state, at no cost. Raises: ValueError for a position outside [0, 2**62]."""
        self._consumer.go_to(Consumed(position if isinstance(position, StreamState) else self.state.moved(position)))

    def verify(
        self, state: StreamState | None = None, trail: Trail | None = None, packing: AnyPacking | None = None
    ) -> None:
        """Make the last rows of the restored state again, and compare; see feed.trail. Warn, once, of a transform that
        makes another element the second time.

        state, trail, packing: of a Pipeline, which has its own. Raises: DriftError where a row differs.
        """
        if not self._is_sampled:
            self._is_sampled = True
            sample = sampled(self.description, seconds=_SAMPLE_S)
            if sample is not None and sample.impure:
                logger.warning("%s. %s", sample.impure, REMEDY)
        consumed = self._consumer.consumed
        state, trail = state or consumed.state, trail or consumed.trail
        if trail.saved is not None and not trail.parts:  # a state was restored, and no row was consumed since
            verify(self.description, self._pool, state, trail, self._bounded(StreamOptions(1, packing=packing)))

    def close(self) -> None:
        """Stop reading and close files. The position stays; reading again opens them again."""
        self._consumer.end(then=self.description.close)

    def _bounded(self, options: StreamOptions) -> StreamOptions:
        """The options as a stream of this source begins, with its bounds on reading ahead."""
        return options

    def _capped(self, options: StreamOptions, consumed: Consumed) -> StreamOptions:
        return replace(self._bounded(options), limit=replace(self.skip_options.limit, count=consumed.num_skipped))

    # No reading holds the source: a source that is dropped ends at once, and its pool with it.

    def _batches(self, options: StreamOptions, consumed: Consumed) -> LazySession:
        options = self._capped(options, consumed)
        self.verify()
        return LazySession(deliveries(batches(self.description, self._pool, consumed.state, options), consumed))

    def _elements(self, consumed: Consumed) -> LazySession:
        many, one = (self._capped(StreamOptions(size), consumed) for size in (_ELEMENTS_AHEAD, 1))
        self.verify()
        return LazySession(_one_by_one(partial(batches, self.description, self._pool), consumed, many, one))


def one_size(batch_size: int | None, size: int | None) -> int:
    """The size of a batch, given by one of its two names. Raises: TypeError for none and for both."""
    given = [value for value in (batch_size, size) if value is not None]
    if len(given) != 1:
        raise TypeError(f"get_batch takes either batch_size or size; got {batch_size} and {size}")
    return whole("batch_size" if size is None else "size", given[0])


def _one_by_one(
    read: Callable[[StreamState, StreamOptions], Generator[HostBatch, None, tuple[Skipped, ...]]],
    consumed: Consumed,
    many: StreamOptions,
    one: StreamOptions,
) -> Generator[Delivery, None, None]:
    """The elements, read many at a time. After a failure they are read one by one, up to the failing element; elements
    that do not stack are read the same way.

    A state after an element equals the state after a batch with the same last element.
    """
    options = many
    while True:
        try:
            with closing(deliveries(read(consumed.state, options), consumed)) as found:
                for batch, after in found:
                    if batch is None:
                        yield None, after
                        return
                    # the extra of the batch's own state may be about what comes after these rows
                    begin, skipped = consumed.state, list(after.skipped)
                    ordinals = [0] * (batch.num_rows - 1) if batch.ordinals is None else batch.ordinals[1:].tolist()
                    pairs = pairwise(batch.positions.tolist())
                    states = [
                        StreamState(
                            following if ordinal else position + 1, ordinal, "elements", begin.extra, begin.amendments
                        )
                        for (position, following), ordinal in zip(pairs, ordinals, strict=True)
                    ]
                    states.append(batch.state)
                    trail = consumed.trail.then(batch, begin, is_written=True, most=batch.num_rows)
                    for element, state in zip(unstack(batch.columns, batch.num_rows), states, strict=True):
                        gone: tuple[Skipped, ...] = ()
                        if skipped:
                            count = bisect_left(skipped, state.position, key=lambda skip: skip.position)
                            gone = tuple(skipped[:count])
                            del skipped[:count]
                        consumed = consumed.then(state, gone, trail=trail)
                        yield element, consumed
                    if options is one:
                        break
            options = many
        except GeneratorExit:  # also at the program's end, when the names below are gone
            raise
        except (RecordError, UnlikeError, SkippedError, OverflowError):
            if options is one:
                raise
            options = one


def verify(description: Stream, pool: Pool | None, state: StreamState, trail: Trail, options: StreamOptions) -> None:
    """Make the rows of a restored state again, and compare. trail: unverified. options: of the stream.

    Raises: DriftError if a row differs, with its file, record and field; the errors of reading.
    """
    saved, changed = trail.saved, ", ".join(trail.changed)
    assert saved is not None
    begin = description.order.earlier(state, saved.start[0])
    stop: int | None = state.position + (state.offset > 0)
    if begin is None and saved.start == FIRST_PLACE:  # the first rows of a stream
        begin, stop = StreamState(amendments=state.amendments), description.stop
    if begin is None:
        return  # these rows cannot be made from this state
    options = replace(options, batch_size=saved.num_rows, stop=stop)
    rows, failure = _made_again(description, pool, begin, saved, options)
    if failure is not None and len(rows) < saved.num_rows:  # one by one where rows do not stack
        rows, failure = _made_again(description, pool, begin, saved, replace(options, chunk_size=1))
        if failure is not None and len(rows) < saved.num_rows:
            raise failure
    other = saved.differing(rows)
    if other is None:
        if changed:
            logger.warning("the code of %s changed %s; its last %d rows are the same", changed, _SINCE, saved.num_rows)
        return
    where = "the rows"
    if other.row < len(rows):
        position = rows.positions[other.row : other.row + 1]
        where = f"position {position[0]}"
        with contextlib.suppress(Exception):  # of a merged mixture, nobody knows before it is read
            where = f"{description.locations(position, begin)[0]} (position {position[0]})"
    code = f" The code of {changed} changed {_SINCE}." if changed else ""
    raise DriftError(
        "the checkpoint belongs to another stream: its last rows are not the same any more, so the remaining batches "
        f"would not be either.\n  {where}: {other.difference}.\nThe cause changed {_SINCE}: the data, a transform or a "
        f"value that it reads, a library, or the environment.{code} Undo the change, or pass allow_drift=('rows',) to "
        "continue with the new rows."
    )


def _made_again(
    description: Stream, pool: Pool | None, begin: StreamState, saved: Evidence, options: StreamOptions
) -> tuple[RowsDigested, Exception | None]:
    """The rows of the evidence, as far as the stream gives them, and the failure behind them."""
    parts: list[RowRun] = []
    failure: Exception | None = None
    with contextlib.closing(chunks(description, pool, begin, options)) as stream:
        for _, _, blocks in stream:
            failure = next((block.failure for block in blocks if block.failure is not None), None)
            parts += of_blocks(blocks)
            if failure is not None or sum(len(part.positions) for part in parts) >= saved.num_rows + saved.start[1]:
                break
    rows = digested(parts)
    places = zip(rows.positions.tolist(), rows.ordinals.tolist(), strict=True)
    first = next((at for at, place in enumerate(places) if place >= saved.start), len(rows))
    return rows.part(first, first + saved.num_rows), failure
