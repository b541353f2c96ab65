"""The traced order is the host's: every position, whatever the size, rounds, seed and epoch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.sources.base.device import records_at


@pytest.mark.parametrize("num_records", [1, 2, 53, 8193, 65_536, 65_537, 1_000_003])
@pytest.mark.parametrize("rounds", [8, pytest.param(10, marks=pytest.mark.slow)])  # each is compiled
def test_traced_positions_have_the_host_s_records(num_records, rounds):
    order = order_of(num_records, seed=2**32 - 2, shuffle="global", rounds=rounds)  # the seed wraps in the second epoch
    traced = jax.jit(lambda start: records_at(order, start, 70))
    for start in (0, 1, num_records - 1, num_records, 3 * num_records + num_records // 2, 2**31 - 1):
        want = order.records(np.arange(start, start + 70))
        assert traced(jnp.int32(start)).tolist() == want.tolist()


def test_without_shuffle_it_is_the_file_order():
    assert jax.jit(lambda s: records_at(order_of(4), s, 6))(3).tolist() == [3, 0, 1, 2, 3, 0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(NotImplementedError, match="block order has no traced form; iterate a Pipeline"):
        records_at(order_of(9, shuffle="block", block_size=2), 0, 2)
    with pytest.raises(NotImplementedError, match="2147483647 records are too many for int32"):
        records_at(order_of(2**31 - 1, shuffle="global"), 0, 2)
