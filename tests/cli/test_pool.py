"""What `datarax-ray pool` prints of pools, by value; with real ones in tests/actors."""

import io
import logging
import time
from dataclasses import replace

import pytest
from rich.console import Console

from datarax_ray.actors.sizing import Entry, PoolSeen, Wish, to_json
from datarax_ray.cli import pool as pool_command


def entry(pool, max_nbytes=64 * 2**20):
    return Entry(*pool, "u", "01", "host", 7, "3", 3, {"host": 3}, max_nbytes=max_nbytes)


def rows(pools):
    """The cells of each line of `pool list` below its heading."""
    printed = io.StringIO()
    Console(file=printed, width=200).print(pool_command._table(pools))
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in printed.getvalue().splitlines()[3:-1]
    ]


def test_pools_of_one_name_are_listed_by_what_the_other_commands_take():
    """Jobs of one sweep, each with transforms of its own: ten rows of one name told nobody which to stop."""
    one, other, alone = ("team", "sweep", "11aa"), ("team", "sweep", "22bb"), ("team", "eval", "33cc")
    pools = {pool: PoolSeen((entry(pool),)) for pool in (one, other, alone)}
    shown = [row[0] for row in rows(pools)]
    assert shown == ["sweep/11aa", "sweep/22bb", "eval"]
    assert [pool_command._found(name, pools)[0] for name in shown] == [one, other, alone]
    assert pool_command._found(None, {alone: pools[alone]})[0] == alone
    with pytest.raises(ValueError, match="there are several pools; give one of these: sweep/11aa"):
        pool_command._found(None, pools)
    with pytest.raises(ValueError, match="the cluster has no pool of reader actors"):
        pool_command._found(None, {})


def test_who_says_how_many_actors_there_are_is_told_after_a_person_leaves_it_to_the_program_too():
    pool = ("team", "train", "11aa")
    auto = PoolSeen((entry(pool),), Wish(None, "person", "t", "ann on host asked for it"))
    fixed = PoolSeen((entry(pool),), Wish(64, "person", "t", "ann on host asked for it"))
    assert [rows({pool: seen})[0][3] for seen in (auto, fixed)] == ["program: 3", "person: 64"]
    told = {seen.wish: pool_command._lines(pool_command._facts(pool, seen))[1:3] for seen in (auto, fixed)}
    assert told[auto.wish] == ["  its program asks for 3", "  the program decides again: ann on host asked for it"]
    assert told[fixed.wish] == ["  its program asks for 3", "  a person asks for 64: ann on host asked for it"]


class HeadOfJobThatEnds:
    """Of a cluster where a job reads with `train` until it is asked to resize it."""

    def __init__(self):
        one = entry(("team", "train", "11aa"))
        self.kept = {one.key: to_json(replace(one, at=time.time()))}

    def __enter__(self):
        return self

    def __exit__(self, *error): ...

    def under(self, prefix):
        return self.kept

    def ended_jobs(self):
        return set()

    def put(self, key, value):
        self.kept = {key: value}


@pytest.mark.parametrize(("address", "where"), [(None, "RAY_ADDRESS=local"), ("local", "--address=local")])
def test_a_ray_of_ones_own_is_no_cluster_to_look_at(monkeypatch, address, where):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ValueError, match=f"{where} is a Ray that a program starts for itself.*--address HOST:PORT"):
        pool_command.head_at(address)


@pytest.mark.parametrize("address", [None, "127.0.0.1:7"])
def test_the_cluster_that_is_asked_is_said(monkeypatch, caplog, address):
    monkeypatch.setenv("RAY_ADDRESS", "local" if address else "127.0.0.1:7")
    for name in ("maybe_enable_token_auth_if_token_available", "ensure_token_if_auth_enabled"):  # in this process
        monkeypatch.setattr(pool_command.authentication_token_setup, name, lambda **_: None)
    with caplog.at_level(logging.INFO, "datarax_ray"):
        pool_command.head_at(address)
    assert caplog.messages == ["the Ray cluster at 127.0.0.1:7"]
