"""A trainer's pool over simulated actors: does what actors.pool and actors.actor_set do with Ray, as they decide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from datarax_ray.actors.lifecycle import ActorState, Ask, Commands, Kill, LoseRequests, Process, Start, Thresholds
from datarax_ray.feed.flow import Arrived, Lost, Pool
from datarax_ray.feed.load_balance import LoadBalance
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.order import Order
from datarax_ray.read.block import Block
from datarax_ray.simulate.world import Actor, Costs, Flight, World

# Records of a chunk for one trainer that are counted; of more each actor has its share.
MAX_COUNTED = 2048
_POSITIONS = np.broadcast_to(np.int64(0), (2**20,))  # of any block


class SimulatedPool(Pool):
    """What one trainer knows of the actors, and its time: `now` runs ahead of the world by what it is doing.

    order: of the stream.
    share: of a chunk's records, that are this trainer's.
    wake: called when there is something to receive.
    """

    def __init__(
        self,
        world: World,
        actors: dict[int, Actor],
        costs: Costs,
        order: Order,
        share: float,
        wake: Callable[[], None],
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

    # What a stream reads through; see feed.flow.Pool.

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
        """Whether there is something to be told of this chunk."""
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
