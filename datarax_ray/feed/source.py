"""A source: a description, a pool that reads it, and a position. The face under every source."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.flow import LocalPool, Pool
from datarax_ray.feed.stream import StreamOptions, batches, chunks
from datarax_ray.plan.state import Extra, StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.copying import Uncopied
from datarax_ray.read.elements.columns import Columns, spec, unstack
from datarax_ray.read.errors import RecordError, Skipped, SkippedError
from datarax_ray.read.skipped_records import COUNT_ALONE, SkipOptions, SkippedRecords
from datarax_ray.read.stream import Stream

# Elements fetched at once where they are handed out one by one.
_ELEMENTS_AHEAD = 256


class Source(Uncopied):
    """The elements of a description, one by one or in batches, from a position that moves with what was handed out.

    Iteration goes on from the position: after `set_state` as after a `break`. At the end of the last epoch it stops.
    """

    instead = "Make another one of the same description, and give it the state: set_state(get_state())."

    def __init__(self, description: Stream, pool: Pool | None = None, skip_options: SkipOptions = COUNT_ALONE) -> None:
        self.description = description
        self.skip_options = skip_options
        self._pool = pool or LocalPool(description)
        self._state = StreamState()
        self._stream: Generator[HostBatch, None, tuple[Skipped, ...]] | None = None
        self._stream_options: StreamOptions | None = None
        self._skipped_records = SkippedRecords(skip_options)
        self._num_skipped = 0
        self._skipped: tuple[Skipped, ...] = ()  # of the batch that was fetched last
        # elements fetched and not handed out, with the state after each
        self._pending: list[tuple[Any, StreamState]] = []

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 broken records left out of what was fetched since the last seek."""
        return self._skipped_records.skipped

    @property
    def num_skipped(self) -> int:
        """How many broken records were left out since the last seek."""
        return self._num_skipped

    @property
    def state(self) -> StreamState:
        """Where the stream goes on; one value, whenever it is asked for."""
        return self._state

    @property
    def position(self) -> int:
        """Where the stream goes on: the position of the first record not yet handed out, or not all of it."""
        return self._state.position

    def __len__(self) -> int:
        """Records in one epoch, before filters. Raises: TypeError for a stream, where nobody knows."""
        return self.description.order.num_records

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self.next_element()
            except StopIteration:
                return

    def next_element(self) -> Any:
        """The next element. Raises: StopIteration after the last epoch."""
        if not self._pending:
            try:
                batch = self._next_batch(_ELEMENTS_AHEAD)
            except (RecordError, SkippedError, OverflowError):
                batch = self._next_batch(1)  # the elements before it are good: they come one by one
            if batch is None:
                raise StopIteration
            elements = unstack(batch.columns, batch.num_rows)
            self._pending = list(zip(elements, _states(batch, self._state.extra), strict=True))[::-1]
        element, self._state = self._pending.pop()
        return element

    def get_batch(self, batch_size: int | None = None, *, size: int | None = None) -> Columns:
        """The next `batch_size` elements, stacked: arrays of shape (batch_size, ...), fewer at the end, {} after it.

        size: another name for batch_size.
        """
        batch = self._next_batch(one_size(batch_size, size))
        if batch is None:
            return {}
        self._state = batch.state
        return batch.columns

    def get_batch_at(self, start: int, size: int) -> list[Any]:
        """The elements at positions [start, start + size), as a list; filtered ones are missing.

        Stateless. Positions run on through the epochs, each in its own order; those after the last epoch are empty. A
        position is a record: with a flat_map the list holds all that it gives, so it may be longer than `size`.

        Raises: ValueError for a negative start or size; TypeError for a stream, which has no random access.
        """
        if start < 0 or size < 0:
            raise ValueError(f"start and size must not be negative, got {start} and {size}")
        stop = start + size if self.description.stop is None else min(start + size, self.description.stop)
        return self.description.read_at(start, max(start, stop), self._state.extra)

    def describe(self) -> Stream:
        """Everything that decides this stream, as a picklable value."""
        return self.description

    def batches(
        self, start: int | StreamState, options: StreamOptions
    ) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
        """The batches from a position or state on; does not move this source's own."""
        return batches(self.description, self._pool, StreamState.at(start), options)

    def chunks(self, start: int, options: StreamOptions) -> Generator[tuple[int, int, list[Block]], None, None]:
        """The blocks of the stream from a position on, chunk by chunk; see feed.stream.chunks."""
        return chunks(self.description, self._pool, start, options)

    def element_spec(self) -> Any:
        """A FieldSpec for each field of an element, from the first one of the stream; consumes nothing."""
        stream = batches(self.description, LocalPool(self.description), StreamState(), StreamOptions(1, chunk_size=16))
        first = next(stream, None)
        if first is None:
            raise ValueError("the source gives no element, so there is nothing to describe")
        return spec(first.columns)

    def get_state(self) -> dict[str, Any]:
        """Position and settings, in plain values: under 4 KB whatever the dataset."""
        return self._state.to_json(self.description.settings())

    def set_state(self, state: Mapping[str, Any], allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state.

        Raises: DriftError where it belongs to another stream; ValueError or TypeError where it is no state.
        """
        description = self.description
        self.seek(StreamState.from_json(state, description, description.settings(), allow_drift=allow_drift))

    def seek(self, position: int | StreamState) -> None:
        """Go on from a position or a state, at no cost. Raises: ValueError for a negative one, or above 2**62, or
        where a mixture had other weights.
        """
        state = position if isinstance(position, StreamState) else self._state.moved(position)
        self._drop_stream()
        self._skipped_records.restart()
        self._num_skipped, self._skipped = 0, ()
        self._state = state

    def close(self) -> None:
        """Stop reading and close files. The position stays; reading again opens them again."""
        self._drop_stream()
        self.description.close()

    def _next_batch(self, size: int) -> HostBatch | None:
        options = StreamOptions(size)
        if self._stream is None or options != self._stream_options or self._pending:
            self._drop_stream()
            # what was fetched and not handed out comes again
            self._num_skipped -= sum(skip.position >= self.position for skip in self._skipped)
            self._skipped = ()
            self._skipped_records.rewind(self.position)
            self._stream, self._stream_options = self.batches(self._state, options), options
        try:
            batch = next(self._stream)
        except StopIteration as end:
            self._enter(end.value or ())  # after the last batch; told once
            return None
        except BaseException:
            self._drop_stream()  # or the next call would take the end of a failed stream for the end of the data
            raise
        self._enter(batch.skipped)
        return batch

    def _enter(self, skipped: tuple[Skipped, ...]) -> None:
        try:
            self._skipped_records.check(skipped, self._num_skipped)
            self._skipped_records.enter(skipped)
        except BaseException:
            self._drop_stream()  # its batch was not handed out, and comes again
            raise
        self._num_skipped, self._skipped = self._num_skipped + len(skipped), skipped

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._pending = None, []


def one_size(batch_size: int | None, size: int | None) -> int:
    """The size of a batch, by whichever of its two names it was given. Raises: TypeError for none and for both."""
    given = [value for value in (batch_size, size) if value is not None]
    if len(given) != 1:
        raise TypeError(f"get_batch takes batch_size, or size, which is the same; got {batch_size} and {size}")
    return operator.index(given[0])


def _states(batch: HostBatch, before: Extra | None) -> list[StreamState]:
    """Where the stream goes on after each row: at the next one, so filtered positions belong to the row before them.

    before: the extra that the batch began with; the batch's own may be about what comes after these rows.
    """
    positions = batch.positions[1:].tolist()
    offsets = [0] * len(positions) if batch.ordinals is None else batch.ordinals[1:].tolist()
    places = zip(positions, offsets, strict=True)
    return [*(StreamState(position, offset, extra=before) for position, offset in places), batch.state]
