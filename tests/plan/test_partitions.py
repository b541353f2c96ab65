"""Ownership against brute force: who owns what, how little moves, and that requests partition every chunk."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.actors.sizing import MIN_READ_S, MIN_WEIGHT, NUM_AGREEING, LoadBalance
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, Partitioning
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in


def fewest_moves(before, actors):
    """The fewest partitions that must move to be even: every actor keeps what it holds up to its quota, and the
    larger quotas go to those who can use them."""
    base, larger = divmod(len(before), len(actors))
    held = Counter(before)
    kept = sum(min(held[a], base) for a in actors)
    kept += min(larger, sum(held[a] > base for a in actors))
    return len(before) - kept


def check_even(owners, actors, num_partitions):
    counts = Counter(owners)
    assert len(owners) == num_partitions
    assert set(counts) <= set(actors)
    sizes = [counts[a] for a in actors]
    assert max(sizes) - min(sizes) <= 1


@given(
    num_partitions=st.integers(1, 40),
    rosters=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True), min_size=1, max_size=6),
    is_dealt=st.booleans(),
)
def test_joining_and_leaving_actors_share_evenly_with_the_fewest_moves(num_partitions, rosters, is_dealt):
    partitioning = Partitioning(1, num_partitions, is_dealt=is_dealt)
    owners = ()
    for actors in rosters:
        before, owners = owners, assign(partitioning, actors, owners)
        check_even(owners, actors, num_partitions)
        assert owners == assign(partitioning, actors, before)
        if before:
            assert sum(a != b for a, b in zip(before, owners, strict=True)) == fewest_moves(before, actors)


@given(
    num_partitions=st.integers(1, 60),
    actors=st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True),
    weights=st.dictionaries(st.integers(0, 12), st.sampled_from([0.125, 0.5, 1.0, 2.0])),
    is_dealt=st.booleans(),
)
def test_weighted_actors_get_their_share_rounded_and_it_stays(num_partitions, actors, weights, is_dealt):
    partitioning = Partitioning(1, num_partitions, is_dealt=is_dealt)
    owners = assign(partitioning, actors, weights=weights)
    counts = Counter(owners)
    total = sum(weights.get(a, 1.0) for a in actors)
    for actor in actors:
        assert abs(counts[actor] - num_partitions * weights.get(actor, 1.0) / total) < 1
    assert assign(partitioning, actors, owners, weights) == owners
    even = assign(partitioning, actors, owners)
    check_even(even, actors, num_partitions)
    moved = sum(a != b for a, b in zip(owners, even, strict=True))
    assert moved == fewest_moves(owners, actors)


def test_in_file_order_what_a_newcomer_gets_is_spread_over_the_file():
    partitioning = Partitioning(1, 12)
    before = assign(partitioning, [1, 2])
    assert before == (1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2)
    assert assign(partitioning, [1, 2, 3], before) == (3, 3, 1, 2, 1, 2, 3, 3, 1, 2, 1, 2)
    assert assign(partitioning, [1], before) == (1,) * 12


@pytest.mark.parametrize("weights", [{1: 0.0}, {1: -1.0, 2: 2.0}])
def test_weights_that_give_nobody_anything_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be at least 0 and not all 0"):
        assign(Partitioning(1, 5), [1] if len(weights) == 1 else [1, 2], weights=weights)


def test_without_actors_there_is_no_owner():
    with pytest.raises(ValueError, match="at least one actor"):
        assign(Partitioning(1, 5), [])


@given(n=st.integers(1, 10**7), run=st.integers(0, 5000))
def test_a_cut_holds_every_record_in_few_partitions(n, run):
    partitioning = order_of(n, shuffle="global").partitioning(run)
    assert 1 <= partitioning.num_partitions <= MAX_NUM_PARTITIONS
    assert partitioning.partition_of(np.array([0, n - 1])).tolist() == [
        0,
        partitioning.num_partitions - 1,
    ]  # one run to a partition, in order
    dealt = order_of(n).partitioning(run)
    assert dealt == Partitioning(max(1, run), MAX_NUM_PARTITIONS)
    assert 0 <= dealt.partition_of(np.array([n - 1]))[0] < MAX_NUM_PARTITIONS


@st.composite
def chunks(draw):
    """(order, partitioning, owners, start, stop): tiny datasets, chunks over several epochs."""
    n = draw(st.integers(1, 30))
    order = order_of(n, seed=draw(st.integers(0, 3)), shuffle=draw(st.sampled_from(["none", "global"])))
    partitioning = Partitioning(draw(st.integers(1, 12)), draw(st.integers(1, 8)), is_dealt=not order.is_shuffled)
    actors = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    start = draw(st.integers(0, 100))
    return order, partitioning, assign(partitioning, actors), start, start + draw(st.integers(1, 80))


@given(chunks())
def test_in_file_order_and_for_little_exactly_the_owners_with_records_get_a_request(chunk):
    order, partitioning, owners, start, stop = chunk
    wanted = {}
    for position in range(start, stop):
        record = int(order.records(np.array([position]))[0])
        partition = record // partitioning.run_records % partitioning.num_partitions
        wanted.setdefault(owners[partition], set()).add(partition)
    found = owners_in(order, partitioning, owners, start, stop)
    if not order.is_shuffled:
        assert {actor: set(partitions) for actor, partitions in found.items()} == wanted
    else:  # everyone, without computing the order; or few for little
        assert found.keys() == (set(owners) if stop - start > len(set(owners)) else wanted.keys())
        assert all(set(found[actor]) >= partitions for actor, partitions in wanted.items())
    assert all(len(set(partitions)) == len(partitions) > 0 for partitions in found.values())


def test_a_request_without_partitions_or_rows_is_the_whole_chunk():
    positions, records = ReadRequest(3, 8).select(order_of(5))
    assert positions.tolist() == [3, 4, 5, 6, 7]
    assert records.tolist() == [3, 4, 0, 1, 2]
    assert ReadRequest(3, 3).select(order_of(5))[0].tolist() == []


# -- load balance: who owns less, when, and that noise moves nothing --------------------------------------------------


def read(pace, seconds, times, actors=None):
    """So many readings of every actor, of 100 records each. seconds: for a record, by actor."""
    for _ in range(times):
        for actor, each in seconds.items():
            pace.read(actor, 100, 100 * each, actors or seconds)


def test_an_actor_that_stays_slow_gets_as_much_less_and_the_others_what_is_even():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, NUM_AGREEING + NUM_AGREEING - 2)
    assert pace.weights == {}  # not yet: it could be a moment
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, 2)
    told = pace.weights
    assert told == {1: 0.25}
    assert told is pace.weights, "every block that comes asks for them"
    read(pace, {0: 0.001, 1: 0.001, 2: 0.001}, 60)
    assert pace.weights == {}
    assert told == {1: 0.25}, "who has them would take what is new for what it knows"


def test_noise_moves_nothing():
    pace, chance = LoadBalance(), random.Random(0)
    for _ in range(500):
        read(pace, {actor: 0.001 * chance.uniform(0.6, 1.7) for actor in range(4)}, 1)
        assert pace.weights == {}


def test_a_weight_has_its_bounds():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 1.0, 2: 0.001}, 60)
    assert pace.weights == {1: MIN_WEIGHT}


def test_short_reads_are_put_together_to_one_reading():
    short = MIN_READ_S / 10
    pace = LoadBalance()
    for _ in range(10 * 2 * NUM_AGREEING):
        for actor, each in {0: 1, 1: 4, 2: 1}.items():
            pace.read(actor, 1, each * short, (0, 1, 2))
    assert pace.weights == {1: 0.25}


def test_one_alone_is_compared_with_nobody_and_the_absent_do_not_count():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.009}, 60, actors=(1,))
    assert pace.weights == {}


def test_settling_takes_what_was_measured_and_forgetting_begins_anew():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, NUM_AGREEING)
    pace.settle((0, 1, 2))
    assert pace.weights == {1: 0.25}
    pace.forget(1)
    assert pace.weights == {}
    pace.settle((0, 1, 2))
    assert pace.weights == {}
