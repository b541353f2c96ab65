"""The table tells what loaders do: of one that loses rows that it does, of this one and Grain's what they promise."""

import importlib.util
import sys

import pytest

from tests.conformance.__main__ import main
from tests.conformance.compare import Difference, compare, joined
from tests.conformance.run import CASES, Case, Size, run

SMALL = Size(num_records=144, batch_size=6)
KILLED = Case("killed", readers=0, die_at=12)
MORE, FEWER = Case("more", readers=0, then=(0, 2)), Case("fewer", readers=0, trainers=2, then=(0, 1))
SAME = Difference(0, 0, 0, 0)

# Goes on so many batches behind where it was, or with no state at all.
FAULTY = """
class Loader:
    write = staticmethod(lambda directory, num_records: None)
    ahead = {ahead}

    def __init__(self, job):
        if job.trainers > 2:
            raise ValueError("two at most")
        self.job, self.step = job, 0

    def __iter__(self):
        size = self.job.batch_size
        while (self.step + 1) * size <= self.job.num_records:
            rows = range(self.step * size, (self.step + 1) * size)
            self.step += 1
            yield list(rows)[self.job.trainer :: self.job.trainers]

    def state(self):
        return None if self.ahead is None else str(self.step + self.ahead).encode()

    def restore(self, state):
        self.step = int(state)

    def readers(self):
        return []
"""


def outcomes(loader, cases, directory, size=SMALL):
    told = []
    found = run(loader, size, directory, cases, told.append)
    assert told == found
    return found


@pytest.mark.parametrize(
    ("ahead", "difference"),
    [
        ("0", SAME),
        ("2", Difference(lost=12, repeated=0, other_batches=14, other_rows=0)),  # batches 10 and 11
        ("-1", Difference(lost=0, repeated=6, other_batches=15, other_rows=0)),
        ("None", Difference(lost=0, repeated=60, other_batches=24, other_rows=0)),
    ],
)
def test_what_a_loader_loses_and_repeats_is_told(tmp_path, ahead, difference):
    (tmp_path / "own_loader.py").write_text(FAULTY.format(ahead=ahead))
    (outcome,) = outcomes(f"{tmp_path / 'own_loader.py'}:Loader", [KILLED], tmp_path / "run")
    assert (outcome.difference, outcome.restarts) == (difference, 1)
    assert outcome.is_the_same == (ahead == "0")


def test_rows_in_another_order_and_refusals_are_told(tmp_path):
    (tmp_path / "own_loader.py").write_text(FAULTY.format(ahead=0))
    three = Case("three", readers=0, then=(0, 3))
    found = outcomes(f"{tmp_path / 'own_loader.py'}:Loader", [MORE, FEWER, three], tmp_path / "run")
    assert [outcome.difference for outcome in found] == [Difference(0, 0, 0, 14), Difference(0, 0, 0, 14), None]
    assert found[2].said == "refused: ValueError: two at most"


def test_batches_are_compared_row_for_row():
    assert compare([[1, 2], [3]], [[1, 2], [3]]) == SAME
    assert compare([[1, 2], [3]], [[1, 2]]) == Difference(1, 0, 1, 0)
    assert compare([], [[1]]) == Difference(0, 1, 1, 0)
    assert joined([[[1], [2]], [[3]]]) == [[1, 3]]


def test_this_one_gives_the_same_rows_in_the_same_places(tmp_path):
    killed = Case("killed, and goes on with more", readers=0, then=(0, 2), die_at=8)
    (outcome,) = outcomes("ours", [killed], tmp_path)
    assert (outcome.difference, outcome.restarts) == (SAME, 1)


@pytest.mark.slow
def test_grain_goes_on_exactly_where_it_says_so_and_refuses_the_rest(tmp_path):
    killed, more = outcomes("grain", [KILLED, MORE], tmp_path)
    assert killed.is_the_same
    assert more.said.startswith("refused: ValueError: Sampler in checkpoint does not match")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_through_every_case_this_one_gives_the_same(tmp_path):
    found = outcomes("ours", CASES, tmp_path, Size())
    assert [outcome for outcome in found if not outcome.is_the_same] == []


def test_a_loader_that_is_not_there_is_answered_with_those_that_are(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["conformance", "--loader", "tfdata"])
    with pytest.raises(ValueError, match="--loader is one of ours, grain, grain_elastic, .*, or FILE.py:NAME"):
        main()


@pytest.mark.parametrize(("name", "module"), [("mosaic", "streaming"), ("litdata", "litdata")])
def test_a_loader_that_is_not_installed_is_left_out_with_a_line(name, module, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["conformance", "--loader", name])
    assert main() == 0
    said = capsys.readouterr()
    assert f"{name} is left out: {module} is not installed: pip install" in said.err
    assert not said.out
