"""A release: wheel and sdist hold all that they need, with one version, and the root holds nothing else."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from datarax_ray.cli.app import app

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MEANT = {"pyproject.toml", "datarax_ray", "cluster", "tests", "examples", "README.md", "docs", "findings"}
BESIDE = {"LICENSE", "CHANGELOG.md"}


def tracked():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout")
    return done.stdout.splitlines()


def test_the_root_has_what_is_meant_and_nothing_else():
    top = {path.partition("/")[0] for path in tracked()}
    assert {name for name in top if not name.startswith(".")} <= MEANT | BESIDE


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, as `python -m build` has hatchling make them."""
    directory = tmp_path_factory.mktemp("dist")
    build = "from hatchling.build import build_sdist, build_wheel; build_wheel({0!r}); build_sdist({0!r})"
    command = [sys.executable, "-c", build.format(str(directory))]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_the_wheel_has_the_package_and_the_files_of_a_cluster_alone(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert f"-{VERSION}-" in built["wheel"].name
    assert {name.partition("/")[0] for name in names} == {"datarax_ray", f"datarax_ray-{VERSION}.dist-info"}
    inside = {name for name in names if name.startswith("datarax_ray/")}
    package = {path for path in tracked() if path.startswith("datarax_ray/")}
    cluster = {f"datarax_ray/{path}" for path in tracked() if path.startswith("cluster/")}
    assert package | cluster <= inside
    assert not {name for name in inside if name.endswith(".pyc")}


def test_the_sdist_makes_the_same_wheel(built, tmp_path):
    with tarfile.open(built["sdist"]) as tar:
        tar.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    build = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=unpacked, check=True, capture_output=True, timeout=120)
    (again,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(built["wheel"]).namelist())


def test_there_is_one_version():
    assert metadata.version("datarax-ray") == VERSION
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()
    assert VERSION in CliRunner().invoke(app, ["--version"]).stdout
