"""A pool without Ray, for tests to make their own of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datarax_ray.feed.flow import Arrived, Lost, Pool
from datarax_ray.read.block import Block, digested
from datarax_ray.read.stream import Stream


class OneActor(Pool):
    """One actor, which reads in this process when a part is waited for."""

    def __init__(self, description: Stream) -> None:
        self._description = description

    def actors(self) -> tuple[int, ...]:
        return (0,)

    def receive(self, sent: Mapping[Any, Any]) -> Arrived | Lost | None:
        part = next(iter(sent))
        return Arrived(part, self.read(part.request))

    def read(self, request: Any) -> Block:
        return digested(self._description.read, request)
