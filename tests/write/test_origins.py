"""Where each written record came from: kept by every conversion, told by whoever reads the folder, and never data."""

import contextlib
import json
import logging
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flax import nnx

from datarax_ray import DecodeImage, DecodeMsgpack, MaterializedSource, MixtureSource, Pipeline, load, materialize
from datarax_ray.loading import source_of_files
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.origins import Origin, origins_of, write_index
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.write.conversion import conversion_of
from datarax_ray.write.manifest import FINISHED
from datarax_ray.write.shards import write_dataset
from tests.data import write_file
from tests.http_files import HttpFiles
from tests.tars import write_tar
from tests.tfrecords import write_tfrecord
from tests.write.test_conversion import convert, png

PICTURES = [png(i) if i != 3 else b"\x89PNG\r\n\x1a\n and no more" for i in range(7)]
TO = ("array_record", "parquet")
Made = tuple[str, list[str]]  # an argument of `convert`, and the origin of each record, by a plain loop


def images(folder):
    for name in ("cat", "dog"):
        (folder / name).mkdir()
    paths = [folder / ("cat" if i < 4 else "dog") / f"{i}.png" for i in range(7)]
    for path, data in zip(paths, PICTURES, strict=True):
        path.write_bytes(data)
    return f"imagefolder:{folder}", [f"{path}[{i}]" for i, path in enumerate(paths)]


def tar(folder):
    members = [member for i, data in enumerate(PICTURES) for member in ((f"key{i}.cls", b"1"), (f"key{i}.png", data))]
    write_tar(folder / "0.tar", members[:4])
    write_tar(folder / "1.tar", members[4:])
    return str(folder / "*.tar"), [f"{folder}/{int(i > 1)}.tar[{i - 2 * (i > 1)}] (key{i})" for i in range(7)]


def tfrecord(folder):
    for k, cut in enumerate((PICTURES[:4], PICTURES[4:])):
        write_tfrecord(folder / f"{k}.tfrecord", cut)
    return str(folder / "*.tfrecord"), [f"{folder}/{i // 4}.tfrecord[{i % 4}]" for i in range(7)]


def parquet(folder):
    pq.write_table(pa.table({"png": PICTURES, "x": range(7)}), folder / "a.parquet", row_group_size=3)
    return str(folder), [f"{folder}/a.parquet[{i}] (row group {i // 3})" for i in range(7)]


def origins(folder):
    with contextlib.closing(source_of_files(folder, {"num_epochs": 1}).describe().reader) as reader:
        return [reader.origin(record) for record in range(reader.num_records)]


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("make", [images, tar, tfrecord, parquet], ids=lambda make: make.__name__)
def test_every_record_keeps_its_origin(make, to, tmp_path):
    (tmp_path / "from").mkdir()
    source, expected = make(tmp_path / "from")
    convert(source, tmp_path / "to", to)
    assert origins(tmp_path / "to") == expected
    # a picture that does not decode is named by --check, or left out
    place = expected[3].replace(" (key3)", "")
    with pytest.raises(ValueError, match="not an image that OpenCV can read") as raised:
        convert(source, tmp_path / "none", to, check=True)
    assert str(raised.value).startswith(f"{place} (position 3): ")
    said, _ = convert(source, tmp_path / "some", to, on_error="skip", check=True)
    kept = expected[:3] + expected[4:]
    assert (origins(tmp_path / "some"), said["num_skipped"]) == (kept, 1)
    notes = [shard["said"] or {} for shard in json.loads((tmp_path / "some" / FINISHED).read_text())["shards"]]
    assert [each for note in notes for each in note.get("skipped", ())] == [place]
    # a conversion of the conversion names the first data, and shards that are copied alone name none
    convert(str(tmp_path / "some"), tmp_path / "again", TO[1 - TO.index(to)], num_shards=2)
    assert origins(tmp_path / "again") == kept
    (tmp_path / "alone").mkdir()
    for path in (tmp_path / "some").glob("data-*"):
        shutil.copy(path, tmp_path / "alone")
    assert origins(tmp_path / "alone") == [""] * 6


def odd_twice(element):
    return [element] * 2 * (element["x"] % 2)


class OddTwice:
    """Leaves out every second element, and gives the others twice."""

    max_fan_out = 2

    def flat_map(self, element):
        return odd_twice(element)


def test_elements_that_are_dropped_or_come_twice_keep_their_origin(tmp_path):
    reader = RandomAccessReader([{"x": i} for i in range(9)])
    found = conversion_of(reader, "parquet", transforms=(OddTwice(),))
    write_dataset(found.read, 9, tmp_path / "to", found.format, made_from={}, num_shards=2)
    assert origins(tmp_path / "to") == [f"list[{i}]" for i in (1, 1, 3, 3, 5, 5, 7, 7)]


def test_a_run_of_names_is_one_row_and_a_name_takes_a_few_bytes(tmp_path):
    paths = [write_file(tmp_path / f"{k}.array_record", [b"%d" % i for i in range(500)]) for k in range(2)]
    reader = ArrayRecordReader.of([*map(str, paths)])
    records = np.r_[100:700, 800:900]
    assert origins_of(reader, records) == [
        Origin(0, str(paths[0]), 100),
        Origin(400, str(paths[1]), 0),
        Origin(600, str(paths[1]), 300),
    ]
    many = [Origin(i, f"/data/train/n{i // 1300:08}/{i // 1300}_{i * 7919 % 10**6}.JPEG", i) for i in range(50_000)]
    write_index(tmp_path / "_origins", many, 1, "")
    assert (tmp_path / "_origins").stat().st_size < 6 * len(many)


