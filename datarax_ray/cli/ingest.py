"""`datarax-ray ingest`: reads a stream as fast as it comes, and reports how fast that was. Loads no JAX."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from datarax_ray.cli.screen import Screen, stopped_by
from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.fingerprint import shown
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.position import earliest
from datarax_ray.read.elements.columns import leaves, nbytes
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.record_progress import RecordProgress


@dataclass(frozen=True)
class Request:
    """What to read and how. num_actors: 0 for none, without Ray; None to choose. num_epochs: -1 for endless."""

    paths: tuple[str, ...]
    batch_size: int
    num_actors: int | None
    num_epochs: int
    shuffle: bool
    seed: int
    transforms: tuple[Any, ...]
    max_batches: int | None


@dataclass
class Tally:
    """What came, and when, in seconds from the first request on.

    first_s, first_records: until the first batch was there, and what was in it.
    waited_s: inside next().
    elapsed_s: in all.
    start_s: before that, until Ray was there and had been asked for actors.
    first: the columns of the first batch.
    """

    num_records: int = 0
    num_batches: int = 0
    nbytes: int = 0
    first_s: float = 0.0
    first_records: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    start_s: float = 0.0
    first: Any = None
    actors: dict[int, dict[str, Any]] = field(default_factory=dict)


def run(request: Request, screen: Screen) -> int:
    """Read, then print the report. Returns the exit status: of Ctrl-C, or 0."""
    description = describe(request)
    tally = Tally()
    status = 0
    if request.num_actors != 0:
        screen.err.print("connecting to Ray ...")
    begin = time.perf_counter()
    with contextlib.closing(open_source(description, request.num_actors)) as source:
        tally.start_s = time.perf_counter() - begin
        options = StreamOptions(request.batch_size)
        batches = islice(source.batches(0, options), request.max_batches)
        try:
            expected = expected_records(description, request)
            with RecordProgress(screen.err, "ingest", expected, show_nbytes=True) as progress:
                count(batches, tally, progress)
        except (KeyboardInterrupt, SystemExit) as end:
            cause, status = stopped_by(end)
            screen.err.print(f"stopped by {cause}; this came until then:")
        stats = getattr(source, "stats", None)  # without Ray there are no actors to ask
        tally.actors = stats() if stats is not None else {}
    screen.answer(facts(tally, request.num_actors != 0), report(tally, description))
    return status


def facts(tally: Tally, has_ray: bool) -> dict[str, Any]:
    """The tally, for programs. has_ray: whether actors were asked, so that start_s is Ray's start."""
    names = ("num_records", "num_batches", "nbytes", "first_s", "waited_s", "elapsed_s")
    told = {name: getattr(tally, name) for name in names} | ({"start_s": tally.start_s} if has_ray else {})
    rate = tally.num_records / tally.elapsed_s if tally.elapsed_s else 0.0
    return told | {"records_per_s": rate, "actors": {str(index): each for index, each in tally.actors.items()}}


def describe(request: Request) -> IndexedStream:
    """The stream that is asked for. Raises: FileNotFoundError, ValueError for files that cannot be read."""
    try:
        reader = ArrayRecordReader.of(list(request.paths))
    except (OSError, ValueError) as error:
        error.add_note(
            "ingest reads ArrayRecord files alone; `datarax-ray bench` and `inspect` take data of every format"
        )
        raise
    order = order_of(reader.num_records, request.seed, "global" if request.shuffle else "none")
    return IndexedStream(reader, order, request.num_epochs, request.transforms)


def open_source(description: IndexedStream, num_actors: int | None) -> Source:
    """The source in this process for 0 actors, else a RaySource."""
    source = Source(description)
    if num_actors == 0:
        return source
    from datarax_ray.actors.source import RaySource  # in here: 0 actors must work where no Ray is

    return RaySource(source, num_actors=num_actors)


def expected_records(description: IndexedStream, request: Request) -> int | None:
    """Records that will come, None for endless."""
    return earliest([description.stop, request.max_batches and request.max_batches * request.batch_size])


def count(batches: Iterator[HostBatch], tally: Tally, progress: RecordProgress) -> None:
    """Take every batch and drop it. The tally holds also when an error or Ctrl-C ends this."""
    begin = time.perf_counter()
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        now = time.perf_counter()
        tally.waited_s += now - asked
        tally.elapsed_s = now - begin
        if batch is None:
            return
        if not tally.num_batches:
            tally.first_s, tally.first_records, tally.first = tally.elapsed_s, batch.num_rows, batch.columns
        size = nbytes(batch.columns)
        tally.num_batches += 1
        tally.num_records += batch.num_rows
        tally.nbytes += size
        progress.advance(batch.num_rows, size)


def report(tally: Tally, description: IndexedStream) -> Iterator[Table]:
    """The tally, for people."""
    yield _stream_table(tally, description)
    if tally.first is not None:
        yield _element_table(tally.first)
    if tally.actors:
        yield _actor_table(tally.actors)


def _stream_table(tally: Tally, description: IndexedStream) -> Table:
    elapsed = max(tally.elapsed_s, 1e-9)
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    epochs = tally.num_records / description.order.num_records
    table.add_row("records", f"{tally.num_records:,}", "")
    table.add_row("batches", f"{tally.num_batches:,}", "")
    table.add_row("epochs", f"{epochs:,.2f}".removesuffix(".00"), f"of {description.order.num_records:,} records")
    if tally.actors:
        table.add_row("start", f"{tally.start_s:,.2f} s", "of Ray, before the time below")
    table.add_row("time", f"{tally.elapsed_s:,.2f} s", "from the first request")
    table.add_row("records/s", f"{tally.num_records / elapsed:,.0f}", _after_first(tally))
    table.add_row("MB/s", f"{tally.nbytes / elapsed / 1e6:,.1f}", "decoded")
    table.add_row("first batch after", f"{tally.first_s:,.2f} s", "actors start meanwhile" if tally.actors else "")
    table.add_row("consumer waited", f"{tally.waited_s:,.2f} s", f"{tally.waited_s / elapsed:.0%} of the time")
    return table


def _element_table(columns: Any) -> Table:
    """What an element is, by the first one."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("first element", "dtype", "shape", "value"):
        table.add_column(name, no_wrap=name != "value")
    for path, array in leaves(columns):
        value = array[0]
        if array.dtype == object:
            facts = (type(value).__name__, "", shown(value))
        else:
            facts = (str(array.dtype), str(value.shape), np.array2string(value, threshold=16))
        table.add_row(*(" ".join(text.split()) for text in (".".join(path) or "(alone)", *facts)))
    return table


def _after_first(tally: Tally) -> str:
    """The rate without the start, which a short run is mostly made of; "" where nothing came later."""
    seconds, records = tally.elapsed_s - tally.first_s, tally.num_records - tally.first_records
    return f"{records / seconds:,.0f} after the first batch" if records and seconds > 0 else ""


def _actor_table(actors: dict[int, dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("actor", justify="right")
    table.add_column("node")
    for name in ("pid", "max RSS", "records", "MB", "reading"):
        table.add_column(name, justify="right")
    for index, facts in sorted(actors.items()):
        table.add_row(
            str(index),
            str(facts["node_id"])[:12],  # as `ray list nodes` is searched by, and enough to tell nodes apart
            str(facts["pid"]),
            f"{facts['max_rss_nbytes'] / 2**20:,.0f} MiB",
            f"{facts['num_elements']:,}",
            f"{facts['nbytes'] / 1e6:,.1f}",
            f"{facts['read_s']:,.2f} s",
        )
    return table
