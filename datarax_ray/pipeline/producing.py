"""Making batches, in a pipeline's thread. It does not know the pipeline, so that a dropped pipeline ends it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from jax.sharding import NamedSharding

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.consumer import Consumed, Delivery, deliveries
from datarax_ray.feed.source import Describes
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.pipeline.scan import FedBatch
from datarax_ray.pipeline.stages import Stages, words
from datarax_ray.pipeline.transfer import (
    TOGETHER,
    JaxSettings,
    Placer,
    by_rows,
    check_sharding,
    merge_host,
    spans_processes,
    to_device,
)
from datarax_ray.plan.position import element_ids
from datarax_ray.plan.runs import num_rows_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.background import Cancelled
from datarax_ray.read.elements.columns import leaves, map_leaves
from datarax_ray.read.files.sniff import how_to_decode
from datarax_ray.read.skipped_records import COUNT_ALONE
from datarax_ray.sources.base.device import NarrowError, narrow, split_host

logger = logging.getLogger("datarax_ray")


class Source(Describes, Protocol):
    """A source as a Pipeline needs it: its description, and its batches from any state on."""

    def batches(self, start: StreamState, options: StreamOptions) -> Generator[HostBatch, None, Any]: ...


# Of batches at hand, one after the other as they are asked for: an error comes in the place of its batch.
Prepare: TypeAlias = Callable[[Sequence[HostBatch]], Iterator[Any]]


@dataclass(frozen=True)
class Placed:
    """A batch on the device before the stages.

    columns: None if nothing goes to the device.
    row_words: uint32 (rows, 2), see stages.words; None like columns, and without stages.
    start: the id of its first element.
    host: the fields that stay on the host.
    """

    columns: Any
    row_words: Any
    start: int
    host: Any


@dataclass(frozen=True)
class BatchProducer:
    """Makes the batches of a source. sharding: where batches go, None for the default device."""

    source: Source
    options: StreamOptions
    stages: Stages
    sharding: NamedSharding | None
    timings: Timings
    placer: Placer = field(default_factory=Placer, compare=False)

    def batches(
        self,
        consumed: Consumed,
        prepare: Prepare,
        settings: JaxSettings,
        cancelled: Cancelled,
    ) -> Generator[Delivery, None, None]:
        """Prepared batches from `consumed` on; after the last batch None, with the final state."""
        limit = replace(getattr(self.source, "skip_options", COUNT_ALONE).limit, count=consumed.num_skipped)
        options = replace(self.options, cancelled=lambda: cancelled.is_set, timings=self.timings, limit=limit)
        making = self.timings.making
        is_first = True
        self.verify(consumed)
        stream = deliveries(self.source.batches(consumed.state, options), consumed, is_written=prepare == self.keep)
        groups = _at_hand(stream)
        with contextlib.closing(stream):
            while True:
                with making.lap("assembling"):
                    at_hand = next(groups)
                host_batch, consumed = at_hand[0]
                if host_batch is None:
                    if cancelled.is_set:
                        raise RuntimeError("the pipeline was closed while it waited for a batch")
                    state, stop = consumed.state, self.source.describe().stop
                    if not options.drop_remainder and stop is not None and state.position < stop:
                        state = state._replace(position=stop, offset=0)
                    cancelled.is_next_at_hand = False
                    yield None, consumed._replace(state=state)
                    return
                if is_first and (advice := _advice(host_batch.columns)):
                    logger.warning("batches are records as they are stored (bytes).%s", advice)
                for where, kind in _like_arrays(host_batch.columns) if is_first else ():
                    logger.warning(
                        "%s holds objects (%s), which stay on the host; np.asarray in a transform makes an array",
                        *(where, kind),
                    )
                is_first = False
                host_batches = [batch for batch, _ in at_hand]
                if options.pad_remainder:
                    rows = num_rows_of(options.rows.full)
                    fill = {} if options.packing is None else options.packing.padding
                    host_batches = [pad(batch, rows, options.batch_size, fill) for batch in host_batches]
                made = prepare(host_batches)
                for host_batch, consumed in at_hand:
                    with settings.applied(), making.lap("placing"):
                        try:
                            batch = next(made)
                        except NarrowError as error:
                            self._name_record(error, host_batch)
                            raise
                    cancelled.is_next_at_hand = host_batch.is_next_made
                    yield batch, consumed

    def verify(self, consumed: Consumed) -> None:
        """Compare the last rows of a restored state; see Source.verify. A source of another package has none."""
        if (verify := getattr(self.source, "verify", None)) is not None:
            verify(consumed.state, consumed.trail, self.options.packing)

    def _name_record(self, error: NarrowError, host_batch: HostBatch) -> None:
        """Name the record of the value, where the stream tells it without reading."""
        with contextlib.suppress(Exception):
            at = host_batch.positions[[error.row]]
            (where,) = self.source.describe().locations(at, host_batch.state)
            error.add_note(f"row {error.row} is of {where} (position {at[0]})")

    def keep(self, host_batches: Sequence[HostBatch]) -> Iterator[Any]:
        """The batches on the host, for a loop that makes its own device arrays."""
        for host_batch in host_batches:
            check_sharding(self.sharding, self.options.rows, host_batch.global_rows, "the last batch")
            yield host_batch.columns

    def transfer(self, host_batches: Sequence[HostBatch]) -> Iterator[Any]:
        """The batches for iteration: on the device, after the stages."""
        return map(self.finish, self.place(host_batches))

    def place(self, host_batches: Sequence[HostBatch]) -> Iterator[Placed]:
        """The batches on the device, before the stages. Waits for no other process."""
        parts = [split_host(batch.columns) for batch in host_batches]
        columns = [part for part, _ in parts]
        placed: Iterator[Any] = iter(columns)  # None, of all batches of a stream or of none
        if columns[0] is not None:
            if self.sharding is None:  # batches at hand are of one series
                series = host_batches[0].series if len(host_batches) == TOGETHER else None
                placed = self.placer(columns, series and (split_host(series[0])[0], series[1]))
            else:
                placed = map(self._sharded, host_batches, columns)
        for host_batch, on_device, (_, on_host) in zip(host_batches, placed, parts, strict=True):
            row_words, start = None, 0
            if on_device is not None and self.stages.graph.nodes:
                start = element_ids(host_batch.start, host_batch.offset)
                row_words = self._row_words(host_batch)
            yield Placed(on_device, row_words, start, on_host)

    def _sharded(self, host_batch: HostBatch, columns: Any) -> Any:
        rows, global_rows = self.options.rows, host_batch.global_rows
        check_sharding(self.sharding, rows, global_rows, "the last batch")  # after filters nobody knew
        return to_device(columns, self.sharding, rows, global_rows)

    def _row_words(self, host_batch: HostBatch) -> Any:
        """The words from which random stages draw each row's numbers, on the devices of the rows."""
        row_words = words(element_ids(host_batch.positions, host_batch.ordinals))
        return to_device(row_words, by_rows(self.sharding), self.options.rows, host_batch.global_rows)

    def finish(self, placed: Placed) -> Any:
        """The batch after the stages, with the fields that stayed on the host."""
        on_device, on_host = placed.columns, placed.host
        if not self.stages.graph.nodes:
            return merge_host(on_device, on_host)
        if on_device is None:
            raise ValueError(
                "no field can go to the device (they are bytes, strings, lists), so the stages have no input; decode "
                "the records in transforms, as DecodeFields does." + _advice(on_host)
            )
        beside = () if on_host is None else tuple(".".join(path) for path, _ in leaves(on_host))
        try:
            on_device = self.stages(on_device, placed.start, placed.row_words, beside)
        except Exception as error:
            if beside:
                names = ", ".join(beside)
                error.add_note(
                    f"on the host, where stages do not see them: {names}; turn them into numbers in a transform"
                )
            raise
        return merge_host(on_device, on_host)

    def feed(self, host_batches: Sequence[HostBatch]) -> Iterator[FedBatch | None]:
        """The batches for scan, before the stages: on the host, or on devices of several processes; None if short."""
        return map(self._fed, host_batches)

    def _fed(self, host_batch: HostBatch) -> FedBatch | None:
        if host_batch.global_rows < self.options.batch_size:
            return None
        on_device, _ = split_host(host_batch.columns)
        if on_device is None:
            raise ValueError(
                "every field stays on the host (strings, bytes, lists), so there is nothing to scan over; iterate."
                + _advice(host_batch.columns)
            )
        start = words(element_ids(host_batch.start, host_batch.offset))
        if spans_processes(self.sharding):
            return FedBatch(next(self.place([host_batch])).columns, self._row_words(host_batch), start)
        return FedBatch(narrow(on_device), words(element_ids(host_batch.positions, host_batch.ordinals)), start)


