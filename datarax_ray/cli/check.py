"""`datarax-ray check`: everything that a run would meet in a dataset, before the run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray.checking import Checked, decoder_of
from datarax_ray.checking import check as checked
from datarax_ray.cli.arguments import names_a_pipeline, source_at
from datarax_ray.cli.screen import Screen
from datarax_ray.write.statistics import FieldStatistics, Statistics

_MAX_FIELDS, _MAX_VALUES = 100, 12  # that are printed, of a field the most frequent


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
        yield f"{component.name or source}: {component.seen.statistics}"
        yield field_table(component.seen.statistics, component.batch)
        yield f"the arrays of an element take {component.device_nbytes:,} bytes on the device"
        yield from (f"{name} holds pictures: {of}" for name, of in component.seen.pictures.items())
        yield from (f"{'ends a run' if each.is_fatal else 'to know'}: {each}" for each in component.problems)
    yield "a run gets through all of the data" if found.is_fit else "a run would end early"


def field_table(statistics: Statistics, batch: Mapping[str, str] | None = None) -> Table:
    """A row for each field. batch: the dtype and shape of each in a batch; None for a table without."""
    in_a_batch = [] if batch is None else ["in a batch"]
    columns = ("kind", *in_a_batch, "missing", "length", "mean", "std", "least", "most", "values")
    table = Table("field", *columns, box=box.SIMPLE)
    fields = list(statistics.fields.items())
    for name, of in fields[:_MAX_FIELDS]:
        numbers, lengths = of.numbers, of.lengths
        missing = statistics.num_elements - of.count + of.num_null
        figures = (numbers.mean, numbers.std, numbers.least, numbers.most) if numbers.count else (None,) * 4
        table.add_row(
            name,
            ", ".join(kind if count == of.count else f"{kind} ({count:,})" for kind, count in of.kinds.items()),
            *([] if batch is None else [batch.get(name, "")]),
            f"{missing:,}",
            "–".join(dict.fromkeys(map(_number, (lengths.least, lengths.most)))) if lengths.count else "",
            *map(_number, figures),
            _values(of),
        )
    if len(fields) > _MAX_FIELDS:
        table.add_row(f"and {len(fields) - _MAX_FIELDS:,} more")
    return table


def _number(value: float | None) -> str:
    """
    >>> [_number(value) for value in (7, 1234567, 0.123456, 2.0, 1e-9, None)]
    ['7', '1,234,567', '0.1235', '2', '1e-09', '']
    """
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _values(of: FieldStatistics) -> str:
    """The most frequent values, each with its count; "" for a single value, and for many."""
    if not of.by_value or len(of.by_value) < 2:
        return ""
    more = ", ..." if len(of.by_value) > _MAX_VALUES else ""
    return ", ".join(f"{value} ×{count:,}" for value, count in Counter(of.by_value).most_common(_MAX_VALUES)) + more
