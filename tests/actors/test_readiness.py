"""When a stream begins, when it gives up, and which nodes sit out; by value."""

from datarax_ray.actors.lifecycle import GATHER_S, Bench, StartQuorum


def test_a_stream_begins_when_all_run():
    quorum = StartQuorum(300.0)
    assert not quorum.has_begun(0.0, 1, 3)
    assert quorum.has_begun(0.5, 3, 3)


def test_or_when_the_first_has_waited_long_enough_and_then_goes_on_with_any():
    quorum = StartQuorum(300.0)
    assert not quorum.has_begun(100.0, 1, 3)
    assert not quorum.has_begun(100.0 + GATHER_S - 0.1, 2, 3)
    assert quorum.has_begun(100.0 + GATHER_S, 2, 3)
    assert quorum.has_begun(100.1 + GATHER_S, 1, 9)


def test_a_wait_for_none_ends_after_the_timeout_and_who_asks_again_waits_again():
    quorum = StartQuorum(10.0)
    assert [quorum.waited(now) for now in (50.0, 54.0, 58.0, 60.0, 60.5)] == [
        None,
        None,
        (8.0, "log"),
        None,
        (10.5, "end"),
    ]
    assert [quorum.waited(now) for now in (61.0, 65.0, 69.0)] == [None, None, (8.0, "log")]


def test_a_long_wait_for_none_is_logged_once():
    quorum = StartQuorum(300.0)
    logged = [waited for now in range(0, 300, 4) if (waited := quorum.waited(float(now))) is not None]
    assert logged == [(12.0, "log")]


def test_time_in_which_nobody_waited_or_one_ran_does_not_count():
    quorum = StartQuorum(10.0)
    assert quorum.waited(0.0) is None
    assert quorum.waited(100.0) is None  # another wait, much later
    assert quorum.waited(104.0) is None
    assert quorum.has_begun(104.5, 1, 1)
    logged = (8.0, "log")
    assert [quorum.waited(now) for now in (105.0, 109.0, 113.0, 114.0)] == [None, None, logged, None]
    assert quorum.waited(115.5) == (10.5, "end")


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
