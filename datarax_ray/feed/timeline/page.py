"""The page of a timeline: one HTML file without script, links or fonts, light or dark as its reader's screen is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from datarax_ray.feed.stats import PipelineStats
from datarax_ray.feed.timeline.bins import FILLED, LOST, OWN_WORK, TRAINER, WAITING, WINDOW, Drawn

_MAX_ACTORS = 64  # rows that a person looks at; one of all together is there in any case
# What is always called the same has always the same colour; transforms take the others in turn. Those of Okabe and Ito,
# which people tell apart however they see colours; the last is for who was lost.
_COLOURS = {LOST: 7, WAITING: 1, OWN_WORK: 6, FILLED: 2, "reading": 2, "stacking": 4, "storage": 0, "decoding": 3}
_OF_TRANSFORMS = (3, 5, 1, 0)
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1b1b; --dim: #666; --line: #ddd; --idle: #f2f2f2;
  --c0: #e69f00; --c1: #d55e00; --c2: #0072b2; --c3: #009e73; --c4: #999933;
  --c5: #cc79a7; --c6: #8fc1e3; --c7: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e8e8e8; --dim: #9a9a9a; --line: #3a3d44; --idle: #23262c; --c2: #56a9dd;
    --c6: #35607c; --c7: #ff5468; } }
body { margin: 2em auto; max-width: 72em; padding: 0 1em; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3em; margin: 0; } h2 { font-size: 1em; margin: 1.4em 0 .3em; } p { margin: .3em 0; }
.dim, figcaption { color: var(--dim); } pre { overflow-x: auto; font-size: 12px; }
.row { display: grid; grid-template-columns: 7em 1fr 4em; gap: .6em; align-items: center; margin: 2px 0;
  font-size: 13px; }
.row span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; } .row :last-child { text-align: end; }
svg { width: 100%; height: 22px; background: var(--idle); display: block; } svg.tall { height: 60px; }
.axis { position: relative; height: 1.4em; border-top: 1px solid var(--line); color: var(--dim); }
.axis span { position: absolute; transform: translateX(-50%); }
.axis span:first-child { transform: none; } .axis span:last-child { transform: translateX(-100%); }
@media (max-width: 40em) { .row { grid-template-columns: 4em 1fr 3em; } .axis span:nth-child(even) { display: none; } }
.key { display: inline-block; margin-inline-end: 1.2em; font-size: 13px; }
.key i { display: inline-block; width: .9em; height: .9em; margin-inline-end: .4em; vertical-align: -.1em; }
"""


def page(drawn: Drawn, stats: PipelineStats, title: str) -> str:
    """The page of what is drawn. stats: of the same run; title: what ran."""
    actors = {row: of for row, of in drawn.rows.items() if isinstance(row, int)}
    colours = _colours(actors)
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(drawn.began))
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(stats.verdict)}</p>",
        f'<p class="dim">{escape(str(stats).splitlines()[1])}; began {began}</p>',
        "<h2>The trainer</h2>",
        _key((WAITING, OWN_WORK), colours),
        _row("trainer", drawn.rows.get(TRAINER, {}), drawn, colours, "tall"),
    ]
    if stats.num_actors:
        parts += [
            "<h2>What is in flight, of what may be</h2>",
            _row("bytes", drawn.rows.get(WINDOW, {}), drawn, colours, "tall"),
        ]
    parts += [
        f"<h2>{'The actors' if stats.num_actors else 'This process, where it reads'}</h2>",
        _key([name for name in colours if any(name in of for of in actors.values())], colours),
    ]
    if len(actors) > 1:
        parts.append(_row("all", _mean(actors, drawn), drawn, colours, "tall"))
    for actor in sorted(actors)[:_MAX_ACTORS]:
        label = f"actor {actor}" if stats.num_actors else "reads"
        parts.append(_row(label, actors[actor], drawn, colours))
    if len(actors) > _MAX_ACTORS:
        parts.append(f"<p>and {len(actors) - _MAX_ACTORS} actors more</p>")
    parts += [_axis(drawn), f"<details><summary>stats</summary><pre>{escape(str(stats))}</pre></details>"]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width">'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _colours(actors: Mapping[int, Mapping[str, list[float]]]) -> dict[str, int]:
    """The number of each name's colour: those that are always the same first, and what is lost last."""
    names = list(dict.fromkeys(name for of in actors.values() for name in of if name not in _COLOURS))
    others = {name: _OF_TRANSFORMS[index % len(_OF_TRANSFORMS)] for index, name in enumerate(names)}
    fixed = {name: colour for name, colour in _COLOURS.items() if name != LOST}
    return {**fixed, **others, LOST: _COLOURS[LOST]}


