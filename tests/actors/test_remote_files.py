"""Actors over files behind URLs: the local files' stream, through kills, moves of the data and failing requests."""

import functools
import itertools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from tests import waiting
from tests.data import AddNoise, DropThirds, array_records, decode, noise_of, write_file, write_files
from tests.http_files import HttpFiles

pytestmark = pytest.mark.usefixtures("ray_local")

until = functools.partial(waiting.until, timeout_s=120)
ORDERS = [{"shuffle_files": True}, {"shuffle_files": True, "shuffle_block_size": 8}, {}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("far")
    write_files(folder, (300, 5, 120, 200), group_size=8)
    return folder


@pytest.fixture
def served(folder):
    found = HttpFiles(folder)
    yield found
    found.close()


def make(folder, server, **config):
    paths = sorted(map(str, folder.iterdir()))
    if server is not None:
        paths = [f"{server.url}/{Path(path).name}" for path in paths]
    options = {"shuffle_files": False, "remote_nbytes": 0} | config
    return array_records(paths, decode, AddNoise(), DropThirds(), **options)


class Gates:
    """Stops at these records until the test opens the way: a file for each, which says when it has come so far."""

    def __init__(self, folder, *stops):
        self.folder = folder
        self.stops = stops

    def map(self, stored):
        index = int(np.frombuffer(stored, "<i4", 1)[0])
        if index in self.stops:
            (self.folder / f"at-{index}").touch()
            until((self.folder / f"go-{index}").exists)
        return {"index": index}


@pytest.mark.parametrize(
    ("order", "remote_nbytes"),
    [
        pytest.param(order, nbytes, marks=[pytest.mark.slow] * (order is not ORDERS[1] or not nbytes))
        for order in ORDERS
        for nbytes in (0, 2**28)
    ],
)
def test_actors_that_are_killed_over_urls_that_fail_give_the_local_stream(folder, served, order, remote_nbytes):
    want = noise_of(make(folder, None, **order).batches(0, StreamOptions(16)))
    served.what = lambda number: {0: "503", 3: "cut"}.get(number % 7, "")
    far = make(folder, served, remote_nbytes=remote_nbytes, **order)
    with RaySource(far, num_actors=2, num_cpus=0.5, chunk_size=40) as source:
        stream = source.batches(0, StreamOptions(16))
        got = noise_of(itertools.islice(stream, 5))
        os.kill(source.stats()[1]["pid"], signal.SIGKILL)
        got += noise_of(stream)
    assert got == want
    assert served.num_broken


def test_what_an_actor_is_asked_for_next_is_brought_while_it_is_at_something_else(tmp_path):
    (tmp_path / "data").mkdir()
    noise = np.random.default_rng(0).bytes
    write_file(tmp_path / "data" / "a.array_record", (np.int32(i).tobytes() + noise(4000) for i in range(400)))
    served = HttpFiles(tmp_path / "data")
    gates = Gates(tmp_path, 50, 90)
    source = array_records(f"{served.url}/a.array_record", gates, shuffle_files=False, num_epochs=1)
    served.count()
    got = []
    with RaySource(source, num_actors=1, num_cpus=0.5, chunk_size=40) as far:
        stream = far.batches(0, StreamOptions(40))
        reading = threading.Thread(target=lambda: got.extend(batch.columns["index"].tolist() for batch in stream))
        reading.start()
        until((tmp_path / "at-50").exists)
        until(lambda: len(far._pool._set.actors[0].state.requests) > 3)  # the second chunk is read, others are sent
        far.stats()  # and what it is told of them has come: this is asked behind it
        (tmp_path / "go-50").touch()
        until((tmp_path / "at-90").exists)
        until(lambda: served.nbytes >= 5 * 40 * 4000)  # of the third, which is read, and two more
        served.what = lambda number: "503"
        (tmp_path / "go-90").touch()
        until(lambda: len(got) >= 5)
        served.what = lambda number: ""
        reading.join(timeout=120)
    assert got == np.arange(400).reshape(10, 40).tolist()
    served.close()
