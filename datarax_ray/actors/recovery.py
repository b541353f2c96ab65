"""Recoveries: what was lost and came back, one record and one log line each."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass

logger = logging.getLogger("datarax_ray")

# The counts go on; the list is for people, and for tests.
_MAX_LISTED = 1000


@dataclass(frozen=True)
class Recovery:
    """One loss and its end.

    kind: "restarted" where Ray brought the actor back, "replaced" where another one took its place, "answered" where it
    had only been silent, "hung" where it was killed for a ticket that took too long, "reread" where only an object was
    gone. where: the actor, its process and node. reason: what Ray or the clock said. took_s: from the notice to the
    return; the others read meanwhile. num_retried: tickets asked for again.
    """

    kind: str
    actor: int
    where: str
    reason: str
    took_s: float
    num_retried: int


class Recoveries:
    """All of them since the pool was made: counts by kind, and the last ones."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_retried = 0
        self.last: deque[Recovery] = deque(maxlen=_MAX_LISTED)

    def add(self, recovery: Recovery) -> None:
        self.counts[recovery.kind] += 1
        self.num_retried += recovery.num_retried
        self.last.append(recovery)
        logger.warning(
            "reader actor %d %s after %.1f s, %d tickets were asked for again; it is now %s; reason: %s",
            recovery.actor,
            recovery.kind,
            recovery.took_s,
            recovery.num_retried,
            recovery.where,
            recovery.reason,
        )
