"""Items made ahead of use, in a thread of their own.

One worker takes one item after the other, so what it returns is in order, and an error comes in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """One run through a generator whose last item says itself that it is the last.

    ahead: items made while one is in use; 0 for none, then an item is made when it is asked for.
    """

    def __init__(self, items: Generator[T, None, None], ahead: int) -> None:
        self._items = items
        self._ahead = ahead
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="datarax_ray-prefetch")
        self._pending: deque[Future[T | None]] = deque()

    def next(self) -> T:
        """The next item, or the error that came in its place."""
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

    def close(self, wait: bool) -> None:
        """Drop what was made ahead, let the item that is being made end, and close the generator in its thread."""
        for future in self._pending:
            future.cancel()
        self._worker.submit(self._items.close)
        self._worker.shutdown(wait)

    def _submit(self) -> None:
        self._pending.append(self._worker.submit(next, self._items, None))
