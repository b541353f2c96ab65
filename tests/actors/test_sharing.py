"""An evaluation read by the actors of the train source: two exact streams, and no more CPUs."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from datarax_ray import Pipeline, RaySource
from datarax_ray.feed.stream import StreamOptions
from tests.clusters import living_actors
from tests.data import AddNoise, DropThirds, decode
from tests.resume import assert_equal, on_host
from tests.waiting import until, until_all_run

from .test_ray_source import make, pids

pytestmark = pytest.mark.usefixtures("ray_local")


def shifted(by: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A transform that has one name for every `by`: the settings of two streams tell nothing of it."""

    def shift(element: dict[str, Any]) -> dict[str, Any]:
        return element | {"index": element["index"] + by}

    return shift


def pipeline(source: Any) -> Pipeline:
    return Pipeline(source=source, batch_size=16)


def all_of(source: Any) -> list[Any]:
    with pipeline(source) as read:
        return [on_host(batch) for batch in read]


def test_both_streams_are_exact_through_restarts_losses_and_the_end_of_either(files: list[Path]) -> None:
    train_on = make(files, [decode, AddNoise(), shifted(0)])
    evaluate_on = make(files, [decode, AddNoise(), shifted(1000)])  # of the same data and settings
    want, want_evaluated = all_of(train_on), all_of(evaluate_on)
    source = RaySource(train_on, num_actors=2, num_cpus=8, chunk_size=20)  # all 16 CPUs: a second pool has no room
    train, evaluation = pipeline(source), pipeline(RaySource(evaluate_on, share=source, chunk_size=10))
    got, states = [], []
    for number in range(3):
        got += [on_host(batch) for batch in itertools.islice(train, 4)]
        if number == 1:
            os.kill(pids(source)[1], signal.SIGKILL)
        evaluation.seek(0)
        assert_equal([on_host(batch) for batch in itertools.islice(evaluation, 5)], want_evaluated[:5])
        states.append(json.dumps([train.get_state(), evaluation.get_state()]))
        assert_equal([on_host(batch) for batch in evaluation], want_evaluated[5:])

    def noticed() -> bool:  # another actor may have been asked for what the one that was killed is late with
        evaluation.seek(0)
        assert_equal([on_host(batch) for batch in evaluation], want_evaluated)
        return source.recoveries.num_lost == 1

    until(noticed)
    until_all_run(source)
    assert len(living_actors()) == 2

    evaluation.close()
    got += [on_host(batch) for batch in itertools.islice(train, 4)]
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        evaluation.source.get_batch(1)
    evaluation = pipeline(RaySource(evaluate_on, share=source))
    saved_train, saved_evaluation = map(json.dumps, json.loads(states[1]))
    evaluation.set_state(json.loads(saved_evaluation))
    begun = [on_host(next(iter(evaluation)))]
    train.close()
    assert_equal([*begun, *map(on_host, evaluation)], want_evaluated[5:])  # the actors are the evaluation's now
    assert len(living_actors()) == 2
    evaluation.close()
    until(lambda: living_actors() == {})
    assert_equal(got, want[:16])

    with RaySource(evaluate_on, num_actors=1) as source, pipeline(RaySource(train_on, share=source)) as train:
        train.set_state(json.loads(saved_train))  # the other way round, with another number of actors
        assert_equal([on_host(batch) for batch in train], want[8:])


def test_trainers_that_share_named_actors_evaluate_with_them_too(files: list[Path]) -> None:
    train_on, evaluate_on = make(files, [decode, shifted(0)]), make(files, [decode, DropThirds()], num_epochs=1)
    want = [batch.columns["index"].tolist() for batch in evaluate_on.batches(0, StreamOptions(12))]
    drivers = [RaySource(train_on, num_actors=2, num_cpus=8, name="both") for _ in range(2)]
    evaluations = [RaySource(evaluate_on, share=source) for source in drivers]
    for _ in range(2):
        streams = [
            each.batches(0, StreamOptions(12, process_index=rank, process_count=2))
            for rank, each in enumerate(evaluations)
        ]
        trained = [source.batches(0, StreamOptions(12, process_count=2)) for source in drivers]
        got = []
        for parts in zip(*streams, strict=True):
            got.append(np.concatenate([part.columns["index"] for part in parts]).tolist())
            assert [len(next(stream).columns["index"]) for stream in trained] == [6, 6]
        assert got == want
    drivers[0].close()
    evaluations[1].close()
    assert evaluations[0].get_batch(12)["index"].tolist() == want[0]
    assert drivers[1].get_batch(3)["index"].tolist() == train_on.get_batch(3)["index"].tolist()
    assert len(living_actors()) == 2
    evaluations[0].close()
    drivers[1].close()
    until(lambda: living_actors() == {})


class OfItsProcess:
    """Makes what the driver does not, or ends the process."""

    def __init__(self, *, ends: bool) -> None:
        self.ends, self.driver = ends, os.getpid()

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        if self.ends and os.getpid() != self.driver and element["index"] == 7:
            os._exit(1)
        return element | {"index": element["index"] + (not self.ends and os.getpid() != self.driver)}


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (False, "other bytes than the driver: field 'index' of the element at position 0"),
        pytest.param(True, r"\[7\] \(position 7\)|position 7", marks=pytest.mark.slow),  # four deaths
    ],
)
def test_what_is_wrong_with_the_evaluation_does_not_touch_the_training(
    files: list[Path], ends: bool, message: str
) -> None:
    train_on = make(files, [decode], num_epochs=6)
    want = all_of(train_on)
    with RaySource(train_on, num_actors=2, num_cpus=8, chunk_size=20) as source:
        train = iter(pipeline(source))
        got = [on_host(next(train))]
        evaluate_on = make(files, [decode, OfItsProcess(ends=ends)], shuffle_files=False)
        with RaySource(evaluate_on, share=source) as evaluation, pytest.raises(Exception, match=message):
            list(evaluation.batches(0, StreamOptions(4)))
        got += map(on_host, train)
    assert_equal(got, want)


def test_shared_actors_are_not_configured_twice(files: list[Path]) -> None:
    source = make(files)
    with RaySource(source, num_actors=1) as train:
        for share, options, message in [
            (train, {"num_actors": 2}, "num_actors=2 sets up actors, and share= takes existing actors"),
            (train, {"num_cpus": 0.5, "name": "a"}, "num_cpus=0.5, name='a' sets up actors"),
            (source, {}, "share is a RaySource, got ArrayRecordSourceModule"),
        ]:
            with pytest.raises((TypeError, ValueError), match=re.escape(message)):
                RaySource(source, share=share, **options)
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        RaySource(source, share=train)
    assert ray.is_initialized()
