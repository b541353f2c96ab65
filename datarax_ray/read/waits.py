"""Threads that wait for one another in a circle would do so for ever: each that waits for long looks for one.

A wait that is seen twice, the same object, went on in between. So whoever it was that held a lock at one of the looks
held it all the time, as it was waiting itself, and a circle of waits that is seen twice is one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from datarax_ray.read.errors import DeadlockError

logger = logging.getLogger("datarax_ray")

# Between two looks; also what a wait takes before it is one that others see: most are over by then.
_LOOK_EVERY_S = 0.1


@dataclass(eq=False)
class _Wait:
    what: str
    holder: Callable[[], int | None]


_WAITS: dict[int, _Wait] = {}  # what each thread waits for, by its id
os.register_at_fork(after_in_child=_WAITS.clear)  # of threads that are not there


def wait(
    until: Callable[[float], bool], what: str, holder: Callable[[], int | None], tell_after_s: float = float("inf")
) -> None:
    """Call `until` with a time in seconds, which it may wait for, until it says that what is waited for is there.

    holder: the thread that it waits for, as far as is known. tell_after_s: how long before the wait is logged.

    Raises: DeadlockError where that thread, or one that it waits for, waits for this one.
    """
    if until(_LOOK_EVERY_S):
        return
    thread = threading.get_ident()
    before, mine = _WAITS.get(thread), _Wait(what, holder)  # a signal's handler waits in the middle of a wait
    _WAITS[thread] = mine
    seen: list[_Wait] = []
    tell_at = time.monotonic() + tell_after_s
    try:
        while not until(_LOOK_EVERY_S):
            circle = _circle(mine, thread)
            if circle and circle == seen:
                raise DeadlockError(_said(circle))
            seen = circle
            if time.monotonic() > tell_at:
                tell_at = float("inf")
                logger.warning(
                    "thread %s has waited %g s for %s, which %s; it waits on",
                    threading.current_thread().name,
                    tell_after_s,
                    what,
                    _where(holder()),
                )
    finally:
        if before is None:
            del _WAITS[thread]
        else:
            _WAITS[thread] = before


def start(thread: threading.Thread) -> None:
    """Start it. An interrupt meanwhile comes out as it was raised.

    threading waits there for the thread with a Condition, which an interrupt may leave without its lock: then it
    raises "release unlocked lock" in the interrupt's place.
    """
    try:
        thread.start()
        return
    except RuntimeError as error:
        interrupt = error.__context__
        if interrupt is None or str(error) != "release unlocked lock":
            raise
    raise interrupt


def _circle(mine: _Wait, thread: int) -> list[_Wait]:
    """The waits from this one on, where they come back to this thread; else none."""
    found = [mine]
    while (holder := found[-1].holder()) != thread:
        following = None if holder is None else _WAITS.get(holder)
        if following is None or following in found:
            return []
        found.append(following)
    return found


def _said(circle: list[_Wait]) -> str:
    links = "; ".join(f"thread {_name(wait.holder())} is to give {wait.what}" for wait in circle)
    return (
        f"threads would wait for one another for ever: {links}. A transform, or a data source, takes from a stream "
        "that is read with one of the same objects, and one thread at a time uses these. Give each of the two streams "
        "objects of its own: copy.deepcopy(transform)"
    )


def _name(thread: int | None) -> str:
    return next((each.name for each in threading.enumerate() if each.ident == thread), str(thread))


def _where(thread: int | None) -> str:
    frame = None if thread is None else sys._current_frames().get(thread)
    if frame is None:
        return "no thread is known to have"
    return f"thread {_name(thread)} has, at {frame.f_code.co_filename}:{frame.f_lineno}"
