"""Who reads with an actor that outlives its drivers, by value."""

from __future__ import annotations

import math

from datarax_ray.actors.reader_actor import Lease


def test_it_is_over_so_long_after_the_last_user_has_left() -> None:
    lease = Lease(linger_s=10.0, lease_s=60.0, now=0.0)
    lease.heard("one", 1.0)
    lease.heard("two", 2.0)
    lease.left("one", 3.0)
    assert lease.users(20.0) == {"two"}
    assert not lease.is_over(20.0)
    lease.left("two", 30.0)
    assert not lease.is_over(39.0)
    assert lease.is_over(40.0)


def test_who_comes_in_time_keeps_it() -> None:
    lease = Lease(10.0, 60.0, 0.0)
    lease.heard("one", 9.0)
    assert not lease.is_over(60.0)


def test_one_that_nobody_ever_came_to_is_over_as_well() -> None:
    assert not Lease(10.0, 60.0, 0.0).is_over(9.0)
    assert Lease(10.0, 60.0, 0.0).is_over(10.0)


def test_users_that_say_nothing_any_more_are_gone() -> None:
    lease = Lease(10.0, 60.0, 0.0)
    lease.heard("killed", 0.0)
    lease.heard("there", 50.0)
    assert lease.users(61.0) == {"there"}
    assert lease.users(111.0) == set()
    assert not lease.is_over(120.0)
    assert lease.is_over(121.0)


def test_one_for_ever_is_never_over_and_who_is_unknown_may_leave() -> None:
    lease = Lease(math.inf, 60.0, 0.0)
    lease.left("nobody", 5.0)
    assert not lease.is_over(1e12)
