"""restarts.py: a job that fails is run again so many times, one that is stopped is not, and none outlives it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from restarts import backoff_s, main, restarts_after

from tests.cluster.conftest import until

RESTARTS = Path(__file__).parents[2] / "cluster" / "restarts.py"


class Job:
    """A file that does `body` in each run, after it wrote its pid as a line of `runs`."""

    def __init__(self, directory, body):
        self.runs = directory / "runs"
        self.path = directory / "job.py"
        opened = f"import os, signal, sys, time\nruns = open({str(self.runs)!r}, 'a+')\n"
        self.path.write_text(
            opened + "print(os.getpid(), file=runs, flush=True)\nruns.seek(0)\nrun = len(runs.readlines())\n" + body
        )

    def pids(self):
        return [int(line) for line in self.runs.read_text().splitlines()] if self.runs.exists() else []


@pytest.mark.parametrize(
    ("body", "status", "num_runs", "said"),
    [
        (
            "sys.exit(0 if run == 3 else 1)",
            0,
            3,
            "ended with exit status 1; restart 2 of 2, from the newest checkpoint",
        ),
        ("if run < 2: os.kill(os.getpid(), signal.SIGKILL)", 0, 2, "ended with SIGKILL; restart 1 of 2"),
        ("sys.exit(7)", 7, 3, "ended with exit status 7 and was restarted 2 times; not again"),
        ("sys.exit(2)", 2, 1, ""),
    ],
)
def test_a_job_that_fails_is_run_again_so_many_times(tmp_path, body, status, num_runs, said, capsys):
    job = Job(tmp_path, body)
    assert main(["--max-restarts", "2", "--backoff-s", "0.01", str(job.path), "--steps", "1"]) == status
    assert len(job.pids()) == num_runs
    assert said in capsys.readouterr().out


def test_a_run_that_went_well_for_a_while_begins_the_count_and_the_wait_anew():
    num_restarts, waits = 0, []
    for ran_s in (5, 5, 5, 599, 600, 5):
        num_restarts = restarts_after(num_restarts, ran_s)
        waits.append(backoff_s(num_restarts, 2.0))
    assert waits == [2.0, 8.0, 32.0, 60.0, 2.0, 8.0]


def test_a_stop_ends_the_wait_for_the_next_restart(tmp_path):
    job = Job(tmp_path, "sys.exit(7)")
    with subprocess.Popen([sys.executable, RESTARTS, "--backoff-s", "60", job.path], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert b"ended with exit status 7; restart 1 of 5" in running.stdout.readline()
        running.terminate()
        assert running.wait(30) == 7
    assert len(job.pids()) == 1


# As job.py takes signals: the first asks. SIGUSR1 is what restarts.py passes on, also where the job had SIGTERM itself.
STOPPABLE = f"""
sys.path.insert(0, {str(RESTARTS.parent)!r})
from stop_request import StopRequest
with StopRequest() as stop:
    print("ready", file=runs, flush=True)
    while stop.signal_name is None:
        time.sleep(0.01)
    time.sleep(0.5)  # it saves
    print(stop.signal_name, file=runs, flush=True)
"""


@pytest.mark.parametrize("is_sent_to_both", [False, True])  # by `kill`, and by `ray job stop`
def test_a_stopped_job_saves_and_is_not_run_again(tmp_path, is_sent_to_both):
    job = Job(tmp_path, STOPPABLE)
    with subprocess.Popen([sys.executable, RESTARTS, job.path]) as running:
        until(lambda: job.runs.exists() and "ready" in job.runs.read_text(), "the start of the job")
        pid, _ = job.runs.read_text().split()
        if is_sent_to_both:
            os.kill(int(pid), signal.SIGTERM)
        running.terminate()
        assert running.wait(30) == 0
    assert job.runs.read_text().split() == [pid, "ready", "SIGTERM"]


def test_no_job_outlives_what_would_restart_it(tmp_path):
    job = Job(tmp_path, "time.sleep(60)")
    with subprocess.Popen([sys.executable, RESTARTS, job.path]) as running:
        until(job.pids, "the start of the job")
        running.kill()
    until(lambda: not _runs(job.pids()[0]), "the end of the job")


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
