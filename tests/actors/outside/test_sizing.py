"""How large a pool is to be, by value: what the head keeps, and who follows what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from datarax_ray.actors.outside.sizing import GONE_S, Entry, Node, PoolSeen, Room, Wish, grown, to_json, wish_key

ONE = Entry("team", "train/1", "0f", "aa", "01", "host", 7, "one per CPU", 3, {"10.0.0.1": 3}, at=100.0)
TWO = replace(ONE, user="bb", pid=8)
ROOM = Room({"CPU": 1.0})
EIGHT = Node({"CPU": 8.0}, {"CPU": 5.0})


def test_what_is_kept_is_read_as_it_was_written_whatever_the_names() -> None:
    wish = Wish(5, "person", "t", "asked")
    kept = {entry.key: to_json(entry) for entry in (TWO, ONE)} | {wish_key(ONE.pool): to_json(wish)}
    assert PoolSeen.of(kept, 100.0) == {("team", "train/1", "0f"): PoolSeen((ONE, TWO), wish)}


def test_drivers_that_are_gone_are_no_longer_seen_and_their_wish_is_nobodys() -> None:
    kept = {ONE.key: to_json(ONE), wish_key(ONE.pool): to_json(Wish(5, "person", "t"))}
    assert PoolSeen.of(kept, 100.0 + GONE_S) == {}


def test_what_other_releases_keep_is_left_out() -> None:
    kept = {ONE.key: to_json(ONE), "pool/x": "{}", TWO.key: '{"more": 1}', "pool/a/b/c/wish": "no JSON"}
    assert PoolSeen.of(kept, 100.0) == {ONE.pool: PoolSeen((ONE,))}


def test_a_pool_grows_into_room_that_is_there_and_leaves_one_cpu() -> None:
    assert grown(ONE, PoolSeen((ONE,)), ROOM, [EIGHT]) == 7
    assert grown(ONE, PoolSeen((ONE,)), ROOM, [Node({"CPU": 8.0}, {"CPU": 2.0})]) == 5
    assert grown(ONE, PoolSeen((ONE,)), ROOM, [Node({"CPU": 8.0}, {})]) is None


def test_a_pool_never_shrinks_with_its_cluster() -> None:
    assert grown(ONE, PoolSeen((ONE,)), ROOM, [Node({"CPU": 2.0}, {"CPU": 1.0})]) is None
    assert grown(ONE, PoolSeen((ONE,)), ROOM, []) is None


def test_a_pool_whose_actors_wait_for_room_asks_for_no_more_of_it() -> None:
    """Or each new node would have another one added."""
    waiting = replace(ONE, hosts={"10.0.0.1": 2})
    assert grown(waiting, PoolSeen((waiting,)), ROOM, [EIGHT]) is None


def test_only_nodes_that_its_actors_may_run_on_count() -> None:
    room = Room({"CPU": 2.0, "disk": 1}, {"role": "cpu"})
    labelled = Node({"CPU": 16.0, "disk": 4}, {"CPU": 16.0, "disk": 2}, {"role": "cpu"})
    assert grown(ONE, PoolSeen((ONE,)), room, [EIGHT, labelled]) == 5


def test_one_driver_decides_for_all_that_share_a_pool_and_no_other() -> None:
    both = PoolSeen((ONE, TWO))
    assert grown(ONE, both, ROOM, [EIGHT]) == 7
    assert grown(TWO, both, ROOM, [EIGHT]) is None
    assert grown(TWO, PoolSeen((TWO, replace(ONE, program="4"))), ROOM, [EIGHT]) == 7


def test_drivers_that_started_with_other_numbers_come_to_the_largest() -> None:
    full = [Node({"CPU": 8.0}, {})]
    seen = PoolSeen((ONE, replace(TWO, num_actors=5)))
    assert grown(ONE, seen, ROOM, full) == 5
    assert grown(ONE, replace(seen, wish=Wish(5, "cluster", "t")), ROOM, full) is None, "it is said already"


@pytest.mark.parametrize(("num_actors", "by", "wanted"), [(4, "person", None), (None, "person", 7), (4, "cluster", 7)])
def test_a_number_that_a_person_asked_for_holds_until_it_is_taken_back(
    num_actors: int | None, by: str, wanted: int | None
) -> None:
    seen = PoolSeen((ONE,), Wish(num_actors, by, "t"))  # type: ignore[arg-type]
    assert grown(ONE, seen, ROOM, [EIGHT]) == wanted
