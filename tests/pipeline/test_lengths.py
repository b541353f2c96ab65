"""Batches by length against a plain loop: random streams over tangled actors, resumed; and what people are told."""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grain.experimental import index_shuffle

from datarax_ray import ConcatThenSplit, LengthBatches, MixtureSource, Pipeline, RaySource
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.fuzz.stream_cases import SOURCES, Case, Leg, draw, make_source
from tests.fuzz.stream_oracle import _rows
from tests.fuzz.streams import Actors, Tangled
from tests.resume import assert_equal, on_host, run_saving

BY = LengthBatches("t", boundaries=(4, 6, 10), num_batches=3, pad_id=-1)


def in_pools(rows: list[dict[str, Any]], size: int, seed: int, places: list[str], *, drops: bool) -> list[Any]:
    """The batches of a plain loop. places: position and offset of each row."""
    found: list[dict[str, Any]] = []
    for begin in range(0, len(rows), size * BY.num_batches):
        pool = rows[begin : begin + size * BY.num_batches]
        if drops:
            pool = pool[: len(pool) // size * size]
        order = sorted(range(len(pool)), key=lambda row: len(pool[row]["t"]))
        number = len(order) // size
        drawn = int.from_bytes(hashlib.sha256(f"lengths/{seed}/{places[begin]}".encode()).digest()[:4], "big")
        turns = [int(index_shuffle(i, max_index=number - 1, seed=drawn, rounds=8)) for i in range(number)]
        turns = turns if number > 1 else [0] * number
        for at in [*turns, number]:
            if cut := sorted(order[at * size : (at + 1) * size]):
                found.append(padded([pool[row] for row in cut]))
    return found


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(row["t"]) for row in rows)
    width = next(each for each in BY.boundaries if each >= longest)
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "t"}
    filled = [[*row["t"].tolist(), *[-1] * (width - len(row["t"]))] for row in rows]
    return columns | {"t": filled, "t_length": [len(row["t"]) for row in rows]}


def trainers(case: Case, leg: Leg, directory: Path, seed: int) -> list[Pipeline]:
    sources = [make_source(directory, case) for _ in range(leg.num_trainers)]
    actors = Actors(sources[0].describe())
    return [
        Pipeline(
            source=Tangled(source, actors, leg, seed + rank),
            batch_size=case.batch_size,
            packing=BY,
            drop_remainder=case.ending == "drop",
            process_index=rank,
            process_count=leg.num_trainers,
            on_host=True,
        )
        for rank, source in enumerate(sources)
    ]


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 400), marks=pytest.mark.slow)])
def test_random_streams_are_a_plain_loops_from_every_state(seeds: range, tmp_path: Path) -> None:
    for number in seeds:
        rng = random.Random(f"lengths {number}")
        case = replace(
            draw(rng, kinds=[each for each in SOURCES if each != "merged"]),
            packing="by length",
            on_error="skip",
            reweighted=None,
            materialized=None,
            skip=(),
        )
        case = replace(case, ending="drop" if case.ending == "drop" else "short")
        case = replace(case, steps=tuple(step for step in case.steps if step != "fail"))
        order = make_source(tmp_path, case).describe().order
        rows = _rows(case, getattr(order, "records", None), [0])
        at = [-1, *(row.position for row in rows)]
        places = [f"{p}/{at[:i].count(p)}" if p == at[i - 1] else f"{at[i - 1] + 1}/0" for i, p in enumerate(at)]
        elements = [row.element for row in rows]
        want = in_pools(elements, case.batch_size, order.seed, places[1:], drops=case.ending == "drop")
        if not want:
            continue
        state, taken, leg = None, 0, 0
        while taken < len(want):
            its = case.legs[leg % len(case.legs)]
            pipelines = trainers(case, its, tmp_path, rng.randrange(2**32))
            for pipeline in pipelines:
                if state is not None:
                    pipeline.set_state(json.loads(state))
            for _ in range(rng.choice((1, 2, 3, 7))):
                got = [pipeline.step() for pipeline in pipelines]
                joined = {key: [row for part in got for row in part[key].tolist()] for key in got[0]}
                assert joined == {key: np.asarray(v).tolist() for key, v in want[taken].items()}, (case, taken)
                taken += 1
                state = json.dumps(rng.choice(pipelines).get_state())
                if taken == len(want):
                    assert all(next(iter(pipeline), None) is None for pipeline in pipelines)
                    break
            for pipeline in pipelines:
                pipeline.close()
            leg += 1


