"""Recoveries: what was lost, said when it is, and what came back, one record and one log line each."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger("datarax_ray")

# The counts go on; the list is for people, and for tests.
_MAX_LISTED = 1000


@dataclass(frozen=True)
class Recovery:
    """One loss and its end.

    kind: "restarted" where Ray brought the actor back, "replaced" where another one took its place, "answered" where it
    had only been silent, "hung" where it was killed for a request that took too long, "reread" where only an object was
    gone, "benched" where its node failed at what others could read. where: the actor, its process and node. reason:
    what Ray, the clock or the node said. took_s: from the notice to the return; the others read meanwhile. num_retried:
    requests asked for again.
    """

    kind: str
    actor: int
    where: str
    reason: str
    took_s: float
    num_retried: int


class Recoveries:
    """All of them since the pool was made: counts by kind, and the last ones. num_lost: actors, back by now or not."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_retried = 0
        self.num_lost = 0
        self.last: deque[Recovery] = deque(maxlen=_MAX_LISTED)

    def __repr__(self) -> str:
        return f"Recoveries(num_lost={self.num_lost}, num_retried={self.num_retried}, counts={dict(self.counts)})"

    def lost(self, actor: int, where: str, reason: str, num_running: int, num_actors: int) -> None:
        """An actor has gone; what it is called when it is back is not known yet."""
        self.num_lost += 1
        logger.warning(
            "reader actor %d (%s) is lost, %d of %d still run: %s", actor, where, num_running, num_actors, reason
        )

    def benched(self, actors: Sequence[int], node: str, reason: str, lasts_s: float) -> None:
        """A node failed at what another could read, and its actors are asked for nothing for so long."""
        self.counts["benched"] += 1
        self.last += [Recovery("benched", actor, f"node {node}", reason, 0.0, 0) for actor in actors]
        logger.warning(
            "node %s is benched for %.0f s: it failed at what another node could read; others read for its actors %s; "
            "is something missing there, a mount or a package? It said: %s",
            node,
            lasts_s,
            list(actors),
            reason,
        )

    def add(self, recovery: Recovery) -> None:
        self.counts[recovery.kind] += 1
        self.num_retried += recovery.num_retried
        self.last.append(recovery)
        logger.warning(
            "reader actor %d %s after %.1f s, %d requests were asked for again; it is now %s; reason: %s",
            recovery.actor,
            recovery.kind,
            recovery.took_s,
            recovery.num_retried,
            recovery.where,
            recovery.reason,
        )
