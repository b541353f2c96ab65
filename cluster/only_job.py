"""One job for one checkpoint directory: two would write the same steps, and remove each other's unfinished steps."""

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
    """The job cannot run, for a reason that a restart does not remove: its directory, data or model."""


class HeldError(RefusedError):
    """Another job trains into the directory. Restarts until the other job ends would train on unasked."""


_FILE = "job.lock"
_WAIT_S = 60.0  # when the process that started a trainer is killed, the trainer lives on for some seconds
_LOOK_S = 0.2
# Errors that only a person can remove. Other errors, such as a network filesystem's, may pass.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def only_job(directory: Any, stop: StopRequest, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Lock a directory (an epath.Path) for this job; the system releases the lock when the process ends, however.

    stop: ends the wait for another job that holds the lock; the wait takes wait_s at most. A URL is not locked: object
    stores have no locks. Some network filesystems have none, either.

    Raises: HeldError if another job holds the lock; RefusedError if the directory cannot be written.
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
                    f"another job ({file.read()}) trains into {directory}; two jobs would write the same steps, and "
                    "remove each other's unfinished steps. Stop it (`ray job stop`), or give another --checkpoint-dir"
                )
            time.sleep(_LOOK_S)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _opened(directory: Any) -> Any:
    """The open file of the lock. Raises: RefusedError if the directory cannot be written."""
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
    """Whether this process has the lock now. True also on a filesystem without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
