"""Items made ahead of use, in a thread of their own.

One worker makes one item after the other, so items are in order, and an error comes in its place. The thread is a
daemon: a program that ends, or is interrupted, does not wait long for an item that nobody will use.

A signal's handler may raise between any two steps of Python, also inside a Condition, which then keeps its lock for
ever, and the other thread waits for the lock. So threads wait for an Occurrence here, never for a Condition.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from datarax_ray.read.forked import check_not_forked

T = TypeVar("T")

# How long a program that ends waits for items that are being made. Python ends a daemon thread where it asks for the
# interpreter again; below C++, as in a transfer to the device, that aborts the process (python/cpython#87135).
_EXIT_S = 1.0
# Items at hand are handed over in groups: waking the other thread costs as much as making a small batch.
_GROUP_S, _MAX_GROUP = 0.004, 16
_OPEN: weakref.WeakSet[_Worker[Any]] = weakref.WeakSet()


class Occurrence:
    """As threading.Event, set once; but a wait may be interrupted at any step, and setting it waits for nobody."""

    def __init__(self) -> None:
        self.is_set = False
        self._until = threading.Lock()
        self._until.acquire()

    def set(self) -> None:
        """Once, by one thread."""
        self.is_set = True  # first: who is interrupted as it has the lock may keep it
        self._until.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns whether it is set. timeout_s: None for as long as it takes."""
        if not self.is_set and self._until.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._until.release()  # for others that wait
        return self.is_set


class _Item(Occurrence, Generic[T]):
    """An item to be made. It is set once the item is made, or once `error` was raised in its place.

    group: the items that were made together with this one, with a copy of this one first; () where it is alone.
    """

    is_asked = False
    made: T | None = None
    error: BaseException | None = None
    group: tuple[_Item[T], ...] = ()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.set()


class _Done(_Item[T]):
    """An item of a group."""

    is_asked = is_set = True

    def __init__(self, made: T | None = None, error: BaseException | None = None) -> None:
        self.made, self.error = made, error


@dataclass
class Cancelled:
    """Set once nobody wants more items, for a generator that waits and can look.

    is_next_at_hand: set by the generator where the item behind the one that it yields needs no wait.
    """

    is_set: bool = False
    is_next_at_hand: bool = False


