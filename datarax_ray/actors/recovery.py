"""Recoveries: what was lost, said when it is, what came back, and what else befell a pool.

Each is one count, one more of Ray's metric `datarax_ray_recoveries` by its kind, which Prometheus knows as
ray_datarax_ray_recoveries_total, and one log line, which carries it as data for logs of JSON (`record.event`).
But for a loss, of which the line that ends it tells again, each is listed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.util.metrics import Counter as Metric

logger = logging.getLogger("datarax_ray")

# The counts go on; the list is for people, and for tests.
_MAX_LISTED = 1000


@dataclass(frozen=True)
class Recovery:
    """One loss and its end, or what needs none.

    kind: "restarted" where Ray brought the actor back, "replaced" where another one took its place, "answered" where it
        had only been silent, "hung" where it was killed for a request that took too long, "reread" where only an object
        was gone, "benched" where its node failed at what others could read, "drained" where that is about to go,
        "stalled" where a stream has waited long, "resized" where actors were added or removed.
    actor: -1 for none alone.
    where: the actor, its process and node.
    reason: what Ray, the clock, the node or who resizes said.
    took_s: from the notice to the return; the others read meanwhile.
    num_retried: requests asked for again.
    """

    kind: str
    actor: int
    where: str
    reason: str
    took_s: float = 0.0
    num_retried: int = 0


class Recoveries:
    """All of them since the pool was made: counts by kind, and the last ones. num_lost: actors, back by now or not."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_retried = 0
        self.num_lost = 0
        self.last: deque[Recovery] = deque(maxlen=_MAX_LISTED)
        self._metric = Metric(
            "datarax_ray_recoveries", "What befell readers of datarax_ray: losses, returns, stalls", ("kind",)
        )

    def __repr__(self) -> str:
        return f"Recoveries(num_lost={self.num_lost}, num_retried={self.num_retried}, counts={dict(self.counts)})"

    def lost(self, actor: int, where: str, reason: str, num_running: int, num_actors: int) -> None:
        """An actor has gone; what it is called when it is back is not known yet."""
        self.num_lost += 1
        self._metric.inc(tags={"kind": "lost"})
        logger.warning(
            "reader actor %d (%s) is lost, %d of %d still run: %s",
            actor,
            where,
            num_running,
            num_actors,
            reason,
            extra=_event("lost", where, reason, [actor]),
        )

    def benched(self, actors: Sequence[int], node: str, reason: str, lasts_s: float) -> None:
        """A node failed at what another could read, and its actors are asked for nothing for so long."""
        self._tell(
            Recovery("benched", -1, f"node {node}", reason),
            actors,
            "node %s is benched for %.0f s: it failed at what another node could read; others read for its actors %s; "
            "is something missing there, a mount or a package? It said: %s",
            (node, lasts_s, list(actors), reason),
        )

    def drained(self, actors: Sequence[int], node: str) -> None:
        """A node is about to go, and its actors are asked for nothing more."""
        self._tell(
            Recovery("drained", -1, f"node {node}", "the node is about to go"),
            actors,
            "node %s is about to go (it drains); others read for its actors %s",
            (node, list(actors)),
        )

    def stalled(self, said: str) -> None:
        """A stream has waited long for a batch."""
        self._tell(Recovery("stalled", -1, "", said), (), "%s", (said,))

    def resized(self, num_before: int, num_actors: int, reason: str) -> None:
        """There are to be more actors, or fewer."""
        said = f"{num_before} -> {num_actors}; {reason}"
        self._tell(Recovery("resized", -1, "", said), (), "reader actors: %s", (said,), logging.INFO)

    def add(self, its: Recovery) -> None:
        self.num_retried += its.num_retried
        self._tell(
            its,
            [its.actor],
            "reader actor %d %s, %.1f s after its loss was noticed; %d requests were asked for again; it is now %s; "
            "reason: %s",
            (its.actor, its.kind, its.took_s, its.num_retried, its.where, its.reason),
            took_s=its.took_s,
            num_retried=its.num_retried,
        )

    def _tell(
        self,
        its: Recovery,
        actors: Sequence[int],
        said: str,
        args: tuple[Any, ...],
        level: int = logging.WARNING,
        **more: float,
    ) -> None:
        """Count it, list it for each of these actors, or once for none alone, and log it."""
        self.counts[its.kind] += 1
        self._metric.inc(tags={"kind": its.kind})
        self.last += [replace(its, actor=actor) for actor in actors or [-1]]
        logger.log(level, said, *args, extra=_event(its.kind, its.where, its.reason, actors, **more))


def _event(kind: str, where: str, reason: str, actors: Sequence[int] = (), **more: float) -> dict[str, Any]:
    """What a log line carries beside its text, in plain values; see Recovery. actors: whom it befell."""
    return {"event": {"kind": kind, "actors": list(actors), "where": where, "reason": reason, **more}}
