"""When a stream begins, and when it gives up, by value."""

from datarax_ray.actors.start_quorum import GATHER_S, StartQuorum


def test_a_stream_begins_when_all_run() -> None:
    quorum = StartQuorum(300.0)
    assert not quorum.has_begun(0.0, 1, 3)
    assert quorum.has_begun(0.5, 3, 3)


def test_or_when_the_first_has_waited_long_enough_and_then_goes_on_with_any() -> None:
    quorum = StartQuorum(300.0)
    assert not quorum.has_begun(100.0, 1, 3)
    assert not quorum.has_begun(100.0 + GATHER_S - 0.1, 2, 3)
    assert quorum.has_begun(100.0 + GATHER_S, 2, 3)
    assert quorum.has_begun(100.1 + GATHER_S, 1, 9)


def test_a_wait_for_none_ends_after_the_timeout_and_who_asks_again_waits_again() -> None:
    quorum = StartQuorum(10.0)
    assert [quorum.waited(now) for now in (50.0, 54.0, 58.0, 60.0, 60.5)] == [
        None,
        None,
        (8.0, "tell"),
        None,
        (10.5, "end"),
    ]
    assert [quorum.waited(now) for now in (61.0, 65.0, 69.0)] == [None, None, (8.0, "tell")]


def test_a_long_wait_for_none_is_told_once() -> None:
    quorum = StartQuorum(300.0)
    told = [waited for now in range(0, 300, 4) if (waited := quorum.waited(float(now))) is not None]
    assert told == [(12.0, "tell")]


def test_time_in_which_nobody_waited_or_one_ran_does_not_count() -> None:
    quorum = StartQuorum(10.0)
    assert quorum.waited(0.0) is None
    assert quorum.waited(100.0) is None  # another wait, much later
    assert quorum.waited(104.0) is None
    assert quorum.has_begun(104.5, 1, 1)
    told = (8.0, "tell")
    assert [quorum.waited(now) for now in (105.0, 109.0, 113.0, 114.0)] == [None, None, told, None]
    assert quorum.waited(115.5) == (10.5, "end")
