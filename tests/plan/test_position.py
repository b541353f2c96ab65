"""Elements of one position, told apart."""

from __future__ import annotations

import numpy as np

from datarax_ray.plan.position import element_ids, ordinals


def test_elements_of_one_position_have_ids_of_their_own_and_the_first_has_the_positions():
    positions = np.repeat(np.arange(1000), 1000)
    ids = element_ids(positions, ordinals(positions))
    assert len(np.unique(ids)) == 10**6
    assert element_ids(np.arange(9), np.zeros(9, int)).tolist() == list(range(9))
    assert element_ids(7, None) == 7
