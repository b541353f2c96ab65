"""When a stream begins with the running actors, and which nodes it asks. Pure: nothing here waits, reads a clock or
talks to Ray; times are in seconds of any clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Once one actor reads, the others get this long before the stream begins without them; they join when they run.
GATHER_S = 5.0
# After so long without an actor the log says why: processes start in less.
_LOG_AFTER_S = 10.0
# A mount comes back in seconds or hours; to find out costs one request that is read twice.
_FIRST_STAY_S, _LONGEST_STAY_S = 30.0, 1800.0


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node with these labels fits a label_selector of Ray.

    >>> [has_labels({"role": "cpu"}, {"role": wanted}) for wanted in ("cpu", "!cpu", "in(cpu, tpu)", "!in(tpu)")]
    [True, False, True, True]
    >>> has_labels({}, {"role": "cpu"}), has_labels({}, {"role": "!cpu"})
    (False, True)
    """
    for key, wanted in selector.items():
        named = wanted.removeprefix("!")
        values = named[3:-1].split(",") if named.startswith("in(") and named.endswith(")") else [named]
        if (labels.get(key) in [value.strip() for value in values]) == wanted.startswith("!"):
            return False
    return True


class StartQuorum:
    """Decides when to begin with the actors that run, and when to give up where none runs for start_timeout_s."""

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._is_over = False
        self._first_at: float | None = None
        self._none_since: float | None = None
        self._asked_at = -math.inf
        self._is_logged = False

    def has_begun(self, now: float, num_ready: int, num_actors: int) -> bool:
        """Whether to read: all actors run, or the first has waited GATHER_S for the others; then ever after."""
        self._none_since = None
        self._first_at = now if self._first_at is None else self._first_at
        self._is_over = self._is_over or num_ready == num_actors or now - self._first_at >= GATHER_S
        return self._is_over

    def waited(self, now: float) -> tuple[float, Literal["log", "end"]] | None:
        """Event: no actor runs. The time since then, once it is worth a log line, and once it is too long.

        After "end" the wait begins anew.
        """
        if self._none_since is None or now - self._asked_at > GATHER_S:  # nobody waited meanwhile
            self._none_since, self._is_logged = now, False
        self._asked_at = now
        waited_s = now - self._none_since
        if waited_s > self._start_timeout_s:
            self._none_since = None
            return waited_s, "end"
        if self._is_logged or waited_s < min(_LOG_AFTER_S, self._start_timeout_s / 2):
            return None
        self._is_logged = True
        return waited_s, "log"


@dataclass(frozen=True)
class _Stay:
    until: float
    lasts_s: float


class Bench:
    """The nodes without new requests: for a while after a failure where another node succeeded, or while they drain.

    A node that fails again stays twice as long.
    """

    def __init__(self, first_s: float = _FIRST_STAY_S, most_s: float = _LONGEST_STAY_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._stays: dict[str, _Stay] = {}
        self._draining: frozenset[str] = frozenset()

    def blame(self, node: str, now: float) -> float | None:
        """Event: the node failed where another did not. Returns how long it is benched, None if it is already.

        A node that did well for as long as its last stay begins with the first one again.
        """
        last = self._stays.get(node)
        if last is not None and now < last.until:
            return None
        is_again = last is not None and now < last.until + last.lasts_s
        lasts_s = min(self._most_s, 2 * last.lasts_s) if last is not None and is_again else self._first_s
        self._stays[node] = _Stay(now + lasts_s, lasts_s)
        return lasts_s

    def drain(self, nodes: frozenset[str]) -> frozenset[str]:
        """Event: exactly these nodes are about to go. Returns the nodes that are new among them."""
        new, self._draining = nodes - self._draining, nodes
        return new

    def is_empty(self, now: float) -> bool:
        return not self._draining and all(now >= stay.until for stay in self._stays.values())

    def has(self, node: str, now: float) -> bool:
        return node in self._draining or (node in self._stays and now < self._stays[node].until)