def sentence(element: dict[str, Any]) -> dict[str, Any]:
    index = int(element["index"])
    return {"t": list(range(index * 7 % 11)), "index": index}


def make(*, count: int = 50, packing: Any = BY, actors: int = 0, num_epochs: int = 2, **options: Any) -> Pipeline:
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=num_epochs)
    source: Any = RandomAccessSource(config, {"index": np.arange(count)}, transforms=[sentence])
    source = RaySource(source, num_actors=actors, num_cpus=0.1) if actors else source
    return Pipeline(source=source, packing=packing, **{"batch_size": 6, "on_host": True} | options)


def test_actors_give_the_same_and_go_on_in_the_middle_of_a_pool(ray_local: None) -> None:
    batches, states = run_saving(make())
    assert sorted(index for batch in batches for index in batch["index"].tolist()) == sorted([*range(50)] * 2)
    assert max(map(len, states)) < 2048
    for actors, number in ((2, 4), (1, 5)):
        pipeline = make(actors=actors)
        pipeline.set_state(json.loads(states[number]))
        with pipeline:
            assert_equal([on_host(batch) for batch in pipeline], batches[number:])


def test_rows_filled_up_with_nan_are_resumed() -> None:
    def floats(element: dict[str, Any]) -> dict[str, Any]:
        return {"t": np.arange(element["index"] % 9, dtype=np.float32)}

    def filled() -> Pipeline:
        source = RandomAccessSource(
            RandomAccessSourceConfig(num_epochs=1), {"index": np.arange(30)}, transforms=[floats]
        )
        return Pipeline(source=source, packing=replace(BY, pad_id=float("nan")), batch_size=6, on_host=True)

    batches, states = run_saving(filled())
    assert np.isnan(batches[0]["t"]).any()
    pipeline = filled()
    pipeline.set_state(json.loads(states[2]))
    assert_equal([on_host(batch) for batch in pipeline], batches[2:])


def test_it_counts_locates_replays_and_shows_the_padding_that_it_saves() -> None:
    with make() as pipeline:
        assert len(pipeline) == 17
        batches = list(pipeline)
        stats = pipeline.stats()
    assert len(batches) == 17
    values = sum(int(batch["t_length"].sum()) for batch in batches)
    assert stats.padding[:2] == (values, sum(batch["t"].size for batch in batches))
    assert stats.padding.share < stats.padding.share_unsorted
    assert f"padding: {stats.padding.share:.1%} of {stats.padding.num_padded:,} values" in str(stats)
    again = make()
    for step in (1, 4, 16):
        found = [int(origin.record.rpartition("[")[2][:-1]) for origin in again.locate(step)]
        assert found == batches[step]["index"].tolist()
    assert_equal(list(again.replay(2, 5)), batches[2:5])


def test_the_digest_is_one_for_any_trainers_and_legs() -> None:
    sums = []
    for count, leg in ((1, 99), (2, 2), (3, 5)):
        states: list[Any] = [None] * count
        for _ in range(0, 17, leg):
            pipelines = [make(process_index=i, process_count=count, digest=True) for i in range(count)]
            for pipeline, state in zip(pipelines, states, strict=True):
                if state is not None:
                    pipeline.set_state(state)
                deque(islice(pipeline, leg))
            states = [pipeline.get_state() for pipeline in pipelines]
        sums += [state["digest"]["sum"] for state in states]
    assert len(sums) == 6
    found = list(make(digest=True).digests(make(digest=True).get_state()))
    assert len({place[:2] for place in found}) == len(found) == 18
    assert {*sums, found[-1][2]} == {sums[1]}
    middle = make()
    middle.step()
    with pytest.raises(ValueError, match="a digest cannot begin behind 1 batches of a pool"):
        make(digest=True).set_state(middle.get_state())


