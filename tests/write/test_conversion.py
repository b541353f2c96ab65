"""What lies somewhere as ArrayRecord and Parquet: looked at by readers that are not ours."""

import datetime
import decimal
import io
import json
import re
from pathlib import Path

import datasets
import msgpack
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import DecodeFields, DecodeMsgpack, load
from datarax_ray.cli.writing import convert as convert_command
from datarax_ray.write.shards import folder_of
from tests.cli.screens import answer, errors, screen
from tests.data import records_of, write_file
from tests.mds import write_mds
from tests.tars import write_tar
from tests.tfrecords import write_tfrecord

N = 23
RECORDS = [b"record %d " % i * (i % 4) for i in range(N)]
ROWS = [
    {"x": i, "f": i / 4, "s": None if i % 5 == 4 else f"s{i}", "t": None if i % 7 == 6 else [i] * (i % 3)}
    for i in range(N)
]


def png(i):
    file = io.BytesIO()
    PIL.Image.fromarray(np.full((2 + i % 2, 3, 3), i, np.uint8)).save(file, "png")
    return file.getvalue()


def array_record(folder):
    for k, cut in enumerate((RECORDS[:9], RECORDS[9:])):
        write_file(folder / f"part-{k}.array_record", cut, 4)
    return str(folder), RECORDS


def tfrecord(folder):
    for k, cut in enumerate((RECORDS[:9], RECORDS[9:])):
        write_tfrecord(folder / f"part-{k}.tfrecord", cut)
    return str(folder / "*.tfrecord"), RECORDS


def parquet(folder):
    for k, cut in enumerate((ROWS[:9], ROWS[9:])):
        pq.write_table(pa.Table.from_pylist(cut), folder / f"part-{k}.parquet", row_group_size=4)
    return str(folder), ROWS


def csv(folder):
    rows = [{"x": i, "f": i / 4 + 0.125, "s": f"s{i}"} for i in range(N)]
    text = "".join(f"{row['x']},{row['f']},{row['s']}\n" for row in rows)
    (folder / "a.csv").write_text("x,f,s\n" + text)
    return str(folder / "a.csv"), rows


def json_lines(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(folder), ROWS


def tar(folder):
    samples = [{"__key__": f"k{i}", "cls": b"%d" % (i % 3), "png": png(i)} for i in range(N)]
    write_tar(folder / "a.tar", [(f"{s['__key__']}.{ext}", s[ext]) for s in samples for ext in ("cls", "png")])
    return str(folder), samples


def mds(folder):
    rows = [{"x": i, "s": f"s{i}", "picture": png(i), "t": [i, i + 1]} for i in range(N)]
    write_mds(folder, {"x": "int", "s": "str", "picture": "png", "t": "ndarray"}, rows, compression="zstd")
    return str(folder), rows


def images(folder):
    rows = []
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir()
        for i in range(3):
            (folder / name / f"{i}.png").write_bytes(png(10 * label + i))
            rows.append({"image": png(10 * label + i), "label": label})
    return f"imagefolder:{folder}", rows


def hugging_face(folder):
    (folder / "a.png").write_bytes(png(0))
    rows = [
        {"x": 1, "s": None, "picture": {"bytes": png(0), "path": "a.png"}},
        {"x": None, "s": "b", "picture": {"bytes": png(1), "path": None}},
        {"x": 3, "s": "c", "picture": None},
    ]
    given = [row | {"picture": str(folder / "a.png") if row["x"] == 1 else row["picture"]} for row in rows]
    features = datasets.Features(
        {"x": datasets.Value("int32"), "s": datasets.Value("string"), "picture": datasets.Image()}
    )
    datasets.Dataset.from_list(given, features=features).save_to_disk(folder / "saved")
    return f"hf:{folder / 'saved'}", rows


SOURCES = [array_record, tfrecord, parquet, csv, json_lines, tar, mds, images, hugging_face]


def convert(source, destination, to="array_record", **given):
    """What it says as JSON, and what it shows meanwhile."""
    shown = screen(as_json=True)
    options = {"num_shards": 3, "num_actors": 0} | given
    convert_command(source, destination, shown, to=to, **options)
    return json.loads(answer(shown)), errors(shown)


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_source_becomes_array_record(make, tmp_path):
    (tmp_path / "from").mkdir()
    source, expected = make(tmp_path / "from")
    said, _ = convert(source, tmp_path / "to")
    found = records_of(tmp_path / "to")
    assert said["encoding"] == (None if isinstance(expected[0], bytes) else "msgpack")
    assert (found if said["encoding"] is None else list(map(msgpack.unpackb, found))) == expected
    assert (said["num_records"], said["num_shards"], said["num_skipped"]) == (len(expected), 3, 0)
    transforms = [DecodeMsgpack()] if said["encoding"] else []
    with load(tmp_path / "to", transforms=transforms) as read:
        assert list(read) == expected  # past dataset.json


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_source_becomes_parquet(make, tmp_path):
    (tmp_path / "from").mkdir()
    source, expected = make(tmp_path / "from")
    convert(source, tmp_path / "to", "parquet")
    found = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "to").glob("*.parquet"))])
    rows = [{"record": record} for record in expected] if isinstance(expected[0], bytes) else expected
    assert found.to_pylist() == rows
    if make is parquet:
        assert found.schema.equals(pq.read_schema(tmp_path / "from" / "part-0.parquet"))
    if make is hugging_face:
        paths = sorted(map(str, (tmp_path / "to").glob("*.parquet")))
        again = datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=str(tmp_path / "cache"))
        assert again.features["picture"] == datasets.Image()
        assert np.asarray(again[0]["picture"]).tolist() == np.zeros((2, 3, 3), int).tolist()


