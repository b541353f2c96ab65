"""Simulated actors, which are queues that take as long as their costs say, and a trainer's pool over them.

The pool decides as actors.pool and actors.actor_set do with Ray. A flight is a request on its way: sent, begun, read,
here.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.actors.lifecycle import ActorState, Ask, Commands, Kill, LoseRequests, Process, Start, Thresholds
from datarax_ray.actors.sizing import LoadBalance
from datarax_ray.feed.flow import Arrived, Lost, Pool
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.order import Order
from datarax_ray.read.block import Block

# Records of a chunk for one trainer that are counted; of more each actor has its share.
MAX_COUNTED = 2048
_POSITIONS = np.broadcast_to(np.int64(0), (2**20,))  # of any block


@dataclass(frozen=True)
class Costs:
    """The costs of the engine as measured, of the workload, and of the network.

    request_s, driver_s_per_nbyte: CPU of the driver for each request, and for each byte.
    record_s, fixed_s: an actor's time for a record, and for a request.
    record_nbytes: of a decoded record.
    link_nbytes_per_s: into a trainer's host.
    latency_s: from an actor to a trainer, or back.
    start_s: until a started actor answers.
    store_nbytes: Ray's object store on a trainer's host.
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


class World:
    """The simulated time, and the events to come."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
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
    """A request on its way to an actor and back. Times are inf until they are known. tell: called at its end."""

    part: Part
    num_records: float
    tell: Callable[[Flight], None]
    begun_at: float = math.inf
    read_at: float = math.inf
    is_here: bool = False
    is_dropped: bool = False


@dataclass(eq=False)
class Actor:
    """One actor's process. slowness: a factor of the usual time of a request. busy_s: time spent on reading."""

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
        """Event: a request has arrived. Without a process nothing answers it, which the caller finds out."""
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
            takes_s = self.takes(flight.num_records)
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


