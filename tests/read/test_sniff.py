"""What bytes look like: real files of every format, and what is none of them."""

import bz2
import csv
import gzip
import json
import lzma
import tarfile
import zipfile

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, ipc, parquet

from datarax_ray import load
from datarax_ray.read.files.sniff import (
    HEAD_NBYTES,
    TAIL_NBYTES,
    file_format,
    how_to_decode,
    how_to_read,
    record_format,
)
from tests.data import record, write_files
from tests.mds import write_mds

TABLE = pa.table({"x": [1, 2, 3], "text": ["a", "b", "c"]})


def array_record(path):
    write_files(path.parent, (3,))[0].rename(path)


def arrow_stream(path):
    with path.open("wb") as file, ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def tar(path):
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")


def comma_separated(path):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["x", "text"], *([i, "a"] for i in range(2000))])


def array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def mds(path, name, num_samples=3):
    folder = write_mds(path.parent / "mds", {"x": "int"}, [{"x": i} for i in range(num_samples)], num_samples)
    (folder / name).rename(path)


def image(extension):
    def write(path):
        import cv2

        path.write_bytes(cv2.imencode(extension, np.zeros((4, 4, 3), np.uint8))[1].tobytes())

    return write


WRITERS = [
    ("ArrayRecord", array_record),
    ("Parquet", lambda path: parquet.write_table(TABLE, path)),
    ("Arrow", lambda path: feather.write_feather(TABLE, path)),
    ("Arrow", arrow_stream),
    ("tar", tar),
    ("zip", zipped),
    ("gzip", lambda path: path.write_bytes(gzip.compress(b"hello"))),
    ("zstd", lambda path: path.write_bytes(pa.compress(b"hello", codec="zstd", asbytes=True))),
    ("xz", lambda path: path.write_bytes(lzma.compress(b"hello"))),
    ("bzip2", lambda path: path.write_bytes(bz2.compress(b"hello"))),
    ("JSON lines", lambda path: path.write_text('{"text": "hé"}\n' * 2000)),
    ("JSON lines", lambda path: path.write_text(json.dumps({"text": "é" * 9000}))),
    ("MDS", lambda path: mds(path, "index.json")),
    ("MDS", lambda path: mds(path, "shard.00000.mds")),
    ("MDS", lambda path: mds(path, "shard.00000.mds", 2000)),  # of a header longer than what is looked at
    ("MDS", lambda path: path.write_text(json.dumps({"version": 2, "shards": []}))),  # which MDSSource refuses
    ("MDS", lambda path: path.write_text(json.dumps({"shards": [{"samples": 3}], "version": 2}, indent=1))),
    ("JSON lines", lambda path: path.write_text(json.dumps({"shards": [{"a": [1, 2]}]}))),
    (
        "JSON lines",
        lambda path: path.write_text('{"a": "\u2028 \x85"}\n{"a": 1}\n', encoding="utf-8"),
    ),  # no ends of lines
    ("CSV", lambda path: path.write_text('a,b\r\n"\u2028",1\r\n', encoding="utf-8")),
    ("JSON", lambda path: path.write_text(json.dumps({"a": [1, 2]}, indent=1))),
    ("JSON array", lambda path: path.write_text(json.dumps([{"a": 1}], indent=1))),
    ("text", lambda path: path.write_text("[1, 2]\n[3, 4]\n")),  # lists in lines
    ("CSV", comma_separated),
    ("CSV", lambda path: path.write_text(f"x,y\n1,{'z' * 5000}\n2,w\n")),  # numbers that never fall, as of an MDS shard
    ("text", lambda path: path.write_text("It was a dark night.\nA dog barked, far away.\n")),
    ("PNG", image(".png")),
    ("JPEG", image(".jpg")),
    ("NumPy", array),
    ("NumPy zip", lambda path: np.savez(path, x=np.arange(3)) or path.with_suffix(".npz").rename(path)),
    (None, lambda path: path.write_bytes(bytes(range(256)))),
    (None, lambda path: path.write_bytes(b"")),
    (None, lambda path: path.write_bytes(bytes(5000))),
]


@pytest.mark.parametrize(("expected", "write"), WRITERS)
def test_a_file_is_known_by_its_bytes(tmp_path, expected, write):
    path = tmp_path / "file"
    write(path)
    data = path.read_bytes()
    assert file_format(data[:HEAD_NBYTES], data[-TAIL_NBYTES:]) == expected
    said = how_to_read(expected, "DIR/file")
    assert bool(said) == (expected is not None)


@given(st.binary(max_size=300) | st.text().map(str.encode) | st.binary(max_size=9).map(lambda x: b"\xef\xbb\xbf" + x))
def test_nothing_makes_it_raise(data):
    how_to_read(file_format(data, data[-8:]), "path")
    how_to_decode(data)


def test_a_tfrecord_is_known_by_its_checksum():
    # the header that tf.io.TFRecordWriter gives a record of 24 bytes, and one with another length
    header = bytes.fromhex("1800000000000000a37f4b22")
    assert file_format(header + bytes(28)) == "TFRecord"
    assert file_format(b"\x19" + header[1:] + bytes(28)) is None


def test_a_record_is_known_by_its_bytes():
    example = bytes.fromhex("0a0d0a0b0a01781206" + "1a040a0201" + "02")
    assert record_format(example) == "tf.train.Example"
    assert record_format(msgpack.packb({"tokens": [1, 2]})) == "msgpack"
    assert record_format(msgpack.packb({f"a{i}": i for i in range(20)})) == "msgpack"
    assert record_format(b'{"x": 1}') == record_format(b'{"x":\n 1}') == "JSON"
    assert [record_format(record(index)) for index in range(1000)] == [None] * 1000
    assert record_format(b"") is None


def test_the_advice_names_the_class_the_decoder_and_the_file():
    assert how_to_read("JSON lines", "d/a.jsonl") == (
        ' It looks like a JSON lines file: JSONLinesSource reads it, as does from_hf("json", data_files="d/a.jsonl").'
    )
    assert how_to_read("gzip", "a.gz") == " It looks like a gzip file: unpack it first."
    assert how_to_read("ArrayRecord", "a") == " It looks like an ArrayRecord file: ArrayRecordSourceModule reads it."
    assert how_to_decode(msgpack.packb({"x": 1})) == " It looks like msgpack: DecodeMsgpack() decodes it."
    assert how_to_decode(gzip.compress(b"")) == " It looks like gzip: decode it in a transform of your own."
    assert how_to_decode(record(7)) == ""


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_text_in_another_encoding_is_told_from_what_is_none(encoding, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("name,n\nJosé,1\nZoë,2\n".encode(encoding))
    with pytest.raises(ValueError, match=r"a.csv \(text, not in UTF-8\).*iconv -f UTF-16 \(or LATIN1, ...\) -t UTF-8"):
        load(path)


def test_a_broken_csv_file_is_not_said_to_be_some_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n3\n")
    with pytest.raises(ValueError, match=r"Expected 2 columns, got 1: 3\.$"):
        load(path)
