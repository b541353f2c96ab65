"""The stream log holds each step once, and the checkpoint decides which."""

import hashlib
import json

import fsspec
import numpy as np
import pytest
from stream_log import StreamLog, digest

from datarax_ray.read.lines import UrlLines


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3, 4)))
    return path


@pytest.mark.parametrize("restored_step", [0, 1, 2, 3, 4])
def test_lines_after_the_restored_step_are_superseded(path, restored_step):
    with StreamLog(path, restored_step) as log:
        log.append(restored_step + 1, 8, 0.5, {})
    assert log.num_superseded == 4 - restored_step
    assert steps(path) == list(range(1, restored_step + 2))


@pytest.mark.parametrize("restored_step", [0, 2, 4])
def test_behind_a_url_it_is_complete_at_each_checkpoint_and_goes_on_from_there(restored_step):
    url = "memory://logs/stream.jsonl"

    def logged():
        return [json.loads(line)["step"] for line in UrlLines(url).read()]

    try:
        with StreamLog(url, 0) as log:
            for step in (1, 2, 3, 4):
                log.append(step, 8 * step, 0.5, {})
                if step == 3:
                    log.sync()
                    assert logged() == [1, 2, 3]
        assert logged() == [1, 2, 3, 4]
        with StreamLog(url, restored_step) as log:
            log.append(restored_step + 1, 8, 0.5, {})
        assert log.num_superseded == 4 - restored_step
        assert logged() == list(range(1, restored_step + 2))
        with pytest.raises(ValueError, match=r"memory://logs/stream.jsonl ends at step . .* checkpoint is at step 9"):
            StreamLog(url, 9)
    finally:
        fsspec.filesystem("memory").rm("/logs", recursive=True)


def test_a_line_that_was_never_finished_goes(path):
    with path.open("a") as file:
        file.write('{"step": 5, "sto')
    with StreamLog(path, 4) as log:
        assert log.num_superseded == 1
    assert steps(path) == [1, 2, 3, 4]


def test_a_log_that_ends_before_the_checkpoint_is_refused_unchanged(path):
    with pytest.raises(ValueError, match=r"ends at step 4 and the checkpoint is at step 9.*gap"):
        StreamLog(path, 9)
    assert steps(path) == [1, 2, 3, 4]


@pytest.mark.parametrize("line", ["learning_rate: 3", '{"loss": 1}', "[1]"])
def test_a_file_that_is_no_stream_log_is_refused_unchanged(tmp_path, line):
    path = tmp_path / "config.yaml"
    path.write_text(f"{line}\nmore\n")
    with pytest.raises(ValueError, match=r"config.yaml, line 1 is .* no line of a stream log"):
        StreamLog(path, 0)
    assert path.read_text() == f"{line}\nmore\n"


def test_steps_out_of_order_are_refused(path):
    with path.open("a") as file:
        file.write('{"step": 1}\n')
    with pytest.raises(ValueError, match="line 5 is step 1, after a later step"):
        StreamLog(path, 2)


def test_the_log_may_begin_in_the_middle_of_a_run(tmp_path):
    with StreamLog(tmp_path / "new" / "stream.jsonl", 7) as log:
        log.append(8, 64, 0.25, {"x": np.zeros(1)})
        log.sync()
    assert steps(tmp_path / "new" / "stream.jsonl") == [8]


def test_a_digest_covers_names_dtypes_shapes_and_bytes_of_all_fields():
    batch = {"b": np.array([[1, 2]], np.int16), "a": np.array([7], np.uint8)}
    expected = hashlib.sha256(b"a uint8 (1,)\n\x07b int16 (1, 2)\n\x01\x00\x02\x00").hexdigest()
    assert digest(batch) == expected
    assert digest({**batch, "b": batch["b"].T}) != expected
