"""Row selection: the rows of a chunk that one trainer takes, once the places of all elements are known.

Legend: a rank counts the elements of a chunk from 0. A row is an index into a global batch. A selection is runs
(plan.runs) of the rows of a block's columns: of elements, or of the tokens of documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from datarax_ray.feed.batches import Ranks
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import ordinals
from datarax_ray.plan.runs import Pairs, num_rows_of, runs_of, within
from datarax_ray.plan.scheduling import Chunk, ChunkLimits, Scheduler
from datarax_ray.plan.trainer_rows import TrainerRows
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import merged

# Gives the selection of each block of the chunk [start, stop): one trainer's rows, chunk by chunk, in order.
Select: TypeAlias = Callable[[int, int, Sequence[Block]], list[Indices]]


class RowSelector:
    """Selects the elements of this trainer.

    A chunk may begin a batch and not end it. A short last batch that is neither padded nor dropped divides its rows
    differently, so all elements are selected that may be this trainer's.

    stop, offset: as of a Batcher. is_fixed: whether every batch has all rows, also the last one.
    """

    def __init__(self, rows: TrainerRows, *, stop: int | None, offset: int, is_fixed: bool) -> None:
        self._rows = rows
        self._stop = stop
        self._is_fixed = is_fixed
        self._next_row = -offset  # of the first element of the next chunk, in the batch that it begins in

    def select(self, start: int, stop: int, blocks: Sequence[Block]) -> list[Indices]:
        ranks = Ranks.among(start, stop, blocks)
        end = self._next_row + ranks.total
        selections = []
        for block in blocks:
            rows = self._next_row + ranks.of(block.positions) + ordinals(block.positions)
            selections.append(runs_of(np.flatnonzero(self._are_mine(rows, end, is_last=stop == self._stop))))
        self._next_row = max(0, end) % self._rows.batch_size
        return selections

    def _are_mine(self, rows: Indices, end: int, *, is_last: bool) -> np.ndarray:
        """rows: counted from the begin of the batch in which the chunk begins. end: behind the chunk's rows."""
        size, full = self._rows.batch_size, self._rows.full
        tail = rows_of_tail(self._rows, end % size if is_last else None, is_fixed=self._is_fixed)
        row, is_tail = rows % size, rows >= end - end % size
        return (rows >= 0) & np.where(is_tail, within(tail, row), within(full, row))


def rows_of_tail(rows: TrainerRows, num_rows: int | None, *, is_fixed: bool) -> Pairs:
    """The ranges that may be a trainer's in a batch that a chunk does not end. num_rows: of the last batch, or None."""
    if is_fixed:
        return rows.full
    # with fewer rows a trainer's part begins and ends earlier
    return ((0, rows.full[-1][1]),) if num_rows is None else rows.of(num_rows)


@dataclass(frozen=True)
class _Places:
    """A chunk with known places: its parts, their blocks, and the selections of these blocks."""

    start: int
    stop: int
    parts: list[Part]
    blocks: list[Block]
    selections: list[Indices]


class SelectedRowsScheduler(Scheduler):
    """Schedules the selected rows of chunks, once the requests of another scheduler brought the places.

    A request is never split: the elements were made when the actor was asked for the places.
    """

    def __init__(self, places: Scheduler, select: Select) -> None:
        self._places = places
        self.partitioning = places.partitioning
        self.limits = ChunkLimits(max_actors=places.limits.max_actors)
        self._select = select
        self._known: deque[_Places] = deque()  # not scheduled yet
        self._scheduled: deque[_Places] = deque()

    def fit(self, num_actors: int) -> None:
        self._places.fit(num_actors)
        self.partitioning = self._places.partitioning

    @property
    def is_exhausted(self) -> bool:
        """Whether all known places were scheduled; more may come."""
        return not self._known

    def add_places(self, start: int, stop: int, parts: list[Part], blocks: list[Block]) -> None:
        """Event: the places of the next chunk are here, a block for each part."""
        self._known.append(_Places(start, stop, parts, blocks, self._select(start, stop, blocks)))

    def next_chunk(self, size: int, owners: Sequence[int]) -> Chunk:
        """The next known chunk, of any size. The actor that made a block is asked for its rows."""
        chunk = self._known.popleft()
        self._scheduled.append(chunk)
        requests = tuple(
            (part.actor, _part_of(part.request, selected, len(block.positions)))
            for part, block, selected in zip(chunk.parts, chunk.blocks, chunk.selections, strict=True)
            if len(selected)
        )
        return Chunk(chunk.start, chunk.stop, max(1, sum(map(num_rows_of, chunk.selections))), requests)

    def merged(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the chunk that was scheduled first: the places, with the columns of these blocks."""
        chunk, parts = self._scheduled.popleft(), iter(blocks)
        return [
            merged(block, next(parts), selected) if len(selected) else block
            for block, selected in zip(chunk.blocks, chunk.selections, strict=True)
        ]


def _part_of(request: Any, selected: Indices, num_elements: int) -> Any:
    sharing = replace(request.wanted.sharing, part=selected, num_elements=num_elements)
    return replace(request, wanted=replace(request.wanted, sharing=sharing))
