"""The timeline: who did what when, in bins of time, and the page that shows it. Pure: times are arguments.

A row is an actor, the trainer, or the window. There are at most MAX_BINS bins: when a run is longer than they hold,
every two become one, so a run of a month takes no more memory than a run of a minute. The page is one HTML file without
script, links or fonts, light or dark as its reader's screen is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

import numpy as np

# As many as a screen has room for: a column of a few pixels each.
MAX_BINS = 400
# Of the first bins: shorter ones would show nothing but how blocks and batches take turns.
BIN_S = 0.05

Row: TypeAlias = int | str
TRAINER, WINDOW = "trainer", "window"
LOST, FILLED, WAITING, OWN_WORK = "lost", "filled", "waiting for a batch", "its own work"
_ALL, _AT_WORK = "actors", "at work"  # of all actors together; not drawn

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


@dataclass(frozen=True)
class Drawn:
    """The bins of a run up to now. began: when, as time.time() has it. bin_s: seconds in each, the last one not full.

    num_bins: up to now. rows: seconds in each bin, by row and by what they went into.
    """

    began: float
    bin_s: float
    num_bins: int
    rows: Mapping[Row, Mapping[str, list[float]]]


class Timeline:
    """Counts while a stream runs; several threads may. began: when, as time.time() has it; None for the first event's.

    Actors report by their hosts' clocks when they read, which NTP keeps alike; nothing counts behind its event.

    >>> timeline = Timeline(100.0)
    >>> timeline.add(0, "reading", 100.025, 100.075)
    >>> [round(seconds, 3) for seconds in timeline.until(100.19).rows[0]["reading"]]
    [0.025, 0.025, 0.0, 0.0]
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = began
        self._bin_s = BIN_S
        self._rows: dict[Row, dict[str, np.ndarray]] = {}
        self._lost_since: dict[int, float] = {}
        self._seen: dict[int, tuple[float, float]] = {}  # of each actor, when its first block began and its last ended
        self._sampled_at: float | None = None
        self._lock = threading.RLock()  # a signal's handler may draw in the thread that it interrupts, in the middle

    def add(self, row: Row, what: str, began: float, ended: float) -> None:
        """Somebody was at this from when to when. What was before the beginning does not count."""
        with self._lock:
            self._add(row, what, began, ended)

    def read(self, actor: int, ended: float, spent: Mapping[str, float]) -> None:
        """Event: an actor has read a block. spent: seconds by what they went into, in this order."""
        began = ended - sum(spent.values())
        with self._lock:
            if (since := self._lost_since.pop(actor, None)) is not None:
                self._add(actor, LOST, since, began)
                self._add(_ALL, LOST, since, began)
            self._add(_ALL, _AT_WORK, began, ended)
            first, last = self._seen.get(actor, (began, ended))
            self._seen[actor] = min(first, began), max(last, ended)
            for what, seconds in spent.items():
                self._add(actor, what, began, began + seconds)
                began += seconds

    def lost(self, actor: int, now: float) -> None:
        """Event: what an actor was asked for will not come; the actor is lost until it has read again."""
        with self._lock:
            self._lost_since.setdefault(actor, now)

    def filled(self, part: float, now: float) -> None:
        """Event: the window is this full, from 0 to 1, and was since the last such event."""
        with self._lock:
            if self._sampled_at is not None:
                self._add(WINDOW, FILLED, self._sampled_at, now, part)
            elif self._began is None:
                self._began = now
            self._sampled_at = now

    def until(self, now: float) -> Drawn:
        """All of it up to now."""
        with self._lock:
            for actor, since in self._lost_since.items():
                self._add(actor, LOST, since, now)
                self._lost_since[actor] = now
            if self._began is None:
                self._began = now
            num_bins = self._bin_of(max(now, self._began)) + 1
            rows = {
                row: {what: bins[:num_bins].tolist() for what, bins in of.items()}
                for row, of in self._rows.items()
                if row != _ALL
            }
            return Drawn(self._began, self._bin_s, num_bins, rows)

    def up_s(self) -> float:
        """Seconds for which actors were there, all together: each from its first block to its last, unless lost."""
        with self._lock:
            lost_s = float(self._of(_ALL, LOST).sum())
            return max(0.0, sum(last - first for first, last in self._seen.values()) - lost_s)

    def at_work_while_waiting(self) -> float | None:
        """The part of their time that the actors which were there were at work while the trainer waited, from 0 to 1;
        None where it did not wait.
        """
        with self._lock:
            waits, at_work = self._of(TRAINER, WAITING), self._of(_ALL, _AT_WORK)
            up_s = sum((self._overlaps(*seen) for seen in self._seen.values()), -self._of(_ALL, LOST))
            there = float((waits * up_s).sum())
            return min(1.0, float((waits * at_work).sum()) / there) if there > 0 else None

    def _of(self, row: Row, what: str) -> np.ndarray:
        """Seconds in each bin."""
        found = self._rows.get(row, {}).get(what)
        return np.zeros(MAX_BINS) if found is None else found

    def _overlaps(self, began: float, ended: float) -> np.ndarray:
        """Seconds of each bin that are between these times."""
        edges = (self._began or 0.0) + self._bin_s * np.arange(MAX_BINS + 1)
        found: np.ndarray = np.diff(np.clip(edges, began, ended))
        return found

    def _add(self, row: Row, what: str, began: float, ended: float, part: float = 1.0) -> None:
        if self._began is None:
            self._began = began
        began = max(began, self._began)
        if ended <= began:
            return
        last = self._bin_of(ended)
        bins = self._rows.setdefault(row, {}).get(what)
        if bins is None:
            bins = self._rows[row][what] = np.zeros(MAX_BINS)
        if int((began - self._began) / self._bin_s) == last:
            bins[last] += (ended - began) * part
        else:
            bins += self._overlaps(began, ended) * part

    def _bin_of(self, moment: float) -> int:
        """Where this moment is, once bins are as long as it takes to have room for it."""
        assert self._began is not None
        while (index := int((moment - self._began) / self._bin_s)) >= MAX_BINS:
            self._bin_s *= 2
            for of in list(self._rows.values()):
                for what in list(of):
                    of[what] = np.pad(of[what].reshape(-1, 2).sum(axis=1), (0, MAX_BINS // 2))
        return index


def page(drawn: Drawn, stats: Any, title: str) -> str:
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
    marks = "".join(f'<span style="left:{part}%">{_clock(whole * part / 100)}</span>' for part in (0, 25, 50, 75, 100))
    return f'<div class="row"><span></span><div class="axis">{marks}</div><span></span></div>'


def _clock(seconds: float) -> str:
    """A time for people.

    >>> _clock(2.5), _clock(90), _clock(9000)
    ('2.5 s', '1:30 min', '2:30 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole, unit = (seconds, "min") if seconds < 3600 else (seconds / 60, "h")
    return f"{int(whole // 60)}:{int(whole % 60):02} {unit}"
