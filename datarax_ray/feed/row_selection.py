"""Row selection: what of a chunk one trainer takes, once it is known where all of its elements are.

Legend: a rank counts the elements of a chunk from 0; a row is an index into a global batch; a selection is runs
(plan.position) of the rows of a block's columns, which are elements, or the tokens of documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from datarax_ray.feed.batches import ranks_in
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.position import num_rows_of, ordinals, runs_of
from datarax_ray.plan.requests import Request
from datarax_ray.plan.scheduling import Chunk, ChunkLimits, Scheduler
from datarax_ray.plan.trainer_rows import TrainerRows, within
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import merged


class Selector(Protocol):
    """Says what one trainer takes of chunks, in order."""

    def select(self, start: int, stop: int, blocks: Sequence[Block]) -> list[Indices]:
        """Of each block of the chunk [start, stop), the selection."""
        ...


class RowSelector:
    """Takes the blocks of chunks in order, and says which of their elements are this trainer's.

    Of a batch that a chunk begins and does not end, nobody knows yet how many rows it has. Where that changes whose
    they are (a short last batch that is neither padded nor dropped), all are selected that may be this trainer's.

    stop, offset: as a Batcher's. is_fixed: whether each batch has all rows, as the last one is padded or dropped, or
    there is none.
    """

    def __init__(self, rows: TrainerRows, *, stop: int | None, offset: int, is_fixed: bool) -> None:
        self._rows = rows
        self._stop = stop
        self._is_fixed = is_fixed
        self._next_row = -offset  # of the first element of the next chunk, in the batch that it begins in

    def select(self, start: int, stop: int, blocks: Sequence[Block]) -> list[Indices]:
        ranks = ranks_in(start, stop, blocks, is_one_to_one=False)
        end = self._next_row + ranks.total
        selections = []
        for block in blocks:
            rows = self._next_row + ranks.of(block.positions) + ordinals(block.positions)
            selections.append(runs_of(np.flatnonzero(self._are_mine(rows, end, is_last=stop == self._stop))))
        self._next_row = max(0, end) % self._rows.batch_size
        return selections

    def _are_mine(self, rows: Indices, end: int, *, is_last: bool) -> np.ndarray:
        """rows: counted on from the batch that the chunk begins in. end: of the chunk's rows."""
        size, full = self._rows.batch_size, self._rows.full
        tail = rows_of_tail(self._rows, end % size if is_last else None, is_fixed=self._is_fixed)
        row, is_tail = rows % size, rows >= end - end % size
        return (rows >= 0) & np.where(is_tail, within(tail, row), within(full, row))


def rows_of_tail(rows: TrainerRows, num_rows: int | None, *, is_fixed: bool) -> tuple[tuple[int, int], ...]:
    """The ranges that may be a trainer's of a batch that a chunk does not end. num_rows: of the last one, else None."""
    if is_fixed:
        return rows.full
    # of fewer rows a part begins and ends earlier
    return ((0, rows.full[-1][1]),) if num_rows is None else rows.of(num_rows)


@dataclass(frozen=True)
class _Places:
    """A chunk whose elements' places are known: of each block, who made it for which request, and what is selected."""

    start: int
    stop: int
    parts: list[Part]
    blocks: list[Block]
    selections: list[Indices]


class SelectedRowsScheduler:
    """Deals what a selector selects, of chunks whose places another scheduler's requests told."""

    def __init__(self, places: Scheduler, selector: Selector) -> None:
        self._places = places
        self.limits = ChunkLimits(max_actors=places.limits.max_actors, homes=places.limits.homes)
        self._selector = selector
        self._known: deque[_Places] = deque()  # not dealt yet
        self._dealt: deque[_Places] = deque()

    @property
    def partitioning(self) -> Partitioning:
        return self._places.partitioning

    def fit(self, num_actors: int) -> None:
        self._places.fit(num_actors)

    @property
    def is_exhausted(self) -> bool:
        """Whether no places are known that were not dealt; there may be more to come."""
        return not self._known

    def add_places(self, start: int, stop: int, parts: list[Part], blocks: list[Block]) -> None:
        """Event: the places of the next chunk are there, each block for its part."""
        self._known.append(_Places(start, stop, parts, blocks, self._selector.select(start, stop, blocks)))

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        """The next chunk that is known, of any size. Each part is asked of the actor that made its block."""
        chunk = self._known.popleft()
        self._dealt.append(chunk)
        requests = tuple(
            (part.actor, _part_of(part.request, selected, len(block.positions)))
            for part, block, selected in zip(chunk.parts, chunk.blocks, chunk.selections, strict=True)
            if len(selected)
        )
        return Chunk(chunk.start, chunk.stop, max(1, sum(map(num_rows_of, chunk.selections))), requests)

    def merged(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the next chunk that was dealt, whole: those told first, with the columns of these. In order."""
        chunk, parts = self._dealt.popleft(), iter(blocks)
        return [
            merged(block, next(parts), selected) if len(selected) else block
            for block, selected in zip(chunk.blocks, chunk.selections, strict=True)
        ]

    def split(self, request: Request) -> Sequence[Request]:
        """Not at all: the elements were made before, when it was asked where they are."""
        return ()

    def arrived(self, request: Request, learned: Sequence[Any]) -> None:
        """Nothing: it was told with the places."""


def _part_of(request: Any, selected: Indices, num_elements: int) -> Any:
    """The request for this selection of a block that has so many elements."""
    sharing = replace(request.wanted.sharing, part=selected, num_elements=num_elements)
    return replace(request, wanted=replace(request.wanted, sharing=sharing))
