"""TFRecordSource: the records that were written, and everything that is wrong with a file. What all sources promise:
test_every_source.py.
"""

import gzip
import os
import pickle
import sys

import fsspec
import numpy as np
import pytest

from datarax_ray import DecodeExample, Pipeline, TFRecordSource, TFRecordSourceConfig, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.tfrecord import TFRecordReader
from tests import oracle
from tests.tfrecords import write_tfrecord

RECORDS = [bytes([number]) * size for number, size in enumerate([3, 0, 1, 300, 7, 70_000, 2])]
EXAMPLE = bytes.fromhex("0a0f0a0d0a017812081a060a0480808001")  # {"x": [2097152]}, by protobuf


def make(paths, **config):
    return TFRecordSource(TFRecordSourceConfig(**{"num_epochs": 1} | config), paths)


def test_the_records_of_several_files_come_in_order_and_shuffled_as_a_whole(tmp_path):
    write_tfrecord(tmp_path / "a.tfrecord-00000-of-00002", RECORDS[:4])
    write_tfrecord(tmp_path / "a.tfrecord-00001-of-00002", RECORDS[4:])
    write_tfrecord(tmp_path / "b.tfrecords", [])
    (tmp_path / "notes.txt").write_text("no data")
    assert list(make(tmp_path)) == RECORDS
    want = [RECORDS[index] for epoch in range(2) for index in oracle.order(len(RECORDS), epoch, 5)]
    assert list(make(tmp_path, shuffle=True, seed=5, num_epochs=2)) == want


def test_random_reads_give_each_record_of_any_list(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    reader = TFRecordReader.of(path)
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.integers(0, len(RECORDS), rng.integers(1, 9))
        assert reader.read(wanted) == [RECORDS[index] for index in wanted.tolist()]
    assert pickle.loads(pickle.dumps(reader)).read(np.array([6, 0])) == [RECORDS[6], RECORDS[0]]
    assert reader.locate(5) == f"{path}[5]"


def test_load_knows_it_and_examples_are_decoded(tmp_path):
    write_tfrecord(tmp_path / "x.tfrecord", [EXAMPLE] * 3)
    source = load(tmp_path, transforms=[DecodeExample()])
    assert [element["x"].tolist() for element in source] == [[2097152]] * 3


def test_files_behind_an_fsspec_url_are_read_alike(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    fsspec.filesystem("memory").pipe_file("/tfrecords/a.tfrecord", path.read_bytes())
    source = make("memory://tfrecords/a.tfrecord")
    assert list(source) == RECORDS
    assert source.describe().settings() == make(path).describe().settings()


def cut(content):
    return content[:-3]


def cut_in_a_length(content):
    return content + b"\x05\x00"


def wrong_length(content):
    return b"\x04" + content[1:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"the record at byte [\d,]+ goes on to byte [\d,]+, the file to [\d,]+: it was cut"),
        (cut_in_a_length, "within the length of a record: it was cut"),
        (wrong_length, "at byte 0 no record begins: the length there is not what its checksum says"),
        (gzip.compress, "It looks like a gzip file: unpack it first"),
    ],
)
def test_what_is_no_whole_file_is_refused_at_the_start(tmp_path, damage, message):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        make(path)


def test_no_record_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there are 0 records in .*a.tfrecord; a stream needs at least one"):
        make(write_tfrecord(tmp_path / "a.tfrecord", []))


@pytest.mark.parametrize("at", [0, 150, 303])
def test_a_damaged_record_is_an_error_that_names_it_and_can_be_left_out(tmp_path, at):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    content[sum(len(record) + 16 for record in RECORDS[:3]) + 12 + at] ^= 1  # of its bytes, or of their checksum
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"a\.tfrecord\[3\].*is not what its checksum says"):
        list(make(path))
    assert list(make(path, on_error="skip")) == RECORDS[:3] + RECORDS[4:]


def test_a_replaced_file_is_refused_and_other_files_are_another_stream(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    with Pipeline(source=make(path), batch_size=2) as pipeline:
        state = pipeline.get_state()
        write_tfrecord(tmp_path / "new", RECORDS[::-1])
        os.replace(tmp_path / "new", path)
        with pytest.raises(ValueError, match="was replaced|changed"):
            list(pipeline)
    with Pipeline(source=make(path), batch_size=2) as pipeline, pytest.raises(DriftError, match="files"):
        pipeline.set_state(state)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"pip install 'datarax-ray\[tfrecord\]'"):
        make(path)
