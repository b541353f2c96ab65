"""`datarax-ray preprocess`: a source's transforms run once, and what they make written, with statistics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray.cli.screen import Screen, tell_stopped
from datarax_ray.cli.target import source_of
from datarax_ray.write.materialize import REPORT, Component, Materialized, materialize

_MAX_FIELDS = 30  # in the terminal


@dataclass(frozen=True)
class Request:
    """What to write; see materialize."""

    target: str
    destination: Path
    num_transforms: int | None
    num_actors: int | None
    num_shards: int | None
    overwrite: bool


def run(request: Request, screen: Screen) -> int:
    """Write, then print what was written. Returns the exit status."""
    begin = time.perf_counter()
    try:
        done = materialize(
            source_of(request.target),
            request.destination,
            num_transforms=request.num_transforms,
            num_actors=request.num_actors,
            num_shards=request.num_shards,
            overwrite=request.overwrite,
            console=screen.err,
        )
    except (KeyboardInterrupt, SystemExit) as end:
        return tell_stopped(end, screen.err)
    elapsed_s = time.perf_counter() - begin
    screen.answer(done.to_json() | {"elapsed_s": round(elapsed_s, 3)}, _lines(done, elapsed_s))
    return 0


def _lines(done: Materialized, elapsed_s: float) -> Iterator[RenderableType]:
    for component in done.components:
        yield str(component)
        yield _table(component)
    yield f"{done.num_records:,} records in {elapsed_s:,.1f} s; the page is {done.path}/{REPORT}"
    yield f"read it by: MaterializedSource(source, {done.path!r})"


def _table(component: Component) -> Table:
    table = Table("field", "kind", "count", "mean", "std", "least", "most", "length", box=box.SIMPLE)
    fields = list(component.statistics.fields.items())
    for name, of in fields[:_MAX_FIELDS]:
        numbers = (of.numbers.mean, of.numbers.std, of.numbers.least, of.numbers.most)
        told = ["" if not of.numbers.count else f"{number:.5g}" for number in numbers if number is not None]
        length = f"{of.lengths.least}–{of.lengths.most}" if of.lengths.count else ""
        table.add_row(name, ", ".join(of.kinds), f"{of.count:,}", *(told or [""] * 4), length)
    if len(fields) > _MAX_FIELDS:
        table.add_row(f"and {len(fields) - _MAX_FIELDS} more")
    return table
