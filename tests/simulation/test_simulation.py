"""The simulation itself, small: what it must find, whatever the code that it drives decides."""

import dataclasses

import pytest

from tests.simulation.__main__ import HEADER, row
from tests.simulation.scenario import Fault, Scenario, run

SMALL = Scenario("small", 8, warm_s=20.0, measured_s=40.0)


def test_even_actors_are_all_at_work_all_the_time():
    found = run(SMALL)
    assert 0.95 <= found.efficiency <= 1.02
    assert found.wasted == 0
    assert len(row(SMALL, found).split()) == 1 + len(HEADER)


@pytest.mark.parametrize("kind", ["kill", "freeze", "leave"])
def test_what_is_lost_is_read_by_the_others(kind):
    found = run(dataclasses.replace(SMALL, faults=(Fault(25.0, kind, 3), Fault(30.0, "join"))))
    assert found.efficiency > 0.5


def test_a_trainer_that_is_slow_does_not_wait():
    found = run(dataclasses.replace(SMALL, need=0.5 * 8 / SMALL.costs.record_s))
    assert found.efficiency > 0.95
    assert found.wait < 0.05


def test_requests_that_take_unevenly_long_leave_nobody_idle():
    found = run(dataclasses.replace(SMALL, num_actors=16, sigma=1.0))
    assert found.efficiency > 0.85
    assert found.idle < 0.1


def test_one_slow_actor_costs_no_more_than_what_it_does_not_read():
    assert run(dataclasses.replace(SMALL, num_actors=16, slow=1, sigma=0.3)).efficiency > 0.9


def test_trainers_share_actors_evenly():
    found = run(dataclasses.replace(SMALL, num_trainers=4))
    assert 0.9 <= found.efficiency <= 1.06  # counted in chunks, of which there are some ten