def test_types_that_msgpack_has_not_are_refused_by_name_and_kept_in_parquet(tmp_path):
    rows = [{"d": decimal.Decimal("1.50"), "t": datetime.date(2020, 1, 2), "x": 2**64 - 1}]
    schema = pa.schema({"d": pa.decimal128(9, 2), "t": pa.date32(), "x": pa.uint64()})
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet\[0\].*field 'd' is a Decimal.*write Parquet"):
        convert(str(tmp_path / "a.parquet"), tmp_path / "to")
    convert(str(tmp_path / "a.parquet"), tmp_path / "to", "parquet")
    found = pq.read_table(tmp_path / "to" / "data-00000-of-00001.parquet")
    assert found.schema.equals(schema)
    assert found.to_pylist() == rows


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        ([[1], [1, 2]], [0.5], "is 0.5 (float), which as int64 would be 0"),
        ([[{"a": 1}], []], [{"a": 1, "b": 2}], "is a dict with the keys ['a', 'b'], and they were ['a']"),
    ],
)
def test_a_value_that_parquet_would_cut_is_refused(first, later, said, tmp_path):
    rows = [{"x": value} for value in first * 600] + [{"x": later}]
    write_mds(tmp_path / "from", {"x": "json"}, rows, 400)
    with pytest.raises(ValueError, match=re.escape(f"field 'x' {said}")):
        convert(str(tmp_path / "from"), tmp_path / "to", "parquet")


def test_a_decoder_makes_columns_of_records(tmp_path):
    stored = [np.array([i, 2 * i, 3 * i], "<f4").tobytes() + bytes([i]) for i in range(4)]
    source = write_file(tmp_path / "a.array_record", stored)
    decode = DecodeFields({"v": ("float32", (3,)), "label": ("uint8", ())})
    convert(str(source), tmp_path / "to", "parquet", decoder=(decode,), num_shards=1)
    found = pq.read_table(tmp_path / "to" / "data-00000-of-00001.parquet")
    assert found.schema.equals(pa.schema({"label": pa.uint8(), "v": pa.list_(pa.float32(), 3)}))
    assert found.to_pylist() == [{"label": i, "v": [i, 2 * i, 3 * i]} for i in range(4)]
    convert(str(source), tmp_path / "again", decoder=(decode,))
    arrays = DecodeMsgpack({"v": "float32", "label": "uint8"})
    with load(tmp_path / "again", transforms=[arrays]) as read, load(tmp_path / "to") as rows:
        for one, other in zip(read, rows, strict=True):
            assert (one["v"].dtype, one["v"].tolist()) == (other["v"].dtype, other["v"].tolist())


