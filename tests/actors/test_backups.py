"""What one actor is late with, real ones read in its place: the stream is the same, and goes on without it."""

import contextlib
import itertools
import os
import threading
import time
from types import SimpleNamespace

import pytest

from datarax_ray import RaySource
from datarax_ray.actors import pool as pool_module
from datarax_ray.actors.actor_set import InFlight
from datarax_ray.actors.pool import RayPool
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.feed.window import Part
from datarax_ray.plan.partitions import ReadRequest
from tests.data import AddNoise, DropThirds, array_records, decode
from tests.waiting import until_all_run

pytestmark = pytest.mark.usefixtures("ray_local")


class Stuck:
    """In the process that a file names, no element is done before another file is there."""

    def __init__(self, folder):
        self.process, self.end = folder / "process", folder / "end"

    def map(self, element):
        while self.process.read_text() == str(os.getpid()) and not self.end.exists():
            time.sleep(0.01)
        return element


def rows(batches):
    return [[batch.positions.tolist(), batch.columns["noise"].tolist(), batch.state] for batch in batches]


@pytest.mark.parametrize("dropped", [pytest.param([], marks=pytest.mark.slow), [DropThirds()]])
def test_a_stream_goes_on_without_an_actor_that_is_stuck_and_is_the_same(files, tmp_path, dropped):
    stuck = Stuck(tmp_path)
    stuck.process.write_text("")
    source = array_records(files, decode, *dropped, AddNoise(), stuck, num_epochs=4)
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


def test_what_came_with_a_part_that_is_received_is_told_as_read(monkeypatch):
    """Of many parts several come at once. Whose part came with its own copy would be late with it for ever."""
    pool = RayPool.__new__(RayPool)
    pool._set, pool.membership = SimpleNamespace(check_open=lambda: None), SimpleNamespace(waited_s=0.0)
    pool._lock = threading.RLock()
    pool._connection = SimpleNamespace(waiting=contextlib.nullcontext, held=contextlib.nullcontext)
    pool._fetch, come = lambda ask: None, ["0", "1"]

    def wait(refs, **_):
        return [ref for ref in refs if ref in come], [ref for ref in refs if ref not in come]

    monkeypatch.setattr(pool_module, "ray", SimpleNamespace(wait=wait))
    parts = [Part(0, index, index, ReadRequest(0, 64)) for index in range(40)]
    sent = {part: InFlight(part, str(part.index), look_at=time.monotonic() + 60) for part in parts}
    pool.receive(sent)
    del sent[parts[0]]
    assert pool.ended(sent) == [parts[1]]
    assert pool.ended(sent) == []
