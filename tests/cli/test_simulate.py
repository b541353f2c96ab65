"""`simulate`: a small cluster, by the real plan; what is said, and the exit status, follow from what came of it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from datarax_ray.cli.simulate import advice, fault_of, numbers_of, outcome_of, run
from datarax_ray.simulate.pool import Costs
from datarax_ray.simulate.scenario import Fault, Found, Scenario
from tests.cli.screens import answer, screen

# Actors that read 100 records of 64 KB a second, and requests that all take the same time.
COSTS: dict[str, Any] = {"record_s": 0.01, "record_nbytes": 65536, "stored_nbytes": 65536}


def scenario(*faults: str, **options: Any) -> Scenario:
    given = {"num_records": 10**8, "batch_size": 256, "need": 400.0, "warm_s": 30.0, "measured_s": 60.0} | options
    costs = {each.name: given.pop(each.name) for each in dataclasses.fields(Costs) if each.name in given}
    return Scenario("", 1, faults=tuple(map(fault_of, faults)), costs=Costs(**COSTS | costs), **given)


def told(of: Scenario, numbers: list[int], ends_early: bool = False) -> tuple[Any, int]:
    shown = screen(as_json=True, width=80)
    status = run(of, numbers, shown, ends_early=ends_early)
    return json.loads(answer(shown)), status


def test_too_few_actors_read_what_they_can_and_enough_of_them_what_is_needed() -> None:
    found, status = told(scenario(), [2, 5])
    few, enough = (each["found"] for each in found["tried"])
    assert status == 0
    assert few["records_per_s"] == pytest.approx(200, rel=0.1)
    assert few["wait"] == pytest.approx(0.5, abs=0.05)
    assert enough["records_per_s"] == pytest.approx(400, rel=0.1)
    assert enough["wait"] < 0.02
    assert found["advice"][0].startswith("enough: 5 actors on 1 host")


@pytest.mark.parametrize(
    ("faults", "need", "said"),
    [
        ((), 4000.0, "with 4 actors trainers wait 10% of their time: these actors read 3,600 records/s at most"),
        ((), None, "4 actors: 3,600 records/s, 100% of what they could read"),
        (("join@1",), 4000.0, "enough: 4 actors on 1 host"),
    ],
)
def test_what_was_read_ahead_of_a_short_time_is_no_rate(faults: tuple[str, ...], need: float | None, said: str) -> None:
    small = {"record_s": 1 / 900, "record_nbytes": 3000, "stored_nbytes": 3000, "batch_size": 1024, "sigma": 0.3}
    found, status = told(scenario(*faults, **small, need=need, measured_s=5.0, num_records=3600 * 3600), [4])
    assert found["advice"][0].startswith(said)
    assert found["advice"][-1] == "an epoch of 12,960,000 records takes 1.0 h with 4 actors"
    assert status == said.startswith("with")


def test_where_no_number_is_given_it_goes_up_from_the_fewest_that_can_do_it() -> None:
    assert numbers_of(None, scenario()) == [4, 5, 6, 8]
    found, status = told(scenario(), numbers_of(None, scenario()), ends_early=True)
    assert status == 0
    assert [each["num_actors"] for each in found["tried"]] in ([4], [4, 5])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"storage_nbytes_per_s": 100 * 65536}, "the storage gives 100 records/s"),
        ({"link_nbytes_per_s": 200 * 65536}, "the network brings 200 records/s"),
        ({}, "these actors read 200 records/s at most"),
    ],
)
def test_what_a_cluster_is_bound_by_is_said_and_is_status_1(options: dict[str, Any], reason: str) -> None:
    found, status = told(scenario(**options), [8 if options else 2])
    assert status == 1
    assert reason in found["advice"][0]
    assert found["tried"][0]["found"]["records_per_s"] == pytest.approx(
        float(reason.split(" records")[0].split()[-1]), rel=0.1
    )


def test_where_a_process_asks_for_longer_than_its_batches_last_more_of_them_help_and_not_more_actors() -> None:
    asking: dict[str, Any] = {"request_s": 0.05, "batch_size": 16}  # 8 actors in 0.4 s, 2 batches last 0.08 s
    found, status = told(scenario(**asking), [6, 8])
    few, more = (each["found"]["wait"] for each in found["tried"])
    assert status == 1
    assert few > 0.1
    assert more > 0.8 * few
    assert "take 400 ms, and the batches made ahead last 80 ms; make more (--prefetch" in found["advice"][0]
    found, status = told(scenario(**asking, prefetch=10), [8])
    assert status == 0
    assert found["tried"][0]["found"]["wait"] < 0.02


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ([0.3], "some requests take much longer than others; try more actors"),
        ([0.3, 0.1], "some requests take much longer than others; try more actors"),
        ([0.3, 0.29], "more actors than 8 do not help; these are idle for 40% of their time"),
    ],
)
def test_more_actors_are_advised_where_those_that_were_tried_helped(waits: list[float], said: str) -> None:
    of = scenario()
    found = [Found(1 - wait, 400 * (1 - wait), wait, 1, 0.1, 0, 0, 5, 0, 0, 0.4, 1, 1) for wait in waits]
    outcomes = [outcome_of(of, 8 + index, each) for index, each in enumerate(found)]
    assert said in advice(of, outcomes)[0]


def test_a_lost_host_is_waited_for() -> None:
    hosts = scenario("host@45:1", actors_of_host=4, start_s=10.0, num_trainers=2, need=700.0)
    found, _ = told(hosts, [8])
    [tried] = found["tried"]
    assert tried["num_hosts"] == 2
    assert 0.5 < tried["found"]["longest_s"] < 25
    assert any(line.startswith("the longest wait through the faults") for line in found["advice"])


def test_what_was_tried_before_an_interrupt_is_printed() -> None:
    def numbers() -> Iterator[int]:
        yield 5
        raise KeyboardInterrupt

    shown = screen(width=80)
    with pytest.raises(KeyboardInterrupt):
        run(scenario(num_trainers=2), numbers(), shown, ends_early=False)
    text = answer(shown)
    assert "enough: 5 actors on 1 host" in text
    assert "…" not in text


def test_nothing_that_came_is_json_too() -> None:
    nothing = Found(0, 0, 1, 20, 0, 0, 0, 0, 0, 0, 1, math.inf, 0)
    assert any("takes no end" in line for line in advice(scenario(), [outcome_of(scenario(), 1, nothing)]))


@pytest.mark.parametrize(
    ("faults", "numbers", "said"),
    [
        (("kill@60",), "0", "'0' is no number of actors, nor several"),
        (("kill@60:8",), "4,9", "kill@60:8 names none of 4 actors"),
        (("host@60:1",), "32", "host@60:1 names none of 32 actors"),
        (("burn@60",), "4", "'burn@60' is no fault; write kill@60:3"),
    ],
)
def test_what_makes_no_sense_is_told(faults: tuple[str, ...], numbers: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        numbers_of(numbers, scenario(*faults))


def test_without_a_need_the_numbers_must_be_given() -> None:
    with pytest.raises(ValueError, match="give --num-actors, or --need"):
        numbers_of(None, scenario(need=None))
    assert numbers_of("8,4", scenario("kill@60:3", "join@61", need=None)) == [4, 8]
    assert scenario("kill@60.5:3").faults == (Fault(60.5, "kill", 3),)
    found, status = told(dataclasses.replace(scenario(need=None), measured_s=5.0), [1])
    assert status == 0
    assert found["advice"][0].startswith("1 actor: ")
