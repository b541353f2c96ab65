"""What several trainers ask the same actors for: blocks that are made once for all, of which each may take a part.

Where the rows of a trainer are not known before the elements are (behind filters, in shards), it asks twice: first
where the elements are, and, knowing with that which of them are its own, for those. Nothing depends on what is kept in
between but the work: a block that is not there is made again, and is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import NO_RUNS, clipped, rows_in
from datarax_ray.plan.requests import Request
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import Columns, map_leaves

# Far more than one trainer has in flight from one actor (MAX_OPEN_CHUNKS, twice). A block that holds nothing, behind a
# filter, costs its request all the same: some KB, and those whose rows nobody asks for are never taken away.
MAX_KEPT = 256


class BlockCache:
    """Keeps each block until all of its trainers had it, and the latest of them within bounds of bytes and number.

    What several trainers are to have is kept as it was handed to the first of them, in place of the block.

    Trainers of one job are a step or two apart, so the last one asks soon after the first; one that is so far behind
    that its blocks were dropped has them made again.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        # with how many trainers are to come, and its bytes; the latest at the end
        self._kept: dict[Hashable, tuple[Any, int, int]] = {}
        self.nbytes = 0

    def answer(self, request: Request, make: Callable[[Any], Block], hand: Callable[[Block], Any] | None = None) -> Any:
        """What the request asks for; `make` makes its block, of which a part may be wanted.

        hand: what becomes of a part that several trainers are to have, each of which is answered with that.
        """
        sharing = request.wanted.sharing
        if sharing is None:
            return make(request)
        handed_as = request.asked, sharing.part_asked
        is_for_several = hand is not None and sharing.num_equal > 1 and sharing.part_asked != "places"
        if is_for_several and (handed := self._take(handed_as)) is not None:
            answer, num_left, nbytes = handed
            self._keep(handed_as, answer, num_left - 1, nbytes)
            return answer
        kept = self._take(request.asked)
        if kept is not None and sharing.num_elements not in (None, len(kept[0].positions)):
            kept = None  # made where something was missing that is there again, or other nodes have
        block, num_left, _ = kept or (make(request), sharing.num_trainers, 0)
        if block.failure is None and sharing.num_elements not in (None, len(block.positions)):
            failure = RuntimeError(
                f"positions [{request.start}, {request.stop}) gave {sharing.num_elements} elements, and "
                f"{len(block.positions)} when they were read again: the data or a transform does not give the same "
                "twice, so no stream over it can be exact"
            )
            return Block(np.empty(0, np.int64), None, failure=failure, failure_position=request.start)
        if sharing.part_asked != "places":
            num_left -= sharing.num_equal if is_for_several else 1
        if block.failure is not None:  # what was broken is not kept: read anew, it may be well
            return part_of(block, sharing.part)
        self._keep(request.asked, block, num_left, block.nbytes)
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
    """The part of a block that is wanted; see Sharing. Rows that the block has not are missing."""
    if isinstance(wanted, str):
        if wanted == "all":
            return block
        return replace(block, columns=_rows(block, NO_RUNS), selected=NO_RUNS, whole_nbytes=block.nbytes)
    runs = clipped(wanted, len(block.positions) if block.lengths is None else int(block.lengths.sum()))
    # what reading took was told with the places
    return replace(
        block,
        **_elements(block, runs),
        columns=_rows(block, runs),
        skipped=(),
        selected=runs,
        spent={},
    )


def merged(places: Block, part: Block, runs: Indices) -> Block:
    """The block whose places were asked for first, with these rows of its columns.

    Raises: what made the second block fail where the first did not; RuntimeError where it is another one.
    """
    told = _elements(places, runs) | {"selected": runs}  # np.array_equal: None is equal to None alone
    if not all(np.array_equal(getattr(part, name), value) for name, value in told.items()):
        raise part.failure or RuntimeError(
            f"the elements from position {told['positions'][0]} on were others when they were read again: the data or "
            "a transform does not give the same twice, so no stream over it can be exact"
        )
    return replace(places, columns=part.columns, selected=runs)


def _elements(block: Block, runs: Indices) -> dict[str, Any]:
    """What the block tells of each element that has some of these rows, by name of the block's fields."""
    told = {"positions": block.positions, "lengths": block.lengths, "digests": block.digests}
    if block.lengths is None:
        return {name: None if array is None else rows_in(runs, array) for name, array in told.items()}
    first = np.searchsorted(ends := np.cumsum(block.lengths), runs[:, 0], "right")
    has_some = np.zeros(len(block.lengths) + 1, np.int64)
    np.add.at(has_some, first, 1)
    np.add.at(has_some, np.searchsorted(ends, runs[:, 1]) + 1, -1)
    found = np.flatnonzero(np.cumsum(has_some))
    return {name: None if array is None else array[found] for name, array in told.items()}


def _rows(block: Block, runs: Indices) -> Columns:
    return None if block.columns is None else map_leaves(lambda array: rows_in(runs, array), block.columns)
