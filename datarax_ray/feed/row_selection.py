"""Picking: which elements of a chunk one trainer takes, once it is known where all of them are.

Legend: a rank counts the elements of a chunk from 0; a row is an index into a global batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datarax_ray.feed.ranks import ranks_in
from datarax_ray.feed.scheduling import AnyTicket, Deal, Dealer
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import ordinals
from datarax_ray.plan.state import Extra
from datarax_ray.plan.trainer_rows import TrainerRows, within
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import Shared, merged


class Picker:
    """Takes the blocks of chunks in order, and says which of their elements are this trainer's.

    Of a batch that a chunk begins and does not end, nobody knows yet how many rows it has. Where that changes whose
    they are (a short last batch that is neither padded nor dropped), all are picked that may be this trainer's.

    stop, offset, is_fixed: as a Batcher's; is_fixed where the last batch is padded or dropped.
    """

    def __init__(self, rows: TrainerRows, *, stop: int | None, offset: int, is_fixed: bool) -> None:
        self._rows = rows
        self._stop = stop
        self._is_fixed = is_fixed
        self._next_row = -offset  # of the first element of the next chunk, in the batch that it begins in

    def pick(self, start: int, stop: int, blocks: Sequence[Block]) -> list[Indices]:
        """Of each block of the chunk [start, stop), which elements are picked: int64 (m,), ascending."""
        ranks = ranks_in(start, stop, blocks, may_drop=True)
        end = self._next_row + ranks.total
        picks = []
        for block in blocks:
            rows = self._next_row + ranks.of(block.positions) + ordinals(block.positions)
            picks.append(np.flatnonzero(self._are_mine(rows, end, is_last=stop == self._stop)))
        self._next_row = max(0, end) % self._rows.batch_size
        return picks

    def _are_mine(self, rows: Indices, end: int, *, is_last: bool) -> np.ndarray:
        """rows: counted on from the batch that the chunk begins in. end: of the chunk's rows."""
        size, full = self._rows.batch_size, self._rows.full
        tail = full
        if not self._is_fixed:  # of fewer rows a part begins and ends earlier
            tail = self._rows.of(end % size) if is_last else ((0, full[-1][1]),)
        row, is_tail = rows % size, rows >= end - end % size
        return (rows >= 0) & np.where(is_tail, within(tail, row), within(full, row))


@dataclass(frozen=True)
class _Places:
    """A chunk whose elements' places are known: of each block, who made it for which ticket, and what is picked."""

    start: int
    stop: int
    parts: list[Part]
    blocks: list[Block]
    picks: list[Indices]


class PickedDealer:
    """Deals the elements that a picker picks, of chunks whose places another dealer's tickets told."""

    max_size = 2**62
    is_shared = False

    def __init__(self, places: Dealer, picker: Picker) -> None:
        self._dealer = places
        self._picker = picker
        self._known: deque[_Places] = deque()  # not dealt yet
        self._dealt: deque[_Places] = deque()

    @property
    def is_exhausted(self) -> bool:
        """Whether no places are known that were not dealt; there may be more to come."""
        return not self._known

    @property
    def max_part_size(self) -> int:
        return self._dealer.max_part_size

    @property
    def num_actors(self) -> int:
        return self._dealer.num_actors

    def know(self, start: int, stop: int, parts: list[Part], blocks: list[Block]) -> None:
        """Event: the places of the next chunk are there, each block for its part."""
        self._known.append(_Places(start, stop, parts, blocks, self._picker.pick(start, stop, blocks)))

    def deal(self, size: int) -> Deal:
        """The next chunk that is known, of any size. Each part is asked of the actor that made its block."""
        chunk = self._known.popleft()
        self._dealt.append(chunk)
        tickets = []
        for part, block, picked in zip(chunk.parts, chunk.blocks, chunk.picks, strict=True):
            if len(picked):
                assert isinstance(part.ticket, Shared)
                inner, num_readers = part.ticket.ticket, part.ticket.num_readers
                tickets.append((part.actor, Shared(inner, num_readers, picked, len(block.positions))))
        return Deal(chunk.start, chunk.stop, max(1, sum(map(len, chunk.picks))), tuple(tickets))

    def merged(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks of the next chunk that was dealt, whole: those told first, with the columns of these. In order."""
        chunk, parts = self._dealt.popleft(), iter(blocks)
        return [
            merged(block, next(parts), picked) if len(picked) else block
            for block, picked in zip(chunk.blocks, chunk.picks, strict=True)
        ]

    def owner(self, ticket: AnyTicket) -> int:
        return self._dealer.owner(ticket)

    def split(self, ticket: AnyTicket) -> Sequence[AnyTicket]:
        """Not at all: the elements were made before, when it was asked where they are."""
        return ()

    def reassign(self, actors: Sequence[int], weights: Mapping[int, float] | None = None) -> None:
        """Nothing: the other dealer is told."""

    def arrived(self, ticket: AnyTicket, block: Block) -> None:
        pass

    def released(self, stop: int, has_elements: bool) -> None:
        self._dealer.released(stop, has_elements)

    def extra_at(self, position: int) -> Extra | None:
        return self._dealer.extra_at(position)
