"""Every example runs as it is, and its own assertions hold."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[1] / "examples"
# tests/cli/test_digits.py runs this, which needs scikit-learn; tests/cluster/test_job.py submits submit_job.py.
EXAMPLES = sorted(path.name for path in DIRECTORY.glob("*.py") if path.name != "make_digits.py")
# What an example needs and datarax_ray does not.
NEEDS = {"datarax_pipeline.py": "datarax"}
# They run in here, on one Ray: three seconds less of CPU for each. That a program alone starts a Ray of its own show
# tests/cli/test_demo.py and tests/actors/test_local_ray.py.


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "submit_job.py"])
def test_an_example_runs(name, ray_local, monkeypatch, capfd):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(DIRECTORY / name), run_name="__main__")
    assert capfd.readouterr().out.strip(), "an example shows something"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_what_it_answers(name):
    text = (DIRECTORY / name).read_text()
    assert len(text.splitlines()) < 80
    assert "?" in text.splitlines()[0]
