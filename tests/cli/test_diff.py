"""`datarax-ray diff`: whether two runs saw the same, and the step, row and record at which they first do not."""

import json
import re
import sys

import numpy as np
import pytest

from datarax_ray.checkpoint import save_pipeline
from datarax_ray.cli.arguments import pipeline_of
from datarax_ray.cli.diff import diff
from datarax_ray.read.elements.row_digests import Difference, first_difference
from tests.cli.screens import answer, screen

TRAIN = """
import os
import numpy as np
from datarax_ray import ConcatThenSplit, Pipeline, RandomAccessSource, RandomAccessSourceConfig

def element(index):
    return {"index": index, "x": np.full(3, index, np.float32), "name": f"r{index}"}

def scaled(index):
    return element(index) | {"x": np.full(3, index + 0.5 * (index == 27), np.float32)}

def counted(index):
    os.environ["OWN_CALLS"] = str(int(os.environ["OWN_CALLS"]) + 1)
    return element(index) | {"x": np.full(3, int(os.environ["OWN_CALLS"]) // 30)}

def document(index):
    return {"x": np.full(index % 5 + 1, index)}

def other_document(index):
    return {"x": np.full(index % 5 + 1, index - (index == 27))}

def make(*transforms, seed=1, num_epochs=2, **options):
    source = RandomAccessSource(
        RandomAccessSourceConfig(shuffle=True, num_epochs=num_epochs, seed=seed),
        range(40), transforms=transforms or [element],
    )
    return Pipeline(source=source, **{"batch_size": 6, "digest": True} | options)

def changed(): return make(scaled)
def other(): return make(seed=2)
def longer(): return make(num_epochs=3)
def endless(): return make(num_epochs=-1)
def unsteady(): return make(counted)
def batches_of_8(): return make(batch_size=8)
def packed(): return make(document, packing=ConcatThenSplit(8, "x"))
def packed_otherwise(): return make(other_document, packing=ConcatThenSplit(8, "x"))
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "own_diff.py").write_text(TRAIN)
    monkeypatch.setenv("OWN_CALLS", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(tmp_path / "own_diff.py")


def run_of(target, directory, *steps):
    """A run of this pipeline, with states behind these numbers of batches."""
    with pipeline_of(target) as pipeline:
        for step in range(steps[-1] + 1):
            if step in steps:
                save_pipeline(directory / str(step) / "data", pipeline)
            if step < steps[-1]:
                pipeline.step()
    return str(directory)


def told(*args, steps=None):
    """The status, what is told to people, and to programs."""
    texts = []
    for as_json in (False, True):
        status = diff(*args, steps, shown := screen(as_json))
        texts.append(answer(shown))
    return status, texts[0], json.loads(texts[1])


def test_runs_that_saw_the_same_are_told_by_their_digests(train, tmp_path):
    one = run_of(f"{train}:make", tmp_path / "one", 0, 4, 8)
    other = run_of(f"{train}:batches_of_8", tmp_path / "other", 1, 3, 6)
    status, text, found = told(one, other)
    assert status == 0
    assert "the same up to position 48, by 2 digests" in text  # 24 and 48
    assert found == {"equal": True, "settings": {"batch_size": [6, 8]}}
    assert told(one, one)[0] == 0


def test_of_runs_that_did_not_the_first_state_behind_the_difference_is_told(train, tmp_path):
    one = run_of(f"{train}:make", tmp_path / "one", 1, 2, 3, 4, 5, 6)
    other = run_of(f"{train}:changed", tmp_path / "other", 1, 2, 3, 4, 5, 6)
    with pipeline_of(f"{train}:make") as pipeline:
        order = np.concatenate([batch["index"] for batch in pipeline.replay(0, 7)])
    batch = int(np.flatnonzero(order == 27)[0]) // 6
    status, text, found = told(one, other)
    assert status == 1
    assert (found["start"], found["stop"]) == (6 * batch, 6 * batch + 6)
    assert f"the first difference is at positions [{6 * batch}, {6 * batch + 6})" in text
    assert 'transforms.names: ["element"] and ["scaled"]' in text


def test_of_a_step_with_two_pipelines_both_are_named_and_one_can_be_chosen(train, tmp_path):
    one, other = run_of(f"{train}:make", tmp_path / "one", 4, 8), run_of(f"{train}:make", tmp_path / "other", 4, 8)
    run_of(f"{train}:changed", tmp_path / "changed", 4, 8)
    for step in ("4", "8"):
        (tmp_path / f"changed/{step}/data").rename(tmp_path / f"other/{step}/eval")
    with pytest.raises(ValueError, match=r"the states of 2 pipelines: .*4/data, .*4/eval\. .*other/\*/data'"):
        told(one, other)
    with pytest.raises(ValueError, match="the states of 2 pipelines"):
        told(f"{train}:make", f"{other}/8")
    assert told(one, f"{other}/*/data")[0] == 0
    assert told(one, f"{other}/*/eval")[0] == 1
    assert told(f"{train}:make", f"{other}/8/data")[0] == 0


def test_states_at_no_common_place_tell_nothing(train, tmp_path):
    one, other = run_of(f"{train}:make", tmp_path / "one", 1), run_of(f"{train}:make", tmp_path / "other", 2)
    status, text, found = told(one, other)
    assert (status, found["equal"]) == (2, None)
    assert "no state of one run is at the position of a state of the other, with a digest" in text
    assert found["reason"] == text.strip()


@pytest.mark.parametrize("target", ["make", "packed"])
def test_a_pipeline_is_what_a_run_saw(train, tmp_path, target):
    run = run_of(f"{train}:{target}", tmp_path / "run", 0, 2, 5)
    status, text, _ = told(run, f"{train}:{target}")
    assert status == 0
    assert "by 3 digests" in text
    assert told(f"{train}:{target}", run)[0] == 0


def test_to_the_very_end_of_the_stream(train, tmp_path):
    with pipeline_of(f"{train}:make") as pipeline:
        assert len(list(pipeline)) == 14
        save_pipeline(tmp_path / "run", pipeline)
    assert told(str(tmp_path / "run"), f"{train}:make")[0] == 0


def test_a_pipeline_that_is_not_is_told_by_its_settings_or_the_positions(train, tmp_path, monkeypatch):
    run = run_of(f"{train}:make", tmp_path / "run", 1, 5)
    status, text, _ = told(run, f"{train}:other")
    assert status == 1
    assert "order.seed: the checkpoint was written with 1, this pipeline has 2" in text
    unsteady = run_of(f"{train}:unsteady", tmp_path / "unsteady", 1, 4, 8)
    monkeypatch.setenv("OWN_CALLS", "-1")
    status, text, _ = told(unsteady, f"{train}:unsteady")
    assert status == 1
    found = re.search(r"the first difference is at positions \[(\d+), (\d+)\)", text)
    assert found is not None
    assert f"the same up to position {found[1]}, by" in text


def test_what_differs_by_the_same_settings_is_a_transform_or_a_library(train):
    status, text, found = told(f"{train}:unsteady", f"{train}:unsteady")
    assert (status, found["fields"], found["settings"]) == (1, ["x"], {})
    assert "the same record gives different rows: a transform, a library or the contents" in text


def test_of_two_pipelines_the_first_row_is_told_with_its_record(train):
    status, text, found = told(f"{train}:make", f"{train}:changed")
    with pipeline_of(f"{train}:make") as pipeline:
        order = np.concatenate([batch["index"] for batch in pipeline.replay(0, 7)])
    step, row = divmod(int(np.flatnonzero(order == 27)[0]), 6)
    assert status == 1
    assert (found["step"], found["row"], found["fields"]) == (step, row, ["x"])
    assert found["records"][0] == found["records"][1]
    assert found["records"][0][0].endswith("[27]")
    assert f"step {step}, row {row}: x" in text
    assert "the same record gives different rows: a transform, a library or the contents" in text
    assert 'transforms.names: ["element"] and ["scaled"]' in text


def test_of_packed_rows_the_piece_is_told(train):
    status, _, found = told(f"{train}:packed", f"{train}:packed_otherwise")
    assert status == 1
    assert found["fields"] == ["x"]
    assert found["place"] is not None
    assert [[each.rpartition("[")[2] for each in records] for records in found["records"]] == [["27]"], ["27]"]]


def test_a_stream_that_ends_before_the_other_is_told(train):
    status, text, found = told(f"{train}:make", f"{train}:longer")
    assert (status, found["step"], found["row"]) == (1, 13, 2)
    assert found["records"][0] == []
    assert "step 13, row 2: only one of them has it" in text
    assert told(f"{train}:make", f"{train}:longer", steps=(0, 13))[0] == 0
    assert told(f"{train}:make", f"{train}:make")[0] == 0
    assert told(f"{train}:make", f"{train}:longer", steps=(15, 18))[0] == 1
    status, text, _ = told(f"{train}:make", f"{train}:make", steps=(20, 30))
    assert status == 2
    assert "there is nothing to compare: there is no batch 20" in text


def test_the_first_difference_is_of_the_bytes():
    def stream(*rows):
        return iter([{"x": np.array(rows)}])

    assert first_difference(stream(0.0, np.nan), stream(0.0, np.nan)) is None
    assert first_difference(stream(0.0, 1.0), stream(-0.0, 1.0)) == Difference(0, 0, ("x",))
    assert first_difference(stream(1, 2), stream(1.0, 2.0)) == Difference(0, 0, ("x",))
    assert first_difference(stream(1, 2), stream(1, 2, 3)) == Difference(0, 2)
    assert first_difference(stream([1, 2], [3, 4]), stream([1, 2], [3, 5]), 7) == Difference(7, 1, ("x",), 1)
    assert first_difference(iter([{"y": np.zeros(1)}]), stream(0.0)) == Difference(0, 0, ("x", "y"))


def test_runs_that_went_past_other_amendments_are_not_the_same(train, tmp_path):
    def run(name, *skip):
        with pipeline_of(f"{train}:make") as pipeline:
            for step in range(1, 6):
                pipeline.step()
                if step == 2 and skip:
                    pipeline.amend(skip=skip)
                if step in (1, 2, 5):
                    save_pipeline(tmp_path / name / str(step) / "data", pipeline)
            return str(tmp_path / name)

    plain = run("plain")
    status, text, found = told(plain, run("positions", range(14, 16)))  # whose last state stands at 32, not at 30
    assert (status, found["equal"], found["start"], found["stop"]) == (1, False, 14, 16)
    assert "the amendments of positions [14, 16), which both consumed, differ" in text
    assert "the same up to position 12, by 2 digests" in text
    assert "amended: nothing and from position 14 on: skips positions [14, 16)" in text
    assert told(plain, run("later", range(30, 33)))[0] == 0  # not come to yet
    with pipeline_of(f"{train}:make") as pipeline:
        coming = {origin.record.rpartition("/")[2] for step in (2, 3) for origin in pipeline.locate(step)}
    status, text, found = told(plain, run("records", *sorted(coming)[:4]))
    assert (status, found["equal"]) == (2, None)
    assert "from position 12 on they skip different records, and one of these may come before" in text
