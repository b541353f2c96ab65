"""What everybody did when: seconds by row and name, in bins of time that grow with the run. Pure: times are arguments.

A row is an actor, the trainer, or the window. There are never more than MAX_BINS of them: when the run is longer than
these hold, each two become one, so a run of a month is kept in as little as one of a minute.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

# As many as a screen has room for: a column of a few pixels each.
MAX_BINS = 400
# Of the first bins: shorter ones would show nothing but how blocks and batches take turns.
BIN_S = 0.05

Row: TypeAlias = int | str
TRAINER, WINDOW = "trainer", "window"
LOST, FILLED, WAITING, OWN_WORK = "lost", "filled", "waiting for a batch", "its own work"
_ALL, _AT_WORK = "actors", "at work"  # of all actors together; not drawn


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

    Actors say by their hosts' clocks when they read, which NTP keeps alike; nothing is taken for later than its event.

    >>> timeline = Timeline(100.0)
    >>> timeline.add(0, "reading", 100.025, 100.075)
    >>> [round(seconds, 3) for seconds in timeline.until(100.19).rows[0]["reading"]]
    [0.025, 0.025, 0.0, 0.0]
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = began
        self._bin_s = BIN_S
        self._rows: dict[Row, dict[str, list[float]]] = {}
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
        """Event: what an actor was asked for will not come; it is lost until it has read again."""
        with self._lock:
            self._lost_since.setdefault(actor, now)

    def filled(self, part: float, now: float) -> None:
        """Event: the window is so full, from 0 to 1, and was since it was said last."""
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
            drawn = {row: of for row, of in self._rows.items() if row != _ALL}
            rows = {row: {what: bins[:num_bins] for what, bins in of.items()} for row, of in drawn.items()}
            return Drawn(self._began, self._bin_s, num_bins, rows)

    def up_s(self) -> float:
        """Seconds for which actors were there, all together: each from its first block to its last, unless lost."""
        with self._lock:
            lost_s = sum(self._rows.get(_ALL, {}).get(LOST, ()))
            return max(0.0, sum(last - first for first, last in self._seen.values()) - lost_s)

    def at_work_while_waiting(self) -> float | None:
        """The part of their time that the actors which were there were at work while the trainer waited, from 0 to 1;
        None where it did not wait.
        """
        with self._lock:
            waits = self._rows.get(TRAINER, {}).get(WAITING, ())
            of = self._rows.get(_ALL, {})
            at_work, lost = (of.get(what, [0.0] * MAX_BINS) for what in (_AT_WORK, LOST))
            up_s = [here - gone for here, gone in zip(self._up(), lost, strict=True)]
            there = sum(wait * up for wait, up in zip(waits, up_s, strict=False))
            return min(1.0, sum(map(operator.mul, waits, at_work)) / there) if there > 0 else None

    def _up(self) -> list[float]:
        """Seconds in each bin between the first block and the last of an actor, of all of them."""
        changes = [0.0] * (MAX_BINS + 2)  # in seconds, from one bin to the next
        for seen in self._seen.values():
            for sign, time in zip((1, -1), seen, strict=True):
                at = max(0.0, time - (self._began or 0.0))
                index = min(int(at / self._bin_s), MAX_BINS - 1)
                left_s = (index + 1) * self._bin_s - at
                changes[index] += sign * left_s
                changes[index + 1] += sign * (self._bin_s - left_s)
        return [*itertools.accumulate(changes)][:MAX_BINS]

    def _add(self, row: Row, what: str, began: float, ended: float, part: float = 1.0) -> None:
        if self._began is None:
            self._began = began
        began = max(began, self._began)
        if ended <= began:
            return
        last = self._bin_of(ended)
        bins = self._rows.setdefault(row, {}).get(what)
        if bins is None:
            bins = self._rows[row][what] = [0.0] * MAX_BINS
        first = int((began - self._began) / self._bin_s)
        if first == last:
            bins[first] += (ended - began) * part
            return
        for index in range(first, last + 1):
            begin = self._began + index * self._bin_s
            bins[index] += max(0.0, min(ended, begin + self._bin_s) - max(began, begin)) * part

    def _bin_of(self, time: float) -> int:
        """Where this moment is, once bins are as long as it takes to have room for it."""
        assert self._began is not None
        while (index := int((time - self._began) / self._bin_s)) >= MAX_BINS:
            self._bin_s *= 2
            for of in list(self._rows.values()):
                for what in list(of):
                    bins = of[what]
                    of[what] = [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)] + [0.0] * (MAX_BINS // 2)
        return index
