"""`datarax-ray bench`: how fast data is read, raw, in order and shuffled, and what would make it faster."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray import RaySource
from datarax_ray.cli.arguments import source_at
from datarax_ray.cli.screen import Screen
from datarax_ray.feed.source import Source
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.elements.transforms import Unstacked
from datarax_ray.read.errors import RecordError, UnlikeError
from datarax_ray.read.files.sniff import READ
from datarax_ray.read.streams.indexed import IndexedStream

logger = logging.getLogger("datarax_ray")

RAW, IN_ORDER, SHUFFLED, IN_BLOCKS = "raw, file order", "file order", "shuffled", "blocks shuffled"
# Below this gain an order that mixes less is not worth it.
_WORTH = 1.5
_FEW_BATCHES = 4  # of an epoch: below it, the cost of starting a batch is most of the time
# Of the files' sources, those that shuffle single records unless shuffle_block_size is set, and a size to try.
_BLOCKS = {kind.source: kind.block_size for kind in READ.values()}


@dataclass(frozen=True)
class Measured:
    """One way to read.

    num_records, elapsed_s: counted after the first batch.
    spent: the part of the reading time that each activity took, from 0 to 1.
    num_actors: 0 for this process alone.
    """

    name: str
    num_records: int
    elapsed_s: float
    spent: Mapping[str, float] = field(default_factory=dict)
    num_actors: int = 0

    @property
    def records_per_s(self) -> float:
        return self.num_records / self.elapsed_s if self.elapsed_s else 0.0


def bench(
    paths: list[str],
    screen: Screen,
    *,
    seconds: float,
    batch_size: int,
    num_actors: int = 0,
    decoder: tuple[Any, ...] = (),
    target: float | None = None,
) -> None:
    with _logged_once(), contextlib.ExitStack() as opened:
        source = opened.enter_context(contextlib.closing(source_at(paths, None, decoder)))
        ways = _ways(getattr(source, "source", source), opened)  # of a RaySource, the source that it reads
        screen.err.print(f"{len(ways) + bool(num_actors)} ways to read, {seconds:g} s each")
        measure = _Measure(seconds, batch_size)
        measure.rate(RAW, ways[RAW])  # so that every way finds the files in the system's cache alike
        found = [measure.rate(name, stream) for name, stream in ways.items()]
        if num_actors:
            screen.err.print("connecting to Ray ...")
            best = max(found[2:], key=lambda way: way.records_per_s).name
            found.append(measure.rate(_actors(num_actors), ways[best], num_actors))
        mean_nbytes, num_records = ways[RAW].reader.mean_nbytes, ways[RAW].order.num_records
    lines = [*measure.notes, *advice(found, target)]
    if num_records < _FEW_BATCHES * batch_size:
        lines = [*measure.notes, f"{num_records:,} records are too few batches to compare ways to read them"]
    data = [asdict(way) | {"records_per_s": way.records_per_s} for way in found]
    screen.answer({"mean_nbytes": mean_nbytes, "ways": data, "advice": lines}, _report(found, mean_nbytes, lines))


def _report(found: list[Measured], mean_nbytes: float, lines: list[str]) -> Iterator[RenderableType]:
    table = Table("", "records/s", "MB/s stored", "of raw", "mostly", box=box.SIMPLE)
    for way in found:
        rate, name = way.records_per_s, _slowest(way)
        part = rate / found[0].records_per_s if found[0].num_records else 0.0
        mostly = f"{name} {way.spent[name]:.0%}" if name else ""
        table.add_row(way.name, f"{rate:,.0f}", f"{rate * mean_nbytes / 1e6:,.1f}", f"{part:.2f}", mostly)
    yield table
    yield from lines


@contextlib.contextmanager
def _logged_once() -> Iterator[None]:
    """Show each log message once: every way to read copies the source, and a copy logs the same again."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        num_before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > num_before

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def _ways(source: Any, opened: contextlib.ExitStack) -> dict[str, IndexedStream]:
    """The same data without end, by each way to read it."""
    stream = source.describe()
    if not isinstance(stream, IndexedStream) or not hasattr(source, "copy"):
        raise ValueError(
            f"{source!r} is a stream or mixture, which has one order only; bench compares orders of files. Name the "
            "source of a component"
        )

    def changed(config: Any, **order: Any) -> IndexedStream:
        if hasattr(config, "shuffle_files"):  # datarax's name for shuffle
            order["shuffle_files"] = order["shuffle"]
        copied = source.copy(config=replace(config, num_epochs=-1, **order))
        return opened.enter_context(contextlib.closing(copied)).describe()

    config = source.config
    sizes = {name: None for name in ("shuffle_block_size", "shuffle_window") if hasattr(config, name)}
    plain = changed(config, shuffle=False, **sizes)
    ways = {RAW: replace(plain, transforms=()), IN_ORDER: plain, SHUFFLED: changed(config, shuffle=True)}
    size = _BLOCKS.get(type(source).__name__)
    in_groups = size != "auto" or stream.reader.traits.group_size > 1
    if size and in_groups and getattr(config, "shuffle_block_size", None) is None:
        ways[IN_BLOCKS] = changed(config, shuffle=True, shuffle_block_size=size)
    return ways


