"""Every example runs as it is, and its own assertions hold."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[1] / "examples"
# tests/cli/test_digits.py runs this, which needs scikit-learn; tests/cluster/test_job.py submits submit_job.py.
EXAMPLES = sorted(path.name for path in DIRECTORY.glob("*.py") if path.name != "make_digits.py")
# What an example needs and datarax_ray does not.
NEEDS = {"datarax_pipeline.py": "datarax"}
# As a user runs it, with a Ray of its own; the others run in here, which is three seconds less of CPU for each.
ALONE = "train_digits.py"


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("submit_job.py", ALONE)])
def test_an_example_runs(name, ray_local, monkeypatch, capfd):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(DIRECTORY / name), run_name="__main__")
    assert capfd.readouterr().out.strip(), "an example shows something"


def test_an_example_runs_alone():
    # without an address it would find and join anybody's Ray on this host
    command = [sys.executable, DIRECTORY / ALONE]
    env = os.environ | {"RAY_ADDRESS": "local"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_what_it_answers(name):
    text = (DIRECTORY / name).read_text()
    assert len(text.splitlines()) < 80
    assert "?" in text.splitlines()[0]