def _at_hand(stream: Iterator[Delivery]) -> Iterator[list[Delivery]]:
    """Deliveries, each with those that were made with it. An error comes behind the deliveries before it."""
    found: list[Delivery] = []
    try:
        for delivery in stream:
            found.append(delivery)
            if len(found) == TOGETHER or delivery[0] is None or not delivery[0].is_next_made:
                whole, found = found, []
                yield whole
    except BaseException:
        if found:
            yield found
        raise


def _advice(columns: Any) -> str:
    """A hint how to decode the first record, where elements are stored bytes."""
    first = columns[0] if isinstance(columns, np.ndarray) else None
    return how_to_decode(first) if isinstance(first, bytes) else ""


def _like_arrays(columns: Any) -> Iterator[tuple[str, str]]:
    """(field, type) of fields with objects that NumPy can convert to arrays, such as Pillow's images."""
    for path, column in leaves(columns):
        first = column[0] if isinstance(column, np.ndarray) and column.dtype == object and len(column) else None
        is_like = hasattr(first, "__array_interface__") or hasattr(first, "__array__")
        if is_like and not isinstance(first, np.ndarray | np.generic):
            where = f"field {'.'.join(path)!r}" if path else "each batch"
            yield where, f"{type(first).__module__}.{type(first).__qualname__}"


