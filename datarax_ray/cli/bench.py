"""`datarax-ray bench`: how fast files can be read in the ways that there are, and what would make it faster."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from datarax_ray import RaySource, load
from datarax_ray.cli.screen import Screen
from datarax_ray.cli.target import names_a_pipeline, source_of
from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.elements.columns import leaves, nbytes
from datarax_ray.read.elements.transforms import Unstacked
from datarax_ray.read.errors import RecordError, UnlikeError
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources.kinds import KINDS

logger = logging.getLogger("datarax_ray")

RAW, IN_ORDER, SHUFFLED, IN_BLOCKS = "raw, file order", "file order", "shuffled", "blocks shuffled"
# Below this gain an order that mixes less is not worth it.
_WORTH = 1.5
_FEW_BATCHES = 4  # of an epoch: what a batch costs by itself is most of it
_FEW_RECORDS = 1000
# Of the files' sources, those whose shuffle is of single records unless they are told otherwise.
_BLOCKS: dict[str, Any] = {"ArrayRecordSourceModule": "auto", "WebDatasetSource": 256}


@dataclass(frozen=True)
class Measured:
    """One way to read. num_records in elapsed_s, which begin when the first batch is there.

    spent: the part of the reading that each thing took, from 0 to 1.
    num_actors: 0 for this process alone.
    record_nbytes: of a decoded record.
    """

    name: str
    num_records: int
    elapsed_s: float
    spent: Mapping[str, float] = field(default_factory=dict)
    num_actors: int = 0
    record_nbytes: float = 0.0

    @property
    def records_per_s(self) -> float:
        return self.num_records / self.elapsed_s if self.elapsed_s else 0.0


@dataclass(frozen=True)
class Request:
    """What to measure.

    paths: of data, or FILE.py:NAME of a source or Pipeline.
    seconds: for each way.
    num_actors: 0 for none.
    target: records/s of a trainer, or None.
    """

    paths: tuple[str, ...]
    seconds: float
    batch_size: int
    num_actors: int = 0
    transforms: tuple[Any, ...] = ()
    target: float | None = None


def run(request: Request, screen: Screen) -> None:
    """Measure each way, and print them all with advice.

    Raises: what load or the user's file raises; ValueError for a stream or mixture, whose order is its own.
    """
    notes: list[str] = []
    with _told_once(), contextlib.ExitStack() as opened:
        source = _source(request.paths, request.transforms, opened)
        ways = _ways(source, opened)
        screen.err.print(f"{len(ways) + bool(request.num_actors)} ways to read, {request.seconds:g} s each")
        try:
            found = _measured(ways, request, screen.err, notes)
        except ValueError as error:
            is_null = not isinstance(error, RecordError) or "fill_nulls=" in str(error)  # what its error says to set
            if not is_null or (fill := _zeros(source.config, ways[RAW])) is None:
                raise
            notes.append(f"measured with 0 in place of nulls: {error}")
            source = source.copy(config=replace(source.config, fill_nulls=fill))
            found = _measured(_ways(source, opened), request, screen.err, notes)
        mean_nbytes, num_records = ways[RAW].reader.mean_nbytes, ways[RAW].order.num_records
    if num_records < _FEW_BATCHES * request.batch_size:
        notes.append(f"these are {num_records:,} records: too few batches to tell ways to read them from one another")
        said = notes
    else:
        if num_records < _FEW_RECORDS:
            notes.append(f"these are {num_records:,} records: what an epoch costs by itself makes their rates low")
        said = [*notes, *advice(found, request.target), cluster_of(found, mean_nbytes, request.target)]
    data = [asdict(way) | {"records_per_s": way.records_per_s} for way in found]
    screen.answer({"mean_nbytes": mean_nbytes, "ways": data, "advice": said}, _lines(found, mean_nbytes, said))


def _lines(found: list[Measured], mean_nbytes: float, said: list[str]) -> Iterator[RenderableType]:
    table = Table("", "records/s", "MB/s stored", "of raw", "mostly", box=box.SIMPLE)
    for way in found:
        rate = way.records_per_s
        name = max(way.spent, key=way.spent.__getitem__, default="")
        dearest = f"{name} {way.spent[name]:.0%}" if name else ""
        part = rate / found[0].records_per_s if found[0].num_records else 0.0
        table.add_row(way.name, f"{rate:,.0f}", f"{rate * mean_nbytes / 1e6:,.1f}", f"{part:.2f}", dearest)
    yield table
    yield from said


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """Each message of the log once: the ways to read are copies of one source, and each copy says it anew."""
    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        num_before = len(told)
        told.add(record.getMessage())
        return len(told) > num_before

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def _source(paths: tuple[str, ...], transforms: tuple[Any, ...], opened: contextlib.ExitStack) -> Any:
    """What reads the data, or the one that is named; opened closes it."""
    if len(paths) > 1 or not _is_named(paths[0]):
        return opened.enter_context(
            contextlib.closing(load(list(paths) if len(paths) > 1 else paths[0], transforms=transforms))
        )
    if transforms:
        raise ValueError(f"{paths[0]} has transforms of its own; leave out --decoder")
    named = source_of(paths[0])
    opened.enter_context(contextlib.closing(named))
    return getattr(named, "source", named)  # that a RaySource reads


def _is_named(text: str) -> bool:
    """Whether it names a source in a file or module of Python's, and no data (imagefolder:DIR)."""
    where = text.rpartition(":")[0]
    first = where.partition(".")[0]
    is_module = where not in KINDS and first.isidentifier() and importlib.util.find_spec(first) is not None
    return text.endswith(".py") or (names_a_pipeline(text) and (where.endswith(".py") or is_module))


