"""How many actors there should be, by value, and in a loop with a model of a cluster."""

import random
from dataclasses import replace

import pytest

from datarax_ray.actors.outside.scaling import Decision, PoolScaler, Scaler, limits
from datarax_ray.actors.outside.sizing import Entry, PoolSeen, Wish

PERIOD_S = 10.0


class Cluster:
    """A model of a run: actors that read `each` elements a second, what they share, and what the trainer takes."""

    def __init__(self, scaler: Scaler, *, each: float, takes: float, shared: float = 1e9, noise: float = 0.0) -> None:
        self.scaler, self.each, self.takes, self.shared, self.noise = scaler, each, takes, shared, noise
        self.num_actors, self.now = scaler.least, 0.0
        self.decisions: list[Decision] = []

    def run(self, num_periods: int, rng: random.Random | None = None) -> int:
        """Returns how many actors there are in the end."""
        rng = rng or random.Random(0)
        for _ in range(num_periods):
            decision = self.scaler.tick(self.now, self.num_actors, self.num_actors)
            if decision is not None:
                self.decisions.append(decision)
                self.num_actors = decision.num_actors
                self.scaler.tick(self.now, self.num_actors, self.num_actors)
            can = min(self.num_actors * self.each, self.shared)
            rate = min(can, self.takes)
            self.scaler.waited(PERIOD_S * max(0.0, 1 - can / self.takes) * (1 + self.noise * rng.uniform(-1, 1)))
            # an actor that waits for what is shared is at its part all the while
            at_work = (
                1.0 if can < self.num_actors * self.each and can < self.takes else rate / (self.num_actors * self.each)
            )
            self.scaler.used(round(rate * PERIOD_S))
            self.scaler.read(at_work * self.num_actors * PERIOD_S)
            self.now += PERIOD_S
        return self.num_actors


def test_it_grows_until_the_stream_waits_no_more() -> None:
    cluster = Cluster(Scaler(1, 64), each=100, takes=1450)
    assert 15 <= cluster.run(90) <= 21
    assert "the stream waits for its actors" in cluster.decisions[0].reason


def test_it_shrinks_when_the_trainer_never_waits_and_does_not_come_back_at_once() -> None:
    cluster = Cluster(Scaler(1, 64), each=100, takes=4000)
    assert cluster.run(60) >= 40
    cluster.takes = 400
    cluster.run(40)
    assert 4 <= cluster.num_actors <= 7
    num_decisions = len(cluster.decisions)
    cluster.run(500)
    assert len(cluster.decisions) <= num_decisions + 2, "it goes up and down"


def test_it_does_not_grow_where_the_trainer_is_slow() -> None:
    cluster = Cluster(Scaler(2, 64), each=100, takes=150)
    assert cluster.run(100) == 2
    assert cluster.decisions == []


def test_it_goes_back_where_more_read_no_more_and_says_so() -> None:
    cluster = Cluster(Scaler(4, 64), each=100, takes=10_000, shared=400)
    cluster.run(12)
    assert cluster.num_actors == 4
    assert [decision.num_actors for decision in cluster.decisions[:2]] == [6, 4]
    assert "6 actors read no more than 4: what they share is slow" in cluster.decisions[1].reason
    cluster.run(20)
    assert cluster.num_actors == 4, "it tries again only after a while"
    assert len(cluster.decisions) <= 4


def test_it_refuses_to_grow_where_the_actors_idle_and_says_that_once() -> None:
    scaler, said = Scaler(2, 8), []
    for period in range(9):
        said.append(scaler.tick(period * PERIOD_S, 2, 2))
        scaler.waited(0.6 * PERIOD_S)
        scaler.used(100)
        scaler.read(0.2 * 2 * PERIOD_S)
    found = [decision for decision in said if decision is not None]
    assert [decision.num_actors for decision in found] == [2]
    assert "the driver, the network or max_nbytes is slow" in found[0].reason
    assert "(it waits 60% of the time, and they read 20% of theirs)" in found[0].reason


