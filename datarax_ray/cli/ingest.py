"""`datarax-ray ingest`: reads a stream as fast as it comes, and reports how fast that was. Loads no JAX."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from rich import box
from rich.table import Table

from datarax_ray.cli.screen import Screen, stopped_by
from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.position import earliest
from datarax_ray.read.elements.columns import nbytes
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.record_progress import RecordProgress


@dataclass
class Tally:
    """The batches that came, and when. Seconds count from the first request, when Ray has started.

    first_s, first_records: the time and the size of the first batch.
    waited_s: time inside next().
    start_s: time before the first request, in which Ray started; None without Ray.
    actors: statistics of each actor.
    """

    num_records: int = 0
    num_batches: int = 0
    nbytes: int = 0
    first_s: float = 0.0
    first_records: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    start_s: float | None = None
    actors: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def records_per_s(self) -> float:
        return self.num_records / self.elapsed_s if self.elapsed_s else 0.0


def ingest(
    paths: list[str],
    screen: Screen,
    *,
    batch_size: int,
    num_actors: int | None,
    num_epochs: int,
    shuffle: bool,
    seed: int,
    decoder: tuple[Any, ...],
    max_batches: int | None,
) -> int:
    """Read, then print the report. Returns the exit status: of Ctrl-C, or 0.

    num_actors: 0 reads in this process, without Ray. num_epochs: -1 is endless. decoder: the source's transforms.
    """
    try:
        reader = ArrayRecordReader.of(paths)
    except (OSError, ValueError) as error:
        error.add_note("ingest reads ArrayRecord files only; `datarax-ray bench` and `inspect` read every format")
        raise
    order = order_of(reader.num_records, seed, "global" if shuffle else "none")
    stream = IndexedStream(reader, order, num_epochs, decoder)
    tally, status = Tally(), 0
    begin = time.perf_counter()
    with contextlib.closing(_source(stream, num_actors, screen)) as source:
        if num_actors != 0:
            tally.start_s = time.perf_counter() - begin
        batches = islice(source.batches(0, StreamOptions(batch_size)), max_batches)
        try:
            expected = earliest([stream.stop, max_batches and max_batches * batch_size])
            with RecordProgress(screen.err, "ingest", expected, show_nbytes=True) as progress:
                _count(batches, tally, progress)
        except (KeyboardInterrupt, SystemExit) as end:
            cause, status = stopped_by(end)
            screen.err.print(f"stopped by {cause}; the report covers the records until then:")
        if tally.start_s is not None:
            tally.actors = source.stats()
    screen.answer(asdict(tally) | {"records_per_s": tally.records_per_s}, _report(tally, stream))
    return status


def _source(stream: IndexedStream, num_actors: int | None, screen: Screen) -> Any:
    if num_actors == 0:
        return Source(stream)
    from datarax_ray.actors.source import RaySource  # in here: 0 actors must work where Ray is not installed

    screen.err.print("connecting to Ray ...")
    return RaySource(Source(stream), num_actors=num_actors)


def _count(batches: Iterator[HostBatch], tally: Tally, progress: RecordProgress) -> None:
    """Take every batch and drop it. The tally holds even if an error or Ctrl-C ends this."""
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
            tally.first_s, tally.first_records = tally.elapsed_s, batch.num_rows
        size = nbytes(batch.columns)
        tally.num_batches += 1
        tally.num_records += batch.num_rows
        tally.nbytes += size
        progress.advance(batch.num_rows, size)


def _report(tally: Tally, stream: IndexedStream) -> Iterator[Table]:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    per_epoch, elapsed = stream.order.num_records, max(tally.elapsed_s, 1e-9)
    table.add_row("records", f"{tally.num_records:,}")
    table.add_row("batches", f"{tally.num_batches:,}")
    epochs = f"{tally.num_records / per_epoch:,.2f}".removesuffix(".00")
    table.add_row("epochs", epochs, f"of {per_epoch:,} records")
    if tally.start_s is not None:
        table.add_row("start", f"{tally.start_s:,.2f} s", "of Ray, before the time below")
    table.add_row("time", f"{tally.elapsed_s:,.2f} s", "from the first request")
    records, seconds = tally.num_records - tally.first_records, tally.elapsed_s - tally.first_s
    later = f"{records / seconds:,.0f} after the first batch" if records and seconds > 0 else ""
    table.add_row("records/s", f"{tally.records_per_s:,.0f}", later)
    table.add_row("MB/s", f"{tally.nbytes / elapsed / 1e6:,.1f}", "decoded")
    table.add_row("first batch after", f"{tally.first_s:,.2f} s", "actors start meanwhile" if tally.actors else "")
    table.add_row("consumer waited", f"{tally.waited_s:,.2f} s", f"{tally.waited_s / elapsed:.0%} of the time")
    yield table
    if tally.actors:
        yield _actor_table(tally.actors)


def _actor_table(actors: dict[int, dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("actor", justify="right")
    table.add_column("node")
    for name in ("pid", "max RSS", "records", "MB", "reading"):
        table.add_column(name, justify="right")
    for index, stats in sorted(actors.items()):
        table.add_row(
            str(index),
            str(stats["node_id"])[:12],  # as `ray list nodes` is searched by, and enough to tell nodes apart
            str(stats["pid"]),
            f"{stats['max_rss_nbytes'] / 2**20:,.0f} MiB",
            f"{stats['num_elements']:,}",
            f"{stats['nbytes'] / 1e6:,.1f}",
            f"{stats['read_s']:,.2f} s",
        )
    return table
