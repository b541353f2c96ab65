"""Gathering: whether enough actors run to begin, and whether any will. Nothing here waits or knows the time."""

from __future__ import annotations

import math
from collections.abc import Mapping

# Once one actor reads, the others get this long before the stream starts without them; they join when they are there.
GATHER_S = 5.0


def has_room(total: Mapping[str, float], free: Mapping[str, float], each: Mapping[str, float], num_actors: int) -> bool:
    """Whether actors that do not run yet are only being started: one more fits, or what is in use may be theirs.

    total, free: of the cluster, by resource. each: what one of num_actors reserves.

    >>> has_room({"CPU": 16}, {"CPU": 8}, {"CPU": 1}, num_actors=8)
    True
    >>> has_room({"CPU": 4}, {"CPU": 0}, {"CPU": 1}, num_actors=8)
    False
    """
    return all(
        free.get(name, 0.0) >= wanted or total.get(name, 0.0) >= wanted * num_actors for name, wanted in each.items()
    )


class Gathering:
    """Decides when to begin with the actors that run, and when to give up where none does.

    start_timeout_s: how long to wait where none runs.
    """

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._is_over = False
        self._first_at: float | None = None
        self._none_since: float | None = None
        self._asked_at = -math.inf

    def has_begun(self, now: float, num_ready: int, num_actors: int) -> bool:
        """Whether to read with these: all run, or the first has waited long enough for the others; then ever after."""
        self._none_since = None
        self._first_at = now if self._first_at is None else self._first_at
        self._is_over = self._is_over or num_ready == num_actors or now - self._first_at >= GATHER_S
        return self._is_over

    def waited_s(self, now: float) -> float | None:
        """Event: none runs. How long that has been so, once it is too long; who asks again after that waits again."""
        if self._none_since is None or now - self._asked_at > GATHER_S:  # nobody waited meanwhile
            self._none_since = now
        self._asked_at = now
        waited_s = now - self._none_since
        if waited_s <= self._start_timeout_s:
            return None
        self._none_since = None
        return waited_s
