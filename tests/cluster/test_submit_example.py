"""examples/submit_job.py, submitted twice to a real head, has the steps of one run that was never stopped."""

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


def test_a_job_that_is_submitted_again_goes_on_with_other_actors_and_the_same_steps(
    ray_local: None, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = []
    for num_steps, num_actors in ((13, 2), (24, 1)):
        options = ["--checkpoint-dir", tmp_path / "job", "--num-steps", str(num_steps), "--num-actors", str(num_actors)]
        submit = ["ray", "job", "submit", "--address", head.address, "--working-dir", EXAMPLES]
        submit += ["--", sys.executable, "submit_job.py", *options]
        done = subprocess.run(submit, env=head.env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said += steps(done.stdout)

    alone = ["--checkpoint-dir", str(tmp_path / "alone"), "--num-steps", "24"]
    monkeypatch.setattr(sys, "argv", ["submit_job.py", *alone])
    runpy.run_path(str(EXAMPLES / "submit_job.py"), run_name="__main__")
    once = capfd.readouterr().out
    assert [line.partition(":")[0] for line in said] == [f"step {step}" for step in range(1, 25)]
    assert said == steps(once)  # the losses as well
