"""Which elements a trainer selections, by value, and against a plain loop over rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.row_selection import RowSelector
from datarax_ray.plan.position import rows_of
from datarax_ray.plan.trainer_rows import Share, TrainerRows, within
from datarax_ray.read.block import Block


def selector(rank=1, *, stop=100, offset=0, batch_size=4, is_fixed=False, num_parts=2):
    """rank: the part that is taken, or several."""
    parts = (rank,) if isinstance(rank, int) else rank
    rows = TrainerRows(batch_size, Share(num_parts, parts), is_padded=is_fixed)
    return RowSelector(rows, stop=stop, offset=offset, is_fixed=is_fixed)


def block(*positions):
    return Block(np.array(positions, np.int64), None)


def selected(machine, start, stop, *blocks):
    return [rows_of(found).tolist() for found in machine.select(start, stop, blocks)]


def test_of_every_batch_its_rows_whoever_has_them():
    # elements 0 1 3 4 | 6 7 8 9 of two blocks; rank 1 of 2 takes the last two of each batch
    assert selected(selector(), 0, 10, block(0, 4, 6, 9), block(1, 3, 7, 8)) == [[1, 3], [1, 3]]


def test_of_a_batch_that_goes_on_all_that_may_be_a_trainers():
    blocks = block(0, 1, 2, 3, 4, 5, 6), block()
    assert selected(selector(0), 0, 10, *blocks) == [[0, 1, 4, 5], []]
    assert selected(selector(1), 0, 10, *blocks) == [[2, 3, 4, 5, 6], []]
    assert selected(selector(1, is_fixed=True), 0, 10, *blocks) == [[2, 3, 6], []]


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
