"""The rolling digest through real actors that are killed, come and go, and are shared: that of one process."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from datarax_ray import Pipeline, RaySource
from tests.feed.test_digests import mixture
from tests.waiting import until_all_run


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
