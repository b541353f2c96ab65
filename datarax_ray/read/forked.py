"""Refusing to go on in a process that was forked off: threads, locks and connections are of the one that made them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from datarax_ray.read.waits import wait

# What a transform takes for a block is rarely more, and then a person wants to know.
_TELL_AFTER_S = 30.0


class ForkedError(Exception):
    """Used in a process that was forked off. No RuntimeError, which readers raise for broken records, to be skipped."""


def check_not_forked(made_in: int, what: str) -> None:
    """Raise ForkedError where this is another process than the one with the id `made_in`, which made `what`."""
    if os.getpid() != made_in:
        raise ForkedError(
            f"{what} belongs to process {made_in}, and this is process {os.getpid()}, forked off from it without "
            "its threads: it would wait for ever, or crash. Make sources and pipelines in this process, started "
            'by multiprocessing\'s "spawn" method; a state of the other one goes on here'
        )


class ThreadLock:
    """A lock for the threads of one process; one that is forked off, or unpickles it, has its own, held by nobody.

    The thread that holds it may take it again: a signal's handler runs in the middle of whatever the thread is at.
    what: it is of, where that is code of a user's: a long wait is told. Raises: DeadlockError where who holds it waits
    for the thread that asks.
    """

    def __init__(self, what: str | None = None) -> None:
        self._what = what
        self._begin()

    def _begin(self) -> None:
        self._made_in = os.getpid()
        self._lock = threading.RLock()
        self._holders: list[int] = []  # the thread that holds it, once for each time that it took it

    def __enter__(self) -> None:
        if self._made_in != os.getpid():
            self._begin()
        if not self._lock.acquire(blocking=False):
            tell_after_s = float("inf") if self._what is None else _TELL_AFTER_S
            wait(
                lambda timeout_s: self._lock.acquire(timeout=timeout_s),
                self._what or "a lock",
                lambda: next(iter(self._holders), None),
                tell_after_s,
            )
        self._holders.append(threading.get_ident())

    def __exit__(self, *raised: object) -> None:
        self._holders.pop()
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._what,)


_FINDING = ThreadLock()
_LOCKS: weakref.WeakValueDictionary[int, ThreadLock] = weakref.WeakValueDictionary()  # by the id of what each is of


def lock_of(value: Any) -> ThreadLock:
    """The lock of an object, the same for all who have that: for code of a user's, which others may run as well.

    Who asks keeps both, the object and its lock.
    """
    with _FINDING:
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        return _LOCKS.setdefault(id(value), ThreadLock(f"the lock of {name}"))


class OneProcess:
    """What starts threads in the first process that uses it, and is of no use to those forked off from that."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._used_in: int | None = None

    def check(self) -> None:
        """Before each use. Raises: ForkedError in a process that was forked off after the first."""
        self._used_in = self._used_in or os.getpid()
        check_not_forked(self._used_in, self._what)
