"""The time of a reading process, by name of the activity, and counts of its work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

# Of this process: requests that were asked again, of any storage.
repeats: Counter[str] = Counter()


@dataclass(frozen=True)
class WorkDone:
    """The work of an actor since it began, for all that read with it.

    process: of the actor; another one may take its place.
    num_blocks, num_elements, read_s: blocks, their elements, and seconds of reading.
    num_retries: requests to a storage that it asked again.
    num_from_memory, num_from_storage: records that cacheable=True found in memory, and that it read.
    max_rss_nbytes: the most memory that the process has had.
    """

    process: str
    num_blocks: int
    num_elements: int
    read_s: float
    num_retries: int = 0
    num_from_memory: int = 0
    num_from_storage: int = 0
    max_rss_nbytes: int = 0

    def is_older(self, other: WorkDone) -> bool:
        """Whether this is the work of the same process at an earlier time."""
        return self.process == other.process and self.num_blocks < other.num_blocks


class Laps:
    """The laps of one thread. Each second counts once, for the innermost lap at the time.

    >>> now = iter(range(10)).__next__
    >>> laps = Laps(now)
    >>> with laps.lap("reading"):
    ...     with laps.lap("storage"):
    ...         pass
    >>> laps.spent
    {'reading': 2.0, 'storage': 1.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.spent: dict[str, float] = {}
        self._clock = clock
        self._name: str | None = None
        self._outer: list[str | None] = []
        self._since = clock()

    def lap(self, name: str) -> Self:
        """Begin to count time for the name; the `with` block that this opens ends it."""
        self._outer.append(self._name)  # no generator: there are two laps for a batch, and many for an element
        self._go_to(name)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._go_to(self._outer.pop())

    def divide(self, name: str, parts: Iterable[tuple[str, float]]) -> None:
        """Divide the seconds of a name between these, in proportion to their numbers."""
        parts = list(parts)
        if whole := sum(number for _, number in parts):
            each_s = self.spent.pop(name) / whole
            for part, number in parts:
                self.spent[part] = self.spent.get(part, 0.0) + number * each_s

    def _go_to(self, name: str | None) -> None:
        now = self._clock()
        if self._name is not None:
            self.spent[self._name] = self.spent.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now


_OF_THIS_READ: ContextVar[Laps | None] = ContextVar("datarax_ray_laps", default=None)


@contextmanager
def counted() -> Iterator[Laps]:
    """Laps for all that this thread reads in the `with` block."""
    laps = Laps()
    token = _OF_THIS_READ.set(laps)
    try:
        yield laps
    finally:
        _OF_THIS_READ.reset(token)


@contextmanager
def lap(name: str) -> Iterator[None]:
    """Count the time of this `with` block for the name, where the read is counted."""
    laps = _OF_THIS_READ.get()
    if laps is None:
        yield
        return
    with laps.lap(name):
        yield


@contextmanager
def laps_of(names: Sequence[str]) -> Iterator[list[float] | None]:
    """Count the time of this `with` block for several names, which take turns in it.

    The block adds the seconds of a sample of its turns to the list, one number for each name. None: no sample is
    wanted.
    """
    laps, name, seconds = _OF_THIS_READ.get(), ", ".join(names), [0.0] * len(names)
    with lap(name):
        yield None if laps is None or len(names) == 1 else seconds
    if laps is not None:
        laps.divide(name, zip(names, seconds, strict=True))
