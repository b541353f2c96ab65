"""What becomes of an error on its way to a person."""

from __future__ import annotations

import gc
import io
import signal
import time

import pytest
import typer
from rich.console import Console

from datarax_ray.cli import screen


@pytest.fixture(autouse=True)
def _leave_logging_alone(monkeypatch):
    monkeypatch.setattr(screen, "_quieten", lambda console: None)


def say(error: BaseException) -> tuple[int, str]:
    """The exit status and the text that an error becomes."""
    file = io.StringIO()
    with pytest.raises(typer.Exit) as caught, screen.told(Console(file=file, width=40)):
        raise error
    return caught.value.exit_code, file.getvalue()


def test_an_error_is_one_message_with_its_notes_and_without_tracebacks():
    error = ValueError("a.array_record[3]: broken [red]")
    error.add_note("Traceback (most recent call last):\n  File ...")
    error.add_note("in reader actor 0")
    assert say(error) == (1, "error: a.array_record[3]: broken [red]\n  in reader actor 0\n")


def test_an_error_without_a_text_is_named():
    assert say(MemoryError()) == (1, "error: MemoryError\n")


def test_a_signal_is_no_error():
    assert say(KeyboardInterrupt()) == (130, "stopped by Ctrl-C\n")
    assert say(SystemExit(15)) == (143, "stopped by SIGTERM\n")
    with pytest.raises(SystemExit), screen.told(Console(file=io.StringIO())):
        raise SystemExit(3)


def test_a_signal_that_is_dropped_in_a_librarys_callback_comes_again():
    def callback(phase: str, info: dict) -> None:
        gc.callbacks.remove(callback)
        signal.raise_signal(signal.SIGTERM)

    def collect() -> None:
        gc.callbacks.append(callback)
        gc.collect()
        time.sleep(60)

    file, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(typer.Exit) as caught, screen.told(Console(file=file)):
            collect()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (caught.value.exit_code, file.getvalue()) == (143, "stopped by SIGTERM\n")


def test_what_only_a_bug_can_cause_keeps_its_traceback():
    with pytest.raises(KeyError), screen.told(Console(file=io.StringIO())):
        raise KeyError("x")
