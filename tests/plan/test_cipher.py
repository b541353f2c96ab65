"""The cipher against Grain's own index_shuffle, called one index at a time."""

import numpy as np
import pytest
from grain.experimental import index_shuffle
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import permute

SIZES = [1, 2, 3, 10, 1000, 8192, 8193, 32768, 32769, 65535, 65536, 65538, 10**6, 2**32, 2**32 + 5, 2**62]
SEEDS = [0, 42, 2**32 - 1]
ROUNDS = [4, 6, 8, 24, 70]
BROKEN = [4**k + 1 for k in range(8, 31)]


def some_indices(n):
    """The ends, the middle and some between."""
    return sorted({0, n - 1, n // 2, n // 3, *range(min(n, 4)), *(n * k // 7 for k in range(1, 7))})


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_every_index_goes_where_grain_sends_it(n, rounds):
    indices = some_indices(n)
    for seed in SEEDS:
        wanted = [index_shuffle(i, max_index=n - 1, seed=seed, rounds=rounds) for i in indices]
        assert permute(np.array(indices), n, seed=seed, rounds=rounds).tolist() == wanted


@given(
    n=st.integers(1, 2**62).filter(lambda n: n not in BROKEN),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(2, 40).map(lambda half: 2 * half),
    share=st.floats(0, 1, exclude_max=True),
)
def test_any_index_of_any_domain_goes_where_grain_sends_it(n, seed, rounds, share):
    index = min(int(share * n), n - 1)
    wanted = index_shuffle(index, max_index=n - 1, seed=seed, rounds=rounds)
    assert permute(np.array([index]), n, seed=seed, rounds=rounds).tolist() == [wanted]


@pytest.mark.parametrize("n", [1, 2, 10, 255, 256, 257, 1000, 8192, 8193, 32768, 32769, 65536, 65537, 262145])
@pytest.mark.parametrize("rounds", [6, 8])
def test_every_domain_is_permuted(n, rounds):
    assert (np.sort(permute(np.arange(n), n, seed=42, rounds=rounds)) == np.arange(n)).all()


@pytest.mark.parametrize("n", [65537, 262145])
def test_grain_repeats_a_record_one_above_a_power_of_four_and_this_does_not(n):
    # Grain's own function, so that the test says when the flaw is gone upstream. Its repeated record is the image of
    # index 0 or so: the last index wraps in a block that is one value too small.
    last = index_shuffle(n - 1, max_index=n - 1, seed=42, rounds=4)
    others = permute(np.arange(n - 1), n - 1, seed=42, rounds=4)  # Grain's block for n and for n - 1 is the same
    sample = range(0, n - 1, 997)
    assert [index_shuffle(i, max_index=n - 1, seed=42, rounds=4) for i in sample] == others[sample].tolist()
    assert last in others
    assert n - 1 not in others
    assert last != n - 1
    assert len(set(permute(np.arange(n), n, seed=42).tolist())) == n


def test_grain_is_broken_exactly_one_above_a_power_of_four_from_the_eighth_on():
    assert [n for n in range(1, 70_000) if cipher.grain_is_broken_at(n)] == [65537]
    assert all(cipher.grain_is_broken_at(n) for n in BROKEN)
    assert not any(cipher.grain_is_broken_at(n + d) for n in BROKEN for d in (-2, -1, 1, 2))


def lag_1(rounds, seed=42, n=10**6):
    """Correlation of each record with the next one of the order."""
    order = permute(np.arange(n), n, seed=seed, rounds=rounds).astype(np.float64)
    return abs(float(np.corrcoef(order[:-1], order[1:])[0, 1]))


def test_eight_rounds_leave_neighbours_uncorrelated_where_four_do_not():
    # With 4 rounds the low word of consecutive indices has not mixed into the high word: nearby positions give nearby
    # records. This is why Grain's number of rounds is not the default.
    assert max(lag_1(8, seed) for seed in (0, 42, 43)) < 0.035
    assert max(lag_1(4, seed) for seed in (0, 42, 43)) > 0.3


def test_the_order_is_pinned():
    # A change here would make every saved position mean another record: it needs a new state version.
    assert permute(np.arange(10), 10, seed=42).tolist() == [5, 0, 2, 8, 9, 1, 6, 7, 4, 3]
    assert permute(np.array([0, 1, 2, 999_999]), 10**6, seed=42).tolist() == [538490, 211740, 990826, 334045]


def test_a_shuffle_of_part_is_part_of_the_shuffle():
    for n in (1000, 100_000):
        whole = permute(np.arange(n), n, seed=5)
        some = np.array([n - 1, 0, 0, 17, n // 2])
        assert permute(some, n, seed=5).tolist() == whole[some].tolist()
        assert permute(np.array([], np.int64), n, seed=5).tolist() == []


def test_the_result_is_the_callers_to_change():
    for n in (10, 100_000):
        permute(np.arange(10), n, seed=5)[:] = -1
        assert permute(np.arange(10), n, seed=5).min() >= 0


def test_results_cross_strips_without_a_seam():
    n = 3 * cipher._STRIP + 5
    whole = permute(np.arange(n), n, seed=1)
    pieces = [permute(np.arange(i, min(i + 1000, n)), n, seed=1) for i in range(0, n, 1000)]
    assert np.concatenate(pieces).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("n", "seed", "rounds", "message"),
    [
        (0, 0, 8, r"num_records must be in \[1, 2\*\*62\], got 0"),
        (2**62 + 1, 0, 8, "num_records must be in"),
        (5, -1, 8, r"seed must be in \[0, 2\*\*32\), got -1"),
        (5, 2**32, 8, "seed must be in"),
        (5, 0, 2, "rounds must be even and at least 4, got 2"),
        (5, 0, 7, "got 7"),
    ],
)
def test_what_has_no_permutation_is_refused(n, seed, rounds, message):
    with pytest.raises(ValueError, match=message):
        cipher.check(n, seed=seed, rounds=rounds)
