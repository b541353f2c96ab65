"""What holds for every order, whatever it is: a new one is added by a line in ORDERS."""

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders.kinds import KINDS, order_of
from datarax_ray.plan.orders.mixture import Mixture, MixtureOrder
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerPositions, TrainerRows, share_of_rank
from datarax_ray.plan.weights import WeightSchedule

SIZES = (5, 1, 7, 3, 3, 9, 2, 4)
LARGE = np.random.default_rng(0).integers(100, 3000, 20).tolist()  # owners remember what they hold of these
N = 9_001


def grouped(sizes, shuffle, **options):
    return order_of(sum(sizes), 3, shuffle, groups=RecordGroups(sizes), **options)


# Each with the settings that every state of it has, in their order: they stay for ever.
ORDERS = {
    "file": (order_of(37, 2), {"shuffle": "none", "seed": 2}),
    "file, one record": (order_of(1), {"shuffle": "none", "seed": 0}),
    "file of groups": (grouped(SIZES, "none"), {"shuffle": "none", "seed": 3}),
    "global": (order_of(37, 2**32 - 1, "global"), {"shuffle": "global", "seed": 2**32 - 1, "rounds": 8}),
    "Grain's": (order_of(N, 1, "global", 4), {"shuffle": "global", "seed": 1, "rounds": 4}),
    "global of groups": (grouped(SIZES, "global"), {"shuffle": "global", "seed": 3, "rounds": 8}),
    "block": (
        order_of(37, 2, "block", block_size=4, window_blocks=3),
        {"shuffle": "block", "seed": 2, "rounds": 8, "block_size": 4, "window_blocks": 3},
    ),
    "large block": (
        order_of(N, 2, "block", block_size=256),
        {"shuffle": "block", "seed": 2, "rounds": 8, "block_size": 256, "window_blocks": 64},
    ),
    "groups": (
        grouped(SIZES, "block", window_blocks=3),
        {"shuffle": "block", "seed": 3, "rounds": 8, "block_size": "d144a0bae09f37c1", "window_blocks": 3},
    ),
    "large groups": (
        grouped(LARGE, "block", window_blocks=16),
        {"shuffle": "block", "seed": 3, "rounds": 8, "block_size": "5a42bc2e82ebd176", "window_blocks": 16},
    ),
}
MIXED = {
    "mixture": (
        MixtureOrder(Mixture((3, 1, 2), seed=5), tuple(ORDERS[name][0] for name in ("file", "global", "groups"))),
        {"weights": [3, 1, 2], "seed": 5},
    ),
    "mixture of mixtures": (
        MixtureOrder(
            Mixture((1, 1), seed=5),
            (ORDERS["file"][0], MixtureOrder(Mixture((1, 2), seed=6), (order_of(4), order_of(5, 1, "global")))),
        ),
        {"weights": [1, 1], "seed": 5},
    ),
    "schedule": (
        MixtureOrder(
            Mixture(WeightSchedule([(0, [3, 1, 0]), (70, [1, 1, 2]), (90, [1, 1, 1])], num_steps=3), seed=5),
            tuple(ORDERS[name][0] for name in ("file", "global", "groups")),
        ),
        {"weights": {"points": [[0, [3, 1, 0]], [70, [1, 1, 2]], [90, [1, 1, 1]]], "num_steps": 3}, "seed": 5},
    ),
}
ALL = ORDERS | MIXED
every_order = pytest.mark.parametrize("name", ALL)


def run_records(order):
    return tuple(map(run_records, order.orders)) if isinstance(order, MixtureOrder) else 4


