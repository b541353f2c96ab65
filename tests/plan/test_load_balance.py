"""The pace of actors, by readings: who gets less, when, and that noise moves nothing."""

import random

from datarax_ray.plan.load_balance import MIN_READ_S, MIN_WEIGHT, NUM_AGREEING, LoadBalance


def read(pace, seconds, times, actors=None):
    """So many readings of every actor, of 100 records each. seconds: for a record, by actor."""
    for _ in range(times):
        for actor, each in seconds.items():
            pace.read(actor, 100, 100 * each, actors or seconds)


def test_an_actor_that_stays_slow_gets_as_much_less_and_the_others_what_is_even():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, NUM_AGREEING + NUM_AGREEING - 2)
    assert pace.weights == {}  # not yet: it could be a moment
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, 2)
    told = pace.weights
    assert told == {1: 0.25}
    assert told is pace.weights, "every block that comes asks for them"
    read(pace, {0: 0.001, 1: 0.001, 2: 0.001}, 60)
    assert pace.weights == {}
    assert told == {1: 0.25}, "who has them would take what is new for what it knows"


def test_noise_moves_nothing():
    pace, chance = LoadBalance(), random.Random(0)
    for _ in range(500):
        read(pace, {actor: 0.001 * chance.uniform(0.6, 1.7) for actor in range(4)}, 1)
        assert pace.weights == {}


def test_a_weight_has_its_bounds():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 1.0, 2: 0.001}, 60)
    assert pace.weights == {1: MIN_WEIGHT}


def test_short_reads_are_put_together_to_one_reading():
    short = MIN_READ_S / 10
    pace = LoadBalance()
    for _ in range(10 * 2 * NUM_AGREEING):
        for actor, each in {0: 1, 1: 4, 2: 1}.items():
            pace.read(actor, 1, each * short, (0, 1, 2))
    assert pace.weights == {1: 0.25}


def test_reads_of_nothing_say_nothing():
    pace = LoadBalance()
    for _ in range(100):
        pace.read(0, 0, 1.0, (0, 1))
        pace.read(1, 100, 0.1, (0, 1))
    assert pace.weights == {}


def test_one_alone_is_compared_with_nobody_and_the_absent_do_not_count():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.009}, 60, actors=(1,))
    assert pace.weights == {}


def test_settling_takes_what_was_measured_and_forgetting_begins_anew():
    pace = LoadBalance()
    read(pace, {0: 0.001, 1: 0.004, 2: 0.001}, NUM_AGREEING)
    pace.settle((0, 1, 2))
    assert pace.weights == {1: 0.25}
    pace.forget(1)
    assert pace.weights == {}
    pace.settle((0, 1, 2))
    assert pace.weights == {}
