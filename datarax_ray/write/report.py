"""The report on written elements: a line and a table of fields for people, at a terminal and as one HTML page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from datarax_ray.write.statistics import FieldStatistics, Moments, Statistics

_MAX_FIELDS = 200  # dataset.json has all
_MAX_VALUES = 12  # the most frequent ones of a field
# Braces are doubled for str.format, by which rich fills in the text. Without scripts or links.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>:root {{{{ color-scheme: light dark }}}} pre {{{{ font: 13px/1.4 monospace }}}}</style></head>
<body><pre>{{code}}</pre></body></html>
"""


def page(title: str, parts: Iterable[tuple[str, str, Statistics]]) -> str:
    """An HTML page: for each component its name, the transforms that ran, and the statistics of the result."""
    console = Console(file=io.StringIO(), record=True, width=10_000, markup=False, highlight=False)
    console.print(title)
    for name, done, statistics in parts:
        console.print("", *([name] if name else []), done, summary(statistics), field_table(statistics), sep="\n")
    return console.export_html(code_format=_PAGE.format(title=escape(title)))


def summary(statistics: Statistics) -> str:
    """How many elements the records gave, in a line.

    >>> summary(Statistics(num_records=10, num_elements=7, num_left_out=3))
    '10 records gave 7 elements; 3 records (30 %) gave none'
    """
    text = f"{statistics.num_records:,} records gave {statistics.num_elements:,} elements"
    if statistics.num_left_out:
        part = statistics.num_left_out / statistics.num_records
        text += f"; {statistics.num_left_out:,} records ({100 * part:.3g} %) gave none"
    return text + (f"; {statistics.num_failed:,} failed and were skipped" if statistics.num_failed else "")


def field_table(statistics: Statistics, max_fields: int = _MAX_FIELDS) -> RenderableType:
    table = Table(
        "field", "kind", "shape", "count", "missing", "mean", "std", "least", "most", "length", "values", box=box.SIMPLE
    )
    fields = list(statistics.fields.items())
    for name, of in fields[:max_fields]:
        missing = statistics.num_elements - of.count + of.num_null
        length = _span([of.lengths.least, of.lengths.most]) if of.lengths.count else ""
        table.add_row(
            name, _kinds(of), _shape(of), f"{of.count:,}", f"{missing:,}", *_numbers(of.numbers), length, _values(of)
        )
    if len(fields) > max_fields:
        table.add_row(f"and {len(fields) - max_fields:,} more")
    return table


def _kinds(of: FieldStatistics) -> str:
    kinds = [kind if count == of.count else f"{kind} ({count:,})" for kind, count in Counter(of.kinds).most_common(4)]
    kinds += [f"{of.num_nan:,} NaN"] * bool(of.num_nan) + [f"{of.num_infinite:,} infinite"] * bool(of.num_infinite)
    return ", ".join(kinds)


def _shape(of: FieldStatistics) -> str:
    if of.shape_least is None or of.shape_most is None:
        return ""
    return " × ".join(_span(sizes) for sizes in zip(of.shape_least, of.shape_most, strict=True))


def _span(numbers: Sequence[int | float | None]) -> str:
    return "–".join(dict.fromkeys(map(str, numbers)))


def _numbers(moments: Moments) -> list[str]:
    values = [moments.mean, moments.std, moments.least, moments.most]
    return ["" if not moments.count or value is None else _number(value) for value in values]


def _number(value: float) -> str:
    """
    >>> [_number(value) for value in (7, 1234567, 0.123456, 2.0, 1e-9)]
    ['7', '1,234,567', '0.1235', '2', '1e-09']
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _values(of: FieldStatistics) -> str:
    """The most frequent values, with how often each comes; "" where they are many, or no labels."""
    if not of.by_value or len(of.by_value) < 2:
        return ""
    more = ", ..." if len(of.by_value) > _MAX_VALUES else ""
    return ", ".join(f"{value} ×{count:,}" for value, count in Counter(of.by_value).most_common(_MAX_VALUES)) + more