def test_a_field_is_of_the_type_of_its_first_values_that_are_not_none(tmp_path):
    rows = [{"n": None, "of": {"k": 1}}, {"n": 2, "of": None}, {"n": 3, "of": {"k": None}}]
    source = write_file(tmp_path / "a.array_record", [msgpack.packb(row) for row in rows])
    convert(str(source), tmp_path / "to", "parquet", decoder=(DecodeMsgpack(),), num_shards=1)
    found = pq.read_table(tmp_path / "to" / "data-00000-of-00001.parquet")
    assert found.schema.equals(pa.schema({"n": pa.int64(), "of": pa.struct({"k": pa.int64()})}))
    assert found.to_pylist() == rows


def test_what_tells_no_type_or_another_length_says_what_to_do(tmp_path):
    nothing = write_file(tmp_path / "a.array_record", [msgpack.packb({"n": None})])
    with pytest.raises(ValueError, match="'n' is None in the first 1 elements, so its type is unknown"):
        convert(str(nothing), tmp_path / "to", "parquet", decoder=(DecodeMsgpack(),))
    ragged = write_file(tmp_path / "b.array_record", [msgpack.packb({"n": [1] * size}) for size in (2, 3)])
    with pytest.raises(ValueError, match=r"b.array_record\[1\].*field 'n' is .*\[3\], and .*\[2\]"):
        convert(str(ragged), tmp_path / "to", "parquet", decoder=(DecodeMsgpack({"n": "int64"}),))


def test_what_a_sample_lacks_is_null(tmp_path):
    write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"{}"), ("c.txt", b"3")])
    said, _ = convert(str(tmp_path / "a.tar"), tmp_path / "all", num_shards=1)
    assert said["num_records"] == 3
    said, _ = convert(str(tmp_path / "a.tar"), tmp_path / "table", "parquet", num_shards=1)
    found = pq.read_table(tmp_path / "table" / "data-00000-of-00001.parquet").to_pydict()
    assert found == {"__key__": ["a", "b", "c"], "json": [None, b"{}", None], "txt": [b"1", b"2", b"3"]}


def test_broken_records_are_named_or_left_out_and_counted(tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"record %d" % i for i in range(6)])
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"record 4")] ^= 1
    path.write_bytes(stored)
    with pytest.raises(ValueError, match=r"a\.tfrecord\[4\]"):
        convert(str(path), tmp_path / "to")
    said, _ = convert(str(path), tmp_path / "some", on_error="skip")
    assert (said["num_records"], said["num_skipped"]) == (5, 1)
    assert records_of(tmp_path / "some") == [b"record %d" % i for i in range(6) if i != 4]
    notes = json.loads((tmp_path / "some" / "dataset.json").read_text())["shards"]
    assert [shard["said"] for shard in notes] == [None, None, {"num_skipped": 1, "skipped": [f"{path}[4]"]}]


def test_a_block_of_text_that_does_not_parse_loses_its_broken_row_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"x": i, "text": "t" * 500}) for i in range(9000)]
    path.write_text("\n".join([*lines, '{"x": "many", "text": ""}', *lines[:9]]))
    with pytest.raises(ValueError, match=rf"{path}\[9000\]"):
        convert(str(path), tmp_path / "to", "parquet")
    said, _ = convert(str(path), tmp_path / "some", "parquet", on_error="skip")
    assert (said["num_records"], said["num_skipped"]) == (9009, 1)
    found = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "some").glob("*.parquet"))])
    assert found["x"].to_pylist() == [*range(9000), *range(9)]


