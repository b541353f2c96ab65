"""The block order: a permutation of every epoch, in which windows hold whole blocks."""

import itertools

import numpy as np
import pytest

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.block_shuffle import WINDOW_BLOCKS
from datarax_ray.plan.orders.kinds import order_of


@pytest.mark.parametrize(
    ("n", "block_size"),
    [
        *itertools.product((1, 2, 7, 8, 9, 1000, 8193), (1, 2, 8, 256)),
        *((65537, 1), (65537, 2), (65536, 8), (65537, 8), (100_003, 8), (65536, 256), (100_003, 256)),
    ],
)
def test_every_epoch_is_a_permutation(n, block_size):
    order = order_of(n, seed=3, shuffle="block", block_size=block_size)
    for epoch in range(3 if n < 10_000 else 1):
        records = order.records(np.arange(epoch * n, (epoch + 1) * n))
        assert np.array_equal(np.sort(records), np.arange(n))


def test_any_positions_alone_are_those_of_the_whole():
    order = order_of(10_007, seed=1, shuffle="block", block_size=16)
    whole = order.records(np.arange(3 * 10_007))
    rng = np.random.default_rng(0)
    for _ in range(50):
        start = int(rng.integers(0, 3 * 10_007))
        stop = min(3 * 10_007, start + int(rng.integers(1, 3000)))
        assert np.array_equal(order.records(np.arange(start, stop)), whole[start:stop])


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


def test_windows_and_epochs_are_mixed_differently():
    order = order_of(4 * 64 * 4, seed=0, shuffle="block", block_size=4)
    places = [order.records(np.arange(w * 256, (w + 1) * 256)) % 4 for w in range(8)]
    assert len({tuple(p.tolist()) for p in places}) == 8


def test_consecutive_epochs_share_no_window():
    n = 5000
    order = order_of(n, seed=0, shuffle="block", block_size=4)
    first, second = order.records(np.arange(n)), order.records(np.arange(n, 2 * n))
    assert np.count_nonzero(first == second) < 10


@pytest.mark.parametrize("n", [2, 5, 8192, 8193, 10**6, 2**40])
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_invert_undoes_permute(n, seed):
    indices = np.unique(np.linspace(0, n - 1, 20).astype(np.int64))
    images = cipher.permute(indices, n, seed=seed)
    assert cipher.invert(images, n, seed=seed).tolist() == indices.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "block", "block_size": 0}, "block_size must be at least 1"),
        ({"shuffle": "block", "rounds": 4, "block_size": 2}, "Grain has no block order"),
    ],
)
def test_options_that_contradict_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        order_of(10, **options)


@pytest.mark.parametrize("shuffle", ["none", "global"])
def test_other_orders_have_no_blocks(shuffle):
    with pytest.raises(TypeError, match="unexpected keyword argument 'block_size'"):
        order_of(10, shuffle=shuffle, block_size=2)
