"""The training job: however often it is stopped, its stream and its model are those of one uninterrupted run."""

import doctest
import functools
import hashlib
import json
import os
import shutil
import signal
import threading
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
    assert f"rename {newest} to 4.damaged and run the job again: the job goes on from step 2" in said
    newest.rename(newest.with_name("4.damaged"))
    run()
    assert "resumed from step 2 " in capfd.readouterr().out
    assert lines(run.log) == lines(uninterrupted.log)


def test_the_only_step_that_is_damaged_is_said_to_be_the_only_one(run):
    run(steps=2)
    cut(run.directory / "checkpoints/2/data/datarax_ray.json")
    with pytest.raises(RefusedError, match=r"is no JSON .* the job starts anew, as no earlier step is kept$"):
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
        ({"checkpoint_dir": "checkpoints"}, "'checkpoints' is relative. Ray removes the folder of a job"),
        ({"actor_label": "cpu"}, "a label is KEY=VALUE, got 'cpu'"),
    ],
)
def test_what_makes_no_job_is_refused(run, changes, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        job.main(run.arguments(**changes))
    assert message in capsys.readouterr().err
