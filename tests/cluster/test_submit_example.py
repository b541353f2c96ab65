"""examples/submit_job.py, submitted twice to a real head, has the steps of one run that was never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.conftest import Head

EXAMPLES = Path(__file__).parents[2] / "examples"


def steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def test_a_job_that_is_submitted_again_goes_on_with_other_actors_and_the_same_steps(head: Head, tmp_path: Path) -> None:
    said = []
    for num_steps, num_actors in ((13, 2), (24, 1)):
        options = ["--checkpoint-dir", tmp_path / "job", "--num-steps", str(num_steps), "--num-actors", str(num_actors)]
        submit = ["ray", "job", "submit", "--address", head.address, "--working-dir", EXAMPLES]
        submit += ["--", sys.executable, "submit_job.py", *options]
        done = subprocess.run(submit, env=head.env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said += steps(done.stdout)

    alone = [sys.executable, EXAMPLES / "submit_job.py", "--checkpoint-dir", tmp_path / "alone", "--num-steps", "24"]
    environment = os.environ | {"RAY_ADDRESS": "local", "JAX_PLATFORMS": "cpu"}
    once = subprocess.run(alone, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert once.returncode == 0, once.stderr
    assert [line.partition(":")[0] for line in said] == [f"step {step}" for step in range(1, 25)]
    assert said == steps(once.stdout)  # the losses as well
