"""The timeline: the work of trainer and actors in bins of time, and its page. Pure: times are arguments.

A row is an actor, the trainer, or the window. There are at most MAX_BINS bins: when a run is longer than they hold,
every two become one, so a run of a month takes no more memory than a run of a minute. The page is one HTML file without
script, links or fonts, light or dark as its reader's screen is.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
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
STARTING = "until the first batch"
_ALL, _AT_WORK, _PAUSED = "actors", "at work", "paused"  # of all actors together; not drawn

_MAX_ACTORS = 64  # rows that a person looks at; one row shows all of them together
# Known names keep their colour; transforms take turns. The palette of Okabe and Ito suits every kind of sight.
_COLOURS = {
    "reading": "#0072b2",
    "stacking": "#999933",
    "storage": "#e69f00",
    "decoding": "#009e73",
    FILLED: "#0072b2",
    WAITING: "#d55e00",
    OWN_WORK: "#8fc1e3",
    LOST: "#b00020",
    STARTING: "#bbbbbb",
}
_OF_TRANSFORMS = ("#009e73", "#cc79a7", "#d55e00", "#e69f00")
_STYLE = """
:root { color-scheme: light dark; }
body { margin: 2em auto; max-width: 72em; padding: 0 1em; font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3em; margin: 0; } h2 { font-size: 1em; margin: 1.4em 0 .3em; } p { margin: .3em 0; }
pre { overflow-x: auto; font-size: 12px; } small { float: right; font-weight: normal; }
.row { display: grid; grid-template-columns: 7em 1fr 4em; gap: .6em; align-items: center; margin: 2px 0;
  font-size: 13px; white-space: nowrap; }
svg { width: 100%; height: 22px; background: #8882; } svg.tall { height: 60px; }
.axis { display: flex; justify-content: space-between; border-top: 1px solid #888; }
i { display: inline-block; width: .9em; height: .9em; margin: 0 .4em 0 1.2em; }
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

    @property
    def whole_s(self) -> float:
        return self.num_bins * self.bin_s


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

    def add(self, row: Row, what: str, began: float, ended: float, part: float = 1.0) -> None:
        """Count the time between two moments, or a part of it, for what a row did. Time before `began` is dropped."""
        with self._lock:
            if self._began is None:
                self._began = began
            began = max(began, self._began)
            if ended <= began:
                return
            last = self._bin_of(ended)
            of = self._rows.setdefault(row, {})
            if (bins := of.get(what)) is None:
                bins = of[what] = np.zeros(MAX_BINS)
            if int((began - self._began) / self._bin_s) == last:
                bins[last] += (ended - began) * part
            else:
                bins += self._overlaps(began, ended) * part

    def read(self, actor: int, ended: float, spent: Mapping[str, float]) -> None:
        """Event: an actor has read a block. spent: seconds by what they went into, in this order."""
        began = ended - sum(spent.values())
        with self._lock:
            if (since := self._lost_since.pop(actor, None)) is not None:
                self.add(actor, LOST, since, began)
            self.add(_ALL, _AT_WORK, began, ended)
            first, last = self._seen.get(actor, (began, ended))
            self._seen[actor] = min(first, began), max(last, ended)
            for what, seconds in spent.items():
                self.add(actor, what, began, began + seconds)
                began += seconds

    def lost(self, actor: int, now: float) -> None:
        """Event: what an actor was asked for will not come; the actor is lost until it has read again."""
        with self._lock:
            self._lost_since.setdefault(actor, now)

    def running(self, actors: Collection[int], now: float) -> None:
        """Event: these actors run. Once one has read, the others are there too; who runs no more is lost."""
        with self._lock:
            if self._seen:
                for actor in actors:
                    self._seen.setdefault(actor, (now, now))
                for actor in self._seen.keys() - set(actors):
                    self.lost(actor, now)

    def paused(self, began: float, ended: float) -> None:
        """Event: nobody wanted batches between these moments."""
        self.add(_ALL, _PAUSED, began, ended)

    def filled(self, part: float, now: float) -> None:
        """Event: the window is this full, from 0 to 1, and was since the last such event."""
        with self._lock:
            if self._sampled_at is not None:
                self.add(WINDOW, FILLED, self._sampled_at, now, part)
            elif self._began is None:
                self._began = now
            self._sampled_at = now

    def until(self, now: float) -> Drawn:
        with self._lock:
            for actor, since in self._lost_since.items():
                self.add(actor, LOST, since, now)
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

    def up_s(self, until: float) -> dict[int, float]:
        """Seconds for which each actor was there: from its first block to this moment, without lost time and pauses."""
        with self._lock:
            return {actor: float(there.sum()) for actor, there in self._there(until)}

    def at_work_while_waiting(self, until: float) -> float | None:
        """The share of its actors' time, from 0 to 1, at work while the trainer waited; None where it did not wait."""
        with self._lock:
            waits, at_work = self._of(TRAINER, WAITING), self._of(_ALL, _AT_WORK)
            there = float(sum((waits * there).sum() for _, there in self._there(until)))
            return min(1.0, float((waits * at_work).sum()) / there) if there > 0 else None

    def _there(self, until: float) -> Iterator[tuple[int, np.ndarray]]:
        """Each actor, with its seconds of presence in each bin."""
        if self._seen:
            until = max(until, *(last for _, last in self._seen.values()))
            self._bin_of(until)
        for actor, (first, _) in self._seen.items():
            there = self._overlaps(first, until) - self._of(actor, LOST) - self._of(_ALL, _PAUSED)
            if (since := self._lost_since.get(actor)) is not None:
                there -= self._overlaps(since, until)
            yield actor, np.maximum(there, 0.0)

    def _of(self, row: Row, what: str) -> np.ndarray:
        found = self._rows.get(row, {}).get(what)
        return np.zeros(MAX_BINS) if found is None else found

    def _overlaps(self, began: float, ended: float) -> np.ndarray:
        edges = (self._began or 0.0) + self._bin_s * np.arange(MAX_BINS + 1)
        found: np.ndarray = np.diff(np.clip(edges, began, ended))
        return found

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
    """The HTML page of a run. stats: of the same run."""
    actors = {row: of for row, of in drawn.rows.items() if isinstance(row, int)}
    names = dict.fromkeys(name for of in actors.values() for name in of if name not in _COLOURS)
    colours = _COLOURS | dict(zip(names, itertools.cycle(_OF_TRANSFORMS), strict=False))
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(drawn.began))
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(stats.verdict)}</p>",
        f"<p>{escape(str(stats).splitlines()[1])}; began {began}</p>",
        _key("The trainer", (STARTING, WAITING, OWN_WORK), colours, "its own work, since the first batch"),
        _row("trainer", drawn.rows.get(TRAINER, {}), drawn, colours, 1 - stats.waits, "tall"),
    ]
    if stats.num_actors:
        window = drawn.rows.get(WINDOW, {})
        parts.append(_key("Bytes in flight, of the bound", (), colours, "on average"))
        parts.append(_row("bytes", window, drawn, colours, sum(window.get(FILLED, ())) / drawn.whole_s, "tall"))
    shown = [name for name in colours if any(name in of for of in actors.values())]
    heading = "The actors" if stats.num_actors else "This process, where it reads"
    parts.append(_key(heading, shown, colours, "here, of the time there"))
    if len(actors) > 1:
        parts.append(_row("all", _mean(actors, drawn), drawn, colours, stats.here, "tall"))
    for actor in sorted(actors)[:_MAX_ACTORS]:
        label = f"actor {actor}" if stats.num_actors else "reads"
        here = stats.actors[actor].here if actor in stats.actors else stats.here
        parts.append(_row(label, actors[actor], drawn, colours, here))
    if len(actors) > _MAX_ACTORS:
        parts.append(f"<p>and {len(actors) - _MAX_ACTORS} actors more</p>")
    quarters = (drawn.whole_s * quarter / 4 for quarter in range(5))
    marks = "".join(f"<span>{_clock(seconds)}</span>" for seconds in quarters)
    parts.append(f'<div class="row"><span></span><div class="axis">{marks}</div><span></span></div>')
    parts.append(f"<details><summary>stats</summary><pre>{escape(str(stats))}</pre></details>")
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _key(heading: str, names: Iterable[str], colours: Mapping[str, str], share: str) -> str:
    """A heading, with a legend of colours, and what the percentages below it are."""
    keys = "".join(f'<i style="background:{colours[name]}"></i>{escape(name)}' for name in names)
    return f"<h2><small>{share}</small>{heading}</h2><p>{keys}</p>"


