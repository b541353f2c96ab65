"""The page of what was written: one HTML file without script or links, light or dark as its reader's screen is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from datarax_ray.write.statistics import FieldStatistics, Moments, Statistics

_MAX_FIELDS = 200  # that a person looks at; all are in dataset.json
_MAX_VALUES = 12  # of a field, the most frequent
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
_BAR = 160  # the longest
_ROW = 16
_LABEL = 110


def page(title: str, parts: Sequence[tuple[str, str, Statistics]]) -> str:
    """The page of some components: the name of each, what was done to it, and the statistics of what that gave."""
    body = [f"<h1>{escape(title)}</h1>"]
    for name, done, statistics in parts:
        body += [f"<h2>{escape(name)}</h2>"] * bool(name)
        body += [f'<p class="dim">{escape(done)}</p>', f"<p>{escape(summary(statistics))}</p>", *_fields(statistics)]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width">'
    lines = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{lines}\n</body></html>\n'


def summary(statistics: Statistics) -> str:
    """What came of the records, in a line.

    >>> summary(Statistics(num_records=10, num_elements=7, num_left_out=3))
    '10 records gave 7 elements; 3 records (30 %) gave none'
    """
    said = f"{statistics.num_records:,} records gave {statistics.num_elements:,} elements"
    if statistics.num_left_out:
        part = statistics.num_left_out / statistics.num_records
        said += f"; {statistics.num_left_out:,} records ({100 * part:.3g} %) gave none"
    return said + (f"; {statistics.num_failed:,} failed and were left out" if statistics.num_failed else "")


def _fields(statistics: Statistics) -> list[str]:
    names = (
        "field",
        "kind",
        "shape",
        "count",
        "missing",
        "mean",
        "std",
        "least",
        "most",
        "length",
        "shortest",
        "longest",
    )
    head = "".join(f"<th{' class=text' * (name in ('kind', 'shape'))}>{name}</th>" for name in names)
    shown = list(statistics.fields.items())[:_MAX_FIELDS]
    rows = "\n".join(_row(name, of, statistics.num_elements) for name, of in shown)
    charts = [chart for name, of in shown for chart in _charts(name, of)]
    more = len(statistics.fields) - len(shown)
    return [
        f'<div class="wide"><table><tr>{head}</tr>\n{rows}</table></div>',
        *([f'<p class="dim">and {more:,} fields more, in dataset.json</p>'] if more else []),
        *([f'<div class="charts">{"".join(charts)}</div>'] if charts else []),
    ]


def _row(name: str, of: FieldStatistics, num_elements: int) -> str:
    kinds = ", ".join(kind if count == of.count else f"{kind} ({count:,})" for kind, count in of.kinds.most_common(4))
    missing = num_elements - of.count + of.num_null
    odd = "".join(
        f"; {count:,} {what}" for count, what in ((of.num_nan, "NaN"), (of.num_infinite, "infinite")) if count
    )
    cells = [f'<td class="text">{escape(kinds + odd)}</td>', f'<td class="text">{_shape(of)}</td>']
    cells += [f"<td>{count:,}</td>" for count in (of.count, missing)]
    cells += [f"<td>{number}</td>" for number in (*_told(of.numbers), *_told(of.lengths, has_std=False))]
    return f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>"


def _shape(of: FieldStatistics) -> str:
    if of.shape_least is None or of.shape_most is None:
        return ""
    pairs = zip(of.shape_least, of.shape_most, strict=True)
    return " × ".join(str(least) if least == most else f"{least}–{most}" for least, most in pairs)


def _told(moments: Moments, has_std: bool = True) -> list[str]:
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
        yield _chart(f"{name}: {_most(of.by_value)}", dict(of.by_value.most_common(_MAX_VALUES)))
    if len(of.by_length) > 1:
        yield _chart(f"{name}: how many are how long", {_span(k): of.by_length[k] for k in sorted(of.by_length)})


def _most(counts: Mapping[str, int]) -> str:
    return "values" if len(counts) <= _MAX_VALUES else f"the {_MAX_VALUES} most frequent of {len(counts)} values"


def _span(power: int) -> str:
    """
    >>> _span(-1), _span(0), _span(3)
    ('0', '1', '8–15')
    """
    return "0" if power < 0 else "1" if power == 0 else f"{2**power:,}–{2 ** (power + 1) - 1:,}"


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
