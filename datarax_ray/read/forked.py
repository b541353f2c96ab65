"""Locks of threads and forked processes: threads, locks and connections belong to the process that made them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class ForkedError(Exception):
    """Used in a forked process. No RuntimeError, which readers raise for broken records, to be skipped."""


def check_not_forked(made_in: int, what: str) -> None:
    if os.getpid() != made_in:
        raise ForkedError(
            f"{what} belongs to process {made_in}, and this is process {os.getpid()}, forked off from it without "
            "its threads: it would wait for ever, or crash. Make sources and pipelines in this process, started "
            'by multiprocessing\'s "spawn" method; a state of the other one goes on here'
        )


class ThreadLock:
    """A lock for the threads of one process. A process that forks or unpickles it gets a new, free lock.

    The thread that holds it may take it again: a signal's handler runs in the middle of whatever the thread does.
    """

    def __init__(self) -> None:
        self._made_in = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._made_in != os.getpid():
            self.__init__()  # type: ignore[misc]
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadLock, ()


_FINDING = ThreadLock()
_LOCKS: weakref.WeakValueDictionary[int, ThreadLock] = weakref.WeakValueDictionary()  # by the id of each lock's object


def lock_of(value: Any) -> ThreadLock:
    """The lock of an object, the same for all who have the object: for a user's code, which several threads may run.

    The caller keeps both, the object and its lock.
    """
    with _FINDING:
        return _LOCKS.setdefault(id(value), ThreadLock())


class OneProcess:
    """A library that starts threads when it is first used, and fails in processes that are forked later."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._used_in: int | None = None

    def check(self) -> None:
        """Call before each use. Raises: ForkedError in a process that was forked after the first use."""
        self._used_in = self._used_in or os.getpid()
        check_not_forked(self._used_in, self._what)
