"""What changes between a save and a resume: two processes of a program with modules of its own, of which one is edited.

Rows that come out otherwise are refused with record and field, whatever caused it; everything else continues.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field

import pytest

from tests.data import write_files
from tests.programs import python

CONSTANTS = "SCALE = 3\n"
TABLES = "from .constants import SCALE\n\n\ndef factor():\n    return SCALE\n"
MATHS = "from .tables import factor\n\n\ndef scaled(x):\n    return x * factor()\n"
TRANSFORMS = """\
import os

import numpy as np

from .maths import scaled


class Crop:
    def __init__(self, size=2):
        self.size = size
        self.seen = {}

    def map(self, element):
        offset = int(os.environ.get("OFFSET", "0"))
        return {"x": np.int64(scaled(element["x"])) + offset, "y": np.full(self.size, element["x"], np.int32)}

    def save(self, path):
        path.write_text("a vocabulary")


class Keep:
    def filter(self, element):
        return element["x"] % 5 != 1


def decode(stored: bytes) -> dict:
    return {"x": int(np.frombuffer(stored[:4], "<i4")[0])}


def make():
    return [decode, Keep(), Crop()]
"""
MAIN = """\
import json
import logging
import sys

from project.transforms import make

from datarax_ray.feed.source import Source
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream

logging.basicConfig(level=logging.WARNING, format="LOG %(message)s", stream=sys.stdout, force=True)
files, allow = sys.argv[1].split(","), sys.argv[2:]
reader = ArrayRecordReader.of(files)
source = Source(IndexedStream(reader, order_of(reader.num_records, 7, "global"), 3, tuple(make())))
text = sys.stdin.read()
try:
    if text:
        source.set_state(json.loads(text), tuple(allow))
    batch = source.get_batch(20)
    print("ROWS", json.dumps({name: column.tolist() for name, column in batch.items()}))
    print("STATE", json.dumps(source.get_state()))
except ValueError as error:
    print("REFUSED", json.dumps([type(error).__name__, str(error)]))
"""


@dataclass(frozen=True)
class Change:
    """An edit of the program between save and resume, and what follows.

    edits: by file of the project, a text and its replacement.
    environ: variables of the second process.
    refused: part of the error; "" where the stream continues.
    logged: part of the log line; "" for none.
    allow: settings that may differ.
    """

    name: str
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    logged: str = ""
    allow: tuple[str, ...] = ()


CHANGED = [
    Change("a constant three modules below", {"constants.py": ("3", "4")}, refused="'x' has other values"),
    Change("a default", {"transforms.py": ("size=2", "size=3")}, refused="'y' is int32 (3), and was int32 (2)"),
    Change("an environment variable", environ={"OFFSET": "1"}, refused="'x' has other values"),
    Change("a filter", {"transforms.py": ("!= 1", "!= 2")}, refused="other records are kept"),
    Change("a dtype", {"transforms.py": ("np.int32", "np.int64")}, refused="'y' is int64 (2), and was int32 (2)"),
    Change("a field more", {"transforms.py": ('{"x": np', '{"z": 1, "x": np')}, refused="'z' is new"),
    Change("a decoder", {"transforms.py": ('"<i4"', '">i4"')}, refused="'x'"),
]
THE_SAME = [
    Change("nothing"),
    Change("comments", {"maths.py": ("    return", "    # to the power of one\n    return")}),
    Change("the name of an argument", {"maths.py": ("x", "number")}),
    Change("type hints", {"maths.py": ("scaled(x)", "scaled(x: int) -> int")}),
    Change("a log line", {"maths.py": ("    return", "    import time\n    str(time.time())\n    return")}),
    Change(
        "a refactor into functions",
        {"maths.py": ("    return x * factor()", "    return once(x)\n\n\ndef once(x):\n    return x * factor()")},
    ),
    Change("the save of a tokenizer", {"transforms.py": ("a vocabulary", "words")}, logged="the code of Crop changed"),
    Change("a cache", {"transforms.py": ("self.seen = {}", "self.cache = {}")}, logged="the code of Crop changed"),
    Change("another class name", {"transforms.py": ("Keep", "KeepSome")}, logged="the code of KeepSome"),
    Change("rows that may differ", {"constants.py": ("3", "4")}, allow=("rows",)),
    Change(
        "a branch that none of the last rows takes",
        {"transforms.py": ("% 5 != 1", "% 5 != 1 or 10**6 < element['x']")},
        logged="the code of Keep changed",
    ),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The project, a state of it, and the rows that an uninterrupted run gives next."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "project").mkdir()
    texts = {"__init__": "", "constants": CONSTANTS, "tables": TABLES, "maths": MATHS, "transforms": TRANSFORMS}
    for name, text in texts.items():
        (directory / "project" / f"{name}.py").write_text(text)
    (directory / "main.py").write_text(MAIN)
    (directory / "data").mkdir()
    write_files(directory / "data", [23, 30])
    said = run(directory, "")
    following = run(directory, said["STATE"])
    return directory, said["STATE"], json.loads(following["ROWS"])


def run(directory, state, environ=None, allow=()):
    files = ",".join(sorted(map(str, (directory / "data").iterdir())))
    environ = {"PYTHONHASHSEED": "random"} | (environ or {})
    done = python(directory / "main.py", files, *allow, stdin=state, **environ)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [key for key, _, _ in lines].count("LOG") <= 1, done.stdout
    return {key: value for key, _, value in lines}


@pytest.mark.parametrize("change", [*CHANGED, *THE_SAME], ids=lambda change: change.name)
def test_rows_that_come_out_otherwise_are_refused_and_all_else_continues(saved, change, tmp_path):
    project, state, following = saved
    other = tmp_path / "another folder"  # a clone of the project elsewhere, of which one file is edited
    shutil.copytree(project, other)
    for name, (old, new) in change.edits.items():
        path = other / "project" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    said = run(other, state, change.environ, change.allow)
    if change.refused:
        kind, message = json.loads(said["REFUSED"])
        assert kind == "DriftError"
        assert change.refused in message
        assert "part-" in message  # the file and record
        assert "allow_drift=('rows',)" in message
        return
    assert change.logged in said.get("LOG", "")
    assert bool(change.logged) == ("LOG" in said)
    if not change.allow:
        assert json.loads(said["ROWS"]) == following


def test_the_bytes_of_one_file_at_the_same_size_are_refused(saved, tmp_path):
    project, state, _ = saved
    other = tmp_path / "other"
    shutil.copytree(project, other)
    shutil.rmtree(other / "data")
    (other / "data").mkdir()
    write_files(other / "data", [30, 23])
    assert "the checkpoint belongs to another stream" in run(other, state)["REFUSED"]
