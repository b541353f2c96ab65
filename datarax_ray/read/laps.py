"""Laps: what the time of a read goes into. Each second counts once, for the innermost lap that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Laps:
    """The laps of one thread.

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
        self._since = clock()

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """What runs in it counts for this name."""
        outer = self._name
        self._go_to(name)
        try:
            yield
        finally:
            self._go_to(outer)

    def _go_to(self, name: str | None) -> None:
        now = self._clock()
        if self._name is not None:
            self.spent[self._name] = self.spent.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now


_OF_THIS_READ: ContextVar[Laps | None] = ContextVar("datarax_ray_laps", default=None)


@contextmanager
def counted() -> Iterator[Laps]:
    """Laps for all that this thread reads meanwhile."""
    laps = Laps()
    token = _OF_THIS_READ.set(laps)
    try:
        yield laps
    finally:
        _OF_THIS_READ.reset(token)


@contextmanager
def lap(name: str) -> Iterator[None]:
    """What runs in it counts for this name, where anybody counts."""
    laps = _OF_THIS_READ.get()
    if laps is None:
        yield
        return
    with laps.lap(name):
        yield
