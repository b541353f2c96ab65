"""Progress of a stream of records: a bar at a terminal, an occasional plain line where there is none."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

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
        self._console, self._clock = console, clock
        # rich draws in a notebook by ipywidgets
        draws = console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)
        columns = (TextColumn("{task.description}"), BarColumn(None), _Facts(Column(no_wrap=True)))
        self._bar = Progress(*columns, console=console, get_time=clock, disable=not draws)
        self._bar.add_task(title, total=num_records, completed=done, unit=unit, note="")
        self._task = self._bar.tasks[0]
        self._new, self._note = 0, ""  # records that the task does not count yet
        self._updated = self._printed_at = clock()
        self._printed: float = done

    def advance(self, num_records: int, note: str = "") -> None:
        """More records have come. note: shown beside the rate, such as the loss."""
        self._new += num_records
        self._note = note
        now = self._clock()
        if now - self._updated >= _BAR_S:
            self._update()
            self._updated = now
        if now - self._printed_at >= _LINE_S:
            self._print()
            self._printed_at = now

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._update()
        self._print()
        self._bar.stop()

    def _update(self) -> None:
        self._bar.update(self._task.id, advance=self._new, note=self._note)
        self._new = 0

    def _print(self) -> None:
        """A line, where there is no bar and something is new."""
        if self._bar.disable and self._task.completed != self._printed:
            self._console.print(f"{self._task.description}: {_facts(self._task)}", markup=False, soft_wrap=True)
            self._printed = self._task.completed


class _Facts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_facts(task))


def _facts(task: Task) -> str:
    """How much is done, at which rate, and how long the rest takes."""
    facts = [f"{task.completed:,}" + ("" if task.total is None else f" of {task.total:,} ({task.percentage:.0f}%)")]
    if task.speed:
        facts.append(f"{task.speed:,.0f} {task.fields['unit']}/s")
    if task.speed and task.remaining and task.time_remaining is not None:
        facts.append(f"{timedelta(seconds=task.time_remaining)} left")
    return ", ".join([*facts, *([task.fields["note"]] if task.fields["note"] else [])])
