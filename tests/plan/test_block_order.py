"""The block order: a permutation of every epoch, in which windows hold whole blocks."""

from __future__ import annotations

import numpy as np
import pytest

from datarax_ray.plan.orders.kinds import WINDOW_BLOCKS, order_of


@pytest.mark.parametrize("n", [64 * 8 * 5, 64 * 8 * 5 + 3])
def test_a_window_holds_whole_blocks_from_all_over_the_data(n):
    """A window of 64 blocks of 8 has the records of 64 blocks or, behind the one short block, parts of 65."""
    order = order_of(n, seed=9, shuffle="block", block_size=8)
    for index in range(5):
        records = order.records(np.arange(index * 512, (index + 1) * 512))
        blocks = np.unique(records // 8)
        assert len(blocks) in (WINDOW_BLOCKS, WINDOW_BLOCKS + 1)
        assert blocks.max() - blocks.min() > n // 8 // 2
        assert np.abs(np.corrcoef(records[:-1], records[1:])[0, 1]) < 0.15


def test_consecutive_epochs_share_no_window():
    n = 5000
    order = order_of(n, seed=0, shuffle="block", block_size=4)
    first, second = order.records(np.arange(n)), order.records(np.arange(n, 2 * n))
    assert np.count_nonzero(first == second) < 10