def test_a_change_waits_for_the_end_of_the_pool() -> None:
    pipeline = make(num_epochs=-1)
    first = [pipeline.step() for _ in range(2)]
    assert pipeline.position == 0
    with pytest.raises(ValueError, match="position 17 was delivered already, and the next is 18"):
        pipeline.amend(skip=[17])
    pipeline.amend(skip=[18, 20])
    rest = [pipeline.step() for _ in range(4)]
    order = [make(packing=None, num_epochs=-1).locate(position // 6)[position % 6].record for position in range(38)]
    want = sorted(int(order[at].rpartition("[")[2][:-1]) for at in range(38) if at not in (18, 20))
    found = [index for batch in [*first, *rest] for index in batch["index"].tolist()]
    assert sorted(found[:18]) == sorted(int(order[at].rpartition("[")[2][:-1]) for at in range(18))
    assert set(found) <= set(want)


def test_another_pool_than_the_states_is_refused() -> None:
    pipeline = make()
    pipeline.step()
    state = json.loads(json.dumps(pipeline.get_state()))
    assert state["rest"] == {"pool": [1, 18]}
    drift = ("batch_size", "packing", "order.num_epochs", "packing.num_batches", "packing.boundaries")
    for other in (make(batch_size=9), make(packing=replace(BY, num_batches=2)), make(packing=None)):
        with pytest.raises((ValueError, DriftError), match="of a pool|another stream's|packing"):
            other.set_state(state, allow_drift=drift)
    short = make(num_epochs=1, count=50)
    for _ in range(7):
        short.step()  # the first of the last pool, of 14 rows
    longer = make(num_epochs=2)
    longer.set_state(short.get_state(), allow_drift=("order.num_epochs",))
    with pytest.raises(
        DriftError, match=r"behind 1 batches of a pool of positions \[36, 50\), which now are \[36, 54\)"
    ):
        longer.step()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: LengthBatches("t", boundaries=(9, 4)), ValueError, "boundaries are lengths, ascending"),
        (lambda: LengthBatches("t", num_batches=0), ValueError, "num_batches"),
        (lambda: LengthBatches("t", pad_id={"u": 1}), ValueError, r"pad_id names \['u'\]"),
        (lambda: make(packing=(BY, ConcatThenSplit(8, "t"))), TypeError, "or a LengthBatches"),
        (lambda: make(on_host=False).scan(lambda batch: 0, length=2), ValueError, "batches of one shape"),
        (lambda: make(packing=replace(BY, boundaries=(4, 9))).step(), RecordError, "length 10, and the last of the"),
        (lambda: make(packing=LengthBatches("u")).step(), RecordError, "the element has no field 'u'"),
        (lambda: make(packing=replace(BY, pad_id=2**70)).step(), ValueError, "is no int64"),
    ],
)
def test_what_cannot_be_is_said(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_a_mixture_by_tokens_is_batched_by_length() -> None:
    def mixed() -> Pipeline:
        config = RandomAccessSourceConfig(shuffle=True, num_epochs=1)
        parts = [
            RandomAccessSource(config, {"index": np.arange(first, first + 60)}, transforms=[sentence])
            for first in (0, 100)
        ]
        source = MixtureSource(parts, [3, 1], weights_by="t")
        return Pipeline(source=source, packing=BY, batch_size=6, on_host=True)

    batches, states = run_saving(mixed())
    for number in range(0, len(states), 2):
        pipeline = mixed()
        pipeline.set_state(json.loads(states[number]))
        assert_equal([on_host(batch) for batch in pipeline], batches[number:])
