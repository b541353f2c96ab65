"""The training job: however often it is stopped, its stream and its model are those of one uninterrupted run."""

import doctest
import functools
import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
from pathlib import Path

import job
import numpy as np
import pytest
import training
from only_job import HeldError, RefusedError, only_job
from ray.exceptions import RayTaskError
from restarts import COMES_AGAIN
from stop_request import FORWARDED, StopRequest
from stream_log import StreamLog

from datarax_ray.plan.fingerprint import DriftError
from tests import oracle

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_SIZE = 8
SEED = 5


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain_stream(records, num_epochs, own=slice(None)):
    """(step, stop, sha256) of each batch by a plain loop: Grain's scalar shuffle, NumPy, nothing of this project.

    own: the rows of each batch that are looked at.
    """
    stream = [records[index] for epoch in range(num_epochs) for index in oracle.order(len(records), epoch, SEED)]
    expected = []
    for step, start in enumerate(range(0, len(stream), BATCH_SIZE), 1):
        batch = stream[start : start + BATCH_SIZE]
        rows = np.frombuffer(b"".join(batch[own]), np.uint8).reshape(-1, 65)
        num_rows = len(rows)
        text = f"image uint8 ({num_rows}, 8, 8)\n".encode() + rows[:, :64].tobytes()
        text += f"label uint8 ({num_rows},)\n".encode() + rows[:, 64].tobytes()
        expected.append((step, start + len(batch), hashlib.sha256(text).hexdigest()))
    return expected


class Run:
    """One run in a directory: its options, its log. 21 records, 2 epochs: 5 full batches and one of 2 rows."""

    def __init__(self, data, directory):
        self.directory = directory
        self.log = directory / "stream.jsonl"
        self.options = {
            "--data": data,
            "--checkpoint-dir": directory / "checkpoints",
            "--stream-log": self.log,
            "--batch-size": BATCH_SIZE,
            "--seed": SEED,
            "--num-epochs": 2,
            "--num-actors": 0,
        }

    def arguments(self, **changes):
        options = self.options | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
        return [str(part) for pair in options.items() for part in pair]

    def __call__(self, **changes):
        assert job.main(self.arguments(**changes)) == 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, digits_writer):
    directory = tmp_path_factory.mktemp("uninterrupted")
    records = digits_writer(directory / "data", (9, 12))
    run = Run(directory / "data", directory)
    run()
    assert [(line["step"], line["stop"], line["sha256"]) for line in lines(run.log)] == plain_stream(records, 2)
    return run


@pytest.fixture
def run(uninterrupted, tmp_path):
    return Run(uninterrupted.options["--data"], tmp_path)


def test_stopped_after_every_step_it_goes_on_as_if_it_had_not_been(run, uninterrupted, capsys):
    for done in range(6):
        run(steps=1)
        said = capsys.readouterr().out
        assert (f"resumed from step {done} (position {8 * done}) of" if done else "starting anew") in said
        assert f"step {done + 1} is saved" in said
    run()
    assert "complete at step 6 (position 42); step 6 is saved" in capsys.readouterr().out
    assert lines(run.log) == lines(uninterrupted.log)  # the losses too, so the model and the optimizer went on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_that_it_came_in(run, uninterrupted, number, monkeypatch, capsys):
    class SignalledLog(StreamLog):
        def append(self, step, *rest):
            super().append(step, *rest)
            if step == 3:
                signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(training, "StreamLog", SignalledLog)
        run()
    assert f"stopped by {number.name} at step 3 (position 24); step 3 is saved" in capsys.readouterr().out
    run()
    assert lines(run.log) == lines(uninterrupted.log)


def test_after_a_crash_the_steps_since_the_checkpoint_are_done_again_and_logged_once(run, uninterrupted, monkeypatch):
    calls = iter(range(1, 6))

    def crash(learner, batch):
        if next(calls) == 4:
            raise MemoryError("out of memory")
        return learn(learner, batch)

    learn = training.learn
    with monkeypatch.context() as patch:
        patch.setattr(training, "learn", crash)
        with pytest.raises(MemoryError):
            run(checkpoint_every=2)
    assert len(lines(run.log)) == 3
    run()
    assert lines(run.log) == lines(uninterrupted.log)


def test_a_second_job_is_refused_while_one_trains_into_the_directory(run, uninterrupted, monkeypatch):
    def submit_again(learner, batch):
        where = rf"another job \(process {os.getpid()} on .*\) trains into {run.directory}/checkpoints"
        with pytest.raises(HeldError, match=where):
            run()
        return learn(learner, batch)

    learn = training.learn
    with monkeypatch.context() as patch:
        patch.setattr(training, "learn", submit_again)
        patch.setattr(training, "only_job", functools.partial(only_job, wait_s=0))
        run(steps=2)
    run()
    assert lines(run.log) == lines(uninterrupted.log)


