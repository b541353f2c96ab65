"""Merging by value: whatever chunks components come in, and from any state on, it is a plain loop's merge of them."""

import itertools
import random
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from datarax_ray.plan.amendments import Amendment, amended
from datarax_ray.plan.orders.merged import MergedOrder
from datarax_ray.plan.orders.mixture import Mixture
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.weights import WeightSchedule, pieces_of, weights_given
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError, Skipped
from datarax_ray.read.streams.merged import Merger

WEIGHTS = {
    "two": [3, 1],
    "many": [5, 1, 2, 1],
    "one of no weight": [2, 0, 1],
    "schedule": WeightSchedule([(0, [1, 0, 0]), (30, [1, 1, 0]), (60, [0, 1, 2])], num_steps=4),
}


class Component:
    """What a component gives: for each position none, one or several elements; positions have gaps. broken: positions
    that are left out, and told of. failing: the one that is an error."""

    def __init__(self, index, size, rng):
        self.stop = 2 * size
        given = {position: rng.choice((0, 1, 1, 1, 3)) for position in rng.sample(range(self.stop), size)}
        self.elements = [
            (position, 1000 * index + 10 * position + ordinal)
            for position in sorted(given)
            for ordinal in range(given[position])
        ]
        self.broken = sorted(position for position in range(self.stop) if position not in given and rng.random() < 0.1)
        self.failing = None

    def chunks(self, start, rng):
        """From a position on, in chunks of any size, of blocks of several actors, in any order."""
        while start < self.stop:
            stop = min(self.stop, start + rng.choice((1, 2, 5, 30)))
            owners = [rng.randrange(3) for _ in range(start, stop)]
            blocks = [self._block(start, owners, actor) for actor in range(3)]
            rng.shuffle(blocks)
            yield blocks
            start = stop

    def _block(self, start, owners, actor):
        def is_mine(position):
            return 0 <= position - start < len(owners) and owners[position - start] == actor

        mine = [(position, value) for position, value in self.elements if is_mine(position)]
        skipped = tuple(Skipped(f"r{position}", position, "broken") for position in self.broken if is_mine(position))
        failure = None
        if self.failing is not None and is_mine(self.failing):
            failure = RecordError(f"bad (position {self.failing})", self.failing)
            mine = [(position, value) for position, value in mine if position < self.failing]
        positions = np.array([position for position, _ in mine], np.int64)
        values = np.array([value for _, value in mine])
        columns = {"x": values, "n": np.array([size_of(value) for _, value in mine])} if mine else None
        return Block(positions, columns, skipped, failure, self.failing or 0)


@dataclass
class Plain:
    """values: of the elements, asked for one by one, up to the first that there is not. failed_at: where that is an
    error. skipped: (position, record) of what is told as broken, where the next element of its component stands.
    """

    values: list[int] = field(default_factory=list)
    failed_at: int | None = None
    skipped: list[tuple[int, str]] = field(default_factory=list)


def turn(weights, given):
    """The component that gave least for its weight."""
    return min((Fraction(given[index], weight), index) for index, weight in enumerate(weights) if weight)[1]


def merged_plainly(components, weights, seed, by_size=False):
    given = [[(p, value) for p, value in c.elements if c.failing is None or p < c.failing] for c in components]
    broken = [list(component.broken) for component in components]
    found = Plain()
    pieces = [*pieces_of(weights_given(weights)), (10**9, (0,))]
    for (begin, its), (end, _) in itertools.pairwise(pieces):
        sizes = [0] * len(its)
        while (position := len(found.values)) < end:
            index = int(Mixture(its, seed).place(np.array([position - begin]))[0][0])
            if by_size:
                index = turn(its, sizes)
            at, value = given[index].pop(0) if given[index] else (10**9, None)
            if value is None and components[index].failing is not None:
                found.failed_at = position
                return found
            while broken[index] and broken[index][0] < at:
                found.skipped.append((position, f"component {index}: r{broken[index].pop(0)}"))
            if value is None:
                return found
            found.values.append(value)
            sizes[index] += size_of(value)
    return found


def size_of(value):
    return value % 7 * (value % 5)


def run(merger, components, rng):
    parts = [c.chunks(state.position, rng) for c, state in zip(components, merger.states, strict=True)]
    while not merger.is_over:
        if (lacking := merger.lacking) is None:
            yield merger.take([lambda position: None] * len(parts))
        elif (chunk := next(parts[lacking], None)) is not None:
            merger.add(lacking, chunk)
        else:
            yield merger.end(lacking)


def drawn(name, seed, by_size=False):
    rng = random.Random(f"{name} {seed}")
    weights = weights_given(WEIGHTS[name])
    count = len(pieces_of(weights)[0][1])
    components = [Component(index, rng.choice((1, 20, 60)), rng) for index in range(count)]
    return components, MergedOrder(Mixture(weights, seed), (), "n" if by_size else None), rng


