"""The order against Grain's IndexSampler, and its arithmetic far from zero."""

import numpy as np
import pytest
from grain.experimental import index_shuffle
from grain.samplers import IndexSampler

from datarax_ray.plan.orders.kinds import order_of


@pytest.mark.parametrize("n", [1, 2, 10, 257, 1000, 9000])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1])
def test_four_rounds_are_grains_sampler_over_two_epochs(n, seed):
    sampler = IndexSampler(num_records=n, shuffle=True, num_epochs=2, seed=seed)
    positions = range(2 * n) if n < 300 else range(n - 100, n + 100)
    wanted = [sampler[p].record_key for p in positions]
    got = order_of(n, seed=seed, shuffle="global", rounds=4).records(np.array(list(positions)))
    assert got.tolist() == wanted


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 2**40, 10**12])
def test_positions_far_out_are_the_same_arithmetic(epoch):
    n, seed = 1000, 42
    order = order_of(n, seed=seed, shuffle="global")
    start = epoch * n
    got = order.records(np.arange(start, start + 20)).tolist()
    assert got == [index_shuffle(i, max_index=n - 1, seed=(seed + epoch) % 2**32, rounds=8) for i in range(20)]
    assert order_of(n).records(np.arange(start + 990, start + 1010)).tolist() == [*range(990, 1000), *range(10)]


def test_the_order_is_pinned():
    # Saved positions mean these records; a change needs a new state version.
    pinned = [2, 0, 1, 4, 5, 6, 3, 3, 6, 0, 1, 4, 5, 2]
    assert order_of(7, seed=3, shuffle="global").records(np.arange(14)).tolist() == pinned


@pytest.mark.parametrize("n", [65537, 262145, 4**30 + 1])
def test_four_rounds_are_refused_where_grains_order_is_none(n):
    with pytest.raises(ValueError, match=rf"which at num_records={n} gives one record twice.*Use rounds=8"):
        order_of(n, shuffle="global", rounds=4)
    order_of(n, shuffle="none", rounds=4)  # orders nothing
    order_of(n, shuffle="global", rounds=6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_records": 0}, "num_records must be in"),
        ({"num_records": 5, "shuffle": "files"}, "shuffle must be 'none', 'global' or 'block', got 'files'"),
        ({"num_records": 5, "shuffle": True}, "got True"),
    ],
)
def test_an_impossible_order_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        order_of(**fields)


def test_a_fraction_is_no_seed():
    with pytest.raises(TypeError, match="integer"):
        order_of(5, seed=1.5)
    with pytest.raises(TypeError, match="integer"):
        order_of(5.0)
