"""Progress of a stream of records: a bar at a terminal, an occasional plain line where there is none."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

# A bar need not be newer than the eye; a batch may take 20 us, which drawing must not double.
_BAR_S = 0.1
# A log that is read later wants few lines; somebody who waits wants a sign of life.
_LINE_S = 5.0


class RecordProgress:
    """Shows the number of records so far, and their rate; nothing where DATARAX_RAY_PROGRESS is 0.

    title: of the work.
    num_records: in all; None if unknown. done: of these, before.
    unit: of the count.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        num_records: int | None,
        *,
        done: int = 0,
        unit: str = "records",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if os.environ.get("DATARAX_RAY_PROGRESS") == "0":
            console = Console(quiet=True)
        self._console = console
        self._title = title
        self._total = num_records
        self._unit = unit
        self._clock = clock
        self._done = self._said = done
        self._note = ""
        self._shown = clock()
        self._begin: tuple[float, int] | None = None  # when the first records were there, and how many
        self._bar: Progress | None = None
        if console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets")):  # rich draws it so
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[facts]}"), console=console
            )
            self._task = self._bar.add_task(title, total=num_records, facts="")

    def advance(self, num_records: int, note: str = "") -> None:
        """More records have come. note: shown beside the rate, such as the loss."""
        self._done += num_records
        self._note = note
        if self._begin is None:
            self._begin = (self._clock(), self._done)
        if self._clock() - self._shown >= (_LINE_S if self._bar is None else _BAR_S):
            self._show()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done != self._said:
            self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        self._shown, self._said = self._clock(), self._done
        if self._bar is None:
            self._console.print(f"{self._title}: {self._facts()}", markup=False, soft_wrap=True)
        else:
            self._bar.update(self._task, completed=self._done, facts=self._facts())

    def _facts(self) -> str:
        of = "" if self._total is None else f" of {self._total:,} ({self._done / self._total:.0%})"
        return ", ".join([f"{self._done:,}{of}", *self._rates(), *([self._note] if self._note else [])])

    def _rates(self) -> list[str]:
        """The rate since the first records, and the time that the rest takes; [] before a second call of advance."""
        if self._begin is None or self._done == self._begin[1]:
            return []
        begin, records = self._begin
        elapsed = max(self._shown - begin, 1e-9)
        rates = [f"{(self._done - records) / elapsed:,.0f} {self._unit}/s"]
        left = (self._total or 0) - self._done
        if left > 0:
            rates.append(f"{_lasting(left * elapsed / (self._done - records))} left")
        return rates


def _lasting(seconds: float) -> str:
    """A time to wait, for people.

    >>> [_lasting(seconds) for seconds in (0.2, 75, 7260)]
    ['1 s', '1 min 15 s', '2 h 1 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
