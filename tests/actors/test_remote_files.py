"""Actors over files behind URLs: the local files' stream, through kills, moves of the data and failing requests."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from datarax_ray import Pipeline, RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import AddNoise, DropThirds, decode, write_files
from tests.http_files import HttpFiles
from tests.resume import assert_equal, on_host

pytestmark = pytest.mark.usefixtures("ray_local")

ORDERS: list[dict[str, Any]] = [{"shuffle": True}, {"shuffle": True, "shuffle_block_size": 8}, {}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("far")
    write_files(folder, (300, 5, 120, 200), group_size=8)
    return folder


@pytest.fixture
def served(folder: Path) -> Iterator[HttpFiles]:
    found = HttpFiles(folder)
    yield found
    found.close()


def make(folder: Path, server: HttpFiles | None, **config: Any) -> ArrayRecordSourceModule:
    paths = sorted(map(str, folder.iterdir()))
    if server is not None:
        paths = [f"{server.url}/{Path(path).name}" for path in paths]
    options = {"num_epochs": 2, "remote_nbytes": 0} | config
    return ArrayRecordSourceModule(
        ArrayRecordSourceConfig(**options), paths, transforms=[decode, AddNoise(), DropThirds()]
    )


def rows(batches: Any) -> list[Any]:
    return [[batch.positions.tolist(), batch.columns["noise"].tobytes()] for batch in batches]


@pytest.mark.parametrize("order", ORDERS)
def test_actors_that_are_killed_over_urls_that_fail_give_the_local_stream(
    folder: Path, served: HttpFiles, order: dict[str, Any]
) -> None:
    want = rows(make(folder, None, **order).batches(0, StreamOptions(16)))
    served.what = lambda number: {0: "503", 3: "cut"}.get(number % 7, "")
    with RaySource(make(folder, served, **order), num_actors=2, num_cpus=0.5, chunk_size=40) as source:
        stream = source.batches(0, StreamOptions(16))
        got = rows(itertools.islice(stream, 5))
        os.kill(source.stats()[1]["pid"], signal.SIGKILL)
        got += rows(stream)
    assert got == want
    assert served.num_broken


def test_a_state_goes_on_where_the_data_was_moved_to(folder: Path, served: HttpFiles) -> None:
    def pipeline(server: HttpFiles | None) -> Pipeline:
        source = make(folder, server, shuffle=True)
        return Pipeline(
            source=RaySource(source, num_actors=2, num_cpus=0.5) if server else source, batch_size=16, rngs=nnx.Rngs(0)
        )

    with pipeline(None) as whole:
        want = [on_host(batch) for batch in whole]
    got, state = [], None
    for server in itertools.cycle([None, served]):  # disk, URL, disk, ...
        with pipeline(server) as part:
            if state is not None:
                part.set_state(json.loads(state))
            got += [on_host(batch) for batch in itertools.islice(part, 20)]
            state = json.dumps(part.get_state())
        if len(got) == len(want):
            break
    assert_equal(got, want)
