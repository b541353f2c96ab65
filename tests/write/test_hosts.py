"""Hosts of a cluster that write shards: one of two does not see the folder."""

import logging

import pytest

from datarax_ray.write.formats import ArrayRecordFormat
from datarax_ray.write.shards import write_dataset
from tests.actors.test_missing_mount import disks

__all__ = ["disks"]  # the fixture


class Slow:
    """Of shards that take so long that both hosts have some."""

    def __call__(self, start, stop):
        import time

        time.sleep(0.3)
        yield from (b"%d" % index for index in range(start, stop))


@pytest.mark.slow
def test_what_a_host_without_the_mount_cannot_write_another_one_does(disks, caplog):
    def write(folder, num_actors):
        given = {"made_from": {}, "num_shards": 20, "num_actors": num_actors}
        write_dataset(Slow(), 100, folder, ArrayRecordFormat(1), **given)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    with caplog.at_level(logging.WARNING, "datarax_ray"):
        found = write(disks.shared / "a", 3)
    assert "failed, and another host is tried" in caplog.text
    assert found == write(disks.shared / "b", 0)