def _ways(source: Any, opened: contextlib.ExitStack) -> dict[str, IndexedStream]:
    """The same data without end, by each way to read it. A source that is shuffled already is so in its own way."""
    stream = source.describe()
    if not isinstance(stream, IndexedStream) or not hasattr(source, "copy"):
        raise ValueError(
            f"{source!r} has no other order than its own, as a stream or mixture; bench compares orders of files. Name "
            "the source of a component"
        )

    def changed(config: Any, **order: Any) -> IndexedStream:
        if hasattr(config, "shuffle_files"):  # datarax's name, which says the same
            order["shuffle_files"] = order["shuffle"]
        copied = source.copy(config=replace(config, num_epochs=-1, **order))
        described: IndexedStream = opened.enter_context(contextlib.closing(copied)).describe()
        return described

    config = source.config
    sizes = {name: None for name in ("shuffle_block_size", "shuffle_window") if hasattr(config, name)}
    plain = changed(config, shuffle=False, **sizes)
    ways = {RAW: replace(plain, transforms=()), IN_ORDER: plain, SHUFFLED: changed(config, shuffle=True)}
    size = _BLOCKS.get(type(source).__name__)
    if size and getattr(config, "shuffle_block_size", None) is None and getattr(stream.reader, "group_size", 2) > 1:
        ways[IN_BLOCKS] = changed(config, shuffle=True, shuffle_block_size=size)
    return ways


def _measured(ways: Mapping[str, IndexedStream], request: Request, err: Console, notes: list[str]) -> list[Measured]:
    """Each way. notes: gets why elements are not stacked, where they do not stack."""
    is_stacked = True

    def one(name: str, stream: IndexedStream, num_actors: int = 0) -> Measured:
        nonlocal is_stacked
        unlike: ValueError | None = None
        if is_stacked or name == RAW:
            try:
                return measured_of(name, stream, request, num_actors)
            except (RecordError, UnlikeError) as error:
                unlike = error
        found = measured_of(name, replace(stream, transforms=(*stream.transforms, Unstacked())), request, num_actors)
        if unlike is not None and name != RAW:
            is_stacked = False
            notes.append(f"measured without stacking elements as batches, for which they are not alike: {unlike}")
        return found

    one(RAW, ways[RAW])  # what memory holds of the files it holds for all of them
    found = [one(name, stream) for name, stream in ways.items()]
    if request.num_actors:
        err.print("connecting to Ray ...")
        best = max(found[2:], key=lambda way: way.records_per_s).name
        name = f"{request.num_actors} {'actor' if request.num_actors == 1 else 'actors'}"
        found.append(one(name, ways[best], request.num_actors))
    return found


