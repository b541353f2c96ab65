"""Which record a sampler gives for an index; against Grain's samplers in tests/grain."""

import grain.python as grain
import numpy as np
import pytest

from datarax_ray.grain.engine.stream import Sampling, split
from datarax_ray.plan.orders.kinds import order_of


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("num_records", [1, 7, 12])
def test_shards_are_consecutive_and_even(num_records, drop_remainder):
    parts = [split(num_records, shard, 5, drop_remainder) for shard in range(5)]
    assert [start for start, _ in parts[1:]] == [stop for _, stop in parts[:-1]]
    sizes = [stop - start for start, stop in parts]
    assert sum(sizes) == (num_records // 5 * 5 if drop_remainder else num_records)
    assert max(sizes) - min(sizes) <= (not drop_remainder)


def test_epochs_wrap_round_the_32_bits_of_the_seed_as_grains_do():
    sampler = grain.IndexSampler(20, grain.ShardOptions(2, 3), True, 4, 2**32 - 2)
    sampling = Sampling(order_of(6, 2**32 - 2, "global", rounds=4), 14, 3)
    indices = np.arange(2, 72, 3)
    assert sampling.records(indices).tolist() == [sampler[index].record_key for index in indices.tolist()]
