"""A merged mixture as a description: of streams, whose elements have no number, beside records that are read by index.

Each component is dealt, read and transformed as if it were alone. Its elements come to stand in the mixture where they
are delivered; see read.streams.merging.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.merged import MergedOrder
from datarax_ray.plan.orders.mixture import Mixture
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Request, Wanted
from datarax_ray.plan.scheduling import StreamScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.plan.weights import pieces_of, plain_weights
from datarax_ray.read.block import Block
from datarax_ray.read.stream import is_endless
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.interleaved import InterleavedStream
from datarax_ray.read.streams.merging import component_name
from datarax_ray.read.streams.mixture import Mixed, MixtureStream


@dataclass(frozen=True)
class MergedStream(Mixed):
    """What a mixture with a stream in it is made of. Its positions count elements; its requests are its components'."""

    components: tuple[Any, ...]  # each AnyComponent

    @property
    def order(self) -> MergedOrder:
        """Which element of which component stands at each position, with these weights from the beginning on."""
        return self._order

    @functools.cached_property
    def _order(self) -> MergedOrder:
        return MergedOrder(Mixture(self.weights, self.seed), self.components)

    @property
    def stop(self) -> int | None:
        """The position after the last; None where a component may end before that, or there is none."""
        return self.length if all(map(is_endless, self.components)) else None

    @property
    def is_endless(self) -> bool:
        """See stream.is_endless."""
        return self.length is None and all(map(is_endless, self.components))

    def __str__(self) -> str:
        return f"weights={plain_weights(self.weights)}, components={len(self.components)}"

    @property
    def yields(self) -> Yields:
        """An element each; but where they end, or people leave some out, is known only when they come."""
        return Yields(is_one_to_one=False)

    def shares(self) -> list[float]:
        """What each component gets of what may be in flight: half of it by weight, the other half evenly."""
        pieces = [weights for _, weights in pieces_of(self.weights)]
        most = [max(weights[index] / sum(weights) for weights in pieces) for index in range(len(self.components))]
        return [(each / sum(most) + 1 / len(most)) / 2 for each in most]

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> StreamScheduler:
        """Raises: TypeError. Each component has one of its own; feed.stream turns them."""
        raise TypeError("the components of a mixture of streams are dealt each by itself")

    def read(self, request: Request, ended: str = "") -> Block:
        """The block that the request asks for, by the positions of its component; see Stream.read."""
        component, its = self._component(request)
        return component.read(its, ended)

    def expect(self, request: Request) -> None:
        """See Stream; this one will be read soon."""
        component, its = self._component(request)
        if component.traits.reads_ahead:
            component.expect(its)

    def names(self, request: Request) -> list[str]:
        """Some of the files or shards in which the request's elements are."""
        component, its = self._component(request)
        name = component_name(request.wanted.components[0])
        return [f"{name}: {each}" for each in component.names(its)]

    def _component(self, request: Any) -> tuple[Any, Any]:
        """The component that a request is for, and what it asks that for."""
        index, *inner = request.wanted.components
        return self.components[index], replace(request, wanted=replace(request.wanted, components=tuple(inner)))

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """Raises: TypeError. What stands at a position is known only when it is read; see feed.origins."""
        raise TypeError("which records stand at positions of a mixture of streams is known only when they are read")

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        """Raises: TypeError."""
        raise TypeError(
            "a mixture with a stream in it has no random access: iterate it, or take a batch from where it stands "
            "(get_batch)"
        )


AnyMixture: TypeAlias = MixtureStream | MergedStream
AnyComponent: TypeAlias = IndexedStream | InterleavedStream | AnyMixture


def mixed(components: tuple[AnyComponent, ...], *given: Any) -> AnyMixture:
    """The mixture of these: by records, where all are read by index, else by elements. given: else as Mixed."""
    if all(isinstance(each, IndexedStream | MixtureStream) for each in components):
        return MixtureStream(components, *given)  # type: ignore[arg-type]
    return MergedStream(components, *given)
