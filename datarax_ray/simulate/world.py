"""The world of a simulation: its time, and the actors in it, which are queues that take as long as they are told.

Legend: a flight is one request on its way: sent, begun, read, here.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.feed.window import Part


@dataclass(frozen=True)
class Costs:
    """What things take: as measured (DESIGN, section 5), of the workload, and of the network.

    request_s, driver_s_per_nbyte: CPU of the driver for each request, and each byte.
    record_s: an actor's time for a record, fixed_s: for a request.
    record_nbytes: of a decoded record.
    link_nbytes_per_s: into a trainer's host.
    latency_s: from an actor to a trainer, or back.
    start_s: until an actor that is started answers.
    store_nbytes: Ray's object store on a trainer's host.
    stored_nbytes: of a record where it is stored; storage_nbytes_per_s: what the storage gives to all actors together.
    """

    request_s: float = 0.001
    driver_s_per_nbyte: float = 0.5e-9
    record_s: float = 0.001
    fixed_s: float = 0.002
    record_nbytes: int = 4096
    link_nbytes_per_s: float = 10e9
    latency_s: float = 0.001
    start_s: float = 3.0
    store_nbytes: int = 200 * 2**30
    stored_nbytes: int = 4096
    storage_nbytes_per_s: float = math.inf


class World:
    """Its time, and what is going to happen."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.storage_free_at = 0.0
        self._order = itertools.count()
        self._coming: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time: float, do: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._coming, (max(time, self.now), next(self._order), do, args))

    def run(self, until: float) -> None:
        while self._coming and self._coming[0][0] <= until:
            self.now, _, do, args = heapq.heappop(self._coming)
            do(*args)
        self.now = until


@dataclass(eq=False)
class Flight:
    """A request on its way to an actor and back. Times are inf until they are known. tell: who waits for its end."""

    part: Part
    num_records: float
    tell: Callable[[Flight], None]
    begun_at: float = math.inf
    read_at: float = math.inf
    is_here: bool = False
    is_dropped: bool = False


@dataclass(eq=False)
class Actor:
    """One actor's process. slowness: of what a request usually takes. busy_s: that it has read."""

    index: int
    world: World
    costs: Costs
    slowness: float
    sigma: float
    is_there: bool = True
    is_frozen: bool = False
    process: int = 0
    busy_s: float = 0.0
    wasted_s: float = 0.0
    at_it: Flight | None = None
    queue: deque[Flight] = field(default_factory=deque)

    def ask(self, flight: Flight) -> None:
        """Event: a request is here. Whoever has no process answers nobody: the caller finds that out."""
        if self.is_there:
            self.queue.append(flight)
            self._go_on()

    def _go_on(self) -> None:
        if self.at_it is not None or self.is_frozen:
            return
        while self.queue:
            flight = self.queue.popleft()
            if flight.is_dropped:  # cancelled before it began
                continue
            self.at_it, flight.begun_at = flight, self.world.now
            stored_s = flight.num_records * self.costs.stored_nbytes / self.costs.storage_nbytes_per_s
            self.world.storage_free_at = max(self.world.storage_free_at, self.world.now) + stored_s
            takes_s = max(self.takes(flight.num_records), self.world.storage_free_at - self.world.now)
            self.world.at(self.world.now + takes_s, self._read, flight, self.process, takes_s)
            return

    def takes(self, num_records: float) -> float:
        """Seconds for a request of so many records: lognormal, its mean as if there were no noise."""
        usual_s = (self.costs.fixed_s + num_records * self.costs.record_s) * self.slowness
        return usual_s * self.world.random.lognormvariate(-(self.sigma**2) / 2, self.sigma)

    def _read(self, flight: Flight, process: int, took_s: float) -> None:
        if process != self.process:  # it died with its process
            return
        if self.is_frozen:
            self.world.at(self.world.now + 0.1, self._read, flight, process, took_s)
            return
        self.busy_s += took_s
        self.wasted_s += took_s * flight.is_dropped
        flight.read_at, self.at_it = self.world.now, None
        flight.tell(flight)
        self._go_on()

    def die(self) -> None:
        """Its process ends with all that it was asked for; another is there after start_s."""
        self.is_there, self.is_frozen, self.at_it = False, False, None
        self.process += 1
        self.queue.clear()
        self.world.at(self.world.now + self.costs.start_s, self.start, self.process)

    def start(self, process: int) -> None:
        if process == self.process:
            self.is_there = True

    def freeze(self, lasts_s: float) -> None:
        self.is_frozen = True
        self.world.at(self.world.now + lasts_s, self.thaw)

    def thaw(self) -> None:
        self.is_frozen = False
        self._go_on()
