"""Requests: the positions that one actor reads, the wanted elements and their form, and trainers that share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.trainer_rows import TrainerPositions


@dataclass(frozen=True)
class ListedPositions:
    """Some positions of a stream, one by one; as TrainerPositions in every other way."""

    positions: tuple[int, ...]
    share: ClassVar[float] = 0.0

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        return np.isin(positions, np.array(self.positions, np.int64))

    def positions_in(self, start: int, stop: int) -> Indices:
        return np.array(sorted({each for each in self.positions if start <= each < stop}), np.int64)

    def first_from(self, position: int) -> int:
        return min((each for each in self.positions if each >= position), default=2**62)


PositionSet: TypeAlias = ListedPositions | TrainerPositions


@dataclass(frozen=True)
class Sharing:
    """num_trainers trainers ask the same actors for the same blocks, so each block is read once for all.

    part: of the block: "all"; "places", without columns; or rows of its columns, as runs (see plan.runs).
    num_elements: of the block, where it is known, to refuse rows of a block of another size.
    num_equal: trainers that ask for this same part.
    """

    num_trainers: int
    part: Literal["all", "places"] | Indices = field(default="all", compare=False)  # an array has no hash
    num_elements: int | None = None
    num_equal: int = 1

    @property
    def part_key(self) -> Hashable:
        return self.part if isinstance(self.part, str) else (self.part.tobytes(), self.num_elements)


@dataclass(frozen=True)
class Wanted:
    """The wanted elements of a request, and their form.

    positions: None for all.
    documents: how elements become documents to be packed; None for elements as they are.
    sharing: None where no other trainer asks for this.
    is_digested: add a digest of each element.
    amendments: of the stream.
    components: path of a component in a mixture with streams, outermost first; the request has its positions.
    """

    positions: PositionSet | None = None
    documents: DocumentSpec | None = None
    sharing: Sharing | None = None
    is_digested: bool = False
    amendments: Amendments = ()
    components: tuple[int, ...] = ()


EVERYTHING = Wanted()


class Request(Protocol):
    """One actor's part of the chunk [start, stop). A pure function: any actor may answer it again."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def wanted(self) -> Wanted: ...

    @property
    def first_partition(self) -> int:
        """The first partition asked for; its owner answers."""

    @property
    def block_key(self) -> Hashable:
        """A key of the block: equal for requests of one block, by any trainers for any part."""

    def narrowed(self, positions: tuple[int, ...]) -> Any:
        """A request for these positions alone, not shared; None where they cannot be read alone."""
