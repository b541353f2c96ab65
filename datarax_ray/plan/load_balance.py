"""Load balance: how much each actor should own, by how fast it reads. Nothing here waits or knows the time.

A weight is an actor's ownership in even shares, as plan.partitions.assign takes it. Weights change seldom: a partition
that moves leaves a cache and open files behind, and a single reading also depends on how busy the host just was.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Any

# The share of a new reading in the average: one 30 readings old counts 4 %. A reading may be ten times the usual.
_NEW = 0.1
# Shorter reads are added up: they depend on fixed costs more than on the actor.
MIN_READ_S = 0.02
# Readings before an actor is compared, and that must agree in a row before its weight changes.
NUM_AGREEING = 8
# A weight stays as long as it is within this factor of what was measured.
TOLERANCE = 1.5
# The median of a thousand actors takes 0.3 ms, a third of the cost of a request, so it is taken again after one reading
# for each 64 actors.
LOOK_AFTER = 64
# An actor with less would be measured no more; more would be too much where most other actors are slow for a while.
MIN_WEIGHT, MAX_WEIGHT = 1 / 16, 2.0


class LoadBalance:
    """Measures actors against the median of those that read now."""

    def __init__(self) -> None:
        self._short: dict[int, tuple[int, float]] = {}  # records and seconds that are no reading yet
        self._seconds: dict[int, float] = {}  # for a record, on average
        self._num_readings: dict[int, int] = {}
        self._off: dict[int, int] = {}  # readings in a row that ask for another weight
        # of every actor that has another than 1.0; another one at each change, as every block that arrives asks for it
        self.weights: Mapping[int, float] = {}
        self._median = 0.0  # seconds for a record, of those that have been measured often enough; 0 for fewer than two
        self._num_since = 0  # readings since that was looked at

    def read(self, actor: int, num_read: int, read_s: float, actors: Collection[int]) -> None:
        """Event: this one of the actors read so many records in so many seconds."""
        records, seconds = self._short.pop(actor, (0, 0.0))
        records, seconds = records + num_read, seconds + read_s
        if seconds < MIN_READ_S or not records:
            self._short[actor] = records, seconds
            return
        seconds /= records
        self._seconds[actor] = seconds + (1 - _NEW) * (self._seconds.get(actor, seconds) - seconds)
        self._num_readings[actor] = self._num_readings.get(actor, 0) + 1
        self._num_since += 1
        if self._num_since > len(actors) // LOOK_AFTER:
            self._num_since, self._median = 0, self._median_of(actors)
        if not self._median or self._num_readings[actor] < NUM_AGREEING:
            return
        measured = self._measured(actor)
        weight = self.weights.get(actor, 1.0)
        is_off = not weight / TOLERANCE <= measured <= weight * TOLERANCE
        self._off[actor] = self._off.get(actor, 0) + 1 if is_off else 0
        if self._off[actor] >= NUM_AGREEING:
            self._set(actor, measured)

    def forget(self, actor: int) -> None:
        """Event: another process reads under this id, or none."""
        known: tuple[dict[int, Any], ...] = (self._short, self._seconds, self._num_readings, self._off)
        for of_actor in known:
            of_actor.pop(actor, None)
        self._weigh(actor, 1.0)

    def settle(self, actors: Collection[int]) -> None:
        """Give every actor the weight that was measured, at once."""
        self._median = self._median_of(actors)
        for actor in actors:
            if self._median and self._num_readings.get(actor, 0) >= NUM_AGREEING:
                self._set(actor, self._measured(actor))

    def _median_of(self, actors: Collection[int]) -> float:
        known = [self._seconds[a] for a in actors if self._num_readings.get(a, 0) >= NUM_AGREEING]
        return statistics.median_low(known) if len(known) >= 2 else 0.0

    def _measured(self, actor: int) -> float:
        """What its weight would be."""
        return min(MAX_WEIGHT, max(MIN_WEIGHT, self._median / self._seconds[actor]))

    def _set(self, actor: int, measured: float) -> None:
        self._off[actor] = 0
        self._weigh(actor, 1.0 if 1 / TOLERANCE <= measured <= TOLERANCE else round(measured, 4))

    def _weigh(self, actor: int, weight: float) -> None:
        if self.weights.get(actor, 1.0) != weight:
            others = {other: its for other, its in self.weights.items() if other != actor}
            self.weights = others if weight == 1.0 else {**others, actor: weight}
