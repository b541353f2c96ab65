"""`locate`, `replay` and `checkpoint`, over a user's file, against the batches of the pipeline that it makes."""

import json
import re
import sys
from pathlib import Path

import cv2
import numpy as np
import orbax.checkpoint as ocp
import pyarrow.parquet as pq
import pytest

from datarax_ray import PipelineSave
from datarax_ray.checkpoint import save_pipeline
from datarax_ray.cli import checkpoint as checkpoint_command
from datarax_ray.cli.arguments import pipeline_of
from datarax_ray.cli.inspect import line_of
from datarax_ray.cli.replay import locate, replay
from tests.cli.screens import answer, screen

TRAIN = """
import numpy as np
from datarax_ray import ConcatThenSplit, Pipeline, RandomAccessSource, RandomAccessSourceConfig

WIDTH = 8

class Settings:
    height = 8
    def shape(self):
        return (self.height, WIDTH, 3)

def helper(index):
    return np.full(Settings().shape(), index, np.uint8)

def element(index):
    picture = helper(index)
    return {"index": index, "name": f"r{index}", "picture": picture, "x": np.full(index % 5 + 1, index)}

def make(seed=1, names=("index", "name", "picture"), **options):
    source = RandomAccessSource(
        RandomAccessSourceConfig(shuffle=True, num_epochs=2, seed=seed),
        range(40),
        transforms=[element, lambda e: {name: e[name] for name in names}],
    )
    return Pipeline(source=source, **{"batch_size": 6} | options)

def digested():
    return make(digest=True)

def numbers():
    return make(names=("index", "picture"))

def packed():
    return make(names=("x",), packing=ConcatThenSplit(8, "x"))

def other():
    return make(seed=2)

def named():
    source = RandomAccessSource(RandomAccessSourceConfig(), range(9), transforms=[lambda i: {"row": 2 * i}])
    return Pipeline(source=source, batch_size=3)

nothing = 7

if __name__ == "__main__":
    raise SystemExit("it trains")
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "own_train.py").write_text(TRAIN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(tmp_path / "own_train.py")


def test_every_row_is_printed_with_its_record(train):
    with pipeline_of(f"{train}:make") as pipeline:
        batches = list(pipeline)
    locate(f"{train}:make", 3, out := screen())
    records = re.findall(r"\[(\d+)\]", answer(out))
    assert list(map(int, records)) == np.asarray(batches[3]["index"]).tolist()

    locate(f"{train}:make", 3, out := screen(as_json=True), row=4)
    (found,) = json.loads(answer(out))
    assert (found["row"], found["position"], found["places"]) == (4, 22, None)
    assert found["record"].endswith(f"[{int(batches[3]['index'][4])}]")
    with pytest.raises(ValueError, match="batch 3 has no row 6"):
        locate(f"{train}:make", 3, screen(), row=6)


PARSES = """
import argparse, numpy as np
from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--sure", required=%s, action="store_true")
arguments = parser.parse_args()

def make():
    parser.parse_args()
    source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(arguments.steps)})
    return Pipeline(source=source, batch_size=2)
