"""The output of a command for people and programs: its answer, one clear message for an error, no noise."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler

# without markup: data and paths may have brackets, and [/INST] would end the command
_OUT = Console(highlight=False, markup=False)
_ERR = Console(stderr=True, highlight=False, markup=False)

# The error of one request is raised at the consumer; Ray would also print those of the requests behind it.
_UNHANDLED = "RAY_IGNORE_UNHANDLED_ERRORS"
_LEVELS = {
    "datarax_ray": logging.INFO,
    # ray.init sets the level of "ray" itself, but not of the logger that says "Started a local Ray instance."
    "ray._private.worker": logging.WARNING,
    # Says at every start of a local Ray that it wants a token, which is Ray's default and needs no action.
    "ray._private.authentication": logging.ERROR,
    # Orbax logs through absl how long each save took and which default it chose.
    "absl": logging.ERROR,
}


@dataclass(frozen=True)
class Screen:
    """Where a command prints.

    as_json: whether its answer is JSON, for programs.
    out: takes the answer.
    err: takes progress and errors.
    """

    as_json: bool = False
    out: Console = _OUT
    err: Console = _ERR

    def answer(self, data: Any, lines: Iterable[RenderableType]) -> None:
        """Print data as JSON for programs, or the lines for people: texts, which are never cut, and tables.

        For JSON the lines are not iterated, so a generator makes expensive ones only when needed.
        """
        if self.as_json:
            self.out.print_json(data=data, default=_null)
            return
        for line in lines:
            self.out.print(line, soft_wrap=isinstance(line, str), markup=False)


def _null(value: Any) -> None:
    """JSON's null for MISSING. Raises: TypeError for other values that JSON cannot hold."""
    from datarax_ray.plan.fingerprint import MISSING  # it imports NumPy, and help must come at once

    if value is not MISSING:
        raise TypeError(f"no JSON holds {value!r}")


@contextmanager
def reporting_errors(screen: Screen, status: int = 1) -> Iterator[Screen]:
    """The screen of a command while it runs. An error of the outside world becomes a message and this exit status.

    The outside world is: files, records, memory, a cluster. Errors that only a bug can cause rise with a traceback.
    Ctrl-C exits with 130, SIGTERM with 143. Afterwards the process has its former logging, warnings, handler of SIGTERM
    and environment.
    """
    with _quiet(screen.err), _terminable():
        try:
            yield screen
        except (KeyboardInterrupt, SystemExit) as end:
            if isinstance(end, SystemExit) and end.code != signal.SIGTERM:
                raise
            name, number = ("SIGTERM", signal.SIGTERM) if isinstance(end, SystemExit) else ("Ctrl-C", signal.SIGINT)
            screen.err.print("; ".join([f"stopped by {name}", *getattr(end, "__notes__", ())]), soft_wrap=True)
            raise typer.Exit(128 + number) from None
        # of EOFError typer would say "Aborted!"
        except (OSError, ValueError, RuntimeError, ImportError, SyntaxError, MemoryError, EOFError) as error:
            notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("Traceback")]
            message = "\n  ".join([f"error: {str(error) or type(error).__name__}", *notes])
            screen.err.print(message, style="red", markup=False, soft_wrap=True)
            raise typer.Exit(status) from None


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, wherever it comes."""

    def end(number: int, _: Any) -> None:  # as the handler of Ray does, if one was started before
        sys.exit(number)

    handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:  # and not that of a Ray which started meanwhile
            signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)  # None: not set by Python


@contextmanager
def _quiet(console: Console) -> Iterator[None]:
    """Show this package's log in one line each, and only warnings and errors of libraries."""
    handler = RichHandler(console=console, show_time=False, show_level=False, show_path=False, highlighter=None)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    ours, is_set = logging.getLogger("datarax_ray"), _UNHANDLED in os.environ
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(ray|orbax|flax)\.")
        for name, level in _LEVELS.items():
            logging.getLogger(name).setLevel(level)
        ours.addHandler(handler)
        propagate, ours.propagate = ours.propagate, False
        os.environ.setdefault(_UNHANDLED, "1")
        try:
            yield
        finally:
            if not is_set:
                os.environ.pop(_UNHANDLED, None)
            ours.propagate = propagate
            ours.removeHandler(handler)
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
