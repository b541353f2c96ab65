"""Progress by value, with a clock that the test turns."""

import io
import re

from rich.console import Console

from datarax_ray.read.formats import inspecting
from datarax_ray.record_progress import RecordProgress


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self):
        return self.now


def shown(*args, notes=(), seconds=(), **options):
    """What it prints of steps of 500, each at its second."""
    file, clock = io.StringIO(), Clock()
    with RecordProgress(Console(file=file), *args, clock=clock, **options) as progress:
        for second in seconds:
            clock.now = float(second)
            progress.advance(500, **dict(notes))
    return file.getvalue()


def test_without_a_terminal_there_is_a_line_every_five_seconds_and_one_at_the_end():
    assert shown("ingest", 4000, seconds=range(1, 9)).splitlines() == [
        "ingest: 2,500 of 4,000 (62%), 500 records/s, 0:00:03 left",
        "ingest: 4,000 of 4,000 (100%), 500 records/s",
    ]
    assert shown("read", 10) == ""
    # what was said is not said again at the end
    assert shown("read", None, seconds=[6], notes={"note": "loss 0.100"}) == "read: 500, loss 0.100\n"


def test_half_of_the_work_is_half_whichever_run_does_it():
    """The demo stopped at half, and said 100 %."""
    assert shown("train", 1000, seconds=[0]) == "train: 500 of 1,000 (50%)\n"
    assert shown("train", 1000, done=500, seconds=[0]) == "train: 1,000 of 1,000 (100%)\n"


def test_a_flag_ends_it(monkeypatch):
    monkeypatch.setenv("DATARAX_RAY_PROGRESS", "0")
    assert shown("ingest", 500, seconds=[9]) == ""


def test_at_a_terminal_there_is_a_bar_on_one_line_however_narrow():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=40, color_system=None)
    with RecordProgress(console, "ingest", 1000) as progress:
        progress.advance(1000)
    drawn = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", file.getvalue()).split("\r")
    lines = [line for line in map(str.strip, "\n".join(drawn).splitlines()) if line]
    assert "1,000 of 1,000 (100%)" in lines[-1]
    assert max(map(len, lines)) <= 40


def test_a_notebook_has_a_bar_where_it_can_draw_one_and_else_lines(monkeypatch):
    """Rich draws a bar there by ipywidgets alone, and says nothing of the records without."""
    for is_there in (False, True):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, is_there=is_there: is_there or None)
        progress = RecordProgress(Console(file=io.StringIO(), force_jupyter=True), "ingest", 10)
        assert progress._bar.disable != is_there


def test_files_that_take_long_to_look_at_are_shown_as_they_come(monkeypatch, capsys):
    assert inspecting.inspect_all(str, range(100)) == [*map(str, range(100))]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(inspecting, "_QUIET_S", 0.0)
    assert inspecting.inspect_all(str, range(100)) == [*map(str, range(100))]
    assert re.fullmatch(r"files looked at: 100 of 100 \(100%\)(, [\d,]+ files/s)?\n", capsys.readouterr().err)
