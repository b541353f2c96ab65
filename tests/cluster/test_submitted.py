"""Jobs that are submitted to a real head, stopped, killed and submitted again: the stream of one uninterrupted run."""

import hashlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests import oracle
from tests.cluster.test_job import BATCH_SIZE, Run, lines, plain_stream
from tests.cluster.test_source import KINDS, NUM, initialised
from tests.programs import python

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "begun", [pytest.param(0, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow)]
)  # by one more submission
def test_submitted_again_with_other_actors_the_joined_stream_is_the_uninterrupted_one(
    head, tmp_path, digits_writer, begun
):
    # 12 epochs are 1,500 steps and 3 s or more: long enough to be stopped half-way.
    expected = plain_stream(digits_writer(tmp_path / "data", (400, 333, 267)), 12)
    run, said = Run(tmp_path / "data", tmp_path), ""
    if begun:
        ended = head.submit(*run.arguments(num_epochs=12, num_actors=2, steps=begun))
        assert ended.returncode == 0, ended.stdout
        assert "stopped after --steps 100 at step 100 (position 800); step 100 is saved" in ended.stdout
        said += ended.stdout

    name = f"stopped-{begun}"
    stopped = head.submit("--no-wait", "--submission-id", name, *run.arguments(num_epochs=12, num_actors=3))
    assert stopped.returncode == 0, stopped.stdout
    head.until(lambda: run.log.exists() and run.log.read_bytes().count(b"\n") > begun + 10, "ten steps of it")
    head.request(f"/api/jobs/{name}/stop", token=head.token, method="POST")
    head.until_told(lambda: _status(head, name) == "STOPPED", "the end of the stopped job")
    stopped_logs = head.request(f"/api/jobs/{name}/logs", token=head.token)["logs"]
    step = len(lines(run.log))
    assert begun + 10 < step < len(expected), "stopped half-way"
    assert f"stopped by SIGTERM at step {step} (position {8 * step}); step {step} is saved" in stopped_logs

    completed = head.submit(*run.arguments(num_epochs=12, num_actors=1, actor_label="role=cpu"))
    assert completed.returncode == 0, completed.stdout
    assert f"resumed from step {step} (position {8 * step})" in completed.stdout
    assert f"complete at step {len(expected)} (position 12000)" in completed.stdout

    assert [(line["step"], line["stop"], line["sha256"]) for line in lines(run.log)] == expected
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert head.token.encode() not in b"".join([*written, stopped_logs.encode()])
    assert head.token not in said + stopped.stdout + completed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("num_trainers", [None, 2])
def test_a_stop_ends_the_wait_for_readers_that_never_come(head, tmp_path, digits_writer, num_trainers):
    records = digits_writer(tmp_path / "data", (9, 15))  # 2 epochs are 6 full batches, which trainers can divide
    run = Run(tmp_path / "data", tmp_path)
    run(steps=2)
    several = {} if num_trainers is None else {"num_trainers": num_trainers}
    arguments, name = run.arguments(num_actors=1, actor_label="role=no", **several), f"waiting-{num_trainers}"
    submitted = head.submit("--no-wait", "--submission-id", name, *arguments)
    assert submitted.returncode == 0, submitted.stdout

    def said():
        return head.request(f"/api/jobs/{name}/logs", token=head.token)["logs"]

    head.until_told(lambda: "resumed from step 2 " in said(), "the start of the job")
    head.request(f"/api/jobs/{name}/stop", token=head.token, method="POST")
    head.until_told(lambda: _status(head, name) == "STOPPED", "the end of the stopped job")
    assert re.search(r"stopped by SIGTERM.* at step 2 \(position 16\); step 2 is saved", said()), said()
    run()
    assert [(line["step"], line["stop"], line["sha256"]) for line in lines(run.log)] == plain_stream(records, 2)


