"""The rolling digest through real actors that are killed, come and go, and are shared: that of one process."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from datarax_ray import Pipeline, RaySource
from datarax_ray.plan.evidence import RollingDigest, added
from datarax_ray.plan.packing import ConcatThenSplit
from tests.feed.test_digests import mixture, source_of
from tests.feed.test_sharing_actors import Drop, tokenise
from tests.waiting import until_all_run

pytestmark = pytest.mark.usefixtures("ray_local")


def pipeline(source: Any, batch_size: int = 6, **options: Any) -> Pipeline:
    return Pipeline(source=source, batch_size=batch_size, digest=True, **options)


def states(made: Pipeline) -> list[str]:
    return [json.dumps(made.get_state()) for _ in made]


@pytest.mark.slow
def test_actors_that_are_killed_and_resized_change_nothing_of_it() -> None:
    want = states(pipeline(mixture()))
    with RaySource(mixture(), num_actors=3, num_cpus=0.5, chunk_size=7) as source:
        made, got = pipeline(source), []
        until_all_run(source)
        for number, _ in enumerate(made):
            got.append(json.dumps(made.get_state()))
            if number in (2, 9):
                os.kill(next(iter(source.stats().values()))["pid"], signal.SIGKILL)
            if number == 5:
                source.remove_actors(1)
            if number == 12:
                source.add_actors(2)
        assert got == want
    with RaySource(mixture(), num_actors=2, num_cpus=0.5, chunk_size=11) as source:
        resumed = pipeline(source)
        resumed.set_state(json.loads(want[7]))
        assert states(resumed) == want[8:]


@pytest.mark.parametrize("is_packed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_trainers_that_share_actors_behind_a_filter_add_up_to_one(is_packed: bool) -> None:
    transforms = (Drop(), tokenise) if is_packed else (Drop(),)
    options: dict[str, Any] = {"packing": ConcatThenSplit(32, ("tokens", "mask"))} if is_packed else {}
    want = states(pipeline(source_of(*transforms), **options))
    shared: dict[str, Any] = {"num_actors": 2, "num_cpus": 0.5, "chunk_size": 16, "name": f"digest-{is_packed}"}
    sources = [RaySource(source_of(*transforms), **shared) for _ in range(2)]
    trainers = [pipeline(source, process_index=rank, process_count=2, **options) for rank, source in enumerate(sources)]
    for number, _ in enumerate(zip(*trainers, strict=True)):
        found = [each.get_state()["digest"] for each in trainers]
        whole = added(map(RollingDigest.from_json, found))
        assert whole is not None
        assert whole.to_json() == json.loads(want[number])["digest"]
        assert all("parts" in each for each in found) != is_packed
    for source in sources:
        source.close()
