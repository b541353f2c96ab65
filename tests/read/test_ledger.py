"""The ledger by value, and under sources and pipelines: exact positions, nothing listed twice, a cap that holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datarax_ray import Pipeline
from datarax_ray.plan.shards import Ticket
from datarax_ray.read.errors import RecordError, Skipped, SkippedError
from datarax_ray.read.ledger import Ledger
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import FailAt, decode

BAD = [FailAt(13), FailAt(50), FailAt(51)]
TWO = (Skipped("a/b[0].array_record[17]", 5, "broken"), Skipped("Squares(9)", 6, "odd"))


def listed(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_entry_names_file_record_position_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "new" / "skipped.jsonl"
    ledger = Ledger(None, str(path))
    ledger.enter(())
    assert not path.exists()
    ledger.enter(TWO)
    assert ledger.num_skipped == 2
    assert listed(path) == [
        {"position": 5, "file": "a/b[0].array_record", "record": 17, "reason": "broken"},
        {"position": 6, "file": "Squares(9)", "record": None, "reason": "odd"},
    ]


def test_going_back_strikes_out_what_comes_again_and_what_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "skipped.jsonl"
    Ledger(None, str(path)).enter(TWO)
    with path.open("a") as file:
        file.write('{"position": 2, "fi')  # its writer was killed
    Ledger(None, str(path)).rewind(6)
    assert [entry["position"] for entry in listed(path)] == [5]
    Ledger(None, str(path)).rewind(0)
    assert path.read_text() == ""


def test_more_than_allowed_is_an_error_and_not_entered() -> None:
    ledger = Ledger(1)
    ledger.check(TWO[:1])
    ledger.enter(TWO[:1])
    ledger.check(())
    with pytest.raises(SkippedError, match=r"2 records .* max_skipped=1 allows.* is Squares\(9\) \(position 6\): odd"):
        ledger.check(TWO[1:])
    assert ledger.num_skipped == 1
    with pytest.raises(ValueError, match="max_skipped must be at least 0, or None for no limit, got -1"):
        Ledger(-1)


def make(files: list[Path], **config: Any) -> ArrayRecordSourceModule:
    options = {"num_epochs": 2, "on_error": "skip", "shuffle_files": True} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), files, transforms=[decode, *BAD])


def pipeline(files: list[Path], **config: Any) -> Pipeline:
    return Pipeline(source=make(files, **config), batch_size=8)


def test_after_every_resume_the_file_lists_each_record_once_a_pass(files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "skipped.jsonl"
    states = []
    with pipeline(files, skipped_path=str(path)) as running:
        states = [running.get_state() for _ in running]
        assert running.num_skipped == 6
    want = listed(path)
    source = make(files)
    positions = [p for p in range(240) if not source.get_batch_at(p, 1)]
    assert [entry["position"] for entry in want] == positions
    assert {(Path(entry["file"]).name, entry["record"]) for entry in want} == {
        ("part-00002.array_record", 1),
        ("part-00003.array_record", 30),
        ("part-00003.array_record", 31),
    }
    assert all("FailAt raised ZeroDivisionError: cannot divide element" in entry["reason"] for entry in want)
    for state in states[::5]:
        with pipeline(files, skipped_path=str(path)) as resumed:
            resumed.set_state(state)
            for _ in resumed:
                pass
            assert resumed.num_skipped == 6
        assert listed(path) == want
    with pipeline(files, skipped_path=str(path)) as anew:
        anew.step()
    assert listed(path) == [entry for entry in want if entry["position"] < anew.position]


def run(running: Pipeline, states: list[Any]) -> None:
    for _ in running:
        states.append(running.get_state())


def test_the_cap_stops_the_pipeline_before_the_batch_and_stays(files: list[Path]) -> None:
    with pipeline(files, max_skipped=2) as capped:
        states = []
        for _ in range(2):
            with pytest.raises(SkippedError, match="more than max_skipped=2 allows"):
                run(capped, states)
            last = capped.get_state()
            assert last == states[-1]
        assert capped.num_skipped <= 2
    with pipeline(files, max_skipped=6) as enough:
        enough.set_state(last)  # the cap is no part of what the stream is
        for _ in enough:
            pass
        assert enough.num_skipped == 6


def test_the_cap_holds_for_elements_one_by_one(files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "skipped.jsonl"
    capped = make(files, max_skipped=2, shuffle_files=False)
    for _ in range(2):
        with pytest.raises(SkippedError, match="3 records .* max_skipped=2"):
            list(capped)
        assert capped.get_state()["position"] == 50
    assert len(list(make(files, max_skipped=6, skipped_path=str(path)))) == 234
    assert len(listed(path)) == 6


def of_large(error: RecordError) -> bool:
    return "cannot divide element 5" in str(error) and isinstance(error.__cause__, ZeroDivisionError)


def of_small(error: RecordError) -> bool:
    return error.position < 20


def always(error: RecordError) -> bool:
    return True


def test_a_function_decides_which_failures_are_skipped(files: list[Path]) -> None:
    source = make(files, on_error=of_large, shuffle_files=False)
    assert [e["index"] for e in source.get_batch_at(45, 8)] == [45, 46, 47, 48, 49, 52]
    two = [decode, FailAt(50), FailAt(13), FailAt(51), FailAt(5)]  # what is skipped after a failure ends nothing
    mixed = ArrayRecordSourceModule(ArrayRecordSourceConfig(on_error=of_small), files, transforms=two)
    block = mixed.describe().read(Ticket(0, 100))
    assert block.positions.tolist() == [p for p in range(50) if p not in (5, 13)]
    assert [skip.position for skip in block.skipped] == [5, 13]
    assert block.failure_position == 50
    with pytest.raises(RecordError, match=r"part-00002.array_record\[1\] \(position 13\): transform FailAt"):
        source.get_batch_at(10, 8)
    with Pipeline(source=source, batch_size=8) as stops:
        with pytest.raises(RecordError, match="position 13"):
            list(stops)
        state = stops.get_state()
    with pytest.raises(ValueError, match="on_error"):
        Pipeline(source=make(files, on_error=always, shuffle_files=False), batch_size=8).set_state(state)
