"""The closed form of a mixture against counting, and its proportions against what it promises."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.mixture import MAX_DEVIATION, Mixture, MixtureOrder
from datarax_ray.plan.weights import whole_weights

weightings = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any).map(whole_weights)


@given(weightings, st.integers(0, 2**32 - 1), st.integers(1, 600))
def test_every_component_gets_its_positions_one_after_the_other_and_its_share_at_every_place(weights, seed, length):
    components, own = Mixture(weights, seed).place(np.arange(length))
    total, seen = sum(weights), [0] * len(weights)
    for n, (component, index) in enumerate(zip(components.tolist(), own.tolist(), strict=True)):
        assert index == seen[component]
        seen[component] += 1
        bound = 1 if sum(map(bool, weights)) <= 2 else MAX_DEVIATION
        assert all(abs(c * total - (n + 1) * w) < bound * total for c, w in zip(seen, weights, strict=True))
        if (n + 1) % total == 0:
            assert seen == [(n + 1) // total * w for w in weights]


@given(weightings, st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(1, 50))
def test_counts_and_inverse_agree_with_it_far_out(weights, seed, start, length):
    mixture = Mixture(weights, seed)
    components, own = mixture.place(np.arange(start, start + length))
    counts = list(mixture.counts(start))
    for n, (component, index) in enumerate(zip(components.tolist(), own.tolist(), strict=True)):
        assert mixture.counts(start + n) == tuple(counts)
        assert index == counts[component]
        assert mixture.position_of(component, index) == start + n
        counts[component] += 1


def test_large_weights_and_positions_do_not_overflow():
    mixture = Mixture((2**30 - 1, 2**29, 2**29 + 1), seed=5)
    positions = np.array([2**50, 2**50 + 1, 2**50 + 2])
    components, own = mixture.place(positions)
    for position, component, index in zip(positions.tolist(), components.tolist(), own.tolist(), strict=True):
        assert mixture.counts(position)[component] == index  # whole numbers of Python


def test_the_seed_sets_the_phase_and_not_the_proportions():
    orders = {tuple(Mixture((5, 3, 2), seed).place(np.arange(10))[0].tolist()) for seed in range(40)}
    assert len(orders) == 10
    assert {tuple(np.bincount(order).tolist()) for order in orders} == {(5, 3, 2)}


def test_one_order_is_pinned():
    """States name weights and seed alone, so the order they stand for must not change from release to release."""
    components, own = Mixture((4, 2, 1), seed=42).place(np.arange(14))
    assert components.tolist() == PINNED
    assert own.tolist() == [PINNED[:i].count(c) for i, c in enumerate(PINNED)]


PINNED = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 2]


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([1], (1,)),
        ([0.5, 0.5], (1, 1)),
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([600, 400], (3, 2)),
        ([0, 3], (0, 1)),
        ([Fraction(1, 7), 1], (1, 7)),
        ([0.1] * 10, (1,) * 10),
        (np.array([0.7, 0.2, 0.1], np.float32), (7, 2, 1)),
        (np.array([6, 4]), (3, 2)),
    ],
)
def test_weights_are_taken_as_the_fractions_that_they_mean(weights, whole):
    assert whole_weights(weights) == whole


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0, 0], "at least 0, and one of them more"),
        ([1, -1], "at least 0, and one of them more"),
        ([1, float("nan")], "at least 0"),
        ([1.0, 1e-9], r"weights \[1e-09\] are too small beside the others"),
        ([2**31, 1], r"whose sum exceeds 2\*\*31; round them"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        whole_weights(weights)


@pytest.mark.parametrize("weights", ["ab", {"web": 1}, [1, None], ["1", "2"], [[1, 2]]])
def test_weights_that_are_no_numbers_are_refused(weights):
    with pytest.raises(TypeError, match="weights are numbers, one for each source, got"):
        whole_weights(weights)


def test_records_of_components_are_numbered_one_after_the_other():
    orders = (order_of(5, 1, "global"), order_of(3))
    order = MixtureOrder(Mixture((2, 1), 0), orders)
    assert (order.num_records, order.bases.tolist(), order.seed) == (8, [0, 5, 8], 0)
    assert order.shortest_epoch == 7  # of the shuffled component, 5 of 7.5 positions
    positions = np.arange(30)
    components, own = order.mixture.place(positions)
    want = [orders[c].records(np.array([q]))[0] + (0, 5)[c] for c, q in zip(components, own, strict=True)]
    assert order.records(positions).tolist() == want
    for start in range(40):  # every component has a whole epoch in it, wherever it begins
        components, own = order.mixture.place(np.arange(start, start + order.cycle))
        for c, n in ((0, 5), (1, 3)):
            mine = own[components == c]
            assert (-(-mine[0] // n) + 1) * n <= mine[-1] + 1
