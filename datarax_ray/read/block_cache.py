"""Blocks that several trainers request from the same actors: made once for all; each trainer may take a part.

Behind filters, and in shards, a trainer requests twice: first the places of the elements, then its own elements. The
cache only saves work: a missing block is made again, and is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.requests import Request
from datarax_ray.plan.runs import NO_RUNS, joined_runs, rows_in
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import Columns, map_leaves

# Far more than one trainer has in flight from one actor (MAX_OPEN_CHUNKS, twice). An empty block, behind a filter,
# costs some KB for its request, and stays where nobody asks for its rows.
MAX_KEPT = 256


class BlockCache:
    """Keeps each block until all of its trainers have had it; the latest blocks within bounds of bytes and number.

    A part for several trainers is kept as the first trainer got it. Trainers of one job are a step or two apart; for a
    trainer further behind, blocks are made again.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        # each with the number of trainers to come, and its bytes; the latest at the end
        self._kept: dict[Hashable, tuple[Any, int, int]] = {}
        self.nbytes = 0

    def answer(self, request: Request, make: Callable[[Any], Block], hand: Callable[[Block], Any] | None = None) -> Any:
        """The requested block, or a part of it; `make` makes the block.

        hand: makes the answer for several trainers out of a part; each gets the same answer.
        """
        sharing = request.wanted.sharing
        if sharing is None:
            return make(request)
        handed_as = request.block_key, sharing.part_key
        is_for_several = hand is not None and sharing.num_equal > 1 and sharing.part_key != "places"
        if is_for_several and (handed := self._take(handed_as)) is not None:
            answer, num_left, nbytes = handed
            self._keep(handed_as, answer, num_left - 1, nbytes)
            return answer
        kept = self._take(request.block_key)
        if kept is not None and sharing.num_elements not in (None, len(kept[0].positions)):
            kept = None  # made while data was missing that is back, or that other nodes have
        block, num_left, _ = kept or (make(request), sharing.num_trainers, 0)
        if block.failure is None and sharing.num_elements not in (None, len(block.positions)):
            failure = RuntimeError(
                f"positions [{request.start}, {request.stop}) gave {sharing.num_elements} elements, and "
                f"{len(block.positions)} when they were read again: the data or a transform does not give the same "
                "twice, so no stream over it can be exact"
            )
            return Block(np.empty(0, np.int64), None, failure=failure, failure_position=request.start)
        if sharing.part_key != "places":
            num_left -= sharing.num_equal if is_for_several else 1
        if block.failure is not None:  # not kept: the next read may succeed
            return part_of(block, sharing.part)
        self._keep(request.block_key, block, num_left, block.nbytes)
        part = part_of(block, sharing.part)
        if hand is None or not is_for_several:
            return part
        answer = hand(part)
        self._keep(handed_as, answer, sharing.num_equal - 1, part.nbytes)
        return answer

    def __len__(self) -> int:
        return len(self._kept)

    def _take(self, asked: Hashable) -> tuple[Any, int, int] | None:
        if (found := self._kept.pop(asked, None)) is not None:
            self.nbytes -= found[2]
        return found

    def _keep(self, asked: Hashable, value: Any, num_left: int, nbytes: int) -> None:
        if num_left < 1:
            return
        self._kept[asked] = value, num_left, nbytes
        self.nbytes += nbytes
        while self.nbytes > self._max_nbytes or len(self._kept) > MAX_KEPT:
            self._take(next(iter(self._kept)))


def part_of(block: Block, wanted: Literal["all", "places"] | Indices) -> Block:
    """The wanted part of a block; see Sharing. Rows that the block does not have are missing."""
    if isinstance(wanted, str):
        if wanted == "all":
            return block
        return replace(block, columns=_rows(block, NO_RUNS), selected=NO_RUNS, whole_nbytes=block.nbytes)
    num_rows = len(block.positions) if block.lengths is None else int(block.lengths.sum())
    runs = joined_runs(np.minimum(wanted, num_rows))
    # the places came with the time of the read
    return replace(block, **_elements(block, runs), columns=_rows(block, runs), skipped=(), selected=runs, spent={})


def merged(places: Block, part: Block, runs: Indices) -> Block:
    """The block whose places came first, with these rows of its columns.

    Raises: the failure of the second block if the first had none; RuntimeError if the two differ.
    """
    expected = _elements(places, runs) | {"selected": runs}  # np.array_equal: None is equal to None alone
    if not all(np.array_equal(getattr(part, name), value) for name, value in expected.items()):
        raise part.failure or RuntimeError(
            f"the elements from position {expected['positions'][0]} on differ in a second read: the data "
            "or a transform does not give the same twice, so no stream over it can be exact"
        )
    return replace(places, columns=part.columns, selected=runs)


def _elements(block: Block, runs: Indices) -> dict[str, Any]:
    """The block's fields of the elements that have some of these rows, by name."""
    arrays = {"positions": block.positions, "lengths": block.lengths, "digests": block.digests}
    if block.lengths is None:
        return {name: None if array is None else rows_in(runs, array) for name, array in arrays.items()}
    first = np.searchsorted(ends := np.cumsum(block.lengths), runs[:, 0], "right")
    has_some = np.zeros(len(block.lengths) + 1, np.int64)
    np.add.at(has_some, first, 1)
    np.add.at(has_some, np.searchsorted(ends, runs[:, 1]) + 1, -1)
    found = np.flatnonzero(np.cumsum(has_some))
    return {name: None if array is None else array[found] for name, array in arrays.items()}


def _rows(block: Block, runs: Indices) -> Columns:
    return None if block.columns is None else map_leaves(lambda array: rows_in(runs, array), block.columns)
