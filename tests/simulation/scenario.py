"""A scenario: actors, trainers and faults, and the figures of its run."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.feed.flow import Flow, Stall
from datarax_ray.feed.stats import Timings
from datarax_ray.feed.window import Bound, Window
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.trainer_rows import TrainerPositions, rows_of_rank
from tests.simulation.pool import Actor, Costs, SimulatedPool, World

# As in the real pool: between two looks of a waiting trainer, and between two looks after its actors.
POLL_S = 0.25
TEND_S = 0.5
EARLY_S = 30.0


@dataclass(frozen=True)
class Fault:
    """kind: "kill", "freeze" for 12 s, "join" (one more) or "leave". actor: its number."""

    at_s: float
    kind: str
    actor: int = 0


@dataclass(frozen=True)
class Scenario:
    """A simulated cluster.

    sigma: of the lognormal time of a request.
    slow: how many actors are ten times slower.
    uneven: the slowness of actors in turns, (1.0,) for even ones.
    need: records a second that all trainers together train on; None for all that arrive.
    prefetch: batches that a pipeline makes ahead of its trainer.
    warm_s, measured_s: the figures are of measured_s, after warm_s.
    """

    name: str
    num_actors: int
    num_trainers: int = 1
    sigma: float = 0.0
    slow: int = 0
    uneven: tuple[float, ...] = (1.0,)
    need: float | None = None
    faults: tuple[Fault, ...] = ()
    num_records: int = 10**12
    prefetch: int = 2
    actors_of_host: int = 32
    costs: Costs = field(default_factory=Costs)
    warm_s: float = 60.0
    measured_s: float = 120.0
    seed: int = 1

    @property
    def slownesses(self) -> list[float]:
        """Of each actor, at the beginning."""
        turns = len(self.uneven)
        return [self.uneven[i % turns] * (10.0 if i < self.slow else 1.0) for i in range(self.num_actors)]

    @property
    def global_batch_size(self) -> int:
        return max(1024, 32 * self.num_trainers)

    @property
    def ideal_per_s(self) -> float:
        """Records a second of a stream that loses nothing: the least of what actors, network and need allow."""
        read = sum(1 / slow for slow in self.slownesses) / self.costs.record_s
        network = self.costs.link_nbytes_per_s * self.num_trainers / self.costs.record_nbytes
        return min(read, network, self.need or math.inf)


@dataclass(frozen=True)
class Found:
    """The figures of a run.

    efficiency: of the ideal.
    wait: the part of its time that a trainer waits.
    driver: CPU of one trainer's driver, in cores, by the costs.
    decision_us: time of this machine that the real code took for each request.
    nbytes: the most in the window of one trainer.
    requests_per_s: of one trainer.
    wasted: the part of the actors' time spent on blocks that nobody used.
    idle: the part of the actors' time without work.
    early: of the ideal, delivered in the first 30 s.
    """

    efficiency: float
    wait: float
    driver: float
    decision_us: float
    nbytes: float
    requests_per_s: float
    nbytes_per_s: float
    wasted: float
    idle: float
    early: float


class Trainer:
    """A consumer of the stream, which drives a real Flow as feed.stream does."""

    def __init__(self, world: World, actors: dict[int, Actor], scenario: Scenario, rank: int, timings: Timings) -> None:
        costs, count = scenario.costs, scenario.num_trainers
        self.world, self._scenario = world, scenario
        self._is_waiting = False
        self._look_at = 0.0  # where nothing comes before
        nothing: Any = None  # is read
        order = order_of(scenario.num_records, 0, "global")
        self.pool = SimulatedPool(world, actors, costs, order, 1 / count, self._wake)
        self._batch_size = scenario.global_batch_size
        rows = TrainerPositions(0, None, rows_of_rank(self._batch_size, rank, count))
        wanted_rows = Wanted(rows if count > 1 else None)
        scheduler = RecordScheduler(order, order.partitioning(64), start=0, stop=None, wanted=wanted_rows)
        stores = costs.store_nbytes, costs.store_nbytes * max(count, scenario.num_actors / scenario.actors_of_host)
        bound = Bound(None, *stores).of_each(scenario.num_actors, count)
        window, stall = Window(scheduler, max_nbytes=bound), Stall(nothing, 1e9)
        self.flow = Flow(window, self.pool, stall, timings, clock=lambda: self.pool.now)
        self.released: list[tuple[float, int]] = []  # when, up to which position
        self.waited: list[tuple[float, float]] = []  # from, to
        self.decision_s = 0.0
        self.most_nbytes = 0.0
        self._trained_until = 0.0
        self.world.at(0.0, self.step)
        self._is_due = True

    def delivered(self, by_s: float) -> int:
        """Positions that were released by then."""
        return max((stop for at, stop in self.released if at <= by_s), default=0)

    def _wake(self) -> None:
        if self._is_waiting and not self._is_due:
            self._is_due = True
            self.world.at(self.world.now, self.step)

    def _look_around(self, at: float) -> None:
        if self._is_waiting and not self._is_due and at == self._look_at:  # it has waited for nothing else since
            self.step(is_timeout=True)

    def step(self, is_timeout: bool = False) -> None:
        """One turn: send the requests that may be sent, then take a chunk; or wait."""
        self._is_due = self._is_waiting = False
        self.pool.now = max(self.pool.now, self.world.now)
        begin = time.perf_counter()
        is_lost = self.flow.poll(self.pool.actors(), self.pool.weights())
        is_ready = self.flow.window.is_ready
        has_received = not is_lost and not is_ready and (is_timeout or self.pool.has_any(len(self.released)))
        if has_received:
            before = self.pool.num_told
            self.flow.receive()
            has_received = self.pool.num_told > before
        self.decision_s += time.perf_counter() - begin
        self.most_nbytes = max(self.most_nbytes, self.pool.nbytes)
        if is_ready:
            self._take()
        elif is_lost or has_received:
            self._again(self.pool.now)
        else:
            self._is_waiting = True
            self._look_at = self.world.now + POLL_S
            self.world.at(self._look_at, self._look_around, self._look_at)

    def _again(self, at: float) -> None:
        self._is_due = True
        self.world.at(at, self.step)

    def _take(self) -> None:
        """Copy a chunk to batches, as far ahead of the trainer as a pipeline makes them; then release it."""
        start, stop, _, blocks = self.flow.first()
        nbytes = sum(block.whole_nbytes for block in blocks)
        copying_s = nbytes * self._scenario.costs.driver_s_per_nbyte
        record_s = 1 / self._scenario.need if self._scenario.need else 0.0
        self.pool.cpu_s += copying_s
        first_at = self.pool.now + copying_s * min(1.0, self._batch_size / (stop - start))
        self.pool.now += copying_s
        begins = max(first_at, self._trained_until)
        ends = max(begins + (stop - start) * record_s, self.pool.now)
        waited_s = ends - self._trained_until - (stop - start) * record_s
        self.waited.append((begins - waited_s, begins))
        self._trained_until = ends
        self.pool.now = max(self.pool.now, ends - self._scenario.prefetch * self._batch_size * record_s)
        self._is_due = True
        self.world.at(self.pool.now, self._release, stop, nbytes)

    def _release(self, stop: int, nbytes: int) -> None:
        self.pool.nbytes -= nbytes
        self.released.append((self.pool.now, stop))
        begin = time.perf_counter()
        self.flow.release()
        self.decision_s += time.perf_counter() - begin
        self.step()


def run(scenario: Scenario) -> Found:
    """Run a scenario, and measure it."""
    is_collecting = gc.isenabled()
    gc.disable()  # requests hold no cycles; looking for some took 37 % of the time of a large run
    try:
        return _run(scenario)
    finally:
        if is_collecting:
            gc.enable()


def _run(scenario: Scenario) -> Found:
    world = World(scenario.seed)
    slowness = scenario.slownesses
    actors = {i: Actor(i, world, scenario.costs, slow, scenario.sigma) for i, slow in enumerate(slowness)}
    timings = Timings()  # which nobody asks for: of 2,000 actors each trainer would have megabytes
    trainers = [Trainer(world, actors, scenario, rank, timings) for rank in range(scenario.num_trainers)]
    for fault in scenario.faults:
        world.at(fault.at_s, _happen, fault, world, actors, trainers)
    if scenario.faults:
        world.at(0.0, _tend, world, actors, trainers)
    begin, end = scenario.warm_s, scenario.warm_s + scenario.measured_s
    counts = []
    for until in (begin, end):
        world.run(until)
        counts.append(_counts(actors, trainers))
    cpu_s, decision_s, num_requests, busy_s, wasted_s = (b - a for a, b in zip(*counts, strict=True))
    took, count, ideal = scenario.measured_s, scenario.num_trainers, scenario.ideal_per_s
    rate = sum(_rate(trainer, begin, end) for trainer in trainers) / count
    waits = [max(0.0, min(b, end) - max(a, begin)) for trainer in trainers for a, b in trainer.waited]
    waits += [max(0.0, end - max(trainer._trained_until, begin)) for trainer in trainers]
    return Found(
        efficiency=rate / ideal,
        wait=sum(waits) / took / count,
        driver=cpu_s / took / count,
        decision_us=1e6 * decision_s / max(1, num_requests),
        nbytes=max(trainer.most_nbytes for trainer in trainers),
        requests_per_s=num_requests / took / count,
        nbytes_per_s=rate * scenario.costs.record_nbytes / count,
        wasted=wasted_s / took / len(actors),
        idle=1 - busy_s / took / len(actors),
        early=min(trainer.delivered(EARLY_S) for trainer in trainers) / EARLY_S / ideal,
    )


def _rate(trainer: Trainer, begin: float, end: float) -> float:
    """Positions a second, between the first and the last release in these times."""
    inside = [each for each in trainer.released if begin <= each[0] <= end]
    if len(inside) < 2:
        return 0.0
    (first_at, first), (_, last) = inside[0], inside[-1]
    return (last - first) / (max(inside[-1][0], 0.9 * end + 0.1 * begin) - first_at)


def _counts(actors: dict[int, Actor], trainers: list[Trainer]) -> tuple[float, ...]:
    return (
        sum(trainer.pool.cpu_s for trainer in trainers),
        sum(trainer.decision_s for trainer in trainers),
        sum(trainer.pool.num_requests for trainer in trainers),
        sum(actor.busy_s for actor in actors.values()),
        sum(actor.wasted_s for actor in actors.values()),
    )


def _tend(world: World, actors: dict[int, Actor], trainers: list[Trainer]) -> None:
    for trainer in trainers:
        trainer.pool.tend(actors)
        trainer._wake()
    world.at(world.now + TEND_S, _tend, world, actors, trainers)


def _happen(fault: Fault, world: World, actors: dict[int, Actor], trainers: list[Trainer]) -> None:
    match fault.kind:
        case "kill":
            actors[fault.actor].die()
            for trainer in trainers:
                trainer.pool.failed(fault.actor)
        case "freeze":
            actors[fault.actor].freeze(12.0)
        case "join":
            index = max(actors) + 1
            like = actors[min(actors)]
            actors[index] = Actor(index, world, like.costs, 1.0, like.sigma, is_there=False)
            world.at(world.now + like.costs.start_s, actors[index].start, 0)
            for trainer in trainers:
                trainer.pool.add(index)
        case "leave":
            for trainer in trainers:
                trainer.pool.remove(fault.actor)