@pytest.mark.parametrize(
    "error", [HeldError("another job"), DriftError("seed"), MemoryError()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("is_of_trainer", [False, True])
def test_what_would_come_again_ends_with_the_status_that_is_not_tried_again(error, is_of_trainer, monkeypatch):
    raised = RayTaskError("train", "Traceback", error).as_instanceof_cause() if is_of_trainer else error

    def fail(argv):
        raise raised

    monkeypatch.setattr(job, "main", fail)
    if isinstance(error, MemoryError):
        with pytest.raises(MemoryError):
            job.status_of()
    else:
        assert job.status_of() == COMES_AGAIN


def test_a_job_waits_for_the_last_trainer_of_the_one_before(tmp_path):
    is_waiting, order = threading.Event(), []

    def second():
        is_waiting.set()
        with only_job(tmp_path, StopRequest()):
            order.append("second")

    waiter = threading.Thread(target=second)
    with only_job(tmp_path, StopRequest()):
        waiter.start()
        assert is_waiting.wait(30)
        order.append("first")
    waiter.join(30)
    assert order == ["first", "second"]


def test_a_stop_ends_the_wait_for_another_job(tmp_path):
    stop = StopRequest()
    with only_job(tmp_path, stop):
        stop.signal_name = "SIGTERM"
        with pytest.raises(HeldError), only_job(tmp_path, stop, wait_s=1000):
            pass


def test_a_directory_that_cannot_be_written_ends_the_job_for_good(run, capfd):
    file = run.directory / "file"
    file.write_text("no folder")
    for directory in (file, file / "checkpoints", Path("/sys/checkpoints")):
        assert job.status_of(run.arguments(checkpoint_dir=directory)) == COMES_AGAIN
        assert f"nothing can be saved in {directory}: [Errno" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["only_job", "checkpoints", "make_pipeline", "restore"])
@pytest.mark.parametrize("num_before", [0, 2])
def test_a_signal_while_the_job_starts_ends_it_with_what_is_saved(
    run, uninterrupted, where, num_before, monkeypatch, capsys
):
    if num_before:
        run(steps=num_before)
    begin = getattr(training, where)

    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)
        return begin(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training, where, interrupted)
        run()
    kept = f"step {num_before}" if num_before else "none"
    said = f"stopped by SIGTERM at step {num_before} (position {8 * num_before}); {kept} is saved"
    assert capsys.readouterr().out.splitlines()[-1] == said
    run()
    assert lines(run.log) == lines(uninterrupted.log)


def test_another_seed_is_refused_with_the_step_and_its_place(run):
    run(steps=2)
    with pytest.raises(DriftError, match="seed") as caught:
        run(seed=6)
    assert caught.value.__notes__ == [
        f"in {run.directory}/checkpoints/2/data/datarax_ray.json",
        f"while restoring step 2 of {run.directory}/checkpoints",
    ]
    assert len(lines(run.log)) == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
    ("spoilt", "spoil"),
    [
        ("data/datarax_ray.json", cut),
        ("data/datarax_ray.json", Path.unlink),
        ("data", shutil.rmtree),
        ("model/_METADATA", cut),  # of damaged arrays Orbax leaves tasks behind, which raise in the tests that follow
    ],
)
def test_a_damaged_step_ends_the_job_for_good_and_says_how_to_go_on_without(run, uninterrupted, spoilt, spoil, capfd):
    run(steps=4, checkpoint_every=2)
    newest = run.directory / "checkpoints/4"
    spoil(newest / spoilt)
    assert job.status_of(run.arguments()) == COMES_AGAIN
    said = capfd.readouterr().err
    assert f"RefusedError: step 4 of {newest.parent} cannot be restored (" in said
    assert f"rename {newest} to 4.damaged and run the job again: it goes on from step 2" in said
    newest.rename(newest.with_name("4.damaged"))
    run()
    assert "resumed from step 2 " in capfd.readouterr().out
    assert lines(run.log) == lines(uninterrupted.log)


def test_the_only_step_that_is_damaged_is_said_to_be_the_only_one(run):
    run(steps=2)
    cut(run.directory / "checkpoints/2/data/datarax_ray.json")
    with pytest.raises(RefusedError, match=r"is no JSON .* it starts anew, as no earlier step is kept$"):
        run()


@pytest.mark.parametrize("error", [ValueError("UNAVAILABLE: Error reading"), TimeoutError("read"), MemoryError()])
def test_what_may_pass_while_a_step_is_restored_is_tried_again(run, error, monkeypatch):
    def fail(*args, **options):
        raise Exception("Encountered error while reading array index") from error

    run(steps=2)
    monkeypatch.setattr(training.ocp.CheckpointManager, "restore", fail)
    with pytest.raises(Exception, match="while reading array index"):
        job.status_of(run.arguments())


def test_the_second_signal_is_left_to_the_system_and_the_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        assert stop.signal_name is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_name == "SIGTERM"
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    signal.raise_signal(FORWARDED)  # by restarts.py, too late: it would end what has still to say that it is saved
    signal.signal(FORWARDED, signal.SIG_DFL)


def test_help_and_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        job.main(["--help"])
    assert "--checkpoint-dir" in capsys.readouterr().out
    assert doctest.testmod(job).failed == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "must be at least 1, got 0"),
        ({"checkpoint_dir": "checkpoints"}, "'checkpoints' is relative, and a job runs in a folder that is removed"),
        ({"actor_label": "cpu"}, "a label is KEY=VALUE, got 'cpu'"),
    ],
)
def test_what_makes_no_job_is_refused(run, changes, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        job.main(run.arguments(**changes))
    assert message in capsys.readouterr().err


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
