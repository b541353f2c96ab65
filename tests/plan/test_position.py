"""Rows of trainers against a plain loop over batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datarax_ray.plan.position import Rows, check_trainers, element_ids, ordinals, trainer_rows

PROFILE = settings(derandomize=True, deadline=None, max_examples=100)


@given(num_rows=st.integers(0, 50), process_count=st.integers(1, 9))
@PROFILE
def test_trainers_rows_joined_by_rank_are_the_batch(num_rows, process_count):
    rows = [range(*trainer_rows(num_rows, rank, process_count)) for rank in range(process_count)]
    assert [row for part in rows for row in part] == list(range(num_rows))
    sizes = list(map(len, rows))
    assert max(sizes) - min(sizes) <= 1


@given(
    origin=st.integers(0, 2**40),
    length=st.integers(0, 60) | st.none(),
    rows_each=st.integers(1, 5),
    process_count=st.integers(1, 5),
    is_padded=st.booleans(),
)
@PROFILE
def test_every_position_is_one_trainers_and_the_one_that_a_loop_over_batches_gives(
    origin, length, rows_each, process_count, is_padded
):
    batch_size = rows_each * process_count
    stop = None if length is None else origin + length
    positions = np.arange(origin, origin + (50 if length is None else length))
    wanted = np.full(len(positions), -1)
    for start in range(0, len(positions), batch_size):
        end = start + batch_size if stop is None else min(start + batch_size, len(positions))
        for rank in range(process_count):
            lo, hi = trainer_rows(end - start, rank, process_count, batch_size if is_padded else None)
            wanted[start + lo : start + hi] = rank
    for rank in range(process_count):
        mine = Rows(origin, stop, batch_size, rank, process_count, is_padded).contain(positions)
        expected = wanted == rank
        begin = len(positions) // batch_size * batch_size
        if stop is not None and begin < len(positions) and not expected[begin:].any():
            expected[begin] = True  # to know what an element looks like
        assert mine.tolist() == expected.tolist()


@given(num_rows=st.integers(0, 24), process_count=st.sampled_from([1, 2, 3, 4, 6]))
@PROFILE
def test_the_rows_of_a_padded_batch_are_those_of_a_full_one_as_far_as_they_go(num_rows, process_count):
    each = 24 // process_count
    rows = [range(*trainer_rows(num_rows, rank, process_count, padded=24)) for rank in range(process_count)]
    assert [row for part in rows for row in part] == list(range(num_rows))
    assert all(set(part) <= set(range(rank * each, rank * each + each)) for rank, part in enumerate(rows))


def test_elements_of_one_position_have_ids_of_their_own_and_the_first_has_the_positions():
    positions = np.repeat(np.arange(1000), 1000)
    ids = element_ids(positions, ordinals(positions))
    assert len(np.unique(ids)) == 10**6
    assert element_ids(np.arange(9), np.zeros(9, int)).tolist() == list(range(9))
    assert element_ids(7, None) == 7


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
        check_trainers(batch_size, process_index, process_count)
