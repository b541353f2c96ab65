"""Measures: where the time of a pool's streams goes, for Prometheus, by Ray's metrics.

`ray_datarax_ray_records_total` counts records that trainers have taken, and `ray_datarax_ray_seconds_total` seconds, by
`who` spent them and on `what`: the trainer waiting; its process waiting, assembling and placing; the actors in storage,
reading, each transform by name and stacking. What PipelineStats has, as counts that go on.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from ray.util.metrics import Counter as Metric

from datarax_ray.feed.stats import PipelineStats, Timings

RECORDS = "records"
# What to count by: RECORDS alone, or who spent seconds on what.
Key = tuple[str, ...]


def counts_of(stats: PipelineStats) -> dict[Key, float]:
    """What was counted, by the name of the metric or by who and what.

    What several trainers have together is counted by each for its part, so that their sum is what there was.

    >>> counts_of(PipelineStats(3, 30, 1.0, 9.0, 2.0, {"placing": 0.5}, {"crop": 4.0}, part=0.5, sharing=2))
    {('records',): 15.0, ('trainer', 'waiting'): 3.0, ('driver', 'placing'): 0.5, ('actors', 'crop'): 2.0}
    """
    waited = {"waiting": stats.first_s + stats.waited_s}
    reading = {name: took / stats.sharing for name, took in stats.reading.items()}
    spent = {"trainer": waited, "driver": stats.making, "actors": reading}
    seconds: dict[Key, float] = {(who, what): took for who, of in spent.items() for what, took in of.items()}
    return {(RECORDS,): stats.num_records * stats.part, **seconds}


class Measures:
    """Reports what the pipelines over one pool have counted since the last time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a stream may begin in one thread while another reports
        self._reported: WeakKeyDictionary[Timings, dict[Key, float]] = WeakKeyDictionary()
        self._records = Metric("datarax_ray_records", "Records that trainers of datarax_ray have taken")
        self._seconds = Metric("datarax_ray_seconds", "What streams of datarax_ray spend time on", ("who", "what"))

    def follow(self, timings: Timings) -> None:
        """Report what these count, as long as their pipeline is there."""
        with self._lock:
            self._reported.setdefault(timings, {})

    def report(self) -> None:
        with self._lock:
            followed = list(self._reported.items())
        for timings, reported in followed:
            for key, count in counts_of(timings.stats(1)).items():
                if (more := count - reported.get(key, 0.0)) > 0:
                    reported[key] = count
                    if key == (RECORDS,):
                        self._records.inc(more)
                    else:
                        self._seconds.inc(more, tags=dict(zip(("who", "what"), key, strict=True)))
