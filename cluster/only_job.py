"""One job for one checkpoint directory: two would write the same steps, and remove each other's unfinished ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from stop_request import StopRequest


class RefusedError(RuntimeError):
    """The directory is not one that this job can go on from or save in, and would not be if it were run again."""


class HeldError(RefusedError):
    """Another job trains into the directory. To run this one again until that ends would train on unasked."""


_FILE = "job.lock"
_WAIT_S = 60.0  # a trainer lives on for some seconds when the process that started it is killed, and the job run again
_LOOK_S = 0.2
# What people have to see to. Of other errors, a network filesystem's for one, some pass.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def only_job(directory: Any, stop: StopRequest, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold a directory (an epath.Path) for this job; the system lets go of it when the process ends, however it does.

    stop: what ends a wait for another job that holds it, which lasts wait_s at most. A URL is not held: object stores
    have no locks, nor has every network filesystem.

    Raises: HeldError where another job holds it; RefusedError where it cannot be written.
    """
    if "://" in os.fspath(directory):
        yield
        return
    with _opened(directory) as file:
        end = time.monotonic() + wait_s
        while not _is_held(file):
            if time.monotonic() >= end or stop.signal_name is not None:
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


def _opened(directory: Any) -> Any:
    """The lock's file, open, where files and folders can be made beside it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory):
            return open(directory / _FILE, "a+")
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        raise RefusedError(
            f"nothing can be saved in {directory}: {error}. Let this user write there, or give another --checkpoint-dir"
        ) from error


def _is_held(file: Any) -> bool:
    """Whether this process has the lock now; also where the filesystem has none, which is for people to see to."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
