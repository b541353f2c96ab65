"""Ranks: the elements of a chunk counted from 0 in the order of the stream, whichever blocks they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.block import Block


@dataclass(frozen=True)
class Ranks:
    """Where the elements of a chunk are: the positions that gave any, and how many there are up to and with each.

    Both int64 (k,), ascending.
    """

    positions: Indices
    ends: Indices

    @property
    def total(self) -> int:
        """Elements in the chunk."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def behind(self, done: int) -> tuple[int, int]:
        """Where the stream goes on behind so many elements of the chunk: position, and elements of it before that."""
        index = int(np.searchsorted(self.ends, done))  # the position of the last of them
        position = int(self.positions[index])
        if self.ends[index] == done:
            return position + 1, 0
        return position, done - (int(self.ends[index - 1]) if index else 0)

    def of(self, positions: Indices) -> Indices:
        """The rank of the first element at each of these positions: int64 (k,). Ranks behind the last for those behind.

        positions: ascending, each in `self.positions` or behind the last of them.
        """
        begins = np.concatenate([np.zeros(1, np.int64), self.ends])
        return begins[np.searchsorted(self.positions, positions)]


def ranks_in(start: int, stop: int, blocks: Sequence[Block], *, may_drop: bool) -> Ranks:
    """The ranks of the chunk [start, stop) in these blocks. may_drop: False where each position has one element."""
    if not may_drop:
        return Ranks(np.arange(start, stop, dtype=np.int64), np.arange(1, stop - start + 1, dtype=np.int64))
    positions = np.concatenate([np.empty(0, np.int64), *(block.positions for block in blocks)])
    found, counts = np.unique(positions[positions < stop], return_counts=True)
    return Ranks(found, np.cumsum(counts, dtype=np.int64))