def test_columns_that_are_ragged_past_what_is_looked_at_keep_their_values(tmp_path):
    """A reader of elements takes the first rows for what all are, and refuses others; a conversion needs not."""
    rows = [{"v": [i, i] if i < 300 else [i], "x": None if i == 299 else i} for i in range(301)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    convert(str(tmp_path / "a.parquet"), tmp_path / "to", "parquet", num_shards=1)
    assert pq.read_table(tmp_path / "to" / "data-00000-of-00001.parquet").to_pylist() == rows
    convert(str(tmp_path / "a.parquet"), tmp_path / "maps")
    assert list(map(msgpack.unpackb, records_of(tmp_path / "maps"))) == rows


def test_group_sizes_are_by_the_size_of_records(tmp_path):
    for nbytes, size in ((10, 256), (300_000, 2)):
        source = write_file(tmp_path / f"{nbytes}.array_record", [bytes([i]) * nbytes for i in range(3)], 1, "zstd")
        said, _ = convert(str(source), tmp_path / f"{nbytes}")
        assert said["group_size"] == size
    said, _ = convert(str(source), tmp_path / "one", group_size=1)
    assert said["group_size"] == 1


def test_it_says_what_it_wrote_and_how_to_read_it(tmp_path):
    (tmp_path / "from").mkdir()
    source, _ = tar(tmp_path / "from")
    shown = screen()
    convert_command(source, tmp_path / "to", shown, num_shards=2, num_actors=0)
    said = answer(shown).splitlines()
    assert said[0].startswith(f"{tmp_path / 'to'}: 23 records in 2 files of ArrayRecord, 0.3 MB, ")
    assert said[1] == f"read it by: load('{tmp_path / 'to'}', transforms=[DecodeMsgpack(), DecodeImage(field='png')])"
    assert said[2].startswith('groups of 256 records: shuffle_block_size="auto" decodes each once in an epoch')
    with pytest.raises(ValueError, match=r"num_shards was 2 and is 3.*--overwrite"):
        convert(source, tmp_path / "to")


def test_what_is_read_is_never_written_over(tmp_path):
    source, expected = array_record(tmp_path)
    convert(source, tmp_path / "to")
    with pytest.raises(ValueError, match="a file of the source; write to another folder"):
        convert(str(tmp_path / "to"), tmp_path / "to", overwrite=True)
    assert records_of(tmp_path / "to") == expected


def test_the_names_of_classes_stand_beside_the_data(tmp_path):
    (tmp_path / "from").mkdir()
    source, _ = images(tmp_path / "from")
    convert(source, tmp_path / "to")
    assert json.loads((tmp_path / "to" / "dataset.json").read_text())["made_from"]["class_names"] == ["cat", "dog"]
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"])})
    datasets.Dataset.from_dict({"label": [0, 1]}, features=features).save_to_disk(tmp_path / "saved")
    convert(f"hf:{tmp_path / 'saved'}", tmp_path / "hf")
    said = json.loads((tmp_path / "hf" / "dataset.json").read_text())["made_from"]["features"]
    assert said["label"]["names"] == ["cat", "dog"]


@pytest.mark.parametrize("make", [csv, images, hugging_face], ids=lambda make: make.__name__)
def test_a_split_of_what_has_none_is_refused(make, tmp_path):
    (tmp_path / "from").mkdir()
    source, _ = make(tmp_path / "from")
    with pytest.raises(ValueError, match=r"'test'"):
        convert(source, tmp_path / "to", split="test")
    assert not (tmp_path / "to").exists()


def test_a_url_to_write_to_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"file is a file, and datasets are written to folders"):
        folder_of(write_file(tmp_path / "file", [b"x"]))
    with pytest.raises(ValueError, match=r"^s3://b/x is a URL, and datasets are written to folders"):
        folder_of(Path("s3://b/x"))
    with pytest.raises(ValueError, match="datasets are written to folders"):
        convert(str(tmp_path / "nothing"), Path("s3://bucket/to"))
