"""Waiting for what other processes do: looked at again and again, up to a deadline, then an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from datarax_ray import RaySource


def until(is_so: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What `is_so` gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := is_so()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {timeout_s:g} s: {is_so}")
        time.sleep(0.05)
    return found


def until_all_run(source: RaySource, timeout_s: float = 60.0) -> None:
    """Every actor of the source answers, so that every recovery is told."""
    until(lambda: len(source._actors.actors()) == source.num_actors, timeout_s)