def elements(chunks, start=0):
    """The values, at the positions from start on, one each."""
    found = {}
    for first, last, blocks in chunks:
        full = [block for block in blocks if block.columns]
        assert sorted(p for block in full for p in block.positions.tolist()) == list(range(first, last))
        for block in full:
            found |= dict(zip(block.positions.tolist(), block.columns["x"].tolist(), strict=True))
    assert sorted(found) == list(range(start, start + len(found)))
    return [found[position] for position in sorted(found)]


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_it_is_a_plain_merge_for_any_chunks_and_goes_on_from_any_state(name, by_size):
    for seed in range(10):
        components, order, rng = drawn(name, seed, by_size)
        want = merged_plainly(components, WEIGHTS[name], seed, by_size).values
        merger, states = Merger(order, StreamState(), None), []
        chunks = []
        for first, last, blocks in run(merger, components, rng):
            chunks.append((first, last, blocks))
            some = sorted(rng.choices(range(first, last + 1), k=3))
            states += [StreamState(position, extra=merger.extra_at(position)) for position in some]
        assert elements(chunks) == want
        for state in states:
            later = state._replace(position=min(len(want), state.position + rng.choice((0, 0, 7))))
            again = run(Merger(order, later, None), components, rng)
            assert elements(again, later.position) == want[later.position :]
        plain = run(Merger(order, StreamState(len(want) // 2), None), components, rng)
        assert elements(plain, len(want) // 2) == want[len(want) // 2 :]


def told(chunks):
    return sorted((skip.position, skip.where) for _, _, blocks in chunks for block in blocks for skip in block.skipped)


def test_broken_records_stand_where_the_next_element_does_and_are_told_once():
    for seed in range(20):
        components, order, rng = drawn("two", seed)
        merger = Merger(order, StreamState(), None)
        states, whole = [], []
        for first, last, blocks in run(merger, components, rng):
            whole.append((first, last, blocks))
            at = rng.randint(first, last)
            states.append(StreamState(at, extra=merger.extra_at(at)))
        want = merged_plainly(components, WEIGHTS["two"], seed)
        assert told(whole) == sorted(want.skipped)
        for state in states:
            after = told(run(Merger(order, state, None), components, rng))
            assert after == [each for each in told(whole) if each[0] >= state.position]


def test_what_fails_does_so_where_its_element_is_due():
    seen = 0
    for seed in range(30):
        components, order, rng = drawn("two", seed)
        component = rng.choice(components)
        component.failing = rng.choice([position for position, _ in component.elements] or [0])
        want = merged_plainly(components, WEIGHTS["two"], seed)
        *chunks, (first, last, blocks) = run(Merger(order, StreamState(), None), components, rng)
        if want.failed_at is None:
            continue
        seen += 1
        assert elements(chunks) == want.values
        ((failure, at),) = [(block.failure, block.failure_position) for block in blocks]
        assert isinstance(failure, RecordError)
        assert (first, last, at, failure.position) == (len(want.values), len(want.values) + 1, first, first)
        assert f", {component.failing} of component" in str(failure)
        index = components.index(component)
        assert str(failure).startswith(f"component {index}: bad (position {failure.position}, ")
    assert seen > 10


def test_elements_at_amended_positions_are_left_out_and_weights_change_where_they_are_told_to():
    components, order, rng = drawn("two", 4)
    want = merged_plainly(components, WEIGHTS["two"], 4).values
    log = amended((), Amendment(3, ((3, 9), (11, 12))), 0)
    chunks = run(Merger(order, StreamState(amendments=log), None), components, rng)
    at = [p for _, _, blocks in chunks for block in blocks for p in block.positions.tolist()]
    gone = [*range(3, 9), 11]
    assert sorted(at) == [position for position in range(len(want)) if position not in gone]


def test_a_stop_ends_it_and_a_position_behind_the_end_is_an_error():
    components, order, rng = drawn("many", 1)
    want = merged_plainly(components, WEIGHTS["many"], 1).values
    half = len(want) // 2
    assert elements(run(Merger(order, StreamState(), half), components, rng)) == want[:half]
    assert [*run(Merger(order, StreamState(half), half), components, rng)] == []
    for behind in (1, 2, 9, 1000):  # nothing is given before that is known
        start = StreamState(len(want) + behind)
        with pytest.raises(ValueError, match=f"at position {start.position}, .*is behind the end, or the component"):
            next(run(Merger(order, start, None), components, rng))
    assert elements(run(Merger(order, StreamState(len(want)), None), components, rng), len(want)) == []
