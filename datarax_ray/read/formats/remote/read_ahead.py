"""Reads that are expected: what they want is asked for before they come, in their order, as far as there is room.

Only the wait depends on it: a read that is expected may never come, and one that comes need not have been expected.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.remote.mirrors import Mirrors
from datarax_ray.read.formats.remote.pages_ahead import Ahead

_MAX_EXPECTED = 64  # reads; far more than one trainer has in flight from one actor


@dataclass(eq=False)
class Expected:
    """A read that will come.

    records: of it, as it will name them.
    aheads: what is asked for it ahead; None where there was no room yet.
    """

    records: Indices
    aheads: list[Ahead] | None = None


class ReadAhead:
    """The reads that one reader expects. One thread at a time may call it; another may call `forget`.

    parts: what a read of some records wants, in the order in which it is to be asked for; each part has ascending
        indices within some files, as `Mirrors.fetch` takes them.
    """

    def __init__(self, mirrors: Mirrors, parts: Callable[[Indices], Iterable[Mapping[int, Indices]]]) -> None:
        self._mirrors = mirrors
        self._parts = parts
        self.expected: deque[Expected] = deque()

    def expect(self, records: Indices) -> None:
        """These records will be read soon, by one read, after those that were expected before."""
        expected = self.expected
        expected.append(Expected(records))
        if len(expected) > _MAX_EXPECTED:
            self._forget_first(expected)
        self._look_ahead()

    @contextlib.contextmanager
    def reading(self, records: Indices) -> Iterator[None]:
        """Around a read of these records: reads that were expected before it have come, or will not."""
        aheads = self._taken(records)
        try:
            yield
        finally:
            for ahead in aheads:
                self._mirrors.ahead.drop(ahead)
            self._look_ahead()

    def forget(self) -> None:
        """Nothing is expected any more; the mirrors are closed next."""
        self.expected = deque()  # a read that runs still holds the other one

    def _taken(self, records: Indices) -> list[Ahead]:
        expected = self.expected
        for number, read in enumerate(list(expected)):
            if np.array_equal(read.records[:1], records[:1]) and np.array_equal(read.records, records):
                for _ in range(number):
                    self._forget_first(expected)
                return expected.popleft().aheads or []
        return []

    def _forget_first(self, expected: deque[Expected]) -> None:
        for ahead in expected.popleft().aheads or []:
            self._mirrors.ahead.drop(ahead)

    def _look_ahead(self) -> None:
        """Ask for what is expected, in that order, until there is no room for more."""
        expected = self.expected
        with contextlib.suppress(Exception):  # the read itself meets it again, and raises it
            for read in list(expected):
                if read.aheads is None:
                    read.aheads = [Ahead(part) for part in self._parts(read.records)]
                if not all(map(self._mirrors.ask_ahead, read.aheads)):
                    break
        while expected is not self.expected and expected:  # another thread closed it, perhaps before this was asked
            self._forget_first(expected)
