"""The order of shards against a plain rotation, and windows against a plain sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, InterleavedOrder
from tests import shards_oracle

SHAPES = {"num_shards": st.integers(1, 7), "turn_size": st.integers(1, 5)}


@given(lengths=st.lists(st.integers(0, 23), min_size=1, max_size=7), turn_size=SHAPES["turn_size"])
def test_positions_in_order_are_the_plain_rotation(lengths, turn_size):
    order = InterleavedOrder(len(lengths), turn_size)
    stands = {
        int(position): (shard, ordinal)
        for shard, length in enumerate(lengths)
        for ordinal, position in enumerate(order.positions(0, shard, np.arange(length)))
    }
    assert [stands[position] for position in sorted(stands)] == shards_oracle.rotation(lengths, turn_size)


@given(**SHAPES, length=st.integers(0, 40), epoch=st.integers(0, 3))
def test_the_count_before_an_offset_is_the_number_of_positions_before_it(num_shards, turn_size, length, epoch):
    order = InterleavedOrder(num_shards, turn_size)
    for place in range(num_shards):
        offsets = order.positions(epoch, place, np.arange(length)) - epoch * EPOCH_POSITIONS
        end = int(offsets[-1]) + 1 if length else 0
        for offset in range(end + 1):
            assert order.count_before(place, offset) == sum(offsets < offset)


@pytest.mark.parametrize("length", [1, 6, 7, 8, 20, 21])
@pytest.mark.parametrize("cut", [1, 5, 7, 50])
def test_windows_are_permuted_the_same_however_they_are_asked_for(length, cut):
    order = InterleavedOrder(3, 2, seed=9, is_shuffled=True, window_size=7)
    want = shards_oracle.window_order(length, 7, seed=9, epoch=4, shard=2)
    asked = [order.sources(4, 2, lo, min(lo + cut, length), length) for lo in range(0, length, cut)]
    assert np.concatenate(asked).tolist() == want
    for first in range(0, length, 7):
        window = want[first : first + 7]
        assert sorted(window) == list(range(first, first + len(window)))


def test_whole_windows_need_no_length():
    order = InterleavedOrder(1, 1, is_shuffled=True, window_size=4)
    assert order.sources(0, 0, 0, 8, None).tolist() == order.sources(0, 0, 0, 8, 11).tolist()


def test_every_epoch_shard_and_window_has_an_order_of_its_own():
    order = InterleavedOrder(2, 1, seed=1, is_shuffled=True, window_size=100)
    orders = [
        tuple((order.sources(epoch, shard, start, start + 100, None) - start).tolist())
        for epoch in (0, 1)
        for shard in (0, 1)
        for start in (0, 100)
    ]
    assert len(set(orders)) == 8
    other = InterleavedOrder(2, 1, seed=2, is_shuffled=True, window_size=100)
    assert tuple(other.sources(0, 0, 0, 100, None).tolist()) != orders[0]


def test_one_window_is_pinned():
    # A saved position means this order, in every release: it must not move with NumPy's.
    order = InterleavedOrder(1, 1, seed=42, is_shuffled=True, window_size=8)
    assert order.sources(0, 0, 0, 8, None).tolist() == [5, 4, 6, 7, 1, 0, 2, 3]


def test_the_rotation_is_a_permutation_of_its_own_in_every_shuffled_epoch():
    order = InterleavedOrder(20, 1, seed=3, is_shuffled=True)
    rotations = [order.shards(epoch).tolist() for epoch in range(4)]
    assert [sorted(rotation) for rotation in rotations] == [list(range(20))] * 4
    assert len(set(map(tuple, rotations))) == 4
    assert rotations == [shards_oracle.shards(20, epoch, seed=3) for epoch in range(4)]
    assert [order.shards(1)[place] for place in order.places(1)] == list(range(20))
    assert InterleavedOrder(4, 1, seed=3).shards(7).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_shards": 0}, "num_shards must be at least 1, got 0"),
        ({"turn_size": 0}, "turn_size must be at least 1, got 0"),
        ({"window_size": 5}, "window_size=5 has no use in a stream that is not shuffled"),
        ({"seed": 2**32}, "seed must be in"),
    ],
)
def test_what_is_no_order_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        InterleavedOrder(**({"num_shards": 3, "turn_size": 2} | change))
