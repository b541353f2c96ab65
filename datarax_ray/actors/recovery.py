"""The events of a pool, and where its time goes: log lines, counts, and Ray's metrics for Prometheus.

Each loss, return, stall and resize is one log line, one count and one more of `ray_datarax_ray_recoveries_total` by
kind. The line carries it as data as well, for logs of JSON (`record.event`). `ray_datarax_ray_records_total` counts
the records that trainers have taken, `ray_datarax_ray_seconds_total` seconds by `who` spent them and on `what`, and
`ray_datarax_ray_skipped_total` the records that on_error skipped, by `component`, `kind` and `file`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ray.util.metrics import Counter as Metric

from datarax_ray.feed.stats import PipelineStats, Timings

logger = logging.getLogger("datarax_ray")

_MAX_LISTED = 1000  # the list is for people; the counts go on
_OF_SKIPPED = ("component", "kind", "file")
_RECORDS, _SKIPPED, _COMPONENT = "records", "skipped", "component"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


@dataclass(frozen=True)
class Recovery:
    """One loss and its end, or another event of a pool.

    kind: "restarted" (Ray restarted the process), "replaced" (another actor took its place), "answered" (it was only
        silent), "hung" (killed for a request that took too long), "reread" (only a block was lost), "benched" (its node
        failed where another node succeeded), "drained" (its node is about to go), "stalled" (a stream waited long),
        "resized" (actors were added or removed).
    actor: -1 for the whole pool.
    where: the actor's process and node.
    reason: by Ray, the clock, the node, or whoever resized the pool.
    took_s: from the notice to the return; other actors read meanwhile.
    num_retried: requests that were sent again.
    """

    kind: str
    actor: int
    where: str
    reason: str
    took_s: float = 0.0
    num_retried: int = 0


class Recoveries:
    """The events of a pool since its start: counts by kind, and the last events.

    A loss is logged when it happens, and listed when it is over. num_lost: lost actors, also if they came back.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_retried = 0
        self.num_lost = 0
        self.last: deque[Recovery] = deque(maxlen=_MAX_LISTED)
        self._metric = Metric("datarax_ray_recoveries", "Losses, returns and stalls of datarax_ray's actors", ("kind",))

    def __repr__(self) -> str:
        return f"Recoveries(num_lost={self.num_lost}, num_retried={self.num_retried}, counts={dict(self.counts)})"

    def lost(self, actor: int, where: str, reason: str, num_running: int, num_actors: int) -> None:
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
        """A request failed on a node and succeeded on another; the node's actors get no requests for lasts_s."""
        self._add(
            Recovery("benched", -1, f"node {node}", reason),
            actors,
            f"node {node} is benched for {lasts_s:.0f} s: a request failed there and succeeded on another node. Other "
            f"actors read for its actors {list(actors)}. Is a mount or a package missing there? The error: {reason}",
        )

    def drained(self, actors: Sequence[int], node: str) -> None:
        """A node is about to go; its actors get no more requests."""
        said = f"node {node} is about to go (it drains); other actors read for its actors {list(actors)}"
        self._add(Recovery("drained", -1, f"node {node}", "the node is about to go"), actors, said)

    def stalled(self, said: str) -> None:
        self._add(Recovery("stalled", -1, "", said), (), said)

    def resized(self, num_before: int, num_actors: int, reason: str) -> None:
        said = f"{num_before} -> {num_actors}; {reason}"
        self._add(Recovery("resized", -1, "", said), (), f"reader actors: {said}", logging.INFO)

    def add(self, its: Recovery) -> None:
        """The loss of an actor or a block is over."""
        self.num_retried += its.num_retried
        said = (
            f"reader actor {its.actor} {its.kind}, {its.took_s:.1f} s after its loss was noticed; {its.num_retried} "
            f"requests were sent again; it is now {its.where}; reason: {its.reason}"
        )
        self._add(its, [its.actor], said, took_s=its.took_s, num_retried=its.num_retried)

    def _add(
        self, its: Recovery, actors: Sequence[int], said: str, level: int = logging.WARNING, **more: float
    ) -> None:
        """Count it, list it for each of the actors, or once for the pool, and log it."""
        self.counts[its.kind] += 1
        self._metric.inc(tags={"kind": its.kind})
        self.last += [replace(its, actor=actor) for actor in actors or [-1]]
        logger.log(level, "%s", said, extra=_event(its.kind, its.where, its.reason, actors, **more))


def _event(kind: str, where: str, reason: str, actors: Sequence[int], **more: float) -> dict[str, Any]:
    """The data of a log line, in plain values."""
    return {"event": {"kind": kind, "actors": list(actors), "where": where, "reason": reason, **more}}


def counts_of(stats: PipelineStats) -> dict[tuple[str, ...], float]:
    """The counts of a pipeline: of records, and of seconds by who and what.

    Trainers that read together count their parts, so that the sum over trainers is right.

    >>> stats = PipelineStats(3, 30, 1.0, 9.0, 2.0, {}, {"crop": 4.0}, part=0.5, sharing=2)
    >>> for key, count in counts_of(stats).items():
    ...     print(*key, count)
    records 15.0
    trainer starting 1.0
    trainer waiting 2.0
    actors crop 2.0
    """
    waited = {"starting": stats.first_s, "waiting": stats.waited_s}
    reading = {name: took / stats.sharing for name, took in stats.reading.items()}
    spent = {"trainer": waited, "driver": stats.making, "actors": reading}
    seconds: dict[tuple[str, ...], float] = {
        (who, what): took for who, of in spent.items() for what, took in of.items()
    }
    skipped: dict[tuple[str, ...], float] = {(_SKIPPED, *of): count * stats.part for of, count in stats.skipped.items()}
    elements: dict[tuple[str, ...], float] = {
        (_COMPONENT, str(index)): each.num_elements * stats.part for index, each in enumerate(stats.components)
    }
    return {(_RECORDS,): stats.num_records * stats.part, **seconds, **skipped, **elements}


class Measures:
    """Reports to Prometheus what the pipelines over one pool have counted since the last report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a stream may begin in one thread while another reports
        self._reported: WeakKeyDictionary[Timings, dict[tuple[str, ...], float]] = WeakKeyDictionary()
        self._records = Metric("datarax_ray_records", "Records that trainers of datarax_ray have taken")
        self._skipped = Metric("datarax_ray_skipped", "Broken records that on_error skipped", _OF_SKIPPED)
        self._elements = Metric("datarax_ray_elements", "Elements of each component of a mixture", (_COMPONENT,))
        self._seconds = Metric("datarax_ray_seconds", "What streams of datarax_ray spend time on", ("who", "what"))

    def follow(self, timings: Timings) -> None:
        """Report these counts for as long as their pipeline lives."""
        with self._lock:
            self._reported.setdefault(timings, {})

    def report(self) -> None:
        with self._lock:
            followed = list(self._reported.items())
        for timings, reported in followed:
            for key, count in counts_of(timings.stats(1)).items():
                if (more := count - reported.get(key, 0.0)) > 0:
                    reported[key] = count
                    if key == (_RECORDS,):
                        self._records.inc(more)
                    elif key[0] == _SKIPPED:
                        self._skipped.inc(more, tags=dict(zip(_OF_SKIPPED, key[1:], strict=True)))
                    elif key[0] == _COMPONENT:
                        self._elements.inc(more, tags={_COMPONENT: key[1]})
                    else:
                        self._seconds.inc(more, tags=dict(zip(("who", "what"), key, strict=True)))
