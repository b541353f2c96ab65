"""What a person or program sees of a command: its answer, one clear message for an error, no noise from libraries."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler

# without markup: of data and paths nobody knows what stands in brackets, and [/INST] would end the command
_OUT = Console(highlight=False, markup=False)
_ERR = Console(stderr=True, highlight=False, markup=False)

# The error of one request is raised at the consumer; Ray would print those of the requests behind it as well.
_UNHANDLED = "RAY_IGNORE_UNHANDLED_ERRORS"


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
        """Print data as JSON for programs, else the lines for people: texts, which are never cut, and tables.

        Only people's lines are gone through, so those that cost something are made by a generator.
        """
        if self.as_json:
            self.out.print_json(data=data, default=_null)
            return
        for line in lines:
            self.out.print(line, soft_wrap=isinstance(line, str), markup=False)


def _null(value: Any) -> None:
    """What JSON has for what is missing. Raises: TypeError for all else that it has no words for."""
    from datarax_ray.plan.fingerprint import MISSING  # it imports NumPy, and help is to come at once

    if value is not MISSING:
        raise TypeError(f"no JSON holds {value!r}")


def stopped_by(end: BaseException) -> tuple[str, int]:
    """What ended the program from outside, and the exit status that says so to a shell: 128 + the signal's number.

    Raises: `end` itself, where it is no signal's.
    """
    if isinstance(end, KeyboardInterrupt):
        return "Ctrl-C", 128 + signal.SIGINT
    if isinstance(end, SystemExit) and end.code == signal.SIGTERM:
        return "SIGTERM", 128 + signal.SIGTERM
    raise end


def tell_stopped(end: BaseException, console: Console) -> int:
    """Say what ended the program, with the notes of what was done by then. Returns and raises: as stopped_by."""
    cause, status = stopped_by(end)
    console.print("; ".join([f"stopped by {cause}", *getattr(end, "__notes__", ())]), soft_wrap=True)
    return status


@contextmanager
def reporting_errors(screen: Screen, status: int = 1) -> Iterator[Screen]:
    """The screen of a command while it runs, where an error is a message that ends it with this exit status.

    That is for what the world can cause (files, records, memory, a cluster). What only a bug can cause rises, with its
    traceback. Ctrl-C exits with 130, SIGTERM with 143. The process is then as it was: its logging, warnings, handler of
    SIGTERM and environment.
    """
    with _quiet(screen.err), _signals():
        try:
            yield screen
        except (KeyboardInterrupt, SystemExit) as end:
            raise typer.Exit(tell_stopped(end, screen.err)) from None
        # of EOFError typer would say "Aborted!"
        except (OSError, ValueError, RuntimeError, ImportError, SyntaxError, MemoryError, EOFError) as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 puts one in __set_name__ into another
                raise typer.Exit(tell_stopped(error.__cause__, screen.err)) from None
            screen.err.print(_message(error), style="red", markup=False, soft_wrap=True)
            raise typer.Exit(status) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, wherever it comes."""

    def end(number: int, _: Any) -> None:  # as the handler of Ray does, where one runs that started before
        sys.exit(number)

    handler, hook = signal.signal(signal.SIGTERM, end), sys.unraisablehook
    sys.unraisablehook = _again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if signal.getsignal(signal.SIGTERM) is end:  # and not that of a Ray which started meanwhile
            signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)  # None: of no Python


def _again(ignored: Any) -> None:
    """What a signal raises while a library's callback runs (JAX's, of the garbage collector) ends there: it is sent
    again.
    """
    end = ignored.exc_value
    if isinstance(end, KeyboardInterrupt) or (isinstance(end, SystemExit) and end.code == signal.SIGTERM):
        number = signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))  # when the callback is over
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


def _message(error: BaseException) -> str:
    """The error's text and its notes, except for tracebacks: the text says where it was and why."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("Traceback")]
    return "\n  ".join([f"error: {str(error) or type(error).__name__}", *notes])


@contextmanager
def _quiet(console: Console) -> Iterator[None]:
    """Show this package's log in one line each; of libraries, only what is wrong."""
    handler = RichHandler(console=console, show_time=False, show_level=False, show_path=False, highlighter=None)
    handler.setFormatter(logging.Formatter("%(message)s"))
    levels = {
        "datarax_ray": logging.INFO,
        # ray.init sets the level of "ray" itself, but not of the logger that says "Started a local Ray instance."
        "ray._private.worker": logging.WARNING,
        # Says at every start of a local Ray that it wants a token, which is Ray's default and asks nothing of the user.
        "ray._private.authentication": logging.ERROR,
        # Orbax says through absl how long each save took and which default it chose.
        "absl": logging.ERROR,
    }
    before = {name: logging.getLogger(name).level for name in levels}
    ours, is_set = logging.getLogger("datarax_ray"), _UNHANDLED in os.environ
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(ray|orbax|flax)\.")
        for name, level in levels.items():
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
