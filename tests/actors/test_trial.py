"""A process in which a position is tried: what becomes of those that it forked."""

import os
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ray import cloudpickle

from datarax_ray.actors import trial
from datarax_ray.actors.trial import Trial, try_to_read
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode, record, write_files
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("by_value")


class Fork:
    """Forks a process that sleeps and holds what it has inherited; and then ends, or reads on."""

    def __init__(self, written, status):
        self.written = written
        self.status = status

    def map(self, element):
        if (child := os.fork()) == 0:
            time.sleep(300)
        self.written.write_text(str(child))
        if self.status is not None:
            os._exit(self.status)
        return element


@pytest.mark.parametrize("status", [7, None])
def test_what_it_forked_is_not_waited_for_and_ends_with_it(status, tmp_path):
    fork = Fork(tmp_path / "child", status)
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(), write_files(tmp_path, [3]), transforms=[decode, fork])
    description = source.describe()
    block = try_to_read(partial(cloudpickle.dumps, description), description, Trial(200.0), ReadRequest(1, 2))
    if status is None:
        assert block.columns["index"].tolist() == [1]
    else:
        assert isinstance(block.failure, RecordError)
        assert "exit status 7" in str(block.failure)
    child = int(fork.written.read_text())
    until(lambda: not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text())


def test_a_file_that_is_gone_is_no_broken_record(tmp_path):
    (path,) = write_files(tmp_path, [3])
    description = ArrayRecordSourceModule(ArrayRecordSourceConfig(on_error="skip"), path).describe()
    pickled = cloudpickle.dumps(description)
    assert try_to_read(lambda: pickled, description, Trial(60.0), ReadRequest(1, 2)).columns.tolist() == [record(1)]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"part-00000\.array_record: no such file"):
        try_to_read(lambda: pickled, description, Trial(60.0), ReadRequest(1, 2))


class Take:
    """Takes as much memory as it says at one element, where it is there, and gives it back."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def map(self, element):
        if element["index"] == 1:
            taken = [np.ones(STEP_NBYTES, np.uint8) for _ in range(self.nbytes // STEP_NBYTES)]
            time.sleep(0.2)  # it is looked at every 20 ms
            taken.clear()
        return element


STEP_NBYTES = 16 * 2**20


def tried(takes_mib, room_mib, folder, monkeypatch):
    """The block of an element that takes so much on a node that has so much left."""
    monkeypatch.setattr(trial, "_room_nbytes", lambda: room_mib * 2**20)
    transforms = [decode, Take(takes_mib * 2**20)]
    source = ArrayRecordSourceModule(
        ArrayRecordSourceConfig(on_error="skip"), write_files(folder, [3]), transforms=transforms
    )
    description = source.describe()
    return try_to_read(
        partial(cloudpickle.dumps, description), description, Trial(200.0, wait_for_room_s=0.1), ReadRequest(1, 2)
    )


# None left: Ray would end processes at once, as where others have taken all: that is no fault of what takes little.
@pytest.mark.parametrize(("takes", "room"), [(128, -1), (300, 1024)])
def test_what_takes_little_of_the_memory_that_is_left_is_read(takes, room, tmp_path, monkeypatch):
    assert tried(takes, room, tmp_path, monkeypatch).columns["index"].tolist() == [1]


def test_a_process_that_takes_much_of_the_memory_that_is_left_is_ended_before_ray_ends_the_actor(tmp_path, monkeypatch):
    (skip,) = tried(800, 1024, tmp_path, monkeypatch).skipped
    assert re.search(r"every process that reads it ends: it took \d+ MiB of memory", skip.reason)


@pytest.mark.parametrize(("takes", "room"), [(512, -1), (400, 500)])
def test_where_too_little_memory_is_left_to_tell_that_is_the_error_and_no_record_is_left_out(
    takes, room, tmp_path, monkeypatch
):
    said = rf"\[1, 2\) \(\S*part-00000.*it took \d+ MiB of memory.*had {max(0, room)} MiB left.* fewer actors on a node"
    with pytest.raises(MemoryError, match=said):
        tried(takes, room, tmp_path, monkeypatch)
