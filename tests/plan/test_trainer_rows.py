"""Rows of trainers against a plain loop over batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.runs import num_below, num_rows_of, rows_in, within
from datarax_ray.plan.trainer_rows import Share, TrainerPositions, TrainerRows, rows_of_rank, share_of_rank


@st.composite
def shares(draw, max_parts=9):
    num_parts = draw(st.integers(1, max_parts))
    return Share(num_parts, tuple(sorted(draw(st.sets(st.integers(0, num_parts - 1), min_size=1)))))


def rows_of(ranges):
    return [row for lo, hi in ranges for row in range(lo, hi)]


@given(num_rows=st.integers(0, 50), process_count=st.integers(1, 9))
def test_trainers_rows_joined_by_rank_are_the_batch(num_rows, process_count):
    of = [TrainerRows(9 * 8 * 7 * 5, share_of_rank(rank, process_count)).of(num_rows) for rank in range(process_count)]
    assert [row for ranges in of for row in rows_of(ranges)] == list(range(num_rows))
    sizes = list(map(num_rows_of, of))
    assert max(sizes) - min(sizes) <= 1


@given(share=shares(), rows_each=st.integers(1, 5), num_rows=st.integers(0, 45), is_padded=st.booleans())
def test_a_share_is_the_rows_of_its_parts_in_order(share, rows_each, num_rows, is_padded):
    rows = TrainerRows(share.num_parts * rows_each, share, is_padded)
    num_rows = min(num_rows, rows.batch_size)
    ranges = rows.of(num_rows)
    alone = [TrainerRows(rows.batch_size, share_of_rank(part, share.num_parts), is_padded) for part in share.parts]
    assert rows_of(ranges) == [row for part in alone for row in rows_of(part.of(num_rows))]
    assert all(lo < hi for lo, hi in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    if is_padded:
        assert rows_of(ranges) == [row for row in rows_of(rows.full) if row < num_rows]
    every = np.arange(num_rows)
    assert every[within(ranges, every)].tolist() == rows_in(ranges, every).tolist() == rows_of(ranges)
    held = np.array(rows_of(ranges), np.int64)
    for lo, hi in ranges:
        for first in range(lo, hi):
            assert held[num_below(ranges, first) : num_below(ranges, hi)].tolist() == list(range(first, hi))


@given(
    origin=st.integers(0, 2**40),
    length=st.integers(0, 60) | st.none(),
    rows_each=st.integers(1, 5),
    share=shares(5),
    is_padded=st.booleans(),
)
def test_the_positions_of_a_trainer_are_those_that_a_loop_over_batches_gives(
    origin, length, rows_each, share, is_padded
):
    rows = TrainerRows(rows_each * share.num_parts, share, is_padded)
    stop = None if length is None else origin + length
    positions = np.arange(origin, origin + (50 if length is None else length))
    expected = np.zeros(len(positions), bool)
    for start in range(0, len(positions), rows.batch_size):
        end = start + rows.batch_size if stop is None else min(start + rows.batch_size, len(positions))
        mine = [start + row for row in rows_of(rows.of(end - start)) if start + row < len(positions)]
        expected[mine] = True
        if not mine and end - start < rows.batch_size:
            expected[start] = True  # to know what an element looks like
    found = TrainerPositions(origin, stop, rows)
    assert found.contain(positions).tolist() == expected.tolist()
    for start, end in itertools.combinations(range(0, len(positions) + 1, 7), 2):
        some = positions[start:end]
        assert found.positions_in(origin + start, origin + end).tolist() == some[expected[start:end]].tolist()
    for position in positions.tolist():
        first = found.first_from(position)
        later = np.flatnonzero(expected & (positions >= position))
        assert first == (positions[later[0]] if len(later) else first)
        assert len(later) or stop is None or first == position


@pytest.mark.parametrize(
    ("batch_size", "process_index", "process_count", "message"),
    [
        (0, 0, 1, "batch_size must be at least 1, got 0"),
        (-4, 0, 2, "batch_size must be at least 1, got -4"),
        (10, 0, 4, "batch_size=10 is the global batch and does not divide over process_count=4.*multiple of 4"),
        (8, 4, 4, r"process_index must be in \[0, process_count=4\), got 4"),
        (8, -1, 4, "got -1"),
        (8, 0, 0, "process_count=0"),
    ],
)
def test_trainers_that_cannot_share_a_batch_are_refused(batch_size, process_index, process_count, message):
    with pytest.raises(ValueError, match=message):
        rows_of_rank(batch_size, process_index, process_count)