class _Worker(Generic[T]):
    """The thread's part. It does not refer to the iterator, so an iterator that nobody holds ends the thread."""

    def __init__(self, items: Generator[T, None, None], cancelled: Cancelled, *, is_ahead: bool) -> None:
        self.made_in = os.getpid()
        self.asked: queue.SimpleQueue[_Item[T] | None] = queue.SimpleQueue()
        self.cancelled = cancelled
        self.is_over = Occurrence()
        self.at_end: Callable[[], None] | None = None
        self.lock = threading.Lock()
        self._items = items
        self._is_ahead = is_ahead

    def run(self) -> None:
        while (item := self.asked.get()) is not None:
            if not item.is_set:
                try:
                    if self.cancelled.is_set:
                        raise _closed()
                    until = time.perf_counter() + _GROUP_S
                    item.made = next(self._items, None)
                    if self._is_ahead and self.cancelled.is_next_at_hand:
                        item.group = self._group(item.made, until)
                    item.set()
                except BaseException as error:  # raised where the item is asked for
                    item.fail(error)
            del item  # or it keeps what was made until the next one is asked for
        try:
            self._items.close()
        finally:
            with self.lock:
                self.is_over.set()
            if self.at_end is not None:
                self.at_end()

    def _group(self, first: T | None, until: float) -> tuple[_Item[T], ...]:
        """The first item, and those at hand that are made until then; an error ends the group."""
        group: list[_Item[T]] = [_Done(first)]
        try:
            while self.cancelled.is_next_at_hand and len(group) < _MAX_GROUP and time.perf_counter() < until:
                if self.cancelled.is_set or (made := next(self._items, None)) is None:
                    break
                group.append(_Done(made))
        except BaseException as error:
            group.append(_Done(error=error))
        return tuple(group) if len(group) > 1 else ()

    def cancel(self) -> None:
        """Drop what was made ahead. Waits for nothing, and takes no lock. In a forked process nothing is done."""
        if os.getpid() == self.made_in:
            self.cancelled.is_set = True
            self.asked.put(None)

    def refuse(self) -> None:
        """Answer what is asked for and that nobody makes. No lock, which a signal's handler would wait for."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self.asked.get_nowait()) is not None and not item.is_set:
                    item.fail(_closed())
        self.asked.put(None)


class BackgroundIterator(Generic[T]):
    """One run through a generator whose last item says itself that it is the last. One that is dropped ends it.

    ahead: items made while one is in use; 0 for none, then an item is made when it is asked for. Up to 16 items at
        hand that are made within 4 ms count as one.
    """

    def __init__(self, items: Generator[T, None, None], ahead: int, cancelled: Cancelled | None = None) -> None:
        self._ahead = ahead
        self._pending: list[_Item[T]] = []
        self._worker = _Worker(items, cancelled or Cancelled(), is_ahead=ahead > 0)
        _OPEN.add(self._worker)
        threading.Thread(target=self._worker.run, name="datarax_ray-prefetch", daemon=True).start()

    def begin(self) -> None:
        """Have the first made now, before anybody asks for it."""
        self._ask_for(max(1, self._ahead))

    def next(self) -> T:
        """The next item, or the error that came in its place. Where the wait is interrupted, the next is still that.

        Raises: RuntimeError once it is closed; ForkedError in a process without its thread.
        """
        made = self.look()
        self.taken()
        return made

    def look(self) -> T:
        """The next item, as `next` gives it; it stays the next item until `taken` is called."""
        check_not_forked(self._worker.made_in, "the maker of the batches")
        self.begin()
        item = self._pending[0]
        if not item.is_set:
            item.wait()
        if item.group:
            self._pending = [*item.group, *self._pending[1:]]  # in one step, which no signal comes between
            item = self._pending[0]
        if item.error is not None:
            raise item.error
        if item.made is None:
            raise RuntimeError("the stream has ended before")
        if self._ahead:  # begin the next before the caller is busy with this one
            self._ask_for(self._ahead + 1)
        return item.made

    def taken(self) -> None:
        """Event: the item is the caller's. One step, which no signal comes between."""
        self._pending = self._pending[1:]

    @property
    def is_waiting(self) -> bool:
        """Whether the next item is still being made."""
        return bool(self._pending) and not self._pending[0].is_set

    def close(self, timeout_s: float | None, then: Callable[[], None] | None = None) -> bool:
        """Drop what was made ahead; the generator is closed in its thread once the item that is being made is done.

        timeout_s: how long to wait for that, None for as long as it takes. then: called after that, here or, where the
        wait was too short, in the thread. Returns whether it is over. In a forked process nothing is done.
        """
        worker = self._worker
        if os.getpid() != worker.made_in:
            return True
        worker.cancel()
        is_over = worker.is_over.wait(timeout_s)
        with worker.lock:
            is_over = is_over or worker.is_over.is_set
            if not is_over:
                worker.at_end = then
        if is_over and then is not None:
            then()
        return is_over

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        worker = vars(self).get("_worker")  # none where an interrupt has kept it from being made
        if worker is not None and not is_finalizing():  # then its thread is gone, and half of Python too
            worker.cancel()

    def _ask_for(self, num_items: int) -> None:
        """Have so many in line. After an interrupt the next call asks for what was not, for one perhaps twice."""
        if (missing := num_items - len(self._pending)) > 0:
            self._pending = [*self._pending, *(_Item() for _ in range(missing))]
        pending = self._pending
        if not pending[-1].is_asked:
            num_asked = next((num for num in range(len(pending), 0, -1) if pending[num - 1].is_asked), 0)
            for item in pending[num_asked:]:
                self._worker.asked.put(item)
                item.is_asked = True
        if self._worker.cancelled.is_set:  # by another thread, or a signal's handler: they may stand behind the end
            self._worker.refuse()


@atexit.register
def _end() -> None:
    found = [worker for worker in _OPEN if worker.made_in == os.getpid()]
    for worker in found:
        worker.cancel()
    deadline = time.monotonic() + _EXIT_S
    for worker in found:
        worker.is_over.wait(max(0.0, deadline - time.monotonic()))


def _closed() -> RuntimeError:
    return RuntimeError("the maker of the batches was closed, by another thread or a signal, during a request for one")
