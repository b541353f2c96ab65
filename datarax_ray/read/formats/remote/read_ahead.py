"""Reads that are expected: their bytes are asked for before they come, in their order, as far as there is room.

Only the wait depends on it: an expected read may never come, and a read that comes need not have been expected.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.remote.mirrors import Ahead, Mirrors

_MAX_EXPECTED = 64  # reads; far more than one trainer has in flight from one actor


@dataclass(eq=False)
class Expected:
    """A read of these records that will come. parts: what it wants; None while nothing was asked for it."""

    records: Indices
    parts: list[Ahead] | None = None


class ReadAhead:
    """The reads that one reader expects. One thread at a time may call it; another may call `forget`.

    parts_of: what a read of some records wants, in the order in which it is to be asked for; each part has ascending
        indices within some files, as `Mirrors.fetch` takes them.
    """

    def __init__(self, mirrors: Mirrors, parts_of: Callable[[Indices], Iterable[Mapping[int, Indices]]]) -> None:
        self._mirrors = mirrors
        self._parts_of = parts_of
        self.expected: deque[Expected] = deque()

    def expect(self, records: Indices) -> None:
        expected = self.expected
        expected.append(Expected(records))
        if len(expected) > _MAX_EXPECTED:
            self._drop(expected.popleft())
        self.ask()

    @contextlib.contextmanager
    def reading(self, records: Indices) -> Iterator[None]:
        """Around a read of these records. Earlier expected reads have come, or will not come."""
        expected = self.expected
        number = next((i for i, read in enumerate(list(expected)) if np.array_equal(read.records, records)), -1)
        passed = [expected.popleft() for _ in range(number + 1)]
        for read in passed[:-1]:
            self._drop(read)
        try:
            yield
        finally:
            for read in passed[-1:]:
                self._drop(read)
            self.ask()

    def forget(self) -> None:
        """Nothing is expected any more; the mirrors are closed next."""
        self.expected = deque()  # a read that runs still holds the one before

    def _drop(self, read: Expected) -> None:
        for ahead in read.parts or []:
            self._mirrors.ahead.drop(ahead.runs)

    def ask(self) -> None:
        """Ask for the bytes of expected reads, in their order, until there is no room for more."""
        expected = self.expected
        with contextlib.suppress(Exception):  # the read itself meets it again, and raises it
            for read in list(expected):
                if read.parts is None:
                    read.parts = [Ahead(part) for part in self._parts_of(read.records)]
                if not all(map(self._mirrors.ask_ahead, read.parts)):
                    break
        while expected is not self.expected and expected:  # another thread closed it, perhaps before this was asked
            self._drop(expected.popleft())