class SimulatedPool(Pool):
    """One trainer's view of the actors, and its time: `now` runs ahead of the world by the work in progress.

    order: of the stream.
    share: the part of a chunk's records that is this trainer's.
    wake: called when there is something to receive.
    """

    def __init__(
        self, world: World, actors: dict[int, Actor], costs: Costs, order: Order, share: float, wake: Callable[[], None]
    ) -> None:
        self.now = 0.0
        self.cpu_s = 0.0
        self.num_requests = self.num_told = 0
        self.nbytes = 0.0  # read and not delivered
        self._world, self._actors, self._costs, self._wake = world, actors, costs, wake
        self._order, self._share = order, share
        self._states: dict[int, ActorState] = {}
        self._pings: set[int] = set()
        self._here: defaultdict[int, dict[Part, Flight]] = defaultdict(dict)  # of each chunk
        self._seen: list[Flight] = []  # read, and not told of
        self._lost: dict[Part, Lost] = {}
        self._link_free_at = 0.0
        self._balance = LoadBalance()
        self._counted: tuple[Any, Any] = None, None  # of the last chunk: which, and see _counts
        self.add(*actors)

    def add(self, *indexes: int) -> None:
        for index in indexes:
            self._states[index] = ActorState(Thresholds())
            self._do(index, self._states[index].tick(self._world.now))
        self.tend(indexes)

    def remove(self, index: int) -> None:
        self._balance.forget(index)
        self._do(index, self._states.pop(index).removed("it was removed"))
        self._know()

    def failed(self, index: int) -> None:
        """Event: calls of the actor fail, as its process has ended."""
        self._pings.discard(index)
        if index in self._states:
            self._do(index, self._states[index].unavailable("its process has ended", self._world.now))
        self._know()

    def tend(self, indexes: Iterable[int]) -> None:
        """Event: it is time to look after these actors."""
        now = self._world.now
        for index in indexes:
            state, actor = self._states.get(index), self._actors[index]
            if state is None:
                continue
            if index in self._pings and actor.is_there and not actor.is_frozen:
                self._pings.discard(index)
                self._do(index, state.answered(Process(f"{index}.{actor.process}", 1), now))
            else:
                self._do(index, state.tick(now))
        self._know()

    def _know(self) -> None:
        self._ready = tuple(index for index, state in self._states.items() if state.phase == "running")

    def _do(self, index: int, commands: Commands) -> None:
        for command in commands:
            match command:
                case Start() | Ask():
                    self._pings.add(index)
                case Kill():
                    self._actors[index].die()
                case LoseRequests(flights, reason, process):
                    self._balance.forget(index)
                    for nth, flight in enumerate(flights):
                        if flight.read_at > self._world.now and not flight.is_dropped:
                            flight.is_dropped = True
                            was_read = process is not None and nth == 0
                            self._lost[flight.part] = Lost(flight.part, reason, was_read=was_read)
                    self._wake()

    # The methods of feed.flow.Pool.

    def actors(self) -> tuple[int, ...]:
        return self._ready

    def nodes(self) -> Mapping[int, str]:
        return {}

    def blame(self, node: str, reason: str) -> None:
        pass

    def weights(self) -> Mapping[int, float]:
        return self._balance.weights

    def send(self, part: Part) -> Flight:
        self._spend(self._costs.request_s / 2)
        self.num_requests += 1
        request: Any = part.request
        num_records = (request.stop - request.start) * self._share * request.partitioning.share_of(request.partitions)
        if (request.stop - request.start) * self._share <= MAX_COUNTED:
            num_records = self._counts(request)[list(request.partitions)].sum()
        flight = Flight(part, num_records, self._read)
        self._states[part.actor].sent(flight, self._world.now)
        self._world.at(self.now + self._costs.latency_s, self._actors[part.actor].ask, flight)
        return flight

    def _counts(self, request: Any) -> Any:
        """Records of each partition, in the request's chunk. Not by select, whose tables each actor has for itself."""
        key = request.start, request.stop, request.partitioning.num_partitions
        if self._counted[0] != key:
            positions = np.arange(request.start, request.stop)
            if request.wanted.positions is not None:
                positions = request.wanted.positions.positions_in(request.start, request.stop)
            found = self._order.partitions_of(request.partitioning, self._order.records(positions))
            self._counted = key, np.bincount(found, minlength=request.partitioning.num_partitions)
        return self._counted[1]

    def _read(self, flight: Flight) -> None:
        """Event: the block lies in the object store of the actor's host. It is brought here behind the others."""
        if flight.is_dropped:
            return
        nbytes = flight.num_records * self._costs.record_nbytes
        self.nbytes += nbytes
        self._link_free_at = max(self._link_free_at, self._world.now) + nbytes / self._costs.link_nbytes_per_s
        self._world.at(self._link_free_at + self._costs.latency_s, self._arrive, flight)

    def _arrive(self, flight: Flight) -> None:
        if flight.is_dropped:
            self.nbytes -= flight.num_records * self._costs.record_nbytes
            return
        flight.is_here = True
        self._here[flight.part.chunk][flight.part] = flight
        self._seen.append(flight)
        self._wake()

    def has_any(self, chunk: int) -> bool:
        """Whether a block of this chunk, or a loss, can be received."""
        return bool(self._here[chunk]) or bool(self._lost)

    def receive(self, sent: Mapping[Part, Flight]) -> Arrived | Lost | None:
        for part in sent:
            if part in self._lost:
                self.num_told += 1
                return self._lost.pop(part)
            break
        chunk = next(iter(sent)).chunk
        for part in self._here[chunk] if len(sent) > 1 else sent:
            if part not in sent or part not in self._here[chunk]:
                continue
            flight = self._here[chunk].pop(part)
            self.num_told += 1
            nbytes = int(flight.num_records * self._costs.record_nbytes)
            self._spend(self._costs.request_s / 2)
            state = self._states.get(flight.part.actor)
            if state is not None and flight in state.requests:
                state.done(flight, self._world.now)
            positions = _POSITIONS[: round(flight.num_records)]
            read_s = flight.read_at - flight.begun_at
            self._balance.read(flight.part.actor, len(positions), read_s, self._ready)
            return Arrived(flight.part, Block(positions, None, whole_nbytes=nbytes, spent={"reading": read_s}))
        return None

    def lost(self, sent: Mapping[Part, Flight]) -> Sequence[Lost]:
        losses = [loss for part, loss in self._lost.items() if part in sent]
        self._lost.clear()
        return losses

    def ended(self, sent: Mapping[Part, Flight]) -> list[Part]:
        parts, self._seen = [flight.part for flight in self._seen if flight.part in sent], []
        return parts

    def discard(self, sent: Mapping[Part, Flight]) -> None:
        for flight in sent.values():
            flight.is_dropped = True  # what lies in the object store is freed
            self._here[flight.part.chunk].pop(flight.part, None)
            self.nbytes -= flight.is_here * flight.num_records * self._costs.record_nbytes
            if flight.read_at < self._world.now:
                self._actors[flight.part.actor].wasted_s += flight.read_at - flight.begun_at
            state = self._states.get(flight.part.actor)
            if state is not None and flight in state.requests:
                state.dropped(flight)

    def _spend(self, cpu_s: float) -> None:
        self.now += cpu_s
        self.cpu_s += cpu_s
