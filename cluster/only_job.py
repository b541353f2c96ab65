"""One job for one checkpoint directory: two would write the same steps, and remove each other's unfinished ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from typing import Any


class HeldError(RuntimeError):
    """Another job trains into the directory. To run this one again until that ends would train on unasked."""


_FILE = "job.lock"
_WAIT_S = 60.0  # a trainer lives on for some seconds when the process that started it is killed, and the job run again
_LOOK_S = 0.2


@contextlib.contextmanager
def only_job(directory: Any, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold a directory (an epath.Path) for this job; the system lets go of it when the process ends, however it does.

    wait_s: how long to wait for another job that holds it. A URL is not held: object stores have no locks, nor has
    every network filesystem.

    Raises: HeldError where another job holds it.
    """
    if "://" in os.fspath(directory):
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / _FILE, "a+") as file:
        end = time.monotonic() + wait_s
        while not _is_held(file):
            if time.monotonic() >= end:
                file.seek(0)
                raise HeldError(
                    f"another job ({file.read()}) trains into {directory}; two would write the same steps, and remove "
                    "each other's unfinished ones. Stop that one (`ray job stop`), or give another --checkpoint-dir"
                )
            time.sleep(_LOOK_S)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _is_held(file: Any) -> bool:
    """Whether this process has the lock now; also where the filesystem has none, which is for people to see to."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
