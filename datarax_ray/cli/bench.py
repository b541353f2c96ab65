"""`datarax-ray bench`: how fast files can be read in the ways that there are, and what would make it faster."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from datarax_ray import RaySource, load
from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.source import Source
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.elements.columns import nbytes
from datarax_ray.read.streams.indexed import IndexedStream

RAW, IN_ORDER, SHUFFLED, IN_BLOCKS = "raw, file order", "file order", "shuffled", "blocks shuffled"
# Below this gain an order that mixes less is not worth it.
_WORTH = 1.5
# Of the files' sources, those whose shuffle is of single records unless they are told otherwise.
_BLOCKS: dict[str, Any] = {"ArrayRecordSourceModule": "auto", "WebDatasetSource": 256}


@dataclass(frozen=True)
class Measured:
    """One way to read. num_records in elapsed_s, which begin when the first batch is there. spent: the part of the
    reading that each thing took, from 0 to 1. num_actors: 0 for this process alone. record_nbytes: of a decoded record.
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
    """What to measure. seconds: for each way. num_actors: 0 for none. target: records/s of a trainer, or None."""

    paths: tuple[str, ...]
    seconds: float
    batch_size: int
    num_actors: int = 0
    transforms: tuple[Any, ...] = ()
    target: float | None = None


def run(request: Request, as_json: bool, out: Console, err: Console) -> None:
    """Measure each way, and print them all with advice.

    Raises: what load raises; ValueError for a stream, which has no other order than its own.
    """
    paths, num_actors = list(request.paths), request.num_actors
    plain = load(paths if len(paths) > 1 else paths[0], num_epochs=-1, transforms=request.transforms)
    with contextlib.closing(plain):
        stream = plain.describe()
        if not isinstance(stream, IndexedStream):
            raise ValueError(f"{plain!r} is a stream, which is read forwards; bench compares orders of files")
        shuffled = plain.copy(config=replace(plain.config, shuffle=True, **_other_name(plain.config)))
        ways: dict[str, Any] = {RAW: Source(replace(stream, transforms=())), IN_ORDER: plain, SHUFFLED: shuffled}
        if type(plain).__name__ in _BLOCKS and getattr(stream.reader, "group_size", 2) > 1:
            size = _BLOCKS[type(plain).__name__]
            ways[IN_BLOCKS] = shuffled.copy(config=replace(shuffled.config, shuffle_block_size=size))
        err.print(f"{len(ways) + bool(num_actors)} ways to read, {request.seconds:g} s each")
        measured_of(RAW, ways[RAW], request)  # what memory holds of the files it holds for all of them
        found = [measured_of(name, source, request) for name, source in ways.items()]
        if num_actors:
            err.print("connecting to Ray ...")
            best = ways[max(found[2:], key=lambda way: way.records_per_s).name]
            with contextlib.closing(RaySource(best, num_actors=num_actors)) as source:
                name = f"{num_actors} {'actor' if num_actors == 1 else 'actors'}"
                found.append(measured_of(name, source, request, num_actors))
        mean_nbytes = stream.reader.mean_nbytes
    said = [*advice(found, request.target), cluster_of(found, mean_nbytes, request.target)]
    if as_json:
        ways_found = [asdict(way) | {"records_per_s": way.records_per_s} for way in found]
        out.print_json(json.dumps({"mean_nbytes": mean_nbytes, "ways": ways_found, "advice": said}))
        return
    table = Table("", "records/s", "MB/s stored", "of raw", "mostly", box=box.SIMPLE)
    for way in found:
        rate = way.records_per_s
        name = max(way.spent, key=way.spent.__getitem__, default="")
        dearest = f"{name} {way.spent[name]:.0%}" if name else ""
        part = rate / found[0].records_per_s if found[0].num_records else 0.0
        table.add_row(way.name, f"{rate:,.0f}", f"{rate * mean_nbytes / 1e6:,.1f}", f"{part:.2f}", dearest)
    out.print(table)
    for line in said:
        out.print(line, soft_wrap=True)


def _other_name(config: Any) -> dict[str, Any]:
    """datarax's name of shuffle, which says the same."""
    return {"shuffle_files": True} if hasattr(config, "shuffle_files") else {}


def measured_of(name: str, source: Any, request: Request, num_actors: int = 0) -> Measured:
    """Read for so long behind the first batch, and one batch at least."""
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
    spent = {what: took / total for what, took in reading.items()}
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
