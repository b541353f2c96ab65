"""Turns by size against a plain loop, for any cuts of what is there; and how far a component is from its share."""

import math
import random
from fractions import Fraction

import numpy as np

from datarax_ray.plan.orders.merged import given_then, next_components


def turns(weights, sizes):
    """The components of all elements, one after the other, until the one whose turn it is has none."""
    given, taken, found = [0] * len(weights), [0] * len(weights), []
    while True:
        index = min((Fraction(given[c], w), c) for c, w in enumerate(weights) if w)[1]
        if taken[index] == len(sizes[index]):
            return found
        given[index] += sizes[index][taken[index]]
        taken[index] += 1
        found.append(index)


def test_any_cuts_of_the_elements_give_the_turns_of_a_plain_loop():
    for seed in range(100):
        rng = random.Random(seed)
        largest = rng.choice((3, 50, 2**30))  # which takes more than int64
        weights = tuple(rng.choice((0, 1, 2, 7, largest)) for _ in range(rng.randint(1, 5)))
        if not any(weights):
            continue
        sizes = [[rng.randint(0, rng.choice((1, 9, 2**40))) for _ in range(40)] for _ in weights]
        given, taken, found = (0,) * len(weights), [0] * len(weights), []
        there = [0] * len(weights)
        while True:
            its = [np.array(s[lo:hi], np.int64) for s, lo, hi in zip(sizes, taken, there, strict=True)]
            components, lacking = next_components(weights, given, its)
            counts = np.bincount(components, minlength=len(weights)).tolist()
            more = [int(s[:count].sum()) for s, count in zip(its, counts, strict=True)]
            given = given_then(weights, given, more)
            taken = [a + b for a, b in zip(taken, counts, strict=True)]
            found += components.tolist()
            if there[lacking] == 40:
                break
            there[lacking] = min(40, there[lacking] + rng.choice((1, 3, 40)))
        assert found == turns(weights, sizes)


def test_a_component_is_ahead_by_less_than_one_element_and_behind_by_less_than_one_of_each_other():
    for seed in range(12):
        rng = random.Random(seed)
        weights = tuple(rng.randint(1, 9) for _ in range(rng.randint(2, 6)))
        longest = [rng.choice((1, 10, 1000)) for _ in weights]
        sizes = [[rng.randint(1, most) for _ in range(200)] for most in longest]
        given, taken = [0] * len(weights), [0] * len(weights)
        for index in turns(weights, sizes):
            given[index] += sizes[index][taken[index]]
            taken[index] += 1
            for c, weight in enumerate(weights):
                share = Fraction(weight, sum(weights))
                ahead = given[c] - share * sum(given)
                others = sum(longest) - longest[c]
                assert -share * others <= ahead <= (1 - share) * longest[c]


def test_what_is_kept_of_a_stream_without_an_end_stays_small():
    weights, given, longest = (7, 2, 1), (0, 0, 0), 1000
    for seed in range(50):
        sizes = [np.random.default_rng((seed, c)).integers(1, longest, 5000) for c in range(3)]
        components, _ = next_components(weights, given, sizes)
        counts = np.bincount(components, minlength=3).tolist()
        given = given_then(weights, given, [int(s[:count].sum()) for s, count in zip(sizes, counts, strict=True)])
        assert max(given) <= (1 + longest) * math.prod(weights)
