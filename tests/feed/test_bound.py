"""How many bytes may be in flight, by value: of a pool, and of each of those who read with it."""

from __future__ import annotations

import pytest

from datarax_ray.feed.window import DEFAULT_MAX_NBYTES, Bound

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize("num_drivers", [1, 2, 3, 8, 256])
def test_drivers_have_together_no_more_than_was_given(num_drivers: int) -> None:
    each = Bound(GIB).of_each(64, num_drivers)
    assert each * num_drivers <= GIB
    assert each * num_drivers > GIB - num_drivers


def test_nobody_starves_however_small_the_bound_and_many_the_drivers() -> None:
    assert Bound(10).of_each(4, 256) == 1


def test_without_a_number_it_follows_the_actors_and_leaves_most_of_every_store_free() -> None:
    free = Bound(None)
    assert free.of_each(1) == free.of_each(4) == DEFAULT_MAX_NBYTES
    assert free.of_each(64) == free.of_each(64, 32) == 64 * 64 * MIB
    assert Bound(None, 5 * GIB, 50 * GIB).of_each(64) == 2 * GIB, "the driver's own host holds what has come"
    assert Bound(None, 5 * GIB, 50 * GIB).of_each(64, 40) == GIB // 2, "all hosts together hold what is read"


def test_where_the_cluster_says_nothing_of_its_stores_it_is_the_default() -> None:
    assert Bound(None, 0.0, 0.0).of_each(64) == DEFAULT_MAX_NBYTES


def test_an_allowance_is_of_what_one_driver_had_with_the_actors_at_the_beginning() -> None:
    assert Bound(GIB).allowance(64, 4, begun_with=8) == 0.25
    assert Bound(None).allowance(64, 4, begun_with=8) == 8.0, "it grows with the actors"