def _mean(actors: Mapping[int, Mapping[str, list[float]]], drawn: Drawn) -> dict[str, list[float]]:
    """The average seconds of all actors, by name and bin."""
    total: dict[str, np.ndarray] = {}
    for of in actors.values():
        for name, seconds in of.items():
            total[name] = total.get(name, np.zeros(drawn.num_bins)) + np.array(seconds) / len(actors)
    return {name: seconds.tolist() for name, seconds in total.items()}


def _row(
    label: str,
    of: Mapping[str, list[float]],
    drawn: Drawn,
    colours: Mapping[str, str],
    share: float,
    kind: str = "",
) -> str:
    """One line: label, bins from left to right, and a share that the stats give."""
    base = [0] * drawn.num_bins
    paths = []
    for name in sorted(of, key=list(colours).index):
        tops = [min(100, low + round(100 * s / drawn.bin_s)) for low, s in zip(base, of[name], strict=True)]
        paths.append(f'<path fill="{colours[name]}" d="{"".join(_boxes(base, tops))}"/>')
        base = tops
    facts = ", ".join(f"{name} {sum(seconds):.3g} s" for name, seconds in of.items())
    return (
        f'<div class="row"><span>{escape(label)}</span><svg class="{kind}" viewBox="0 0 {drawn.num_bins} 100" '
        f'preserveAspectRatio="none" role="img" shape-rendering="crispEdges"><title>{escape(f"{label}: {facts}")}'
        f"</title>{''.join(paths)}</svg><span>{share:.0%}</span></div>"
    )


def _boxes(base: list[int], tops: list[int]) -> Iterator[str]:
    """The boxes between two lines, one for each stretch where both stay the same; y grows downwards."""
    at = 0
    for (low, top), run in itertools.groupby(zip(base, tops, strict=True)):
        width = len(list(run))
        if top > low:
            yield f"M{at} {100 - low}h{width}v{low - top}h{-width}z"
        at += width


def _clock(seconds: float) -> str:
    """A time for people.

    >>> _clock(2.5), _clock(90), _clock(9000)
    ('2.5 s', '1:30 min', '2:30 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole, unit = (seconds, "min") if seconds < 3600 else (seconds / 60, "h")
    return f"{int(whole // 60)}:{int(whole % 60):02} {unit}"
