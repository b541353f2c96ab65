"""Fixtures: the command in a process of its own, with a Ray of its own where it needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


def environment(columns: int = 300, ray_address: str = "local") -> dict[str, str]:
    """As it is, with a screen so wide that no message is wrapped.

    RAY_ADDRESS: a run must not join a Ray that somebody else has on this host, which "auto" would find.
    """
    return os.environ | {"COLUMNS": str(columns), "TERM": "dumb", "RAY_ADDRESS": ray_address}


@pytest.fixture(scope="module")
def command() -> Command:
    """command(*args): `datarax-ray` with these arguments, to its end."""

    def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "datarax_ray", *map(str, args)]
        env = environment(**options)
        return subprocess.run(words, capture_output=True, text=True, timeout=200, env=env, check=False)

    return run