VALID_MASK = "valid_mask"


def pad(batch: HostBatch, num_rows: int, global_rows: int, fill: Mapping[str, Any] | None = None) -> HostBatch:
    """The batch filled to `num_rows` rows in this process, of `global_rows` in all, with the field valid_mask.

    valid_mask: bool (num_rows,), True for rows of data. Others have `fill` by field, else 0, "" or None; position 0.

    Raises: ValueError if the elements are no dicts, or have a field valid_mask.
    """
    if not isinstance(batch.columns, Mapping):
        raise ValueError(
            f"the elements are single values ({batch.columns.dtype}), so {VALID_MASK!r} has no place beside them; "
            "return a dict from a transform, or use drop_remainder=True"
        )
    if VALID_MASK in batch.columns:
        raise ValueError(
            f"the elements have a field {VALID_MASK!r}, which pad_remainder=True would overwrite; "
            "give it another name in a transform, or use drop_remainder=True"
        )
    mask = np.arange(num_rows) < batch.num_rows
    columns = map_leaves(lambda column: _fill(column, num_rows), batch.columns)
    for name, value in (fill or {}).items():
        columns[name] = _fill(batch.columns[name], num_rows, value)
    return batch._replace(
        columns=columns | {VALID_MASK: mask},
        positions=_fill(batch.positions, num_rows),
        ordinals=None if batch.ordinals is None else _fill(batch.ordinals, num_rows),
        global_rows=global_rows,
        series=None,
    )


def _fill(column: np.ndarray, num_rows: int, value: Any = None) -> np.ndarray:
    """value: None for the zero of the dtype, which is "" of text."""
    if len(column) == num_rows:
        return column
    shape = (num_rows, *column.shape[1:])
    if value is None and column.dtype != object:
        filled = np.zeros(shape, column.dtype)
    else:
        filled = np.full(shape, None if column.dtype == object else value, column.dtype)
    filled[: len(column)] = column
    return filled
