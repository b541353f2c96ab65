"""The bench: nodes that are asked for nothing for a while, as they failed at what others could read, or for as long as
they are, as they are about to go. Nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass

# A mount comes back in seconds or hours; to find out costs one request that is read twice.
FIRST_S = 30.0
MOST_S = 1800.0


@dataclass(frozen=True)
class _Stay:
    until: float
    lasts_s: float


class Bench:
    """Who sits on it. Times are those of any clock, in seconds; each stay of a node that fails again lasts longer."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._stays: dict[str, _Stay] = {}
        self._draining: frozenset[str] = frozenset()

    def blame(self, node: str, now: float) -> float | None:
        """Event: the node failed where another did not. For how long it is benched; None where it is already.

        Twice as long as the last time, where that is over for no longer than it lasted.
        """
        last = self._stays.get(node)
        if last is not None and now < last.until:
            return None
        is_again = last is not None and now < last.until + last.lasts_s
        lasts_s = min(self._most_s, 2 * last.lasts_s) if last is not None and is_again else self._first_s
        self._stays[node] = _Stay(now + lasts_s, lasts_s)
        return lasts_s

    def drain(self, nodes: frozenset[str]) -> frozenset[str]:
        """Event: these are about to go, and no others. Returns those of which that was not known."""
        new, self._draining = nodes - self._draining, nodes
        return new

    def is_empty(self, now: float) -> bool:
        """Whether no node is benched at this time."""
        return not self._draining and all(now >= stay.until for stay in self._stays.values())

    def has(self, node: str, now: float) -> bool:
        """Whether the node is benched at this time."""
        return node in self._draining or (node in self._stays and now < self._stays[node].until)
