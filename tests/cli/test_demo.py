"""`datarax-ray demo`, once for real, from the wheel alone; and what it says when its proof fails."""

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from rich.console import Console

from datarax_ray.cli import demo
from tests.cli.conftest import environment

ROOT = Path(__file__).parents[2]

# Found before any library, in the actors too: what the extras bring is not there.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo as the wheel has it, without this checkout and without what the extras install."""
    directory = tmp_path_factory.mktemp("demo")
    installed = directory / "installed"
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(directory), versions=["standard"])
    zipfile.ZipFile(wheel).extractall(installed)
    hidden = {"cv2", "PIL", "pytest", "hypothesis", "sklearn", "webdataset", "hatchling"} | {"tests", "cluster"}
    (installed / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    ours = environment() | {"PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import datarax_ray; print(datarax_ray.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, env=ours, cwd=directory, check=True).stdout
    assert found.startswith(str(installed))
    words = [sys.executable, "-m", "datarax_ray", "demo", "--seed", "3"]
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=ours, cwd=directory, check=False)


def test_it_resumes_exactly_and_learns(shown):
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "batches 1..175: 175 of 175 identical, read by 2 actors" in shown.stdout
    assert "batches 176..351: 176 of 176 identical, read by 3 actors" in shown.stdout
    accuracy = re.search(r"accuracy on 300 test images: ([\d.]+)%", shown.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 95


def test_it_leaves_no_noise(shown):
    # but for how slowly a Ray starts that has too little of the machine, which is no noise to who waits for it
    is_slow = re.compile("none of |[12] of [23] reader actors have started; ")
    assert [said for said in shown.stderr.splitlines() if not is_slow.match(said)] == []
    assert len(shown.stdout.splitlines()) < 20


@pytest.mark.parametrize("found", [["a", "x"], ["a"], ["a", "b", "c"]], ids=["other", "missing", "one too many"])
def test_a_batch_that_differs_fails_the_demo(found):
    with pytest.raises(RuntimeError, match=r"batches 5\.\.6: [12] of 2 identical, read by 3 actors \(\d came\)"):
        demo.compare(["a", "b"], found, 5, "3 actors", Console(file=io.StringIO()))


def test_a_model_that_has_not_learned_fails_the_demo():
    with pytest.raises(RuntimeError, match=r"accuracy on 300 test images: .*; below 95% the model was not trained"):
        demo.judge(demo.Training(0), Console(file=io.StringIO()))
