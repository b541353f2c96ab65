"""The bench by value: who sits on it at which time."""

from datarax_ray.actors.bench import Bench


def test_a_node_is_benched_for_a_while_and_told_of_once():
    bench = Bench(first_s=10, most_s=100)
    assert not bench.has("a", 0)
    assert bench.blame("a", 0) == 10
    assert [bench.blame("a", now) for now in (1, 9)] == [None, None]  # what it had been asked for before comes in
    assert [bench.has("a", now) for now in (0, 9, 10)] == [True, True, False]
    assert not bench.has("b", 5)


def test_nodes_that_drain_are_benched_for_as_long_as_they_do_and_told_of_once():
    bench = Bench(first_s=10, most_s=100)
    assert bench.drain(frozenset("ab")) == {"a", "b"}
    assert bench.drain(frozenset("ac")) == {"c"}
    assert [bench.has(node, 10**9) for node in "abc"] == [True, False, True]
    assert bench.blame("a", 0) == 10
    assert bench.drain(frozenset()) == set()
    assert [bench.has("a", now) for now in (9, 10)] == [True, False]


def test_each_stay_of_a_node_that_fails_again_lasts_twice_as_long_up_to_a_bound():
    bench, now, stays = Bench(first_s=10, most_s=60), 0.0, []
    for _ in range(5):
        stays.append(bench.blame("a", now))
        now += stays[-1]
    assert stays == [10, 20, 40, 60, 60]


def test_a_node_that_did_well_for_as_long_as_it_sat_begins_anew():
    bench = Bench(first_s=10, most_s=60)
    bench.blame("a", 0)
    bench.blame("a", 10)
    assert bench.blame("a", 50) == 10
