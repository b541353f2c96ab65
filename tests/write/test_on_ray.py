"""Shards that hosts of a cluster write: the same bytes, and hosts that are lost."""

import _thread
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray.actors import hosts
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.write.conversion import conversion_of
from datarax_ray.write.formats import ArrayRecordFormat
from datarax_ray.write.shards import write_dataset
from tests.data import write_file
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("ray_local")
N = 60


@pytest.fixture(scope="module", autouse=True)
def fresh(ray_of_modules):
    """A process that ran a task of another module may have JAX: these have a Ray that no other had."""
    ray_of_modules.end()


@dataclass(frozen=True)
class Records:
    """Of a run. kills: a file; whose process reads record 25 while it is not there makes it, and is killed."""

    kills: Path | None = None
    broken: int = -1
    driver: int = os.getpid()

    def __call__(self, start, stop):
        assert "jax" not in sys.modules or os.getpid() == self.driver
        for index in range(start, stop):
            if index == 25 and self.kills is not None and not self.kills.exists():
                self.kills.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if index == self.broken:
                raise RecordError.of(f"file[{index}]", index, "it is broken", ValueError("x"))
            yield b"%d" % index * 10


def write(folder, read=Records(), **given):
    write_dataset(read, N, folder, ArrayRecordFormat(4), made_from={"x": 1}, num_shards=5, **given)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_shard_whose_process_is_killed_is_written_again(tmp_path):
    found = write(tmp_path / "a", Records(kills=tmp_path / "killed"), num_actors=2)
    assert (tmp_path / "killed").exists()
    assert found == write(tmp_path / "b")  # the half file of the one that was killed is gone


def test_a_conversion_gives_the_same_bytes_for_any_number_of_actors(tmp_path):
    rows = pa.table({"x": np.arange(N), "s": [f"row {i}" for i in range(N)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=8)
    packed = write_file(tmp_path / "a.array_record", (b"%d" % i for i in range(N)), 4)
    pairs = [(ParquetReader.of(tmp_path / "a.parquet"), "parquet"), (ArrayRecordReader.of(str(packed)), "array_record")]
    for reader, to in pairs:
        found = conversion_of(reader, to, group_size=5)
        converted = []
        for num_actors in (0, 2):
            folder = tmp_path / f"{to}-{num_actors}"
            options = {"made_from": found.made_from, "num_shards": 4, "num_actors": num_actors}
            write_dataset(found.read, found.num_records, folder, found.format, **options)
            converted.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        assert converted[0] == converted[1]
        assert len(converted[0]) == 9  # with an index beside each shard


def hold(folder):
    """Write a part, and wait; however that ends, the part is taken away."""
    part = Path(folder, f"{os.getpid()}.part")
    part.touch()
    try:
        while True:  # Ray interrupts Python between two steps, and no sleep
            time.sleep(0.01)
    finally:
        part.unlink()


def test_calls_that_are_stopped_clean_up(tmp_path):
    """By an interrupt in each: one that is ended by force would leave what it has begun."""

    def stop():
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        _thread.interrupt_main()

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(hosts.on_hosts(hold, [str(tmp_path)] * 3, 2))
    finally:
        stopping.join()  # it would fail the test that runs after its time
    assert list(tmp_path.iterdir()) == []
