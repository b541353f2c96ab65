"""How many actors a pool has, by value: the entries at the head, who decides, and a model of a cluster in a loop."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from datarax_ray.actors.sizing import GONE_S, Decision, Entry, PoolSeen, Scaler, Wish, to_json, wish_key
from datarax_ray.actors.source import limits

ONE = Entry("team", "train/1", "0f", "aa", "01", "host", 7, "3", 3, {"10.0.0.1": 3}, at=100.0)
TWO = replace(ONE, user="bb", pid=8)


def test_what_is_kept_is_read_as_it_was_written_whatever_the_names():
    wish = Wish(5, "person", "t", "asked")
    kept = {entry.key: to_json(entry) for entry in (TWO, ONE)} | {wish_key(ONE.pool): to_json(wish)}
    assert PoolSeen.of(kept, 100.0) == {("team", "train/1", "0f"): PoolSeen((ONE, TWO), wish)}


def test_drivers_that_are_gone_are_no_longer_seen_and_their_wish_is_nobodys():
    kept = {ONE.key: to_json(ONE), wish_key(ONE.pool): to_json(Wish(5, "person", "t"))}
    assert PoolSeen.of(kept, 100.0 + GONE_S) == {}


PERIOD_S = 10.0
SCALES = Entry("team", "train", "0f", "aa", "01", "host", 7, "1 to 8", scales=True)


class Driver:
    """A driver that decides, on a clock of whole periods. others: that share its pool, and do nothing."""

    def __init__(self, least, most):
        self.scaler, self.entry, self.now = Scaler(least, most), SCALES, 0.0
        self.others: tuple[Entry, ...] = ()

    def tick(self, num_running, num_wanted=None):
        num_actors = num_running if num_wanted is None else num_wanted
        self.entry = replace(self.entry, num_actors=num_actors, hosts={"host": num_running})
        return self.scaler.tick(self.now, self.entry, PoolSeen((self.entry, *self.others)))

    def spend(self, waited, at_work, num_used, seconds=PERIOD_S):
        """Time in which the stream waits, and its actors work, for these shares of it."""
        self.entry = replace(
            self.entry,
            waited_s=self.entry.waited_s + waited * seconds,
            read_s=self.entry.read_s + at_work * self.entry.num_running * seconds,
            num_used=self.entry.num_used + num_used,
        )
        self.now += seconds

    def run(self, num_periods, num_actors, waited, at_work, num_used):
        """The decisions, none of which is followed."""
        found = []
        for _ in range(num_periods):
            found.append(self.tick(num_actors))
            self.spend(waited, at_work, num_used)
        return [decision for decision in found if decision is not None]


class Cluster:
    """A model of a run: actors that read `each` elements a second, what they share, and what the trainer takes."""

    def __init__(self, least, most, *, each, takes, shared=1e9):
        self.driver, self.each, self.takes, self.shared = Driver(least, most), each, takes, shared
        self.num_actors = least
        self.decisions: list[Decision] = []

    def run(self, num_periods, rng=None):
        """Returns how many actors there are in the end. rng: of noise in the waits, 20 %; None for no noise."""
        for _ in range(num_periods):
            decision = self.driver.tick(self.num_actors)
            if decision is not None:
                self.decisions.append(decision)
                self.num_actors = decision.num_actors
                self.driver.tick(self.num_actors)
            can = min(self.num_actors * self.each, self.shared)
            rate = min(can, self.takes)
            noise = 1.0 if rng is None else 1 + 0.2 * rng.uniform(-1, 1)
            # an actor that waits for what is shared is at its part all the while
            is_shared = can < self.num_actors * self.each and can < self.takes
            at_work = 1.0 if is_shared else rate / (self.num_actors * self.each)
            self.driver.spend(max(0.0, 1 - can / self.takes) * noise, at_work, round(rate * PERIOD_S))
        return self.num_actors


def test_it_grows_until_the_stream_waits_no_more():
    cluster = Cluster(1, 64, each=100, takes=1450)
    assert 15 <= cluster.run(90) <= 21
    assert "the stream waits for its actors" in cluster.decisions[0].reason


def test_it_shrinks_when_the_trainer_never_waits_and_does_not_come_back_at_once():
    cluster = Cluster(1, 64, each=100, takes=4000)
    assert cluster.run(60) >= 40
    cluster.takes = 400
    cluster.run(40)
    assert 4 <= cluster.num_actors <= 7
    num_decisions = len(cluster.decisions)
    cluster.run(500)
    assert len(cluster.decisions) <= num_decisions + 2, "it goes up and down"


def test_it_does_not_grow_where_the_trainer_is_slow():
    cluster = Cluster(2, 64, each=100, takes=150)
    assert cluster.run(100) == 2
    assert cluster.decisions == []


def test_it_goes_back_where_more_read_no_more_and_says_so():
    cluster = Cluster(4, 64, each=100, takes=10_000, shared=400)
    cluster.run(12)
    assert cluster.num_actors == 4
    assert [decision.num_actors for decision in cluster.decisions[:2]] == [6, 4]
    assert "6 actors read no more than 4: what they share is slow" in cluster.decisions[1].reason
    cluster.run(20)
    assert cluster.num_actors == 4, "it tries again only after a while"
    assert len(cluster.decisions) <= 4


def test_it_says_that_it_may_not_grow_any_more():
    cluster = Cluster(1, 3, each=100, takes=1000)
    assert cluster.run(20) == 3
    assert "num_actors allows 3 at most" in cluster.decisions[-1].reason


@pytest.mark.parametrize("seed", range(50))
def test_in_any_cluster_it_comes_to_rest_within_its_limits_with_enough(seed):
    rng = random.Random(seed)
    least = rng.randint(1, 8)
    most = least + rng.randint(0, 200)
    each, takes = rng.uniform(1, 1000), rng.uniform(1, 20_000)
    cluster = Cluster(least, most, each=each, takes=takes)
    cluster.run(250, rng)
    before = len(cluster.decisions)
    for _ in range(100):
        assert least <= cluster.run(1, rng) <= most
    assert len(cluster.decisions) - before <= 4
    can = cluster.num_actors * each
    assert can >= 0.9 * takes or cluster.num_actors == most
    assert cluster.num_actors == least or can <= 2.5 * takes + 2 * each, "many more than are needed"


def test_it_refuses_to_grow_where_the_actors_idle_and_says_that_once():
    (found,) = Driver(2, 8).run(9, 2, waited=0.6, at_work=0.2, num_used=100)
    assert found.num_actors == 2
    assert "the driver, the network or max_nbytes is slow" in found.reason
    assert "(the stream waits 60% of the time, the actors read 20% of theirs)" in found.reason


def test_nothing_is_decided_while_some_start():
    driver = Driver(2, 8)
    for second in range(100):
        assert driver.tick(2 + second // 25, 6) is None
        driver.spend(1.0, 0.9, 1, seconds=1.0)


def test_where_there_is_no_room_for_all_it_says_so_once_and_wants_fewer_when_they_are_not_needed():
    driver, found, wanted = Driver(2, 8), [], 5
    for period in range(20):
        if (decision := driver.tick(min(3, wanted), wanted)) is not None:
            found.append(decision)
            wanted = decision.num_actors
        driver.spend(*((1.0, 1.0) if period < 10 else (0.0, 0.1)), 100)
    assert [decision.num_actors for decision in found] == [5, 2]
    assert "2 of 5 do not run yet, or the cluster has no room for them" in found[0].reason


def test_actors_that_a_person_removes_are_no_evidence_against_those_that_were_added():
    driver = Driver(2, 16)
    assert [each.num_actors for each in driver.run(4, 4, waited=0.9, at_work=1.0, num_used=400)] == [6]
    assert [each.num_actors for each in driver.run(4, 2, waited=0.9, at_work=1.0, num_used=200)] == [3]


def test_a_period_in_which_nobody_reads_tells_nothing():
    assert Driver(1, 64).run(60, 8, waited=0.0, at_work=0.0, num_used=0) == []


@pytest.mark.parametrize(("num_actors", "wanted"), [(100, 16), (1, 2)])
def test_a_number_outside_of_the_range_is_left_once_the_program_decides_again(num_actors, wanted):
    first, *_ = Driver(2, 16).run(4, num_actors, waited=0.9, at_work=1.0, num_used=100)
    assert first.num_actors == wanted
    assert "num_actors allows 2 to 16" in first.reason


@pytest.mark.parametrize("given", [0, (0, 2), (3, 2), (1, 2, 3), (1,)])
def test_what_is_no_number_of_actors_is_refused(given):
    with pytest.raises(ValueError, match="num_actors must be"):
        limits(given)


class Drivers:
    """Two that share a pool: each uses what actors read in 0.4 of their time; the second waits half of its own."""

    def __init__(self):
        entry = replace(SCALES, num_actors=2, hosts={"host": 2})
        self.entries = {user: replace(entry, user=user) for user in ("aa", "bb")}
        self.scalers = {user: Scaler(1, 8) for user in self.entries}
        self.now = 0.0
        self.wish: Wish | None = None

    def run(self, num_periods):
        """The decisions of each, none of which is followed."""
        decisions = {user: [] for user in self.scalers}
        for _ in range(num_periods):
            self.now += PERIOD_S
            for user, each in self.entries.items():
                waited_s = each.waited_s + (5.0 if user == "bb" else 0.0)
                self.entries[user] = replace(
                    each, waited_s=waited_s, read_s=each.read_s + 8.0, num_used=each.num_used + 100
                )
            seen = PoolSeen(tuple(self.entries.values()), self.wish)
            for user, entry in self.entries.items():
                if (decision := self.scalers[user].tick(self.now, entry, seen)) is not None:
                    decisions[user].append(decision)
        return decisions


def test_one_driver_decides_for_all_that_share_a_pool_by_what_all_have_measured():
    decisions = Drivers().run(4)
    assert [decision.num_actors for decision in decisions["aa"]] == [3]
    assert "the stream waits 50% of the time, the actors read 80% of theirs" in decisions["aa"][0].reason
    assert decisions["bb"] == []


def test_another_driver_decides_once_that_one_has_gone_by_what_was_measured_since():
    drivers = Drivers()
    drivers.run(2)
    del drivers.entries["aa"]
    decisions = drivers.run(5)
    assert decisions["aa"] == []
    assert ["the actors read 40% of theirs" in decision.reason for decision in decisions["bb"]] == [True]


def test_drivers_whose_program_gives_a_number_do_not_decide():
    drivers = Drivers()
    drivers.entries["aa"] = replace(drivers.entries["aa"], scales=False, program="2")
    decisions = drivers.run(4)
    assert decisions["aa"] == []
    assert [decision.num_actors for decision in decisions["bb"]] == [3]


def test_a_driver_that_leaves_is_no_evidence_against_actors_that_were_added():
    driver = Driver(2, 16)
    driver.others = (replace(SCALES, user="bb"),)
    assert [each.num_actors for each in driver.run(4, 4, waited=0.9, at_work=1.0, num_used=400)] == [6]
    driver.others = ()
    assert [each.num_actors for each in driver.run(4, 6, waited=0.9, at_work=1.0, num_used=300)] == [9]


def test_a_persons_word_is_the_last_and_what_was_measured_meanwhile_is_no_part_of_the_next_period():
    drivers = Drivers()
    drivers.run(2)
    drivers.wish = Wish(2, "person", "t")
    assert drivers.run(50) == {"aa": [], "bb": []}
    drivers.wish = Wish(None, "person", "u")
    assert drivers.run(1) == {"aa": [], "bb": []}, "it decides by 52 periods at once"
    assert [decision.num_actors for decision in drivers.run(2)["aa"]] == [3]