def _key(names: Iterable[str], colours: Mapping[str, int]) -> str:
    """Which colour is what."""
    keys = [(f"c{colours[name]}", name) for name in names] + [("idle", "idle")]
    found = (f'<span class="key"><i style="background:var(--{of})"></i>{escape(name)}</span>' for of, name in keys)
    return f"<p>{''.join(found)}</p>"


def _mean(actors: Mapping[int, Mapping[str, list[float]]], drawn: Drawn) -> dict[str, list[float]]:
    """What all actors did together, for each of them."""
    total: dict[str, list[float]] = {}
    for of in actors.values():
        for name, seconds in of.items():
            before = total.get(name, [0.0] * drawn.num_bins)
            total[name] = [a + b / len(actors) for a, b in zip(before, seconds, strict=True)]
    return total


def _row(label: str, of: Mapping[str, list[float]], drawn: Drawn, colours: Mapping[str, int], kind: str = "") -> str:
    """One line: what it is called, its bins from left to right, and its part of the time."""
    base = [0] * drawn.num_bins
    paths = []
    for name in sorted(of, key=list(colours).index):
        tops = [min(100, low + round(100 * s / drawn.bin_s)) for low, s in zip(base, of[name], strict=True)]
        if shape := " ".join(_boxes(base, tops)):
            paths.append(f'<path style="fill:var(--c{colours[name]})" d="{shape}"/>')
        base = tops
    whole = drawn.num_bins * drawn.bin_s
    facts = ", ".join(f"{name} {sum(seconds) / whole:.0%}" for name, seconds in of.items())
    busy = sum(sum(seconds) for name, seconds in of.items() if name not in (LOST, WAITING)) / whole
    return (
        f'<div class="row"><span>{escape(label)}</span><svg class="{kind}" viewBox="0 0 {drawn.num_bins} 100" '
        f'preserveAspectRatio="none" role="img" shape-rendering="crispEdges"><title>{escape(f"{label}: {facts}")}'
        f"</title>{''.join(paths)}</svg><span>{busy:.0%}</span></div>"
    )


def _boxes(base: list[int], tops: list[int]) -> Iterator[str]:
    """The boxes between two lines, one for each stretch where both stay the same; y grows downwards."""
    index = 0
    while index < len(base):
        first, low, top = index, base[index], tops[index]
        while index < len(base) and (base[index], tops[index]) == (low, top):
            index += 1
        if top > low:
            yield f"M{first} {100 - low}h{index - first}v{low - top}h{first - index}z"


def _axis(drawn: Drawn) -> str:
    """Times since the beginning, at quarters of the width."""
    whole = drawn.num_bins * drawn.bin_s
    marks = "".join(f'<span style="left:{part}%">{_time(whole * part / 100)}</span>' for part in (0, 25, 50, 75, 100))
    return f'<div class="row"><span></span><div class="axis">{marks}</div><span></span></div>'


def _time(seconds: float) -> str:
    """A time for people.

    >>> _time(2.5), _time(90), _time(9000)
    ('2.5 s', '1:30 min', '2:30 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole, unit = (seconds, "min") if seconds < 3600 else (seconds / 60, "h")
    return f"{int(whole // 60)}:{int(whole % 60):02} {unit}"
