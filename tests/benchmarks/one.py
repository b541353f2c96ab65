"""Runs one task in this process: `python -m tests.benchmarks.one TASK_JSON FILE` writes its Delivery to the file.

Alone it is what to profile: `py-spy record -s -- python -m tests.benchmarks.one ...`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.competitors import Delivery, Task, deliver

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 600  # nothing here takes a tenth of it; a competitor that hangs must not hang the others


def run(task: Task) -> Delivery:
    """The delivery of a task, in a fresh process.

    Raises: RuntimeError with the end of its output where it fails.
    """
    return Delivery(**answer_of(["-m", "tests.benchmarks.one"], asdict(task)))


def answer_of(program: Sequence[str], task: Any, root: Path = ROOT, **environment: str) -> Any:
    """What Python writes to a file as JSON, from this program, given a task and the file. root: where it runs.

    Raises: RuntimeError with the end of its output where it fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"  # a file: Ray's own processes write to the standard output too
        done = subprocess.run(
            [sys.executable, *program, json.dumps(task), str(answer)],
            cwd=root,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not answer.exists():
            raise RuntimeError(f"{task} failed (exit {done.returncode}):\n{done.stderr[-3000:]}")
        return json.loads(answer.read_text())


def answer(function: Callable[..., Any]) -> bool:
    """Whether `answer_of` started this process, with a list of the function's arguments; it has its answer then."""
    if len(sys.argv) != 3 or not sys.argv[1].startswith("["):
        return False
    Path(sys.argv[2]).write_text(json.dumps(function(*json.loads(sys.argv[1]))))
    return True


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asdict(deliver(Task(**json.loads(sys.argv[1]))))))
