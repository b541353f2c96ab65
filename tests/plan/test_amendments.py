"""What people change of a running stream, as values: the log, and weights that change, against counting."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.amendments import (
    Amendment,
    amended,
    apart,
    are_skipped,
    ranges_of,
    saved_amendments,
    skips_from,
    yields_from,
)
from datarax_ray.plan.orders.interleaved import InterleavedOrder
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.mixture import Mixture, MixtureOrder
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.plan.position import ONE_TO_ONE
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.weights import WeightSchedule, whole_weights

LOG = (
    Amendment(12, positions=((12, 15), (20, 21)), why="a loss spike"),
    Amendment(30, records=((3, 5),)),
    Amendment(40, weights=(1, 1)),
    Amendment(50, weights=WeightSchedule([(0, [1, 0]), (20, [0, 1])], num_steps=4)),
)


class TestSkipping:
    def test_positions_give_nothing_once_and_records_nothing_from_there_on(self):
        positions = np.arange(60)
        records = positions % 10
        gone = positions[are_skipped(LOG, positions, records)].tolist()
        assert gone == [12, 13, 14, 20, 33, 34, 43, 44, 53, 54]
        assert positions[are_skipped(LOG, positions)].tolist() == [12, 13, 14, 20]

    def test_a_request_selects_what_is_left_whoever_reads(self):
        order = order_of(10, 3, "global")
        partitioning = order.partitioning(2)
        wanted = Wanted(amendments=LOG[:2])
        whole = ReadRequest(0, 60, wanted=wanted).select(order)
        records = order.records(np.arange(60))
        left = [p for p in range(60) if p not in (12, 13, 14, 20) and not (p >= 30 and records[p] in (3, 4))]
        assert whole[0].tolist() == left
        assert whole[1].tolist() == records[left].tolist()
        for num_actors in (1, 3):
            parts = owners_in(order, partitioning, assign(partitioning, range(num_actors)), 0, 60)
            found = [ReadRequest(0, 60, partitioning, part, wanted).select(order)[0] for part in parts.values()]
            assert np.sort(np.concatenate(found)).tolist() == left

    def test_batches_are_found_by_counting_again_behind_the_last_position(self):
        assert [skips_from(LOG[:1], position) for position in (0, 20, 21)] == [True, True, False]
        assert skips_from(LOG[1:2], 10**9)
        assert not skips_from(LOG[2:], 0)
        assert not yields_from(ONE_TO_ONE, LOG, 0).is_one_to_one
        assert yields_from(ONE_TO_ONE, LOG[:1], 21) == ONE_TO_ONE

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            (["x"], TypeError, "a position to skip is a whole number, got 'x'; or a .start, stop."),
            ([1.5], TypeError, "a whole number, got 1.5"),
            ([True], TypeError, "a whole number, got True"),
            ([-1], ValueError, r"\[start, stop\), from 0 on and not empty, got -1"),
            ([(5, 5)], ValueError, r"not empty, got \(5, 5\)"),
            ([range(0, 9, 2)], TypeError, "a whole number, got range"),
            ([(0, 2**62 + 1)], ValueError, "got .0, 4611686018427387905"),
        ],
    )
    def test_what_is_no_range_is_refused(self, given, error, message):
        with pytest.raises(error, match=message):
            ranges_of(given)


class TestLog:
    def test_what_was_said_already_changes_nothing(self):
        log = LOG
        for each in LOG[:3]:
            assert amended(log, each, first=1000) == log
        assert amended(log, LOG[3], first=1000) == log
        assert amended(log, Amendment(13, positions=((13, 15),)), first=1000) == log
        assert amended(log[:3], Amendment(900, weights=(1, 1)), first=900) == log[:3]

    def test_of_what_is_new_only_that_is_added(self):
        assert amended(LOG, Amendment(14, positions=((14, 30),), why="more"), first=14)[-1] == Amendment(
            15, positions=((15, 20), (21, 30)), why="more"
        )

    @pytest.mark.parametrize(
        ("new", "message"),
        [
            (
                Amendment(5, positions=((5, 9),)),
                "position 5 was delivered already, and the next is 10: .* Restore an earlier state",
            ),
            (Amendment(9, records=((8, 9),)), "position 9 was delivered already"),
            (Amendment(9, weights=(1, 2)), "position 9 was delivered already"),
            (Amendment(49, weights=(1, 2)), "weights were to change at position 49, .* at 50 already, .* at=50"),
            (Amendment(100, positions=tuple((n, n + 1) for n in range(100, 9000, 2))), "with 4096 ranges in all"),
        ],
    )
    def test_what_cannot_be_is_refused(self, new, message):
        with pytest.raises(ValueError, match=message):
            amended(LOG, new, first=10)

    def test_there_is_a_last_one(self):
        log = tuple(Amendment(n, weights=(n + 1, 1)) for n in range(256))
        with pytest.raises(ValueError, match="a stream takes 256 amendments"):
            amended(log, Amendment(300, weights=(1, 1)), first=0)

    def test_it_is_told_to_people(self):
        assert [str(each) for each in LOG] == [
            "from position 12 on: skips positions [12, 15), [20, 21) (a loss spike)",
            "from position 30 on: skips records [3, 5)",
            "from position 40 on: weights [1, 1]",
            "from position 50 on: weights {'points': [[0, [1, 0]], [20, [0, 1]]], 'num_steps': 4}",
        ]
        many = Amendment(0, records=tuple((n, n + 1) for n in range(0, 10, 2)))
        assert str(many).endswith("records [0, 1), [2, 3), [4, 5) and more, 5 in all")


class TestStates:
    MIXED = MixtureOrder(Mixture((2, 1), seed=3), (order_of(5), order_of(7)))

    def test_what_was_written_is_read_and_a_state_without_is_as_ever(self):
        state = StreamState(45, amendments=LOG)
        plain = json.loads(json.dumps(state.to_json({})))
        assert list(plain["rest"]) == ["amendments"]
        assert StreamState.from_json(plain, _Stream(self.MIXED), {}) == state
        assert StreamState(45).to_json({}) == {"version": 1, "position": 45, "settings": {}}

    def test_another_position_of_the_stream_has_them_too(self):
        assert StreamState(45, amendments=LOG).moved(7) == StreamState(7, amendments=LOG)

    @pytest.mark.parametrize(
        "plain",
        [
            None,
            [3],
            [{"weights": [1, 1]}],
            [{"at": 3, "positions": [5]}],
            [{"at": 3, "records": [[0, 1]], "when": 3}],
            [{"at": 3, "weights": {"points": [[1, [1, 1]]], "num_steps": 1}}],
            [{"at": 3, "weights": "ab"}],
        ],
    )
    def test_a_log_that_cannot_be_read_is_refused(self, plain):
        with pytest.raises(ValueError, match="the state's amendments cannot be read: .* restore an earlier one"):
            saved_amendments(plain)

    def test_what_is_of_another_stream_is_refused(self):
        state = StreamState(45, amendments=(Amendment(3, weights=(1, 1, 1)),)).to_json({})
        with pytest.raises(ValueError, match="the mixture has 2 sources, and 3 weights were given"):
            StreamState.from_json(state, _Stream(self.MIXED), {})
        with pytest.raises(ValueError, match="this stream is no mixture, so it has none"):
            StreamState.from_json(state, _Stream(order_of(9)), {})
        with pytest.raises(ValueError, match="this stream is no mixture, so it has none"):
            StreamState.from_json(state, _Stream(InterleavedOrder(2, 1)), {})
        state = StreamState(45, amendments=(Amendment(3, records=((1, 2),)),)).to_json({})
        with pytest.raises(ValueError, match="records of a stream of shards have no number"):
            StreamState.from_json(state, _Stream(InterleavedOrder(2, 1)), {})


class _Stream:
    yields = ONE_TO_ONE

    def __init__(self, order):
        self.order = order


class TestSchedules:
    def test_shares_go_evenly_from_point_to_point_in_steps(self):
        schedule = WeightSchedule([(0, [1, 0, 1]), (8, [0, 1, 1]), (9, [0, 0, 1])], num_steps=4)
        assert schedule.pieces == (
            (0, (1, 0, 1)),
            (2, (3, 1, 4)),
            (4, (1, 1, 2)),
            (6, (1, 3, 4)),
            (8, (0, 1, 7)),  # the steps of one position: the last of them
            (9, (0, 0, 1)),
        )
        assert WeightSchedule([(0, [3, 1]), (10, [1, 1])]).pieces == ((0, (3, 1)), (10, (1, 1)))

    def test_shares_with_large_denominators_are_rounded_and_none_is_lost(self):
        schedule = WeightSchedule([(0, [999_983, 1]), (7000, [1, 999_979])], num_steps=7)
        for step, (_, (one, other)) in enumerate(schedule.pieces):
            part = (7 - step) / 7
            assert abs(one / (one + other) - (part * 999_983 / 999_984 + (1 - part) / 999_980)) < 2e-6
            assert min(one, other) > 0

    @pytest.mark.parametrize(
        ("points", "num_steps", "error", "message"),
        [
            ([], 1, ValueError, r"begin at 0 and ascend, got \[\]"),
            ([(1, [1])], 1, ValueError, r"begin at 0 and ascend, got \[1\]"),
            ([(0, [1]), (0, [2])], 1, ValueError, "begin at 0 and ascend"),
            ([(0, [1]), (5, [1, 2])], 1, ValueError, "each point of a schedule has as many weights"),
            ([(0, [0, 0])], 1, ValueError, "at least 0, and one of them more"),
            ([(0, [1]), (2**63, [2])], 1, ValueError, "a position is at most"),
            ({(0, (1,))}, 1, TypeError, "points is a set, which has no order"),
            ([(0.5, [1])], 1, TypeError, "a position is a whole number, got 0.5"),
            ([3], 1, TypeError, "cannot unpack"),
            ([(0, [1])], 0, ValueError, "num_steps must be at least 1"),
            ([(n, [1]) for n in range(20)], 64, ValueError, "20 points with 64 steps .* more than 1024"),
        ],
    )
    def test_what_is_none_is_refused(self, points, num_steps, error, message):
        with pytest.raises(error, match=message):
            WeightSchedule(points, num_steps)


weightings = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any).map(whole_weights)


def counted(mixture, changes, length):
    """(component, its own position) at each position: constant weights one behind the other, and each counted on."""
    seen, found = [0] * len(mixture.weights), []
    for position in range(length):
        at, weights = [c for c in [(0, mixture.weights), *changes] if c[0] <= position][-1]
        component = int(Mixture(weights, mixture.seed).place(np.array([position - at]))[0][0])
        found.append((component, seen[component]))
        seen[component] += 1
    return found


@given(weightings, st.integers(0, 99), st.dictionaries(st.integers(0, 60), weightings, max_size=4))
def test_changing_weights_go_on_with_every_component_where_it_is(before, seed, changes):
    mixture = Mixture(before, seed)
    found = Mixture(before, seed, tuple(sorted(changes.items())))
    components, own = found.place(np.arange(100))
    want = counted(mixture, sorted(changes.items()), 100)
    assert list(zip(components.tolist(), own.tolist(), strict=True)) == want
    for position, (component, index) in enumerate(want):
        assert found.counts(position)[component] == index
        assert found.end_of(component, index) == position
    for component in range(3):
        mine = np.flatnonzero(components == component)
        assert found.position_of(component, np.arange(len(mine))).tolist() == mine.tolist()


def test_a_later_change_takes_the_place_of_what_a_schedule_had_in_mind():
    schedule = WeightSchedule([(0, [1, 0]), (10, [0, 1]), (20, [1, 0])])
    mixture = Mixture(schedule, 5, ((15, (1, 1)),))
    components = mixture.place(np.arange(40))[0].tolist()
    assert components[:15] == [0] * 10 + [1] * 5
    assert sorted(components[15:35]) == [0] * 10 + [1] * 10


def test_a_component_ends_where_its_weight_does():
    mixture = Mixture(WeightSchedule([(0, [1, 1]), (10, [0, 1])]), 0)
    assert mixture.end_of(0, 4) in range(8, 10)
    assert mixture.end_of(0, 5) is None
    assert mixture.end_of(1, 20) == 25


def test_logs_differ_where_one_leaves_out_what_the_other_gives():
    log = (Amendment(40, positions=((40, 45),)),)
    in_two = (Amendment(40, positions=((40, 42),), why="a spike"), Amendment(42, positions=((42, 45),)))
    assert apart(log, in_two, 0, 100) is None
    assert apart(log, (), 0, 100) == apart((), log, 0, 100) == (40, 45, True)
    assert apart(log, (), 32, 43) == (40, 43, True)
    assert apart(log, (), 0, 40) is None  # one has not come so far
    assert apart(log, (), 45, 100) is None  # behind it they gave the same
    assert apart(log, (Amendment(20, positions=((20, 21), (40, 45))),), 0, 100) == (20, 21, True)


def test_logs_differ_by_the_weights_that_hold_and_by_records_that_may_come():
    weights = (Amendment(10, weights=(1, 1)), Amendment(50, weights=(1, 2)))
    assert apart(weights, weights[:1], 20, 100) == (50, 100, True)
    assert apart(weights, weights[1:], 50, 100) is None
    records, earlier = (Amendment(30, records=((7, 8),)),), (Amendment(10, records=((7, 8),)),)
    assert apart(records, (), 0, 100) == (30, 100, False)
    assert apart(records, earlier, 20, 100) == (20, 100, False)
    assert apart(records, earlier, 30, 100) is None
    assert apart((*records, Amendment(60, positions=((60, 61),))), (), 0, 100) == (60, 61, True)
