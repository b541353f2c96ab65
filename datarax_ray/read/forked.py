"""Locks of threads and forked processes: threads, locks and connections belong to the process that made them."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from typing import Any

logger = logging.getLogger("datarax_ray")

# What a transform takes for a block is rarely more, and then a person wants to know.
_TELL_AFTER_S = 30.0


class ForkedError(Exception):
    """Used in a forked process. No RuntimeError, which readers raise for broken records, to be skipped."""


def check_not_forked(made_in: int, what: str) -> None:
    """Raise ForkedError where this is another process than the one with the id `made_in`, which made `what`."""
    if os.getpid() != made_in:
        raise ForkedError(
            f"{what} belongs to process {made_in}, and this is process {os.getpid()}, forked off from it without "
            "its threads: it would wait for ever, or crash. Make sources and pipelines in this process, started "
            'by multiprocessing\'s "spawn" method; a state of the other one goes on here'
        )


class ThreadLock:
    """A lock for the threads of one process. A forked process, or one that unpickles it, has a free lock of its own.

    The thread that holds it may take it again: a signal's handler runs in the middle of whatever the thread does.
    what: what the lock is of, where that is a user's code: a wait of 30 s is logged with the line that the holder is
        at. Two streams that share a transform, and of which one reads the other, would wait for each other for ever.
    """

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._begin()

    def _begin(self) -> None:
        self._made_in = os.getpid()
        self._lock = threading.RLock()
        self._holder: int | None = None  # the thread that took it last

    def __enter__(self) -> None:
        if self._made_in != os.getpid():
            self._begin()
        if not self._lock.acquire(timeout=-1 if self._what is None else _TELL_AFTER_S):
            logger.warning(
                "thread %s has waited %g s for %s, held %s; it waits on. Where two streams that read from each other "
                "share a transform, give each its own: copy.deepcopy(transform)",
                threading.current_thread().name,
                _TELL_AFTER_S,
                self._what,
                _place_of(self._holder),
            )
            self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._what,)


def _place_of(thread: int | None) -> str:
    """Where a thread is, for people."""
    name = next((each.name for each in threading.enumerate() if each.ident == thread), str(thread))
    frame = None if thread is None else sys._current_frames().get(thread)
    return f"by thread {name}" + ("" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}")


_FINDING = ThreadLock()
_LOCKS: weakref.WeakValueDictionary[int, ThreadLock] = weakref.WeakValueDictionary()  # by the id of each lock's object


def lock_of(value: Any) -> ThreadLock:
    """The lock of an object, the same for all who have the object: for a user's code, which several threads may run.

    The caller keeps both, the object and its lock.
    """
    with _FINDING:
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        return _LOCKS.setdefault(id(value), ThreadLock(f"the lock of {name}"))


class OneProcess:
    """What starts threads in the first process that uses it, and does not work in processes forked from that one."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._used_in: int | None = None

    def check(self) -> None:
        """Call before each use. Raises: ForkedError in a process that was forked after the first use."""
        self._used_in = self._used_in or os.getpid()
        check_not_forked(self._used_in, self._what)
