"""Items made ahead of use, in a thread of their own.

One worker takes one item after the other, so what it returns is in order, and an error comes in its place. The thread
is a daemon: a program that ends, or is interrupted, does not wait long for an item that nobody will use.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from datarax_ray.read.forked import check_not_forked

T = TypeVar("T")

# How long a program that ends waits for items that are being made. Python ends a daemon thread where it asks for the
# interpreter again; below C++, as in a transfer to the device, that aborts the process (python/cpython#87135).
_EXIT_S = 1.0
_OPEN: weakref.WeakSet[BackgroundIterator[Any]] = weakref.WeakSet()


class BackgroundIterator(Generic[T]):
    """One run through a generator whose last item says itself that it is the last.

    ahead: items made while one is in use; 0 for none, then an item is made when it is asked for.
    cancelled: set when nobody wants more items, for a generator that waits and can look.
    """

    def __init__(self, items: Generator[T, None, None], ahead: int, cancelled: threading.Event | None = None) -> None:
        self._made_in = os.getpid()
        self._items = items
        self._ahead = ahead
        self._cancelled = cancelled or threading.Event()
        self._asked: queue.SimpleQueue[Future[T | None] | None] = queue.SimpleQueue()
        self._at_end: Callable[[], None] | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._pending: deque[Future[T | None]] = deque()
        _OPEN.add(self)
        threading.Thread(target=self._work, name="datarax_ray-prefetch", daemon=True).start()

    def next(self) -> T:
        """The next item, or the error that came in its place.

        Raises: RuntimeError once it is closed; ForkedError in a process without its thread.
        """
        check_not_forked(self._made_in, "what makes the batches")
        while len(self._pending) < max(1, self._ahead):
            self._submit()
        item = self._pending[0].result()  # it stays in line where the wait is interrupted
        self._pending.popleft()
        if item is None:
            raise RuntimeError("the stream has ended before")
        if self._ahead:  # begin the next before the caller is busy with this one
            self._submit()
        return item

    @property
    def is_waiting(self) -> bool:
        """Whether the next item is still being made."""
        return bool(self._pending) and not self._pending[0].done()

    def cancel(self) -> None:
        """Drop what was made ahead, as `close` does, and wait for nothing."""
        if os.getpid() == self._made_in:
            self._cancelled.set()
            self._asked.put(None)

    def close(self, timeout_s: float | None, then: Callable[[], None] | None = None) -> bool:
        """Drop what was made ahead; the generator is closed in its thread once the item that is being made is done.

        timeout_s: how long to wait for that, None for as long as it takes. then: called after that, here or, where the
        wait was too short, in the thread. Returns whether it is over. In a forked process nothing is done.
        """
        if os.getpid() != self._made_in:
            return True
        self.cancel()
        is_over = self._is_over.wait(timeout_s)
        with self._lock:
            is_over = is_over or self._is_over.is_set()
            if not is_over:
                self._at_end = then
        if is_over and then is not None:
            then()
        return is_over

    def _submit(self) -> None:
        future: Future[T | None] = Future()
        self._pending.append(future)
        self._asked.put(future)
        if self._cancelled.is_set():  # by another thread, or a signal's handler: it may stand behind the end
            self._refuse()

    def _refuse(self) -> None:
        """Answer what is asked for and that nobody makes. No lock, which a signal's handler would wait for."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (future := self._asked.get_nowait()) is not None:
                    future.set_exception(_closed())
        self._asked.put(None)

    def _work(self) -> None:
        while (future := self._asked.get()) is not None:
            try:
                if self._cancelled.is_set():
                    raise _closed()
                future.set_result(next(self._items, None))
            except BaseException as error:  # raised where the item is asked for
                future.set_exception(error)
            del future  # or it keeps its item until the next one is asked for
        try:
            self._items.close()
        finally:
            with self._lock:
                self._is_over.set()
            if self._at_end is not None:
                self._at_end()


@atexit.register
def _end() -> None:
    found = [ahead for ahead in _OPEN if ahead._made_in == os.getpid()]
    for ahead in found:
        ahead.cancel()
    deadline = time.monotonic() + _EXIT_S
    for ahead in found:
        ahead._is_over.wait(max(0.0, deadline - time.monotonic()))


def _closed() -> RuntimeError:
    return RuntimeError("what makes the batches was closed, by another thread or a signal, while one was asked for")
