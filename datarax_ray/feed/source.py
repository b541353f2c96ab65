"""A source: a description, a pool that reads it, and a position. The face under every source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.flow import LocalPool, Pool
from datarax_ray.feed.stream import StreamOptions, batches, chunks
from datarax_ray.plan.fingerprint import VERSION, check_drift, shown
from datarax_ray.plan.position import MAX_POSITION, Rest, check_position, with_offset
from datarax_ray.read.blocks import Block
from datarax_ray.read.columns import Columns, spec, unstack
from datarax_ray.read.description import Described
from datarax_ray.read.errors import RecordError, Skipped, SkippedError
from datarax_ray.read.ledger import ledger_of

# Elements fetched at once where they are handed out one by one.
_ELEMENTS_AHEAD = 256


class Source:
    """The elements of a description, one by one or in batches, from a position that moves with what was handed out.

    Iteration goes on from the position: after `set_state` as after a `break`. At the end of the last epoch it stops.
    """

    def __init__(self, description: Described, pool: Pool | None = None) -> None:
        self.description = description
        self._pool = pool or LocalPool(description)
        self._position = 0
        self._rest: Rest = None
        self._stream: Generator[HostBatch, None, tuple[Skipped, ...]] | None = None
        self._stream_options: StreamOptions | None = None
        self._ledger = ledger_of(description)
        self._skipped: tuple[Skipped, ...] = ()  # of the batch that was fetched last
        # elements fetched and not handed out, with the position and rest after each
        self._pending: list[tuple[Any, tuple[int, Rest]]] = []

    @property
    def skipped(self) -> list[Skipped]:
        """The first 1000 broken records left out of what was fetched since the last seek."""
        return self._ledger.skipped

    @property
    def num_skipped(self) -> int:
        """How many broken records were left out since the last seek."""
        return self._ledger.num_skipped

    @property
    def position(self) -> int:
        """Where the stream goes on: the position of the first record not yet handed out, or not all of it."""
        return self._position

    def __len__(self) -> int:
        """Records in one epoch, before filters. Raises: TypeError for a stream, where nobody knows."""
        return self.description.num_records

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
            except (RecordError, SkippedError):
                batch = self._next_batch(1)  # the elements before a failing record are good: they come one by one
            if batch is None:
                raise StopIteration
            self._pending = list(zip(unstack(batch.columns, batch.num_rows), _ends(batch, self._rest), strict=True))[
                ::-1
            ]
        element, (self._position, self._rest) = self._pending.pop()
        return element

    def get_batch(self, size: int) -> Columns:
        """The next `size` elements, stacked: arrays of shape (size, ...), fewer at the very end, {} after it."""
        batch = self._next_batch(size)
        if batch is None:
            return {}
        self._position, self._rest = batch.stop, batch.rest
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
        return self.description.read_at(start, max(start, stop), self._rest)

    def describe(self) -> Described:
        """Everything that decides this stream, as a picklable value."""
        return self.description

    def batches(
        self, start: int, options: StreamOptions, rest: Rest = None
    ) -> Generator[HostBatch, None, tuple[Skipped, ...]]:
        """The batches from a position (and rest) on; does not move this source's own position."""
        return batches(self.description, self._pool, start, options, rest)

    def chunks(self, start: int, options: StreamOptions) -> Generator[tuple[int, int, list[Block]], None, None]:
        """The blocks of the stream from a position on, chunk by chunk; see feed.stream.chunks."""
        return chunks(self.description, self._pool, start, options)

    def element_spec(self) -> Any:
        """A FieldSpec for each field of an element, from the first one of the stream; consumes nothing."""
        stream = batches(self.description, LocalPool(self.description), 0, StreamOptions(1, chunk_size=16))
        first = next(stream, None)
        if first is None:
            raise ValueError("the source gives no element, so there is nothing to describe")
        return spec(first.columns)

    def get_state(self) -> dict[str, Any]:
        """Position and settings, in plain values: under 4 KB whatever the dataset."""
        return state_of(self._position, self._rest, self.description.settings())

    def set_state(self, state: Mapping[str, Any], allow_drift: tuple[str, ...] = ()) -> None:
        """Go on from a state.

        Raises: DriftError where it belongs to another stream; ValueError or TypeError where it is no state.
        """
        self.seek(*position_in(state, self.description.settings(), allow_drift, self.description.carried))

    def seek(self, position: int, rest: Rest = None) -> None:
        """Go on from a position, at no cost. Raises: ValueError for a negative one, or above 2**62."""
        position = check_position(position)
        self._drop_stream()
        self._ledger.restart()
        self._skipped = ()
        self._position, self._rest = position, rest

    def close(self) -> None:
        """Stop reading and close files. The position stays; reading again opens them again."""
        self._drop_stream()
        self.description.close()

    def _next_batch(self, size: int) -> HostBatch | None:
        options = StreamOptions(size)
        if self._stream is None or options != self._stream_options or self._pending:
            self._drop_stream()
            # what was fetched and not handed out comes again
            self._ledger.num_skipped -= sum(skip.position >= self._position for skip in self._skipped)
            self._skipped = ()
            self._ledger.rewind(self._position)
            self._stream, self._stream_options = self.batches(self._position, options, self._rest), options
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
            self._ledger.check(skipped)
        except SkippedError:
            self._drop_stream()  # its batch was not handed out, and comes again
            raise
        self._ledger.enter(skipped)
        self._skipped = skipped

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._pending = None, []


