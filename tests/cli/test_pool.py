"""What `datarax-ray pool` prints of pools, by value; with real ones in tests/actors."""

import logging

import pytest

from datarax_ray.actors.sizing import Entry, PoolSeen, Wish
from datarax_ray.cli import pool as pool_command


def entry(pool, max_nbytes=64 * 2**20):
    return Entry(*pool, "u", "01", "host", 7, "3", 3, {"host": 3}, max_nbytes=max_nbytes)


def lines(pool, seen):
    return pool_command._lines(pool_command._facts(pool, seen))


def test_pools_of_one_name_are_listed_by_what_the_other_commands_take():
    """Jobs of one sweep, each with transforms of its own: ten rows of one name told nobody which to stop."""
    one, other, alone = ("team", "sweep", "11aa"), ("team", "sweep", "22bb"), ("team", "eval", "33cc")
    pools = {pool: PoolSeen((entry(pool),)) for pool in (one, other, alone)}
    shown = [lines(*each)[0].partition(":")[0] for each in pools.items()]
    assert shown == ["sweep/11aa", "sweep/22bb", "eval/33cc"]
    found = [[pool for pool, _ in pool_command._named(name, pools)] for name in (*shown, "eval", "sweep")]
    assert found == [[one], [other], [alone], [alone], [one, other]]
    with pytest.raises(ValueError, match="no pool is named 'train' here; the names are: eval, sweep"):
        pool_command._named("train", pools)


def test_who_says_how_many_actors_there_are_is_told_after_a_person_leaves_it_to_the_program_too():
    pool = ("team", "train", "11aa")
    auto = PoolSeen((entry(pool),), Wish(None, "person", "t", "ann on host asked for it"))
    fixed = PoolSeen((entry(pool),), Wish(64, "person", "t", "ann on host asked for it"))
    told = {seen.wish: lines(pool, seen)[1:3] for seen in (auto, fixed)}
    assert told[auto.wish] == ["  its program asks for 3", "  the program decides again: ann on host asked for it"]
    assert told[fixed.wish] == ["  its program asks for 3", "  a person asks for 64: ann on host asked for it"]


@pytest.mark.parametrize(("address", "where"), [(None, "RAY_ADDRESS=local"), ("local", "--address=local")])
def test_a_ray_of_ones_own_is_no_cluster_to_look_at(monkeypatch, address, where):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ValueError, match=f"{where} is no address of a head; give HOST:PORT"):
        pool_command.head_at(address)


@pytest.mark.parametrize("address", [None, "127.0.0.1:7"])
def test_the_cluster_that_is_asked_is_said(monkeypatch, caplog, address):
    monkeypatch.setenv("RAY_ADDRESS", "local" if address else "127.0.0.1:7")
    for name in ("maybe_enable_token_auth_if_token_available", "ensure_token_if_auth_enabled"):  # in this process
        monkeypatch.setattr(pool_command.authentication_token_setup, name, lambda **_: None)
    with caplog.at_level(logging.INFO, "datarax_ray"):
        pool_command.head_at(address)
    assert caplog.messages == ["the Ray cluster at 127.0.0.1:7"]
