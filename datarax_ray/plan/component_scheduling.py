"""Scheduling one component of a merged mixture: its requests, which say of which component they are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import Chunk, ChunkLimits, StreamScheduler
from datarax_ray.plan.state import Extra


@dataclass(frozen=True)
class ComponentRequest:
    """A request of a component's, by its own positions. See Request."""

    component: int
    request: Any

    @property
    def start(self) -> int:
        return self.request.start

    @property
    def stop(self) -> int:
        return self.request.stop

    @property
    def wanted(self) -> Wanted:
        return self.request.wanted

    @property
    def first_partition(self) -> int:
        return self.request.first_partition

    @property
    def asked(self) -> Hashable:
        return self.component, self.request.asked

    def narrowed(self, positions: tuple[int, ...]) -> ComponentRequest | None:
        request = self.request.narrowed(positions)
        return None if request is None else replace(self, request=request)


class ComponentScheduler:
    """Deals a component as its own scheduler does."""

    def __init__(self, component: int, scheduler: StreamScheduler) -> None:
        self._component = component
        self._scheduler = scheduler

    @property
    def partitioning(self) -> Partitioning:
        return self._scheduler.partitioning

    def fit(self, num_actors: int) -> None:
        self._scheduler.fit(num_actors)

    @property
    def limits(self) -> ChunkLimits:
        return self._scheduler.limits

    @property
    def is_exhausted(self) -> bool:
        return self._scheduler.is_exhausted

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        chunk = self._scheduler.next_chunk(size, owners)
        requests = tuple((actor, ComponentRequest(self._component, request)) for actor, request in chunk.requests)
        return replace(chunk, requests=requests)

    def split(self, request: ComponentRequest) -> Sequence[ComponentRequest]:
        return [replace(request, request=each) for each in self._scheduler.split(request.request)]

    def arrived(self, request: Any, learned: Sequence[Any]) -> None:
        self._scheduler.arrived(request.request, learned)

    def extra_at(self, position: int) -> Extra | None:
        return self._scheduler.extra_at(position)

    def released(self, stop: int, has_elements: bool) -> str | None:
        try:
            said = self._scheduler.released(stop, has_elements)
        except RuntimeError as error:
            error.add_note(f"in component {self._component} of the mixture, which would wait for it for ever")
            raise
        return said and f"component {self._component} of the mixture: {said}"