def _ends(batch: HostBatch, before: Rest) -> list[tuple[int, Rest]]:
    """Where the stream goes on after each row: at the next one, so filtered positions belong to the row before them.

    before: the rest that the batch began with; the batch's own may be about what comes after these rows.
    """
    positions = batch.positions[1:].tolist()
    offsets = [0] * len(positions) if batch.ordinals is None else batch.ordinals[1:].tolist()
    rests = [with_offset(before, offset) for offset in offsets]
    return [*zip(positions, rests, strict=True), (batch.stop, batch.rest)]


def state_of(position: int, rest: Rest, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved of a stream: where it goes on, and which stream it is."""
    return {"version": VERSION, "position": position, **({} if rest is None else {"rest": rest}), "settings": settings}


def position_in(
    state: Any,
    settings: Mapping[str, Any],
    allow_drift: tuple[str, ...] = (),
    carried: Callable[[Mapping[str, Any], int, Rest], tuple[Rest, tuple[str, ...]]] | None = None,
) -> tuple[int, Rest]:
    """The position and rest of a saved state, once everything else in it is found to fit these settings.

    A state is external input: its version is checked first, then its shape, then the stream that it belongs to.
    carried: what the description makes of the rest under its own settings; see Described.carried.

    Raises: TypeError, ValueError for what is no state of this version; DriftError for another stream's.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a dict, got {type(state).__name__}")
    if "version" not in state:
        raise ValueError(f"this is no state of a stream: it has no version, only {shown(sorted(map(str, state))[:10])}")
    version = state["version"]
    if type(version) is not int:
        raise ValueError(f"the state's version must be an integer, got {shown(version)}; it is damaged")
    if version != VERSION:
        raise ValueError(
            f"the state has version {shown(version)}, this release reads version {VERSION}; "
            "restore it with the release that wrote it."
        )
    for name in ("position", "settings"):
        if name not in state:
            raise ValueError(f"the state has no {name}; it is damaged, restore an earlier one")
    position, rest, saved = state["position"], state.get("rest"), state["settings"]
    if type(position) is not int:
        raise ValueError(f"the state's position must be an integer of at least 0, got {shown(position)}")
    check_position(position)
    if not isinstance(rest, Mapping | None):
        raise ValueError(f"the state's rest must be a dict, got {shown(rest)}")
    if not isinstance(saved, Mapping):
        raise ValueError(f"the state's settings must be a dict, got {shown(saved)}")
    allowed: tuple[str, ...] = ()
    if carried is not None:
        rest, allowed = carried(saved, position, rest)
    check_drift(saved, settings, (*allow_drift, *allowed))
    return position, rest


def statistics_in(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a state says of the stream so far, {} where it says nothing.

    Raises: ValueError for what are no statistics.
    """
    statistics = state.get("statistics", {})
    if not isinstance(statistics, Mapping):
        raise ValueError(f"the state's statistics must be a dict, got {shown(statistics)}")
    num_skipped = statistics.get("num_skipped", 0)
    if type(num_skipped) is not int or not 0 <= num_skipped <= MAX_POSITION:
        raise ValueError(f"the state's statistics.num_skipped must be a count of records, got {shown(num_skipped)}")
    return statistics
