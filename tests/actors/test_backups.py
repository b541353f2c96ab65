"""What one actor is late with, real ones read in its place: the stream is the same, and goes on without it."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import AddNoise, DropThirds, decode
from tests.waiting import until_all_run

pytestmark = pytest.mark.usefixtures("ray_local")


class Stuck:
    """In the process that a file names, no element is done before another file is there."""

    def __init__(self, folder: Path) -> None:
        self.process, self.end = folder / "process", folder / "end"

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        while self.process.read_text() == str(os.getpid()) and not self.end.exists():
            time.sleep(0.01)
        return element


def rows(batches: Any) -> list[Any]:
    return [[batch.positions.tolist(), batch.columns["noise"].tolist(), batch.state] for batch in batches]


@pytest.mark.parametrize("dropped", [[], [DropThirds()]])
def test_a_stream_goes_on_without_an_actor_that_is_stuck_and_is_the_same(
    files: list[Path], tmp_path: Path, dropped: list[Any]
) -> None:
    stuck = Stuck(tmp_path)
    stuck.process.write_text("")
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=4)
    source = ArrayRecordSourceModule(config, files, transforms=[decode, *dropped, AddNoise(), stuck])
    want = rows(source.batches(0, StreamOptions(8)))
    with RaySource(source, num_actors=3, num_cpus=0.5, chunk_size=24) as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(8))
        got = rows(itertools.islice(stream, 4))
        stuck.process.write_text(str(distributed.stats()[1]["pid"]))
        got += rows(stream)  # every chunk has records of it
        assert got == want
        assert distributed.recoveries.counts == {}
        assert distributed.num_running == 3
        stuck.end.touch()
        assert rows(distributed.batches(0, StreamOptions(8))) == want
