"""`preprocess`: what a script's source becomes."""

import importlib
import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from datarax_ray import MaterializedSource
from datarax_ray.cli.app import app
from datarax_ray.cli.writing import preprocess
from tests.cli.screens import answer, screen

SCRIPT = """
import numpy as np
from datarax_ray import MixtureSource, RandomAccessSource, RandomAccessSourceConfig

class Even:
    def filter(self, element):
        return element["x"] % 2 == 0

def square(element):
    return {"y": np.float32(element["x"]) ** 2, "word": "ab" * int(element["x"] % 4)}

def make_source(n=20):
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=1)
    return RandomAccessSource(config, {"x": np.arange(n)}, transforms=[Even(), square])

def make_mixture():
    return MixtureSource([make_source(), make_source(8)])

number = 7
"""


def test_a_source_of_a_script_is_written_with_its_statistics(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script, folder = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    done = CliRunner().invoke(app, ["preprocess", f"{script}:make_source", str(folder), "--num-actors", "0", "--json"])
    assert done.exit_code == 0, done.stderr
    (component,) = json.loads(done.stdout)["components"]
    statistics = component["statistics"]
    assert component["written"] == ["Even", "square"]
    assert (statistics["num_records"], statistics["num_elements"], statistics["num_left_out"]) == (20, 10, 10)
    want = np.arange(0, 20, 2, np.float32) ** 2
    assert statistics["fields"]["y"]["numbers"]["mean"] == want.mean()
    assert statistics["fields"]["word"]["by_value"] == {"": 5, "abab": 5}


def told(target, folder, as_json=False):
    """What the command prints, in this process."""
    shown = screen(as_json)
    preprocess(target, folder, shown, num_actors=0)
    return answer(shown)


def test_what_is_written_of_a_module_is_read_by_who_imports_it(tmp_path, monkeypatch):
    (tmp_path / "preprocessed.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    told("preprocessed:make_source", tmp_path / "out")
    source = importlib.import_module("preprocessed").make_source()
    assert len(MaterializedSource(source, tmp_path / "out").get_batch(20)["y"]) == 10


def test_a_mixture_has_a_folder_and_statistics_for_each_component(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script, folder = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    said = told(f"{script}:make_mixture", folder)
    assert "component-1: ran once: Even, square" in said
    assert "8 records gave 4 elements; 4 records (50 %) gave none" in said
    assert f"read it by: MaterializedSource(source, '{folder}')" in said
    assert "×5" in said
    found = json.loads(told(f"{script}:make_mixture", folder, as_json=True))  # it is all there, and is not made again
    assert [each["statistics"]["num_records"] for each in found["components"]] == [20, 8]
    with pytest.raises(ValueError, match="is a int; it must be a source or a Pipeline"):
        told(f"{script}:number", tmp_path / "other")
    assert not (tmp_path / "other").exists()
