"""What becomes of an error on its way to a person."""

import contextlib
import io
import logging
import os
import signal
import warnings

import pytest
import typer
from rich.console import Console

from datarax_ray.cli import screen
from tests.cli import screens


def say(error):
    """The exit status and the text that an error becomes."""
    file = io.StringIO()
    with pytest.raises(typer.Exit) as caught, screen.reporting_errors(screen.Screen(err=Console(file=file, width=40))):
        raise error
    return caught.value.exit_code, file.getvalue()


def test_an_answer_to_people_is_never_cut_and_one_to_programs_makes_no_lines():
    def lines():
        yield f"read from [/b] {'a' * 50}"
        yield "and that is all"

    for as_json, wanted in (False, f"read from [/b] {'a' * 50}\nand that is all\n"), (True, '{\n  "x": 1\n}\n'):
        shown, left = screens.screen(as_json, width=40), lines()
        shown.answer({"x": 1}, left)
        assert screens.answer(shown) == wanted
        assert len(list(left)) == (2 if as_json else 0)


def test_an_error_is_one_message_with_its_notes_and_without_tracebacks():
    error = ValueError("a.array_record[3]: broken [red]")
    error.add_note("Traceback (most recent call last):\n  File ...")
    error.add_note("in reader actor 0")
    assert say(error) == (1, "error: a.array_record[3]: broken [red]\n  in reader actor 0\n")


def test_an_error_without_a_text_is_named():
    assert say(MemoryError()) == (1, "error: MemoryError\n")
    assert say(EOFError("Ran out of input")) == (1, "error: Ran out of input\n")  # of which typer says "Aborted!"


def test_a_signal_is_no_error():
    assert say(KeyboardInterrupt()) == (130, "stopped by Ctrl-C\n")
    assert say(SystemExit(15)) == (143, "stopped by SIGTERM\n")
    with pytest.raises(SystemExit), screen.reporting_errors(screen.Screen(err=Console(file=io.StringIO()))):
        raise SystemExit(3)


def as_set_up():
    """What a command sets up in its process."""
    loggers = map(logging.getLogger, ("datarax_ray", "ray._private.worker", "ray._private.authentication", "absl"))
    logs = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return [logs, list(warnings.filters), environment, signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("end", [None, ValueError("x"), KeyError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_a_process_that_runs_a_command_is_as_it_was_before(end, monkeypatch, caplog):
    monkeypatch.delenv("RAY_IGNORE_UNHANDLED_ERRORS", raising=False)
    before, file = as_set_up(), io.StringIO()
    raises = contextlib.nullcontext() if end is None else pytest.raises((typer.Exit, KeyError, SystemExit))
    with raises, screen.reporting_errors(screen.Screen(err=Console(file=file))):
        assert not any(one == other for one, other in zip(before, as_set_up(), strict=True))
        logging.getLogger("datarax_ray.some").info("to the screen")
        if end is not None:
            raise end
    assert file.getvalue().split("\n")[0].rstrip() == "to the screen"
    assert as_set_up() == before
    logging.getLogger("datarax_ray.some").warning("to whoever listens")
    assert ("to whoever listens" in caplog.text, "to whoever" in file.getvalue()) == (True, False)


def test_what_only_a_bug_can_cause_keeps_its_traceback():
    with pytest.raises(KeyError), screen.reporting_errors(screen.Screen(err=Console(file=io.StringIO()))):
        raise KeyError("x")