def _zeros(config: Any, raw: IndexedStream) -> dict[str, Any] | None:
    """0 for each field that is a number, where the config takes that for nulls and has nothing; None where not."""
    if getattr(config, "fill_nulls", ()) is not None:
        return None
    found = leaves(Source(raw).element_spec())
    return {
        ".".join(path): each.dtype.type(0).item()
        for path, each in found
        if each.dtype.kind in "biuf" and not each.shape
    }


def measured_of(name: str, stream: IndexedStream, request: Request, num_actors: int = 0) -> Measured:
    """Read for so long behind the first batch, and one batch at least."""
    source: Any = Source(stream)
    with contextlib.ExitStack() as opened:
        if num_actors:
            source = opened.enter_context(contextlib.closing(RaySource(source, num_actors=num_actors)))
        return _rate(name, source, request, num_actors)


def _rate(name: str, source: Any, request: Request, num_actors: int) -> Measured:
    timings = Timings()
    batches: Iterator[HostBatch] = source.batches(0, StreamOptions(request.batch_size, timings=timings))
    num_records = 0
    with contextlib.closing(batches):  # type: ignore[type-var]
        first = next(batches)
        began = time.perf_counter()
        for batch in batches:
            num_records += batch.num_rows
            if time.perf_counter() - began >= request.seconds:
                break
        elapsed = time.perf_counter() - began
    reading = timings.stats(num_actors).reading
    total = sum(reading.values()) or 1.0
    spent = {what.removesuffix(", Unstacked"): took / total for what, took in reading.items()}
    return Measured(name, num_records, elapsed, spent, num_actors, nbytes(first.columns) / first.num_rows)


def advice(found: list[Measured], target: float | None) -> list[str]:
    """What follows from what was measured, in words. target: records/s that a trainer takes; None where nobody says."""
    ways = {way.name: way for way in found}
    raw, best = ways[RAW], ways[SHUFFLED]
    said = []
    blocks = ways.get(IN_BLOCKS)
    if blocks is not None and blocks.records_per_s > _WORTH * best.records_per_s:
        said.append(
            f"shuffle_block_size reads {blocks.records_per_s / max(best.records_per_s, 1e-9):.1f} times "
            "as fast as a shuffle of single records, and mixes records within windows of blocks"
        )
        best = blocks
    elif ways[IN_ORDER].records_per_s > _WORTH * best.records_per_s:
        said.append(
            f"the shuffle reads at {best.records_per_s / ways[IN_ORDER].records_per_s:.0%} of the rate of file order; "
            "where records were shuffled before they were written, shuffle=False does without it"
        )
    name = max(best.spent, key=best.spent.__getitem__, default="")
    if name and raw.records_per_s > _WORTH * best.records_per_s:
        said.append(f"{name} takes {best.spent[name]:.0%} of the time of {best.name}")
    rate = best.records_per_s
    if target is None:
        said.append(
            f"one actor with a CPU of its own reads about {rate:,.0f} records/s; --target says how many it takes"
        )
    else:
        enough = max(1, math.ceil(target / max(rate, 1e-9) / 0.9))
        said.append(f"{target:,.0f} records/s take about {enough} {'actor' if enough == 1 else 'actors'}")
    if found[-1].num_actors and found[-1].records_per_s < 0.5 * found[-1].num_actors * rate:
        said.append(
            f"{found[-1].name} read {found[-1].records_per_s / max(rate, 1e-9):.1f} times as fast as this process: "
            "they share its CPUs, or what is between them and here is what takes long"
        )
    return said


def cluster_of(found: list[Measured], mean_nbytes: float, target: float | None) -> str:
    """The command that says what a cluster of such actors would do."""
    way = next(way for way in found if way.name == SHUFFLED)
    options = f"--rate {max(way.records_per_s, 1e-6):.4g} --record-size {max(1, round(way.record_nbytes))}"
    options += f" --stored-size {max(1, round(mean_nbytes))} --need {'RATE' if target is None else f'{target:.4g}'}"
    said = f"what a cluster of such actors would do: datarax-ray simulate {options}"
    return said if target is not None else f"{said}, where RATE is what its trainers take, in records/s"
