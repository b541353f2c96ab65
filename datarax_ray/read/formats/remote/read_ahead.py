"""Reads that were told of before they come: what they want is asked for meanwhile, in that order, as far as room goes.

Nothing but the wait depends on it: what is told may never be read, and what is read may never have been told.
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
    """A read that will come. aheads: what is asked for it before, None where there was no room yet."""

    records: Indices
    aheads: list[Ahead] | None = None


class ReadAhead:
    """Of one reader, which calls it for one thread at a time; another may call `forget`.

    parts: of what a read of these records wants, in the order in which it is to be asked for: for each of some files
    ascending indices within it, as `Mirrors.fetch` takes them.
    """

    def __init__(self, mirrors: Mirrors, parts: Callable[[Indices], Iterable[Mapping[int, Indices]]]) -> None:
        self._mirrors = mirrors
        self._parts = parts
        self.expected: deque[Expected] = deque()

    def expect(self, records: Indices) -> None:
        """These will be read soon, at once, after what was expected before."""
        expected = self.expected
        expected.append(Expected(records))
        if len(expected) > _MAX_EXPECTED:
            self._forget_first(expected)
        self._look_ahead()

    @contextlib.contextmanager
    def reading(self, records: Indices) -> Iterator[None]:
        """Around a read of these: those that were expected before it have come, or will not."""
        aheads = self._taken(records)
        try:
            yield
        finally:
            for ahead in aheads:
                self._mirrors.ahead.drop(ahead)
            self._look_ahead()

    def forget(self) -> None:
        """Nothing is expected any more; the mirrors are closed next."""
        self.expected = deque()  # a read that runs has its own hold of the other

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
        with contextlib.suppress(Exception):  # it comes again where it is read, and is told then
            for read in list(expected):
                if read.aheads is None:
                    read.aheads = [Ahead(part) for part in self._parts(read.records)]
                if not all(map(self._mirrors.ask_ahead, read.aheads)):
                    break
        while expected is not self.expected and expected:  # another thread closed it, perhaps before this was asked
            self._forget_first(expected)