def test_who_reads_the_folder_is_told_the_origin(tmp_path):
    source, expected = images(tmp_path)
    convert(source, tmp_path / "to", num_shards=2)
    named = f"{tmp_path}/to/data-00001-of-00002.array_record[0]"
    decode = [DecodeMsgpack(), DecodeImage((2, 3, 3))]
    with pytest.raises(ValueError, match="OpenCV") as raised:
        list(load(tmp_path / "to", transforms=decode))
    assert str(raised.value).startswith(f"{named}, from {expected[3]} (position 3): ")
    ledger = tmp_path / "skipped.jsonl"
    given = {"on_error": "skip", "max_skipped": None, "skipped_path": str(ledger)}
    with Pipeline(source=load(tmp_path / "to", transforms=decode, **given), batch_size=2, rngs=nnx.Rngs(0)) as pipeline:
        assert [origin.record for origin in pipeline.locate(1)] == [
            f"{tmp_path}/to/data-00000-of-00002.array_record[2], from {expected[2]}",
            f"{named[:-3]}[1], from {expected[4]}",
        ]
        list(pipeline)
        assert [each.where for each in pipeline.skipped] == [f"{named}, from {expected[3]}"]
    (said,) = map(json.loads, ledger.read_text().splitlines())
    assert (said["file"], said["record"], said["origin"]) == (named[:-3], 0, expected[3])
    mixture = MixtureSource([load(tmp_path / "to", transforms=decode)] * 2, weights=[1, 1], strict=True)
    with Pipeline(source=mixture, batch_size=2, rngs=nnx.Rngs(0)) as pipeline:
        name = pipeline.locate(2)[1].record
        assert name.startswith("component ")
        assert name.endswith(tuple(f", from {each}" for each in expected))
        pipeline.amend(skip=[f"component 0: {named}, from {expected[3]}", f"component 1: {named}"])  # as it was pasted
        assert pipeline.amendments[0].records


def twice(element):
    return {"x": 2 * element["x"]}


def test_elements_that_were_materialized_have_the_names_of_the_live_stream(tmp_path):
    (tmp_path / "from").mkdir()
    source, expected = parquet(tmp_path / "from")
    live = load(source, columns=["x"], transforms=[twice])
    materialize(live, tmp_path / "to", num_shards=2)
    stream = MaterializedSource(live, tmp_path / "to").describe()
    assert stream.locations(np.arange(7)) == live.describe().locations(np.arange(7)) == expected
    assert origins(tmp_path / "to") == expected


def test_an_index_is_no_data_and_tells_of_its_own_shard_alone(tmp_path, caplog):
    (tmp_path / "from").mkdir()
    source, expected = tfrecord(tmp_path / "from")
    for to in TO:
        convert(source, folder := tmp_path / to, to, num_shards=2)
        with contextlib.closing(HttpFiles(folder)) as served:
            urls = [f"{served.url}/{path.name}" for path in sorted(folder.glob("data-*"))]
            assert origins(urls) == expected
        (folder / FINISHED).unlink()
        assert origins(f"{folder}/*") == expected
        one, other = sorted(folder.glob("_origins-*"))
        shutil.copy(one, other)
        folder = folder.rename(tmp_path / f"{to}-swapped")
        assert origins(folder) == expected[:3] + [""] * 4
        (folder / one.name).write_bytes(b"no index")
        folder = folder.rename(tmp_path / f"{to}-damaged")
        with caplog.at_level(logging.WARNING, "datarax_ray"):
            assert origins(folder) == [""] * 7
        assert f"{folder / one.name} cannot be read, so origins of records are not told" in caplog.text


def test_a_conversion_that_goes_on_or_begins_again_has_each_index_once(tmp_path):
    (tmp_path / "from").mkdir()
    source, expected = tfrecord(tmp_path / "from")
    convert(source, tmp_path / "to")
    before = {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()}
    assert len(before) == 7
    for gone in ("data-00001-of-00003.array_record", "_origins-00001-of-00003"):
        (tmp_path / "to" / gone).unlink()
        (tmp_path / "to" / "._origins-00001-of-00003.00ff.part").touch()  # of a run that was killed
        (tmp_path / "to" / "data-00001-of-00003.array_record").unlink(missing_ok=True)
        convert(source, tmp_path / "to")
        assert {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()} == before
    convert(source, tmp_path / "to", num_shards=2, overwrite=True)
    assert len(list((tmp_path / "to").iterdir())) == 5
    assert origins(tmp_path / "to") == expected


@pytest.mark.parametrize(
    ("records", "said", "checked"),
    [
        ([b'{"x": 1}', b'{"x": '], r"\[1\].*is not JSON", "DecodeJson"),
        ([png(0), png(1)[:40]], r"\[1\].*OpenCV", "DecodeImage"),
        ([("a.cls", b"1"), ("b.cls", b"one")], r"'b.cls'.*is no cls", "DecodeExtensions"),
        ([("a.npy", b"\x93NUMPY")], r"'a.npy'.*is no npy", "DecodeExtensions"),
        ([("a.left.jpg", b"<html>")], "'left.jpg'.*OpenCV", "DecodeExtensions, pictures in 'left.jpg'"),
        ([b"raw", b"bytes"], "the first records have none of these, so nothing would be checked", ""),
    ],
)
def test_a_check_decodes_what_records_are_of(records, said, checked, tmp_path):
    is_tar = isinstance(records[0], tuple)
    path = (write_tar if is_tar else write_file)(tmp_path / ("a.tar" if is_tar else "a.array_record"), records)
    with pytest.raises(ValueError, match=said):
        convert(str(path), tmp_path / "to", check=True)
    if checked and len(records) > 1:
        found, _ = convert(str(path), tmp_path / "some", check=True, on_error="skip")
        assert (found["num_skipped"], found["checked"]) == (1, checked)
