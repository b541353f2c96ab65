"""A stream whose elements take long: every chunk is being read when something happens.

SLOW_STREAM names a file: once it is there, elements take so long that who waits for a chunk waits for minutes.
Imports no jax: what it does runs in actors.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.data import array_records, decode
from tests.programs import ROOT, Program


def slowly(stored: bytes) -> dict[str, Any]:
    if "SLOW_STREAM" in os.environ:  # not where the same stream is only compared
        time.sleep(2.0 if os.path.exists(os.environ["SLOW_STREAM"]) else 0.1)
    return {"index": decode(stored)["index"]}


def make(paths: Any) -> Any:
    return array_records(paths, slowly, num_epochs=-1)


def start(directory: Path, text: str, *arguments: Any, **env: str) -> Program:
    """A program of this text, in a session of its own: an interrupt is for it alone, as from a scheduler."""
    script = directory / "script.py"
    script.write_text(text)
    return Program((script, *arguments), os.environ | {"PYTHONPATH": ROOT} | env, session=True)
