"""Requests: what one actor is asked for of a chunk of positions, what of its elements is wanted, and for how many."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec


class PositionSet(Protocol):
    """Some of the positions of a stream. share: how many of them it is, of 1."""

    @property
    def share(self) -> float: ...

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        """Which of the positions are in it. positions: int64 (k,). Returns bool (k,)."""
        ...

    def positions_in(self, start: int, stop: int) -> Indices:
        """Those of [start, stop), int64 (k,), ascending; nothing is made of the others, which may be millions."""
        ...

    def first_from(self, position: int) -> int:
        """The first of them from this position on; itself, or one behind the end of the stream, where there is none."""
        ...


@dataclass(frozen=True)
class ListedPositions:
    """These positions, which are few."""

    positions: tuple[int, ...]
    share: ClassVar[float] = 0.0

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        return np.isin(positions, np.array(self.positions, np.int64))

    def positions_in(self, start: int, stop: int) -> Indices:
        return np.array(sorted({each for each in self.positions if start <= each < stop}), np.int64)

    def first_from(self, position: int) -> int:
        return min((each for each in self.positions if each >= position), default=2**62)


# Of trainers: nobody knows how many, as of jobs that come and go. What they share is kept as long as there is room.
ANY_NUMBER = 2**31


@dataclass(frozen=True)
class Sharing:
    """That each of num_trainers trainers asks the same actors for the same, which they then read once for all.

    part: of the block, "all"; "places", where its elements are (and how long, if they are documents), with columns of
        no rows; or which rows of its columns, as runs (see plan.position).
    num_elements: of the block, where it is known; another block is none of these elements.
    num_equal: of the trainers, who ask for this very part.
    """

    num_trainers: int
    part: Literal["all", "places"] | Indices = field(default="all", compare=False)  # an array has no hash
    num_elements: int | None = None
    num_equal: int = 1

    @property
    def part_asked(self) -> Hashable:
        """What tells the part from others of the block."""
        return self.part if isinstance(self.part, str) else (self.part.tobytes(), self.num_elements)


@dataclass(frozen=True)
class Wanted:
    """What is to become of the elements of a request.

    positions: those whose elements are wanted, None for all.
    documents: what they are made into, to be packed; None for nothing.
    sharing: with other trainers; None where nobody else asks for this.
    is_digested: whether the block is to have a digest of each element.
    amendments: to the stream, which say what of it gives nothing, and by which weights.
    components: of a mixture with streams, the one that is asked for, by its own positions; where that is another such
        mixture, of that likewise, and so on.
    """

    positions: PositionSet | None = None
    documents: DocumentSpec | None = None
    sharing: Sharing | None = None
    is_digested: bool = False
    amendments: Amendments = ()
    components: tuple[int, ...] = ()


EVERYTHING = Wanted()


class Request(Protocol):
    """What one actor is asked for of the chunk [start, stop). A pure function, so it may be sent again anywhere."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def wanted(self) -> Wanted: ...

    @property
    def first_partition(self) -> int:
        """Of the partitions that it asks for: its owner answers."""
        ...

    @property
    def asked(self) -> Hashable:
        """What decides the block: equal for requests that ask for the same, of whatever part and for however many."""
        ...

    def narrowed(self, positions: tuple[int, ...]) -> Any:
        """What asks for these of its positions alone, shared with nobody; None where others must be read with them."""
        ...