@pytest.mark.slow
@pytest.mark.parametrize("num_trainers", [1, 2])
def test_trainers_come_back_after_one_is_killed_and_their_rows_are_those_of_the_plain_stream(
    head, tmp_path, digits_writer, num_trainers, capsys
):
    records = digits_writer(tmp_path / "data", (400, 333, 267))
    run, name = Run(tmp_path / "data", tmp_path), f"{num_trainers}-trainers"
    logs = [run.log.with_stem(f"stream-{index}") if num_trainers > 1 else run.log for index in range(num_trainers)]
    run(num_epochs=2, steps=30)  # in one process, and on from there in several
    arguments = run.arguments(num_epochs=2, num_actors=2, num_trainers=num_trainers, checkpoint_every=20)
    arguments += ["--actor-label", "role=cpu", "--trainer-label", "role=cpu"]

    submitted = head.submit("--no-wait", "--submission-id", name, "--max-restarts", "1", *arguments)
    assert submitted.returncode == 0, submitted.stdout
    head.until(lambda: logs[-1].exists() and logs[-1].read_bytes().count(b"\n") > 60, "60 steps more")
    actors = head.request("/api/v0/actors?detail=1&limit=1000", token=head.token)["data"]["result"]["result"]
    trainers = [each for each in actors if each["class_name"] == "Trainer" and each["state"] == "ALIVE"]
    assert len(trainers) == num_trainers
    os.kill(trainers[-1]["pid"], signal.SIGKILL)
    head.until_told(lambda: _status(head, name) in ("SUCCEEDED", "FAILED"), "the end of the job")

    said = head.request(f"/api/jobs/{name}/logs", token=head.token)["logs"]
    assert "job.py ended with exit status 1; restart 1 of 1, from the newest checkpoint" in said, said[-4000:]
    assert "complete at step 250 (position 2000); step 250 is saved" in said, said[-4000:]
    resumed = [int(step) for step in re.findall(r"resumed from step (\d+) ", said)]
    assert resumed[0] == 30
    assert 40 <= resumed[1] < 250  # killed at step 60 or later; a checkpoint takes its time
    each = BATCH_SIZE // num_trainers
    for index, log in enumerate(logs):
        expected = plain_stream(records, 2, slice(index * each, (index + 1) * each))
        begin = 0 if num_trainers == 1 else 30
        assert [(line["step"], line["stop"], line["sha256"]) for line in lines(log)] == expected[begin:]

    capsys.readouterr()
    run(num_epochs=2, stream_log=tmp_path / "rest.jsonl")  # and back
    assert "resumed from step 250 (position 2000)" in capsys.readouterr().out


@pytest.mark.parametrize(("token", "code"), [(None, 401), ("0" * 32, 403)])
def test_the_job_server_refuses_whoever_has_not_its_token(head, token, code):
    with pytest.raises(urllib.error.HTTPError) as caught:
        head.request("/api/jobs/", token=token)
    assert caught.value.code == code
    caught.value.close()


def _status(head, submission_id):
    return head.request(f"/api/jobs/{submission_id}", token=head.token)["status"]


def _steps(output):
    return [line for line in output.splitlines() if line.startswith("step ")]


def test_the_example_that_is_submitted_goes_on_with_other_actors_and_the_same_steps(
    ray_local, head, tmp_path, monkeypatch, capfd
):
    def here(*options):
        monkeypatch.setattr(sys, "argv", ["submit_job.py", *options])
        runpy.run_path(str(EXAMPLES / "submit_job.py"), run_name="__main__")
        return _steps(capfd.readouterr().out)

    saved = ["--checkpoint-dir", str(tmp_path / "job")]
    said = here(*saved, "--steps", "13", "--num-actors", "2")
    submit = ["ray", "job", "submit", "--address", head.address, "--working-dir", EXAMPLES]
    submit += ["--", sys.executable, "submit_job.py", *saved, "--steps", "24", "--num-actors", "1"]
    done = subprocess.run(submit, env=head.env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said += _steps(done.stdout)
    assert [line.partition(":")[0] for line in said] == [f"step {step}" for step in range(1, 25)]
    assert said == here("--checkpoint-dir", str(tmp_path / "alone"), "--steps", "24")  # the losses as well


def plain_images(folder, num_epochs, seed):
    """The sha256 of each batch of 4, by a plain loop over the files."""
    paths = sorted((folder / "data" / "train").glob("*/*.png"))
    images = [cv2.resize(cv2.imread(str(path))[..., ::-1], (64, 64), interpolation=cv2.INTER_AREA) for path in paths]
    stream = [index for epoch in range(num_epochs) for index in oracle.order(NUM, epoch, seed)]
    digests = []
    for start in range(0, len(stream), 4):
        rows = stream[start : start + 4]
        text = b"image uint8 (4, 64, 64, 3)\n" + np.stack([images[index] for index in rows]).tobytes()
        text += b"label int32 (4,)\n" + np.array([index // (NUM // 3) for index in rows], np.int32).tobytes()
        digests.append(hashlib.sha256(text).hexdigest())
    return digests


@pytest.mark.parametrize(
    "kind", ["images", "tokens", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS][2:])]
)
def test_the_job_of_peoples_own_data_runs_as_it_was_written(kind, tmp_path, head):
    folder = initialised(kind, tmp_path)
    job = ["--checkpoint-dir", folder / "checkpoints", "--stream-log", folder / "log.jsonl"]
    job += ["--batch-size", 4, "--num-epochs", 2, "--evaluate-every", 2, "--log-every", 2, "--seed", 3]
    if kind == "text":  # by several trainers, whose last batches divide among them
        job += ["--num-trainers", 2, "--drop-remainder"]
    if kind == "tokens":  # and without a cluster
        done = python(folder / "job" / "job.py", *job, "--num-actors", 0)
    else:
        done = head.submit(*map(str, job), "--num-actors", "1", script=folder / "job" / "submit.sh")
    assert done.returncode == 0, done.stdout
    assert "complete at step " in done.stdout
    is_evaluated = KINDS[kind][-1] is not None
    assert (re.search(r"step 2: evaluation loss \d+\.\d+ of \d+ rows", done.stdout) is not None) is is_evaluated
    if kind == "text":
        return
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert log[-1]["stop"] == 2 * NUM
    if kind == "images":
        assert [line["sha256"] for line in log] == plain_images(folder, 2, 3)
