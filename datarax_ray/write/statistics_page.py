"""The page of statistics: one HTML file without scripts or links, in the reader's light or dark colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from datarax_ray.write.statistics import FieldStatistics, Moments, Statistics

_MAX_FIELDS = 200  # as many as a person looks at; all are in dataset.json
_MAX_VALUES = 12  # the most frequent ones of a field
_NAMES = ["field", "kind", "shape", "count", "missing", "mean", "std", "least", "most", "length", "shortest", "longest"]
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1b1b; --dim: #666; --line: #ddd; --bar: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e8e8e8; --dim: #9a9a9a; --line: #3a3d44; --bar: #56a9dd; } }
body { margin: 2em auto; max-width: 76em; padding: 0 1em; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3em; margin: 0; } h2 { font-size: 1.05em; margin: 1.6em 0 .2em; } p { margin: .3em 0; }
.dim, th, figcaption { color: var(--dim); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .8em .25em 0; text-align: end; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: start; }
.charts { display: flex; flex-wrap: wrap; gap: 1.2em 2.4em; margin-top: .8em; }
figure { margin: 0; } figcaption { font-size: 13px; } svg { display: block; }
svg text { fill: var(--text); font-size: 11px; }
rect { fill: var(--bar); }
"""
# Of a chart, in pixels: the longest bar, the height of a row, the width of labels.
_BAR, _ROW, _LABEL = 160, 16, 110


def page(title: str, parts: Sequence[tuple[str, str, Statistics]]) -> str:
    """The page of some components: the name of each, the transforms that ran, and the statistics of the result."""
    body = [f"<h1>{escape(title)}</h1>"]
    for name, done, statistics in parts:
        body += [f"<h2>{escape(name)}</h2>"] * bool(name)
        body += [f'<p class="dim">{escape(done)}</p>', f"<p>{escape(summary(statistics))}</p>", *_fields(statistics)]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width">'
    lines = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{lines}\n</body></html>\n'


def summary(statistics: Statistics) -> str:
    """How many elements the records gave, in a line.

    >>> summary(Statistics(num_records=10, num_elements=7, num_left_out=3))
    '10 records gave 7 elements; 3 records (30 %) gave none'
    """
    said = f"{statistics.num_records:,} records gave {statistics.num_elements:,} elements"
    if statistics.num_left_out:
        part = statistics.num_left_out / statistics.num_records
        said += f"; {statistics.num_left_out:,} records ({100 * part:.3g} %) gave none"
    return said + (f"; {statistics.num_failed:,} failed and were left out" if statistics.num_failed else "")


def _fields(statistics: Statistics) -> list[str]:
    head = "".join(f"<th{' class=text' * (name in ('kind', 'shape'))}>{name}</th>" for name in _NAMES)
    fields = list(statistics.fields.items())[:_MAX_FIELDS]
    rows = "\n".join(_row(name, of, statistics.num_elements) for name, of in fields)
    charts = [chart for name, of in fields for chart in _charts(name, of)]
    more = len(statistics.fields) - len(fields)
    return [
        f'<div class="wide"><table><tr>{head}</tr>\n{rows}</table></div>',
        *([f'<p class="dim">and {more:,} fields more, in dataset.json</p>'] if more else []),
        *([f'<div class="charts">{"".join(charts)}</div>'] if charts else []),
    ]


def _row(name: str, of: FieldStatistics, num_elements: int) -> str:
    most_common = Counter(of.kinds).most_common(4)
    kinds = [", ".join(kind if count == of.count else f"{kind} ({count:,})" for kind, count in most_common)]
    kinds += [f"{of.num_nan:,} NaN"] * bool(of.num_nan) + [f"{of.num_infinite:,} infinite"] * bool(of.num_infinite)
    missing = num_elements - of.count + of.num_null
    cells = [f'<td class="text">{text}</td>' for text in (escape("; ".join(kinds)), _shape(of))]
    numbers = [f"{of.count:,}", f"{missing:,}", *_numbers(of.numbers), *_numbers(of.lengths, has_std=False)]
    return f"<tr><td>{escape(name)}</td>{''.join(cells)}{''.join(f'<td>{each}</td>' for each in numbers)}</tr>"


def _shape(of: FieldStatistics) -> str:
    if of.shape_least is None or of.shape_most is None:
        return ""
    pairs = zip(of.shape_least, of.shape_most, strict=True)
    return " × ".join(str(least) if least == most else f"{least}–{most}" for least, most in pairs)


def _numbers(moments: Moments, has_std: bool = True) -> list[str]:
    values = [moments.mean, *([moments.std] if has_std else []), moments.least, moments.most]
    return ["" if not moments.count or value is None else _number(value) for value in values]


def _number(value: float) -> str:
    """
    >>> [_number(value) for value in (7, 1234567, 0.123456, 2.0, 1e-9)]
    ['7', '1,234,567', '0.1235', '2', '1e-09']
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _charts(name: str, of: FieldStatistics) -> Iterable[str]:
    if of.by_value and len(of.by_value) > 1:
        num_values = len(of.by_value)
        most = "values" if num_values <= _MAX_VALUES else f"the {_MAX_VALUES} most frequent of {num_values} values"
        yield _chart(f"{name}: {most}", dict(Counter(of.by_value).most_common(_MAX_VALUES)))


def _chart(title: str, counts: Mapping[str, int]) -> str:
    most = max(counts.values())
    bars = []
    for index, (label, count) in enumerate(counts.items()):
        y, width = index * _ROW, max(1, round(_BAR * count / most))
        text = label if len(label) <= _ROW else f"{label[: _ROW - 1]}…"
        bars.append(
            f'<text x="{_LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(text)}</text>'
            f'<rect x="{_LABEL}" y="{y + 2}" width="{width}" height="{_ROW - 4}"/>'
            f'<text x="{_LABEL + width + 5}" y="{y + 12}">{count:,}</text>'
        )
    size = f'width="{_LABEL + _BAR + 80}" height="{len(counts) * _ROW}"'
    return f'<figure><figcaption>{escape(title)}</figcaption><svg {size} role="img">{"".join(bars)}</svg></figure>'
