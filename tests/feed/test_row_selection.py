"""Which elements a trainer selections, by value, and against a plain loop over rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.row_selection import RowSelector
from datarax_ray.plan.runs import rows_of, within
from datarax_ray.plan.trainer_rows import Share, TrainerRows
from datarax_ray.read.block import Block


def block(*positions) -> Block:
    return Block(np.array(positions, np.int64), None)


def selected(machine: RowSelector, start: int, stop: int, *blocks: Block) -> list[list[int]]:
    return [rows_of(found).tolist() for found in machine.select(start, stop, blocks)]


def selector(rank=1, *, stop=100, offset=0, batch_size=4, is_fixed=False, num_parts=2) -> RowSelector:
    """rank: the part that is taken, or several."""
    parts = (rank,) if isinstance(rank, int) else rank
    rows = TrainerRows(batch_size, Share(num_parts, parts), is_padded=is_fixed)
    return RowSelector(rows, stop=stop, offset=offset, is_fixed=is_fixed)


@given(st.data())
def test_trainers_pick_what_a_loop_over_rows_gives_them(data):
    num_parts = data.draw(st.integers(1, 4))
    batch_size = num_parts * data.draw(st.integers(1, 5))
    parts = tuple(sorted(data.draw(st.sets(st.integers(0, num_parts - 1), min_size=1))))
    is_fixed = data.draw(st.booleans())
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    offset = data.draw(st.integers(0, sizes[0]))
    total = sum(sizes) - offset
    machine = selector(
        parts, stop=len(sizes), offset=offset, batch_size=batch_size, is_fixed=is_fixed, num_parts=num_parts
    )
    mine = TrainerRows(batch_size, Share(num_parts, parts), is_padded=is_fixed)
    row = -offset
    for start, size in enumerate(sizes):  # each chunk is one position, with any number of elements, in one block
        selections = set(selected(machine, start, start + 1, block(*[start] * size))[0])
        for index in range(size):
            if row < 0:
                assert index not in selections
            else:
                rows = min(batch_size, total - row // batch_size * batch_size)
                is_mine = bool(within(mine.of(rows), np.array([row % batch_size]))[0])
                assert index in selections or not is_mine
                if is_fixed or (
                    rows == batch_size and (row // batch_size + 1) * batch_size <= sum(sizes[: start + 1]) - offset
                ):
                    assert (index in selections) == is_mine
            row += 1
