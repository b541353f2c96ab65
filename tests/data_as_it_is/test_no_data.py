"""Notes, marks and leftovers beside data and in archives: skipped everywhere, and named in the log.

Reported of folders that Spark wrote (_SUCCESS), of archives of macOS (__MACOSX/._name) and of copies that broke off.
"""

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import load
from tests.tars import write_tar


def test_a_glob_of_a_whole_folder_takes_its_data(tmp_path, caplog):
    for index in range(2):
        pq.write_table(pa.table({"id": range(3)}), tmp_path / f"part-{index}.parquet")
    for name in ("_SUCCESS", "_metadata", "README.md", "part-2.parquet.tmp", ".part-0.parquet.crc"):
        (tmp_path / name).write_bytes(b"no data")
    with caplog.at_level(logging.INFO):
        assert len(load(f"{tmp_path}/*")) == len(load(tmp_path)) == 6
    (line,) = [line for line in caplog.messages if "that are no data" in line]
    assert "skipped 4 files that are no data, " in line
    with pytest.raises(ValueError, match="README"):  # a glob that means it
        load(f"{tmp_path}/README*")


def test_notes_in_a_tar_are_no_samples(tmp_path, caplog):
    names = [
        "README.md",
        "a/0.txt",
        "__MACOSX/a/._0.txt",
        "a/._0.txt",
        "a/1.txt",
        "a/.DS_Store",
        "a/0.json",
        "a/1.json",
    ]
    write_tar(tmp_path / "x.tar", [(name, b"1") for name in names])
    with caplog.at_level(logging.INFO):
        source = load(tmp_path / "x.tar")
    fields = ["__key__", "json", "txt"]
    assert [sorted(source.get_batch_at(index, 1)[0]) for index in range(len(source))] == [fields] * 2
    assert any("skipped 4 members that are no data, 'README.md' the first" in line for line in caplog.messages)
