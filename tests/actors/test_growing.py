"""A range of actors over real ones: as many as help, and the same stream whatever they are."""

import logging
import time

import pytest

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from tests.data import array_records, decode, write_files
from tests.resume import assert_equal
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("ray_local")


class Slow:
    """Waits as for a disk: any number of them wait at once on any machine."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, element):
        time.sleep(self.seconds)
        return element


def make(paths, seconds):
    return array_records(paths, decode, Slow(seconds), seed=3, num_epochs=-1)


def test_it_grows_while_the_stream_waits_shrinks_when_it_never_does_and_the_stream_stays(tmp_path, caplog):
    paths = write_files(tmp_path, [400, 200])
    caplog.set_level(logging.INFO, "datarax_ray")
    got = []
    limits = Thresholds(scale_s=1.0)
    with RaySource(make(paths, 0.02), num_actors=(1, 3), num_cpus=0.1, chunk_size=6, thresholds=limits) as source:
        assert source.num_actors == 1

        def has_grown():
            got.append(source.get_batch(8))
            return source.num_running == 3

        until(has_grown, timeout_s=120)

        def has_shrunk():
            time.sleep(0.2)
            got.append(source.get_batch(8))
            return source.num_running < 3

        until(has_shrunk, timeout_s=120)
        for _ in range(10):
            got.append(source.get_batch(8))
    alone = make(paths, 0.0)
    assert_equal(got, [alone.get_batch(8) for _ in got])
    said = [record.message for record in caplog.records if record.message.startswith("reader actors: ")]
    assert any("1 -> 2; the stream waits for its actors" in line for line in said)
    assert any("-> 2; the trainer is slower than its actors" in line or "-> 1; the trainer is" in line for line in said)
