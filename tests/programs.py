"""Programs of tests, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from typing import Any


def python(*arguments: Any, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What Python does with these arguments, to its end, beside this environment."""
    words = [sys.executable, *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": os.getcwd()} | environment
    return subprocess.run(words, input=stdin, env=env, capture_output=True, text=True, timeout=240, check=False)


def knowing_no_ray(*arguments: Any, but: Collection[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """The same, without what this environment says of Ray but these."""
    words = [sys.executable, *map(str, arguments)]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_") or key in but}
    return subprocess.run(words, env=kept | environment, capture_output=True, text=True, timeout=240, check=False)
