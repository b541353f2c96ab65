"""The random loop over streams: a few cases always, more and over actors with --run-slow; and that it sees faults."""

import json
import random
from dataclasses import replace

import pytest

from datarax_ray.plan import partitions
from datarax_ray.plan.orders.kinds import GlobalShuffle
from datarax_ray.plan.scheduling import ShardScheduler
from datarax_ray.write import materialize
from tests.fuzz import pinned_streams, streams
from tests.fuzz.stream_cases import Case, Leg, Read, draw


def check(seeds, directory, where):
    for seed in seeds:
        case = draw(random.Random(f"streams {seed}"))
        wrong = streams.outcome(case, directory, where)
        assert wrong is None, f"{wrong}\npython -m tests.fuzz.streams --case '{case.to_json()}'"


def test_random_streams_are_those_of_a_plain_loop(tmp_path):
    check(range(12), tmp_path, streams.InProcess())


def test_streams_are_those_that_were_pinned(tmp_path):
    assert pinned_streams.changed(range(40), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_streams_are_those_of_a_plain_loop(tmp_path):
    check(range(1000, 4000), tmp_path, streams.InProcess())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_streams_over_actors_that_are_killed_are_those_of_a_plain_loop(tmp_path, ray_local):
    check(range(5000, 5060), tmp_path, streams.OnRay())


PLAIN = Case(
    kind="random_access",
    num_records=53,
    shuffle="global",
    seed=1,
    num_epochs=2,
    steps=("drop",),
    on_error="raise",
    packing=None,
    batch_size=6,
    ending="short",
    legs=(Leg(2, 3, False, 5, 2), Leg(3, 2, True, None, None)),
)


def test_the_loop_sees_an_order_that_is_another_by_two_records(tmp_path, monkeypatch):
    assert streams.outcome(PLAIN, tmp_path, streams.InProcess()) is None
    right = GlobalShuffle.records

    def swapped(self, positions):
        records = right(self, positions)
        return records + (records == 10) * 2 - (records == 12) * 2

    monkeypatch.setattr(GlobalShuffle, "records", swapped)
    wrong = streams.outcome(PLAIN, tmp_path, streams.InProcess())
    assert wrong is not None
    assert "x in row" in wrong


def test_the_loop_sees_an_epoch_that_begins_where_the_last_ones_shards_were(tmp_path, monkeypatch):
    reads = (Read("batch", 30, 2), Read("batch", 2, 4), Read("seek", 1), Read("batch", 3, 10**6))
    case = replace(PLAIN, kind="hf stream", shuffle="none", num_epochs=3, steps=(), legs=(), reads=reads)
    assert streams.outcome(case, tmp_path, streams.InProcess()) is None
    right = ShardScheduler._new_epoch

    def taken_for_another(self, number, known=None):
        return right(self, number, known and replace(known, epoch=number))

    monkeypatch.setattr(ShardScheduler, "_new_epoch", taken_for_another)
    wrong = streams.outcome(case, tmp_path, streams.InProcess())
    assert wrong is not None


def test_the_loop_sees_what_is_left_out_one_position_too_late(tmp_path, monkeypatch):
    case = replace(PLAIN, skip=((7, 9), (40, 70)))
    assert streams.outcome(case, tmp_path, streams.InProcess()) is None
    right = partitions.are_skipped
    monkeypatch.setattr(partitions, "are_skipped", lambda log, at, records: right(log, at - 1, records))
    wrong = streams.outcome(case, tmp_path, streams.InProcess())
    assert wrong is not None
    assert "x in row" in wrong


@pytest.mark.parametrize(("materialized", "seen"), [(0, "of batch"), (1, "its last rows are not the same any more")])
def test_the_loop_sees_what_was_materialised_without_an_element(materialized, seen, tmp_path, monkeypatch):
    case = replace(PLAIN, steps=("copies", "noise"), materialized=materialized)
    assert streams.outcome(case, tmp_path / "right", streams.InProcess()) is None
    right = materialize.record_of
    monkeypatch.setattr(materialize, "record_of", lambda elements, failed: right([*elements][:1], failed))
    wrong = streams.outcome(case, tmp_path / "wrong", streams.InProcess())
    assert wrong is not None
    assert seen in wrong


def test_a_case_is_made_smaller_while_it_fails(tmp_path, monkeypatch):
    def fails(case, *_):
        return "wrong" if "drop" in case.steps and case.num_records > 2 else None

    monkeypatch.setattr(streams, "outcome", fails)
    less = streams.shrink(replace(PLAIN, steps=("scale", "drop", "noise"), packing="concat"), tmp_path, None)
    assert (less.steps, less.num_records, less.packing, len(less.legs)) == (("drop",), 7, None, 1)


def test_a_case_comes_back_from_its_line(tmp_path):
    for seed in range(20):
        case = draw(random.Random(seed))
        assert Case.from_json(case.to_json()) == case
    assert json.loads(PLAIN.to_json())["kind"] == "random_access"
