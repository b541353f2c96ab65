"""Turns: threads that take from one stream do so one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """A turn is a call that no other thread's overlaps. In a process that was forked off nobody has one."""

    def __init__(self) -> None:
        self._made_in = os.getpid()
        self._lock = threading.RLock()
        self._is_busy = False  # somebody takes, and holds the lock

    def alone(self, take: Callable[[], T]) -> T:
        """What `take` gives, while no other thread takes.

        A signal's handler runs in the thread that it interrupts, and would wait for itself. Raises: RuntimeError there.
        """
        if self._made_in != os.getpid():
            self._made_in, self._lock, self._is_busy = os.getpid(), threading.RLock(), False
        with self._lock:
            if self._is_busy:
                raise RuntimeError(
                    "a signal's handler asked for a batch while the program that it interrupts was taking one, which "
                    "goes on after it. Let the handler note that it ran, and look at that in the loop; states can be "
                    "taken in it"
                )
            try:
                self._is_busy = True
                return take()
            finally:  # nothing is called here: a handler that raises could come in between
                self._is_busy = False
