"""examples/submit_job.py, submitted to a real head, goes on with the steps of a run that was stopped."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Head

EXAMPLES = Path(__file__).parents[2] / "examples"


def steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def test_a_job_that_is_submitted_goes_on_with_other_actors_and_the_same_steps(
    ray_local: None, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def here(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["submit_job.py", *options])
        runpy.run_path(str(EXAMPLES / "submit_job.py"), run_name="__main__")
        return steps(capfd.readouterr().out)

    job = ["--checkpoint-dir", str(tmp_path / "job")]
    said = here(*job, "--num-steps", "13", "--num-actors", "2")
    submit = ["ray", "job", "submit", "--address", head.address, "--working-dir", EXAMPLES]
    submit += ["--", sys.executable, "submit_job.py", *job, "--num-steps", "24", "--num-actors", "1"]
    done = subprocess.run(submit, env=head.env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said += steps(done.stdout)
    assert [line.partition(":")[0] for line in said] == [f"step {step}" for step in range(1, 25)]
    assert said == here("--checkpoint-dir", str(tmp_path / "alone"), "--num-steps", "24")  # the losses as well