def test_nothing_is_decided_while_some_start() -> None:
    scaler = Scaler(2, 8)
    for second in range(100):
        scaler.waited(1.0)
        scaler.used(1)
        scaler.read(2.0)
        assert scaler.tick(float(second), 2 + second // 25, 6) is None


def test_where_there_is_no_room_for_all_it_says_so_once_and_wants_fewer_when_they_are_not_needed() -> None:
    scaler, found, wanted = Scaler(2, 8), [], 5
    for period in range(20):
        if (decision := scaler.tick(period * PERIOD_S, min(3, wanted), wanted)) is not None:
            found.append(decision)
            wanted = decision.num_actors
        scaler.waited(PERIOD_S if period < 10 else 0.0)
        scaler.used(100)
        scaler.read(3 * PERIOD_S if period < 10 else 0.3 * PERIOD_S)
    assert [decision.num_actors for decision in found] == [5, 2]
    assert "2 of 5 do not run yet, or the cluster has no room for them" in found[0].reason


def test_actors_that_a_person_removes_are_no_evidence_against_those_that_were_added() -> None:
    scaler, now = Scaler(2, 16), 0.0

    def run(num_actors: int, num_periods: int) -> list[Decision]:
        nonlocal now
        found = []
        for _ in range(num_periods):
            found.append(scaler.tick(now, num_actors, num_actors))
            scaler.waited(0.9 * PERIOD_S)
            scaler.used(100 * num_actors)
            scaler.read(num_actors * PERIOD_S)
            now += PERIOD_S
        return [decision for decision in found if decision is not None]

    assert [decision.num_actors for decision in run(4, 4)] == [6]
    assert [decision.num_actors for decision in run(2, 4)] == [3]


def test_a_driver_that_leaves_is_no_evidence_against_actors_that_were_added() -> None:
    scaler, now = Scaler(2, 16), 0.0

    def run(num_actors: int, rate: int) -> list[Decision]:
        nonlocal now
        found = []
        for _ in range(4):
            found.append(scaler.tick(now, num_actors, num_actors))
            scaler.waited(0.9 * PERIOD_S)
            scaler.used(rate)
            scaler.read(num_actors * PERIOD_S)
            now += PERIOD_S
        return [decision for decision in found if decision is not None]

    assert [decision.num_actors for decision in run(4, 400)] == [6]
    scaler.disturbed()  # one of two has ended, which used half of it
    assert [decision.num_actors for decision in run(6, 300)] == [9]


def test_it_says_that_it_may_not_grow_any_more() -> None:
    cluster = Cluster(Scaler(1, 3), each=100, takes=1000)
    assert cluster.run(20) == 3
    assert "num_actors allows 3 at most" in cluster.decisions[-1].reason


@pytest.mark.parametrize("seed", range(200))
def test_in_any_cluster_it_comes_to_rest_within_its_limits_with_enough(seed: int) -> None:
    rng = random.Random(seed)
    least = rng.randint(1, 8)
    scaler = Scaler(least, least + rng.randint(0, 200))
    each, takes = rng.uniform(1, 1000), rng.uniform(1, 20_000)
    cluster = Cluster(scaler, each=each, takes=takes, noise=0.2)
    cluster.run(250, rng)
    before = len(cluster.decisions)
    for _ in range(100):
        assert scaler.least <= cluster.run(1, rng) <= scaler.most
    assert len(cluster.decisions) - before <= 4
    can = cluster.num_actors * each
    assert can >= 0.9 * takes or cluster.num_actors == scaler.most
    assert cluster.num_actors == least or can <= 2.5 * takes + 2 * each, "many more than are needed"


@pytest.mark.parametrize("given", [0, (0, 2), (3, 2), (1, 2, 3), (1,)])
def test_what_is_no_number_of_actors_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="num_actors must be"):
        limits(given)


def test_a_period_in_which_nobody_reads_tells_nothing() -> None:
    scaler = Scaler(1, 64)
    assert [scaler.tick(PERIOD_S * number, 8, 8) for number in range(60)] == [None] * 60


class Drivers:
    """Two that share a pool: each uses what actors read in 0.4 of their time; the second waits half of its own."""

    def __init__(self) -> None:
        entry = Entry("team", "train", "0f", "aa", "01", "host", 7, "1 to 8", 2, {"host": 2}, scales=True)
        self.entries = {user: replace(entry, user=user) for user in ("aa", "bb")}
        self.scalers = {user: PoolScaler(Scaler(1, 8)) for user in self.entries}
        self.now = 0.0
        self.wish: Wish | None = None

    def run(self, num_periods: int) -> dict[str, list[Decision]]:
        """What each of them decided, of which nobody takes any notice."""
        decisions: dict[str, list[Decision]] = {user: [] for user in self.scalers}
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


def test_one_driver_decides_for_all_that_share_a_pool_by_what_all_have_measured() -> None:
    decisions = Drivers().run(4)
    assert [decision.num_actors for decision in decisions["aa"]] == [3]
    assert "it waits 50% of the time, and they read 80% of theirs" in decisions["aa"][0].reason
    assert decisions["bb"] == []


def test_another_driver_decides_once_that_one_has_gone_by_what_was_measured_since() -> None:
    drivers = Drivers()
    drivers.run(2)
    del drivers.entries["aa"]
    decisions = drivers.run(5)
    assert decisions["aa"] == []
    assert ["they read 40% of theirs" in decision.reason for decision in decisions["bb"]] == [True]


def test_drivers_whose_program_gives_a_number_do_not_decide() -> None:
    drivers = Drivers()
    drivers.entries["aa"] = replace(drivers.entries["aa"], scales=False, program="2")
    decisions = drivers.run(4)
    assert decisions["aa"] == []
    assert [decision.num_actors for decision in decisions["bb"]] == [3]


def test_a_persons_word_is_the_last() -> None:
    drivers = Drivers()
    drivers.wish = Wish(2, "person", "t")
    assert drivers.run(9) == {"aa": [], "bb": []}
    drivers.wish = Wish(None, "person", "u")
    assert drivers.run(9)["aa"]


def test_what_was_measured_while_a_person_said_how_many_is_no_part_of_the_next_period() -> None:
    drivers = Drivers()
    drivers.run(2)
    drivers.wish = Wish(2, "person", "t")
    drivers.run(50)  # reading 0.8 of the time
    drivers.wish = Wish(None, "person", "u")
    assert drivers.run(1) == {"aa": [], "bb": []}, "it decides by 52 periods at once"
    assert [decision.num_actors for decision in drivers.run(3)["aa"]] == [3]


@pytest.mark.parametrize(("num_actors", "wanted"), [(100, 16), (1, 2)])
def test_a_number_outside_of_the_range_is_left_once_the_program_decides_again(num_actors: int, wanted: int) -> None:
    scaler, found = Scaler(2, 16), []
    for period in range(4):
        found.append(scaler.tick(period * PERIOD_S, num_actors, num_actors))
        scaler.waited(0.9 * PERIOD_S)
        scaler.used(100)
        scaler.read(num_actors * PERIOD_S)
    first = next(decision for decision in found if decision is not None)
    assert first.num_actors == wanted
    assert "num_actors allows 2 to 16" in first.reason
