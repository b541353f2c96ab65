"""`datarax-ray check`: everything that a run would meet in a dataset, before the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray.checking import Checked, Component, decoder_of
from datarax_ray.checking import check as checked
from datarax_ray.cli.arguments import names_a_pipeline, source_at
from datarax_ray.cli.screen import Screen
from datarax_ray.write.report import summary

_MAX_FIELDS = 100  # that are printed


def check(
    paths: list[str],
    screen: Screen,
    *,
    decoder: tuple[Any, ...] | None = None,
    num_actors: int = 0,
    split: str | None = None,
) -> int:
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(contextlib.closing(source_at(paths, split, decoder)))
        is_bare = decoder is None and not names_a_pipeline(paths[0])
        if (guess := decoder_of(next(iter(source), None) if is_bare else None)) is not None:
            source = opened.enter_context(contextlib.closing(source_at(paths, split, (guess,))))
        found = checked(source, num_actors=num_actors, console=screen.err)
        screen.answer(found.to_json(), _lines(type(source).__name__, found))
    return 0 if found.is_fit else 1


def _lines(source: str, found: Checked) -> Iterator[RenderableType]:
    for component in found.components:
        yield f"{component.name or source}: {summary(component.seen.statistics)}"
        yield _table(component)
        yield f"the arrays of an element take {component.device_nbytes:,} bytes on the device"
        yield from (f"{name} holds pictures: {of}" for name, of in component.seen.pictures.items())
        yield from (f"{'ends a run' if each.is_fatal else 'to know'}: {each}" for each in component.problems)
    yield "a run gets through all of the data" if found.is_fit else "a run would end early"


def _table(component: Component) -> Table:
    """A row for each field, of at most 100."""
    table = Table("field", "in a batch", "values", "nulls", "lengths", "least", "most", box=box.SIMPLE)
    fields = list(component.seen.statistics.fields.items())
    for name, of in fields[:_MAX_FIELDS]:
        kinds = [kind if count == of.count else f"{kind} ({count:,})" for kind, count in of.kinds.items()]
        lengths, numbers = of.lengths, of.numbers
        table.add_row(
            name,
            component.batch.get(name, ""),
            ", ".join(kinds),
            f"{of.num_null:,}",
            "–".join(dict.fromkeys(map(str, (lengths.least, lengths.most)))) if lengths.count else "",
            *(("", "") if not numbers.count else (f"{numbers.least:.6g}", f"{numbers.most:.6g}")),
        )
    if len(fields) > _MAX_FIELDS:
        table.add_row(f"and {len(fields) - _MAX_FIELDS:,} more")
    return table
