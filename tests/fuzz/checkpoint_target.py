"""Mutated states in real Orbax steps, restored through its manager and through restore_pipeline."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from datarax_ray.checkpoint import PipelineRestore, PipelineSave, restore_pipeline
from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import write_files
from tests.fuzz import outcomes
from tests.fuzz.mutations import MUTATIONS, Mutation

_POSITION = 37
_ALLOWED = (ValueError, TypeError, OSError)  # a DriftError is a ValueError
_VALUES = [None, True, 0, -1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "x", "\ud800", [], {}, [[]], {"a": {}}]


class CheckpointTarget:
    """A pipeline's JSON item in a step of its own. A mutant is refused with its path, or gives the saved position."""

    def __init__(self, directory: Path) -> None:
        files = write_files(directory / "files", (40, 20)) if _made(directory / "files") else []
        config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=2)
        self._pipeline = Pipeline(source=ArrayRecordSourceModule(config, files), batch_size=4, prefetch=0)
        self._pipeline.seek(_POSITION)
        self._run = directory / "run"
        shutil.rmtree(self._run, ignore_errors=True)
        self._manager = ocp.CheckpointManager(self._run)
        self._manager.save(0, args=ocp.args.Composite(data=PipelineSave(self._pipeline)))
        self._manager.wait_until_finished()
        self._item = self._run / "0" / "data"
        self._path = self._item / "datarax_ray.json"
        self._file = self._path.read_bytes()
        self.mutations: dict[str, Mutation] = MUTATIONS | {
            "another value": _another_value,
            "a key more or less": _another_key,
            "nested, or long": _hostile,
        }
        self.kinds = (*self.mutations, "deleted", "a directory")

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        mutant = self._file
        if kind in self.mutations:
            mutant = self.mutations[kind](self._file, rng)
        self._put(kind, mutant)
        self._pipeline.seek(7)
        try:
            self._restore(rng)
        except Exception as error:
            if self._pipeline.position != 7:
                return outcomes.WRONG, f"refused, and the position moved: {error}"[:300]
            return outcomes.refusal(error, str(self._path), _ALLOWED)
        if self._pipeline.position != _POSITION:
            return outcomes.WRONG, f"position {self._pipeline.position} from {mutant[:60]!r}"
        return outcomes.UNHARMED, ""

    def _restore(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self._manager.restore(0, args=ocp.args.Composite(data=PipelineRestore(self._pipeline)))
        else:
            restore_pipeline(self._item, self._pipeline)

    def _put(self, kind: str, mutant: bytes) -> None:
        if self._path.is_dir():
            self._path.rmdir()
        self._path.unlink(missing_ok=True)
        if kind == "a directory":
            self._path.mkdir()
        elif kind != "deleted":
            self._path.write_bytes(mutant)


def _made(directory: Path) -> bool:
    directory.mkdir(parents=True, exist_ok=True)
    return True


def _another_value(file: bytes, rng: random.Random) -> bytes:
    """One value, at any depth, replaced."""
    state = json.loads(file)
    holder: Any = state
    while True:
        key = rng.choice(list(holder))
        if not isinstance(holder[key], dict) or not holder[key] or rng.random() < 0.3:
            break
        holder = holder[key]
    holder[key] = rng.choice([*_VALUES, _POSITION + 1])
    return json.dumps(state).encode()


def _another_key(file: bytes, rng: random.Random) -> bytes:
    """A key left out, doubled with another value, renamed, or new."""
    state = json.loads(file)
    key = rng.choice(list(state))
    kind = rng.choice(["less", "renamed", "more", "twice"])
    if kind == "twice":
        return file.rstrip()[:-1] + f', "{key}": {json.dumps(rng.choice(_VALUES))}}}'.encode()
    value = state.pop(key) if kind in ("less", "renamed") else 1
    if kind != "less":
        state[key.upper() + "x"] = value
    return json.dumps(state).encode()


def _hostile(file: bytes, rng: random.Random) -> bytes:
    depth = rng.choice([50, 500, 990, 5000, 200_000])
    digits = rng.choice([19, 400, 4300, 4301, 100_000])
    position = f'"position": {_POSITION}'.encode()
    return rng.choice(
        [
            b"[" * depth + b"]" * depth,
            b'{"a":' * depth + b"1" + b"}" * depth,
            file.replace(position, b'"position": ' + b"9" * digits),
            file.replace(position, position + b', "rest": ' + b'{"a":' * depth + b"1" + b"}" * depth),
            file.replace(position, position + b".0"),
            file.replace(position, position + b', "more": "' + b"x" * rng.choice([100, 2**20]) + b'"'),
            file.replace(b"{", b'{"\\ud800": 1, ', 1),
            b"\xff\xfe" + file.decode().encode("utf-16-le"),
            b"\xef\xbb\xbf" + file,
            file.replace(b" ", b"\0"),
        ]
    )
