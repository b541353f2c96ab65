"""Elements of one position, told apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.position import (
    clipped,
    element_ids,
    joined_runs,
    num_rows_of,
    ordinals,
    rows_in,
    rows_of,
    runs_of,
)


def test_elements_of_one_position_have_ids_of_their_own_and_the_first_has_the_positions():
    positions = np.repeat(np.arange(1000), 1000)
    ids = element_ids(positions, ordinals(positions))
    assert len(np.unique(ids)) == 10**6
    assert element_ids(np.arange(9), np.zeros(9, int)).tolist() == list(range(9))
    assert element_ids(7, None) == 7


SETS = st.sets(st.integers(0, 60))


@given(SETS, st.integers(0, 70), st.randoms())
def test_runs_hold_the_rows_that_they_are_made_of(chosen, num_rows, random):
    rows = np.array(sorted(chosen), np.int64)
    runs, array = runs_of(rows), np.arange(100) * 3
    assert (runs[:, 0] < runs[:, 1]).all()
    assert (runs[1:, 0] > runs[:-1, 1]).all()
    assert rows_of(runs).tolist() == rows.tolist()
    assert num_rows_of(runs) == len(rows)
    assert rows_in(runs, array).tolist() == array[rows].tolist()
    assert rows_of(clipped(runs, num_rows)).tolist() == [row for row in rows.tolist() if row < num_rows]
    singles = np.stack([rows, rows + 1], axis=1)[random.sample(range(len(rows)), len(rows))]
    assert joined_runs(singles).tolist() == runs.tolist()


def test_long_runs_are_copied_as_slices():
    array = np.arange(1000).reshape(500, 2)
    runs = np.array([[3, 200], [210, 211], [300, 450]])
    assert rows_in(runs, array).tolist() == array[rows_of(runs)].tolist()
    assert rows_in(runs[:1], array).base is array.base
