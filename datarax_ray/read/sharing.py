"""Blocks that several trainers ask for: made once, for all of them.

Nothing depends on what is kept here but the work: a block that is not there is made again, and is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from datarax_ray.read.blocks import Block


class SharedBlocks:
    """Keeps each block until all of its trainers had it, and the latest of them within a bound of bytes.

    Trainers of one job are a step or two apart, so the last one asks soon after the first; one that is so far behind
    that its blocks were dropped has them made again.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._kept: dict[Hashable, tuple[Block, int]] = {}  # with how many trainers are to come; the latest at the end
        self.nbytes = 0

    def block(self, ticket: Any, make: Callable[[Any], Block]) -> Block:
        """The block that the ticket asks for: one that was made for another trainer, else `make(ticket)`."""
        if ticket.num_readers == 1:
            return make(ticket)
        asked = ticket.asked
        if (found := self._kept.pop(asked, None)) is None:
            block, num_left = make(ticket), ticket.num_readers
        else:
            block, num_left = found
            self.nbytes -= block.nbytes
        # not what was broken: read anew, it may be well
        if num_left > 1 and block.failure is None:
            self._keep(asked, block, num_left - 1)
        return block

    def _keep(self, asked: Hashable, block: Block, num_left: int) -> None:
        self._kept[asked] = block, num_left
        self.nbytes += block.nbytes
        while self.nbytes > self._max_nbytes:
            dropped, _ = self._kept.pop(next(iter(self._kept)))
            self.nbytes -= dropped.nbytes
