"""Text as it is published, compressed: each file is read forwards, to its end, and a resumed stream is exact.

Reported of C4, Dolma and The Pile, which are nothing else; of bgzip and of `cat a.gz b.gz`, whose members other readers
take for the end; of downloads that broke off, which other readers take for the end as well.
"""

import bz2
import gzip
import itertools
import json
import logging
import lzma

import datasets
import numpy as np
import pyarrow as pa
import pytest

from datarax_ray import (
    CSVSource,
    CSVSourceConfig,
    JSONLinesSource,
    JSONLinesSourceConfig,
    TextLinesSource,
    TextLinesSourceConfig,
    TextStreamSource,
    TextStreamSourceConfig,
    load,
)
from datarax_ray.cli.inspect import inspect
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.text import shards
from tests.cli.screens import answer, screen
from tests.data_as_it_is.streams import assert_gives, pipeline, rows
from tests.write.test_conversion import convert


def zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


CODECS = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress, "xz": lambda data: lzma.compress(data, preset=0)}
NUM = 24
OBJECTS = [
    {"id": i, "text": f"é{i}" * (i % 7), "at": "2019-04-25T12:57:54Z", "tags": ["a"] * (i % 3)} for i in range(NUM)
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in OBJECTS)
TABLE = "id,text\n" + "".join(f'{i},"a\n{i}"\n' for i in range(NUM))
TEXT = "".join(f"line {i}\n\n" for i in range(NUM // 2))
ONE, BOM = {"num_epochs": 1}, "\ufeff"


def objects(path):
    return JSONLinesSource(JSONLinesSourceConfig(**ONE), path)


def table(path):
    return CSVSource(CSVSourceConfig(**ONE), path)


def lines(path):
    return TextLinesSource(TextLinesSourceConfig(**ONE), path)


# The text, its suffix, and the source of it as it is, whose elements are the oracle.
TEXTS = {
    "JSON lines": (LINES, "jsonl", objects),
    "no last newline": (LINES[:-1], "jsonl", objects),
    "CRLF, mark": (BOM + LINES.replace("\n", "\r\n"), "jsonl", objects),
    "JSON array": (json.dumps(OBJECTS, indent=2), "json", objects),
    "CSV": (TABLE, "csv", table),
    "CSV, mark": (BOM + TABLE, "csv", table),
    "text": (TEXT, "txt", lines),
    "text, CRLF": (TEXT.replace("\n", "\r\n"), "txt", lines),
}


@pytest.fixture(params=[64, 2**20], ids=["portions of 64 bytes", "one portion"])
def portions(request, monkeypatch):
    """Rows longer than a portion, and portions that end anywhere."""
    monkeypatch.setattr(shards, "_PORTION_NBYTES", request.param)


@pytest.mark.parametrize(
    ("kind", "codec"),
    [*((kind, "gz") for kind in TEXTS), *(("JSON lines", codec) for codec in CODECS if codec != "gz")],
)
def test_it_is_what_the_text_is(tmp_path, portions, kind, codec):
    text, suffix, source = TEXTS[kind]
    plain, packed = tmp_path / f"a.{suffix}", tmp_path / f"a.{suffix}.{codec}"
    plain.write_text(text, newline="")
    data, pack = text.encode(), CODECS[codec]
    want = rows(pipeline(source(plain)))
    assert len(want) == NUM
    packed.write_bytes(pack(data))
    assert rows(pipeline(load(packed))) == want
    packed.write_bytes(b"".join(map(pack, [data[:100], b"", data[100:]])))  # several members, or frames
    assert_gives(lambda: load(packed), want)
    if suffix == "jsonl":
        assert want == OBJECTS == rows(pipeline(load(plain)))
    if suffix == "jsonl" and codec == "gz":
        streamed = datasets.load_dataset("json", data_files=str(packed), split="train", streaming=True)
        assert [row["text"] for row in streamed] == [row["text"] for row in want]
    if kind == "text":
        assert [row["text"] for row in want] == TEXT.splitlines()


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("shuffle", [False, True])
def test_files_take_turns_and_actors_and_resumes_change_nothing(tmp_path, monkeypatch, shuffle):
    for number, count in enumerate((30, 0, 7, 16)):
        lines = "".join(json.dumps({"id": 100 * number + i}) + "\n" for i in range(count))
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    config = TextStreamSourceConfig(num_epochs=2, turn_size=4, shuffle=shuffle, shuffle_buffer_size=5)
    want = rows(pipeline(TextStreamSource(config, tmp_path)))
    ids = [*range(30), *range(200, 207), *range(300, 316)]
    assert [sorted(row["id"] for row in want[e * 53 : (e + 1) * 53]) for e in range(2)] == [ids] * 2
    assert ([row["id"] for row in want[:12]] == [0, 1, 2, 3, 200, 201, 202, 203, 300, 301, 302, 303]) != shuffle
    assert_gives(lambda: TextStreamSource(config, tmp_path), want, num_actors=2 if shuffle else 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_was_cut_is_an_error_and_never_its_end(tmp_path, codec):
    numbers = np.random.default_rng(0).permutation(150_000)
    data = "".join(f'{{"id":{i}}}\n' for i in numbers).encode()
    packed = CODECS[codec](data)
    path = tmp_path / "a.jsonl"
    path.write_bytes(packed[: len(packed) - 1000])
    for on_error in ("raise", "skip"):
        source = TextStreamSource(TextStreamSourceConfig(num_epochs=1, on_error=on_error), path)
        batches = iter(pipeline(source, 1000))
        got = [int(i) for batch in itertools.islice(batches, 50) for i in batch["id"]]
        with pytest.raises(RecordError, match=r"a.jsonl is not a whole \w+ file: .*cut short or damaged behind"):
            list(batches)
        assert got == numbers[: len(got)].tolist()
        assert len(got) == 50_000
    path.write_bytes(packed[:30])
    with pytest.raises(ValueError, match="not a whole"):
        load(path)


def test_a_broken_row_is_skipped_alone_and_told_with_what_reads_it(tmp_path):
    lines = [json.dumps({"id": i, "text": "t" * 99}) for i in range(9000)]
    lines[20], lines[8000] = '{"id": 20, "text": "\\ud800"}', '{"id": "x", "text": "t"}'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    good = [i for i in range(9000) if i not in (20, 8000)]

    def source(**config):
        return TextStreamSource(TextStreamSourceConfig(num_epochs=1, **config), path)

    with pytest.raises(RecordError, match=r"a.jsonl.gz\[20\] \(position 20\): .*surrogate"):
        rows(pipeline(source()))
    skipping = pipeline(source(on_error="skip"), 100)
    assert [row["id"] for row in rows(skipping)] == good
    assert skipping.num_skipped == 2
    told = []
    list(source(on_error=lambda error: told.append(error) or True))
    assert "column_types={'id': 'json'} keeps values of any kind" in str(told[1])
    whole = rows(pipeline(source(errors="replace", column_types={"id": "json"})))
    assert [row["id"] for row in whole] == [*range(8000), "x", *range(8001, 9000)]
    assert whole[20]["text"] == "\ufffd"


def test_what_makes_it_random_is_told_and_does(tmp_path, caplog):
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / f"in/{number}.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    caplog.set_level(logging.INFO, "datarax_ray")
    source = load(tmp_path / "in")
    assert any(f"datarax-ray convert {tmp_path}/in FOLDER" in line for line in caplog.messages)
    with pytest.raises(TypeError, match="no len.*datarax-ray convert"):
        len(source)
    with pytest.raises(NotImplementedError, match="datarax-ray convert"):
        source.get_batch_at(0, 1)
    convert(str(tmp_path / "in"), tmp_path / "parquet", to="parquet")
    assert rows(pipeline(load(tmp_path / "parquet"))) == OBJECTS * 2
    inspect([str(tmp_path / "in")], 1, shown := screen())
    assert "TextStreamSource" in answer(shown)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.jsonl.gz:"], "there are 0 rows in"),
        (["a.csv.gz:"], "it is empty, without a row that names its columns"),
        (["a.csv.gz:x,y\n1,2\n", "b.csv.gz:x,z\n1,2\n"], r"the columns are \['x', 'y'\] in"),
        (["a.json.gz:[1, 2]"], "is no object of one array of objects"),
        (['a.json.gz:[{"a": 1}, {"a": 2}'], "does not end with ], so it was cut short"),
        (["a.csv.gz:x\n1\n", 'b.csv.gz:x\n"1\n'], "is never closed"),
    ],
)
def test_what_is_no_such_text_is_refused(tmp_path, names, message):
    for name, _, text in (each.partition(":") for each in names):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    kind = {"a.jsonl": "jsonl", "a.json.": "jsonl"}.get(names[0][:7], "csv")
    with pytest.raises(ValueError, match=message):
        TextStreamSource(TextStreamSourceConfig(format=kind), tmp_path)


def test_what_else_is_compressed_is_no_text(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(256)) * 9))
    with pytest.raises(ValueError, match="looks like a gzip file: unpack it first"):
        load(tmp_path)
    with pytest.raises(ValueError, match="no text, and format= of the source's config"):
        TextStreamSource(TextStreamSourceConfig(), tmp_path / "a.gz")


def test_a_file_that_changes_is_an_error_and_never_other_data(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES.encode()))
    source = load(path)
    path.write_bytes(gzip.compress(LINES.replace("é", "e").encode()))
    with pytest.raises((RecordError, ValueError), match=r"a.jsonl.gz changed while it was read"):
        next(source)