@dataclass
class _Measure:
    """Measures ways to read. notes: why elements are not stacked, once they did not stack."""

    seconds: float
    batch_size: int
    notes: list[str] = field(default_factory=list)

    def rate(self, name: str, stream: IndexedStream, num_actors: int = 0) -> Measured:
        """Read this way for some seconds, without stacking elements that have different shapes."""
        unstacked = replace(stream, transforms=(*stream.transforms, Unstacked()))
        if self.notes and name != RAW:
            return self._measured(name, unstacked, num_actors)
        try:
            return self._measured(name, stream, num_actors)
        except (RecordError, UnlikeError) as error:
            found = self._measured(name, unstacked, num_actors)
            if name != RAW:
                self.notes.append(f"measured without stacking elements to batches, because they differ: {error}")
            return found

    def _measured(self, name: str, stream: IndexedStream, num_actors: int) -> Measured:
        timings, num_records = Timings(), 0
        source: Any = Source(stream)
        with contextlib.ExitStack() as opened:
            if num_actors:
                source = opened.enter_context(contextlib.closing(RaySource(source, num_actors=num_actors)))
            batches = source.batches(0, StreamOptions(self.batch_size, timings=timings))
            opened.enter_context(contextlib.closing(batches))
            next(batches)
            began = time.perf_counter()
            for batch in batches:
                num_records += batch.num_rows
                if time.perf_counter() - began >= self.seconds:
                    break
            elapsed_s = time.perf_counter() - began
        reading = timings.stats(num_actors).reading
        total = sum(reading.values()) or 1.0
        spent = {what: took / total for what, took in reading.items() if what != Unstacked.__name__}
        return Measured(name, num_records, elapsed_s, spent, num_actors)


def advice(found: list[Measured], target: float | None) -> list[str]:
    """What would make reading faster, and how many actors a trainer that takes `target` records/s needs."""
    ways = {way.name: way for way in found}
    raw, best, blocks = ways[RAW], ways[SHUFFLED], ways.get(IN_BLOCKS)
    lines = []
    if blocks is not None and blocks.records_per_s > _WORTH * best.records_per_s:
        lines.append(
            f"shuffle_block_size reads {blocks.records_per_s / max(best.records_per_s, 1e-9):.1f} times as fast as a "
            "shuffle of single records, and mixes records within windows of blocks"
        )
        best = blocks
    elif ways[IN_ORDER].records_per_s > _WORTH * best.records_per_s:
        lines.append(
            f"the shuffle reads at {best.records_per_s / ways[IN_ORDER].records_per_s:.0%} of the rate of file order; "
            "if records were shuffled before they were written, shuffle=False avoids that"
        )
    name, rate = _slowest(best), best.records_per_s
    if name and raw.records_per_s > _WORTH * rate:
        lines.append(f"{name} takes {best.spent[name]:.0%} of the time of {best.name}")
    if target is None:
        lines.append(f"one actor with its own CPU reads about {rate:,.0f} records/s; --target gives the number needed")
    else:
        enough = max(1, math.ceil(target / max(rate, 1e-9) / 0.9))
        lines.append(f"{target:,.0f} records/s take about {_actors(enough)}")
    if found[-1].num_actors and found[-1].records_per_s < 0.5 * found[-1].num_actors * rate:
        lines.append(
            f"{found[-1].name} read {found[-1].records_per_s / max(rate, 1e-9):.1f} times as fast as this process: "
            "they share its CPUs, or the transfer from them is slow"
        )
    return lines


def _slowest(way: Measured) -> str:
    return max(way.spent, key=way.spent.__getitem__, default="")


def _actors(number: int) -> str:
    return "1 actor" if number == 1 else f"{number} actors"