def chunks(order):
    """Small ones, whole epochs, several epochs, and one far out; twice, since owners are quicker the second time."""
    n = order.num_records
    chunks = [
        (0, 1),
        (n - 1, n + 1),
        (0, n),
        (n // 3, 2 * n // 3 + 1),
        (n // 2, 3 * n + 2),
        (10**9 * n - 1, 10**9 * n + 9),
    ]
    return 2 * chunks


def test_every_kind_is_here():
    assert {type(order) for order, _ in ORDERS.values()} == set(KINDS.values())


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("epoch", [0, 1, 2**33])
def test_every_epoch_is_a_permutation(name, epoch):
    order, _ = ORDERS[name]
    n = order.num_records
    assert np.array_equal(np.sort(order.records(np.arange(epoch * n, (epoch + 1) * n))), np.arange(n))
    assert order.cycle == n


@every_order
def test_a_cycle_holds_every_record(name):
    order, _ = ALL[name]
    assert set(order.records(np.arange(order.cycle)).tolist()) == set(range(order.num_records))


@every_order
@given(data=st.data())
def test_records_in_parts_are_those_of_the_whole(name, data):
    order, _ = ALL[name]
    whole = order.records(np.arange(3 * order.num_records))
    assert whole.dtype == np.int64
    some = sorted(data.draw(st.sets(st.integers(0, len(whole) - 1), max_size=20)))
    assert order.records(np.array(some, np.int64)).tolist() == whole[some].tolist()
    start = data.draw(st.integers(0, len(whole)))
    assert np.array_equal(order.records(np.arange(start, len(whole))), whole[start:])


@every_order
@pytest.mark.parametrize("actors", [(0,), (3, 1), range(7)])
def test_owners_together_read_every_position_once(name, actors):
    order, _ = ALL[name]
    partitioning = order.partitioning(run_records(order))
    owners = assign(partitioning, actors)
    rows = TrainerPositions(0, None, TrainerRows(8, share_of_rank(1, 2)))
    for start, stop in chunks(order):
        parts = owners_in(order, partitioning, owners, start, stop)
        assert set(parts) <= set(actors)
        for asked in (None, rows):
            found = [
                ReadRequest(start, stop, partitioning, part, Wanted(asked)).select(order) for part in parts.values()
            ]
            positions = np.concatenate([each for each, _ in found])
            records = np.concatenate([each for _, each in found])
            wanted = np.arange(start, stop) if asked is None else rows.contain(np.arange(start, stop))
            if asked is not None:
                wanted = np.arange(start, stop)[wanted]
            assert np.array_equal(np.sort(positions), wanted)
            assert np.array_equal(records, order.records(np.sort(positions))[np.argsort(np.argsort(positions))])
            assert all((np.diff(each) > 0).all() for each, _ in found)


@every_order
def test_who_is_touched_are_at_least_the_owners(name):
    order, _ = ALL[name]
    partitioning = order.partitioning(run_records(order))
    for start, stop in chunks(order):
        touched = list(order.touched(partitioning, start, stop))
        assert touched == sorted(set(touched))
        untouched = np.ones(partitioning.num_partitions, bool)
        untouched[touched] = False
        assert not untouched[order.partitions_of(partitioning, order.records(np.arange(start, stop)))].any()


@every_order
@pytest.mark.parametrize("asked", [None, TrainerPositions(0, None, TrainerRows(8, share_of_rank(1, 2)))])
def test_a_chunk_of_few_positions_is_asked_of_those_alone_who_have_them(name, asked):
    order, _ = ALL[name]
    partitioning = order.partitioning(run_records(order))
    owners = assign(partitioning, range(7))
    for start, size in itertools.product((0, 3, order.num_records - 2, 5 * order.num_records - 1), (1, 2, 4)):
        mine = np.arange(start, start + size)
        mine = mine if asked is None else mine[asked.contain(mine)]
        parts = owners_in(order, partitioning, owners, start, start + size, asked)
        assert len(parts) <= max(1, len(mine))
        requests = [ReadRequest(start, start + size, partitioning, part, Wanted(asked)) for part in parts.values()]
        assert np.array_equal(np.sort(np.concatenate([each.select(order)[0] for each in requests])), mine)


@every_order
def test_what_a_state_says_of_it_stays_for_ever(name):
    order, wanted = ALL[name]
    assert list(order.settings().items()) == list(wanted.items())


@every_order
def test_an_order_travels_and_owners_remember_nothing_on_the_way(name):
    order, _ = ALL[name]
    small = len(pickle.dumps(order))
    partitioning = order.partitioning(run_records(order))
    for part in list(owners_in(order, partitioning, assign(partitioning, range(3)), 0, 9).values()) * 3:
        ReadRequest(0, 9, partitioning, part).select(order)
    copied = pickle.loads(pickle.dumps(order))
    assert copied == order
    assert hash(copied) == hash(order)
    assert len(pickle.dumps(order)) < small + 500
    assert np.array_equal(copied.records(np.arange(50)), order.records(np.arange(50)))


@every_order
def test_a_position_is_all_that_a_state_says(name):
    order, _ = ALL[name]
    assert order.extra_in({}, StreamState(7), {}) is None
    with pytest.raises(ValueError, match="the state has {'cursors': {}}"):
        order.extra_in({"cursors": {}}, StreamState(7), {})


@pytest.mark.parametrize("name", ORDERS)
def test_the_shortest_epoch_is_that_of_what_is_permuted_anew(name):
    order, _ = ORDERS[name]
    n = order.num_records
    is_the_same = np.array_equal(order.records(np.arange(n)), order.records(np.arange(n, 2 * n)))
    assert order.shortest_epoch == (sys.maxsize if is_the_same else n)
