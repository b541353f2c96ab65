"""Shards: the same bytes for any number of actors, whole or not there, and a run that goes on."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray.write.formats import ArrayRecordFormat, ParquetFormat
from datarax_ray.write.manifest import FINISHED, UNFINISHED
from datarax_ray.write.shards import write_dataset
from tests.data import records_of

MADE_FROM = {"files": {"digest": "abc"}}
N = 103


def record(index):
    return f"record {index}".encode() * (1 + index % 5)


@dataclass(frozen=True)
class Records:
    """The records of a run; leaves a line in a file for each run that is read."""

    log: Path | None = None
    fails_at: int = -1

    def __call__(self, start, stop):
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{start} {stop}\n")
        for index in range(start, stop):
            if index == self.fails_at:
                raise ValueError(f"source[{index}]: it is broken")
            yield record(index)
        return {"first": start}


def write(folder, read=Records(), **given):
    options = {"made_from": MADE_FROM, "num_shards": 4}
    return write_dataset(read, N, folder, given.pop("format", ArrayRecordFormat(4)), **options | given)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_records_are_there_in_order_and_the_manifest_says_what_they_are(tmp_path):
    written = write(tmp_path / "a")
    assert records_of(tmp_path / "a") == [record(index) for index in range(N)]
    names = [f"data-{k:05d}-of-00004.array_record" for k in range(4)]
    assert sorted(bytes_of(tmp_path / "a")) == [*names, FINISHED]
    said = json.loads((tmp_path / "a" / FINISHED).read_text())
    assert (said["version"], said["num_records"], said["source_records"]) == (1, N, N)
    assert said["format"] == {"name": "ArrayRecord", "group_size": 4, "compression": "zstd"}
    assert said["made_from"] == MADE_FROM
    assert [shard["name"] for shard in said["shards"]] == names
    assert [(shard["start"], shard["stop"]) for shard in said["shards"]] == [(0, 25), (25, 51), (51, 77), (77, 103)]
    assert [shard["said"] for shard in said["shards"]] == [{"first": start} for start in (0, 25, 51, 77)]
    assert said["nbytes"] == written.nbytes == sum((tmp_path / "a" / name).stat().st_size for name in names)


def test_what_is_finished_is_left_as_it_is(tmp_path):
    log = tmp_path / "log"
    first = write(tmp_path / "a")
    before = bytes_of(tmp_path / "a")
    assert write(tmp_path / "a", Records(log)) == first
    assert bytes_of(tmp_path / "a") == before
    assert not log.exists()


def test_a_shard_that_is_gone_or_damaged_is_written_again_alone(tmp_path):
    write(tmp_path / "a")
    before = bytes_of(tmp_path / "a")
    names = sorted(before)
    (tmp_path / "a" / names[1]).unlink()
    (tmp_path / "a" / names[2]).write_bytes(b"x" * len(before[names[2]]))
    write(tmp_path / "a", Records(tmp_path / "log"))
    assert bytes_of(tmp_path / "a") == before
    assert (tmp_path / "log").read_text() == "25 51\n51 77\n"


def test_an_error_leaves_what_is_finished_and_the_next_run_reads_the_rest(tmp_path):
    write(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"source\[60\]: it is broken") as raised:
        write(tmp_path / "a", Records(fails_at=60))
    assert "2 of 4 shards are finished" in raised.value.__notes__[-1]
    assert sorted(bytes_of(tmp_path / "a")) == [
        "data-00000-of-00004.array_record",
        "data-00001-of-00004.array_record",
        UNFINISHED,
    ]
    write(tmp_path / "a", Records(tmp_path / "log"))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "whole")
    assert (tmp_path / "log").read_text() == "51 77\n77 103\n"


def test_other_data_or_settings_are_refused_by_name_and_overwrite_begins_anew(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(ValueError, match=r"made_from\.files\.digest was 'abc' and is 'abd'.*--overwrite"):
        write(tmp_path / "a", made_from={"files": {"digest": "abd"}})
    with pytest.raises(ValueError, match=r"made_from\.files\.content was missing and is None"):
        write(tmp_path / "a", made_from={"files": {"digest": "abc", "content": None}})
    with contextlib.suppress(ValueError):
        write(tmp_path / "b", Records(fails_at=60))
    with pytest.raises(ValueError, match=r"format\.group_size was 4 and is 8; num_shards was 4 and is 3"):
        write(tmp_path / "b", format=ArrayRecordFormat(8), num_shards=3)
    write(tmp_path / "b", format=ArrayRecordFormat(8), num_shards=3, overwrite=True)
    write(tmp_path / "c", format=ArrayRecordFormat(8), num_shards=3)
    assert bytes_of(tmp_path / "b") == bytes_of(tmp_path / "c")


def test_files_of_others_are_neither_mixed_with_nor_removed(tmp_path):
    for name in ("mine.txt", "data-00000-of-00004.array_record"):
        folder = tmp_path / name[:4]
        folder.mkdir()
        (folder / name).write_bytes(b"mine")
        for overwrite in (False, True):
            with pytest.raises(ValueError, match=rf"holds {name}, which this program did not write"):
                write(folder, overwrite=overwrite)
        assert bytes_of(folder) == {name: b"mine"}


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    def read(start, stop):
        with pytest.raises(ValueError, match="another process writes to"):
            write(tmp_path / "a")
        return Records()(start, stop)

    write(tmp_path / "a", read)
    assert records_of(tmp_path / "a") == [record(index) for index in range(N)]


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_read(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "a", Records(tmp_path / "log"))
    with pytest.raises(ValueError, match=r"s3://b/c is a URL.*mount the bucket"):
        write("s3://b/c", Records(tmp_path / "log"))
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("kind", ["array_record", "parquet"])
def test_a_full_disk_is_an_error_at_once_and_leaves_no_half_file(tmp_path, kind):
    rows = pa.table({"x": np.random.default_rng(0).integers(0, 255, 200_000).astype(np.uint8)})
    format = ArrayRecordFormat(1) if kind == "array_record" else ParquetFormat(rows.schema, 1000)

    def read(start, stop):
        for _ in range(10):
            yield rows if kind == "parquet" else rows["x"].chunk(0).to_numpy().tobytes()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))  # as where a disk has no more room
    try:
        with pytest.raises(OSError, match="too large") as raised:
            write(tmp_path / "a", read, format=format, num_shards=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "0 of 2 shards are finished" in raised.value.__notes__[-1]
    assert sorted(bytes_of(tmp_path / "a")) == [UNFINISHED]


def test_row_groups_do_not_depend_on_how_many_rows_come_at_a_time(tmp_path):
    columns = {"i": np.arange(N), "s": [f"{i % 7}" * (i % 3) for i in range(N)], "v": [[i] * (i % 4) for i in range(N)]}
    whole = pa.table(columns)

    def read(step, start, stop):
        for first in range(start, stop, step):
            yield whole.slice(first, min(step, stop - first))

    for step in (1, 7, 1000):
        format = ParquetFormat(whole.schema, 10)
        write(tmp_path / str(step), lambda start, stop, step=step: read(step, start, stop), format=format)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "7") == bytes_of(tmp_path / "1000")
    paths = sorted((tmp_path / "7").glob("*.parquet"))
    assert pa.concat_tables([pq.read_table(path) for path in paths]) == whole
    assert [pq.ParquetFile(path).metadata.num_row_groups for path in paths] == [3, 3, 3, 3]


PROGRAM = """
import sys, time
from tests.write.test_shards import Records, write
from pathlib import Path

class Slow(Records):
    def __call__(self, start, stop):
        said = yield from super().__call__(start, stop)
        if start >= 51:
            print("there", flush=True)
            time.sleep(60)
        return said

write(Path(sys.argv[1]), Slow())
"""


def test_a_run_that_is_killed_goes_on_and_reads_only_what_is_missing(tmp_path):
    folder = tmp_path / "a"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        os.kill(program.pid, signal.SIGKILL)
    left = set(bytes_of(folder))
    assert any(name.endswith(".part") for name in left)  # of the third, which has no name yet
    assert FINISHED not in left
    with (folder / UNFINISHED).open("a") as file:
        file.write('{"name": "data-00003')  # a line that its death cut off
    write(folder, Records(tmp_path / "log"))
    assert (tmp_path / "log").read_text() == "51 77\n77 103\n"
    write(tmp_path / "whole")
    assert bytes_of(folder) == bytes_of(tmp_path / "whole")