"""


def test_a_script_does_not_see_the_commands_own_arguments(train, monkeypatch, capsys):
    mine = ["datarax-ray", "locate", f"{train}:make", "--step", "1"]
    monkeypatch.setattr(sys, "argv", mine)
    Path(train).write_text(PARSES % False)
    locate(f"{train}:make", 1, out := screen(as_json=True))
    assert [each["record"] for each in json.loads(answer(out))] == ["arrays[2]", "arrays[3]"]
    Path(train).write_text(PARSES % True)
    with pytest.raises(ValueError, match=r"own_train\.py ended the program, with 2, while make was made, .* under `if"):
        locate(f"{train}:make", 1, screen(as_json=True))
    assert "usage: own_train.py" in capsys.readouterr().err
    assert sys.argv is mine


def test_of_packed_rows_the_pieces_are_printed(train):
    locate(f"{train}:packed", 0, out := screen(), row=0)
    assert re.search(r"0 +0-\d .*range.*\[\d+\]", answer(out)), answer(out)


def test_batches_are_counted_from_a_checkpoint_where_one_is_given(train, tmp_path):
    with pipeline_of(f"{train}:make") as pipeline:
        for _ in range(3):
            pipeline.step()
        save_pipeline(tmp_path / "saved", pipeline)
    locate(f"{train}:make", 4, whole := screen())
    locate(f"{train}:make", 1, rest := screen(), checkpoint=str(tmp_path / "saved"))
    assert answer(whole) == answer(rest)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_batches_are_written_as_they_were(train, tmp_path, suffix):
    with pipeline_of(f"{train}:numbers") as pipeline:
        batches = [{name: np.asarray(column) for name, column in batch.items()} for batch in pipeline]
    path = tmp_path / f"found{suffix}"
    replay(f"{train}:numbers", (12, 20), path, out := screen())
    assert f"wrote 2 batches to {path}; the stream ended at 14, before 20" in answer(out)
    assert [file.name for file in tmp_path.iterdir() if "found" in file.name] == [path.name]
    if suffix == ".npz":
        with np.load(path) as held:
            assert sorted(held) == ["12/index", "12/picture", "13/index", "13/picture"]
            assert all(
                (held[f"{step}/{name}"] == batches[step][name]).all() for step in (12, 13) for name in batches[0]
            )
        return
    table = pq.read_table(path)
    assert table["step"].to_pylist() == [12] * 6 + [13] * 2
    assert table["row"].to_pylist() == [0, 1, 2, 3, 4, 5, 0, 1]
    indices = [int(x) for step in (12, 13) for x in batches[step]["index"]]
    assert table["index"].to_pylist() == indices
    assert table["record"].to_pylist() == [f"range(0, 40)[{x}]" for x in indices]
    tensor = table["picture"].combine_chunks().to_numpy_ndarray()
    assert (tensor == np.concatenate([batches[12]["picture"], batches[13]["picture"]])).all()


def test_a_packed_row_is_written_with_the_records_of_its_pieces(train, tmp_path):
    with pipeline_of(f"{train}:packed") as pipeline:
        pieces = [(step, each.row, each.record) for step in (2, 3) for each in pipeline.locate(step)]
    replay(f"{train}:packed", (2, 4), tmp_path / "rows.parquet", screen())
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(each["step"], each["row"], record) for each in rows for record in each["record"]] == pieces


def test_pictures_become_a_sheet_with_a_line_for_each_batch(train, tmp_path):
    with pipeline_of(f"{train}:make") as pipeline:
        index = np.asarray(pipeline.step()["index"])
    replay(f"{train}:make", (0, 2), tmp_path / "sheet.png", screen())
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    begin = line_of([np.full((1, 1, 3), 255, np.uint8)], ["step 0"]).shape[1]
    widths = [line_of([np.zeros((8, 8, 3), np.uint8)], [str(row)]).shape[1] for row in range(6)]
    assert sheet.shape[0] == 2 * (8 + 16)  # captions and gaps
    places = begin + 4 + np.cumsum([0, *widths[:-1]])
    assert sheet[4, places, 0].tolist() == index.tolist()


def test_what_a_file_cannot_hold_is_said_and_leaves_none(train, tmp_path):
    for name, reason in [
        ("a.npz", "name are none; write a .parquet"),
        ("a.txt", r"ends with none of \.npz, \.parquet, \.png"),
    ]:
        with pytest.raises(ValueError, match=reason):
            replay(f"{train}:make", (0, 1), tmp_path / name, screen())
    with pytest.raises(ValueError, match="no field holds pictures"):
        replay(f"{train}:packed", (0, 1), tmp_path / "a.png", screen())
    with pytest.raises(ValueError, match="has columns step, row and record of its own"):
        replay(f"{train}:named", (0, 1), tmp_path / "a.parquet", screen())
    with pytest.raises(ValueError, match="there is no batch 99"):
        replay(f"{train}:make", (99, 100), tmp_path / "a.parquet", screen())
    with pytest.raises(ValueError, match="there is no batch 99"):
        locate(f"{train}:make", 99, screen())
    with pytest.raises(FileNotFoundError, match="there is no folder .*absent to write a.npz to; create it first"):
        replay(f"{train}:make", (0, 1), tmp_path / "absent" / "a.npz", screen())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["own_train.py"]


def test_an_index_error_of_the_users_code_is_no_batch_that_is_missing(train, tmp_path):
    """It was "error: list index out of range", without a traceback: nobody could tell where."""
    Path(train).write_text(f"{TRAIN}\ndef broken():\n    return [make()][1]\n")
    with pytest.raises(IndexError, match="^list index out of range$"):
        locate(f"{train}:broken", 0, screen())
    with pytest.raises(IndexError, match="^list index out of range$"):
        replay(f"{train}:broken", (0, 1), tmp_path / "a.npz", screen())
    Path(train).write_text(TRAIN.replace("index % 5 + 1", "[index][index]"))
    with pytest.raises(ValueError, match="transform element raised IndexError: list index out of range") as caught:
        replay(f"{train}:make", (0, 1), tmp_path / "a.npz", screen())
    assert any("in element" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("{train}", ValueError, "names no pipeline; write train.py:make_pipeline"),
        ("{train}:absent", ValueError, r"has no absent; it has Settings, helper, element, make, digested, [a-z, ]+\.$"),
        ("{train}:digestde", ValueError, "it has .* Did you mean 'digested'?"),
        ("{train}:element", ValueError, "element is called without arguments: missing .* argument: 'index'; give"),
        ("{train}:nothing", ValueError, "is a int; it must be a Pipeline"),
        ("absent.py:make", FileNotFoundError, "absent.py: there is no such file"),
        ("no_such_package:make", ModuleNotFoundError, "no_such_package"),
    ],
)
def test_what_names_no_pipeline_is_refused(train, name, error, message):
    with pytest.raises(error, match=message):
        pipeline_of(name.format(train=train))


def save_steps(train, directory, **options):
    """Checkpoints of a manager: steps 9 and 10."""
    with pipeline_of(f"{train}:make") as pipeline, ocp.CheckpointManager(directory, **options) as manager:
        for step in (9, 10):
            pipeline.step()
            manager.save(step, args=ocp.args.Composite(data=PipelineSave(pipeline)))


@pytest.fixture
def run(train, tmp_path):
    save_steps(train, tmp_path / "run")
    return tmp_path / "run"


def test_the_latest_step_of_a_run_is_shown(run):
    checkpoint_command.show(str(run), out := screen())
    first = answer(out).splitlines()[0]
    assert re.search(
        r"run/10/data: goes on at position 12, in epoch \d+ of \d+ at record \d+ of \d+; \d+ batches of", first
    )
    assert re.search(r"settings\.order\.seed +1\b", answer(out))
    assert not re.search(r"files\.digest|evidence\.|\.code ", answer(out))
    checkpoint_command.show(str(run), out := screen(), all=True)
    assert re.search(r"files\.digest +\"[0-9a-f]{16}\"\s[\s\S]*evidence\.digest", answer(out))
    checkpoint_command.show(str(run / "9"), out := screen(as_json=True))
    assert json.loads(answer(out))["state"]["position"] == 6
    with pytest.raises(FileNotFoundError, match="there is no saved pipeline here; give the folder of a run"):
        checkpoint_command.show(str(run / "absent"), screen())


def test_amendments_that_a_later_step_knows_are_said(train, run, caplog):
    locate(f"{train}:make", 0, screen(), checkpoint=str(run / "9"))
    assert not caplog.records
    with pipeline_of(f"{train}:make") as pipeline, ocp.CheckpointManager(run) as manager:
        pipeline.set_state(checkpoint_command.find(str(run / "10")).state)
        pipeline.amend(skip=[range(20, 26)], why="a spike")
        manager.save(11, args=ocp.args.Composite(data=PipelineSave(pipeline)))
    locate(f"{train}:make", 0, screen(), checkpoint=str(run / "11"))
    assert not caplog.records
    for of in ("9", "9/data"):
        locate(f"{train}:make", 0, screen(), checkpoint=str(run / of))
        said = f"{run}/11/data knows amendments that {run}/9/data does not: from position 20 on: skips positions"
        assert caplog.messages[-1].startswith(said)


def test_steps_with_a_prefix_are_numbers_too(train, tmp_path):
    save_steps(train, tmp_path / "run", options=ocp.CheckpointManagerOptions(step_prefix="step"))
    assert checkpoint_command.find(str(tmp_path / "run")).directory.parent.name == "step_10"


def test_what_was_amended_is_shown_and_followed(run, train, tmp_path):
    with pipeline_of(f"{train}:make") as pipeline:
        pipeline.set_state(checkpoint_command.find(str(run / "10")).state)
        pipeline.amend(skip=[range(20, 26)], why="a loss [spike]")
        pipeline.amend(skip=[40], every_epoch=True)
        want = list(pipeline.replay(0, 9, pipeline.get_state()))
        told = [[origin.record for origin in pipeline.locate(step, pipeline.get_state())] for step in range(9)]
        save_pipeline(tmp_path / "saved", pipeline)
    checkpoint_command.show(str(tmp_path / "saved"), out := screen())
    lines = answer(out).splitlines()
    assert lines[1] == "amended from position 20 on: skips positions [20, 26) (a loss [spike])"
    assert re.fullmatch(r"amended from position 12 on: skips records \[\d+, \d+\)", lines[2])
    replay(f"{train}:make", (0, 9), tmp_path / "amended.parquet", screen(), checkpoint=str(tmp_path / "saved"))
    rows = pq.read_table(tmp_path / "amended.parquet")["index"].to_pylist()
    assert rows == [index for batch in want for index in batch["index"].tolist()]
    locate(f"{train}:make", 2, out := screen(as_json=True), checkpoint=str(tmp_path / "saved"))
    assert [each["record"] for each in json.loads(answer(out))] == told[2]
    # batch 4 of the run, which went on behind two
    locate(f"{train}:make", 4, out := screen(as_json=True), run=str(tmp_path / "saved"))
    assert [each["record"] for each in json.loads(answer(out))] == told[2]
    replay(f"{train}:make", (2, 11), tmp_path / "run.parquet", screen(), run=str(tmp_path / "saved"))
    assert pq.read_table(tmp_path / "run.parquet")["index"].to_pylist() == rows
    with pytest.raises(ValueError, match="--run counts from the beginning .* --checkpoint from a state"):
        locate(f"{train}:make", 4, screen(as_json=True), checkpoint=str(run), run=str(run))


def test_whether_a_pipeline_can_go_on_from_a_state_is_said(run, train):
    out = screen()
    assert checkpoint_command.fits(f"{train}:make", str(run), out) == 0
    assert "goes on at position 12" in answer(out)
    out = screen()
    assert checkpoint_command.fits(f"{train}:other", str(run), out) == 1
    assert "order.seed: the checkpoint was written with 1, this pipeline has 2" in answer(out)
    out = screen(as_json=True)
    assert checkpoint_command.fits(f"{train}:other", str(run), out) == 1
    found = json.loads(answer(out))
    [differs] = found.pop("differences")
    assert found == {"directory": str(run / "10" / "data"), "fits": False}
    assert (differs["setting"], differs["saved"], differs["current"]) == ("order.seed", 1, 2)
    assert differs["line"].startswith("order.seed: the checkpoint was written with 1, this pipeline has 2; records wo")
