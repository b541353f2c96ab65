"""read_records where some of the records cannot be read: all others come, in order, in few reads."""

import json
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.text.blocks import TextReader
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.syntax import CSV
from datarax_ray.read.stream import Reader, ReaderTraits
from datarax_ray.read.streams.indexed import read_records


class BrokenError(ValueError):
    pass


class Numbers(Reader):
    """Each record is its number; those that are broken fail all that they are read with."""

    traits = ReaderTraits(BrokenError)

    def __init__(self, broken, as_columns):
        self.is_broken = broken
        self.as_columns = as_columns
        self.reads = []

    def read(self, records):
        self.reads.append(len(records))
        if found := self.is_broken.intersection(records.tolist()):
            raise BrokenError(f"record {min(found)} among {len(records)}")
        return {"x": records} if self.as_columns else records.tolist()

    def locate(self, record):
        return f"record {record}"


def read(reader, records, on_error):
    """The elements, their positions, and what was left out, or else what the block fails of."""
    asked, columns = read_records(cast("Reader", reader), np.arange(len(records)) + 100, records, on_error)
    elements = asked.elements if columns is None else columns["x"].tolist()
    told = [each.position for each in asked.skipped] if asked.failure is None else asked.failure.position
    return list(elements), np.asarray(asked.positions).tolist(), told


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=70),
    st.sets(st.integers(0, 30), max_size=20),
    st.booleans(),
    st.sampled_from(["raise", "skip", "some"]),
)
def test_what_cannot_be_read_is_left_out_or_ends_the_block_and_all_else_comes(records, broken, as_columns, on_error):
    """By a loop over single records, of which each that is broken is told in order."""
    told = []

    def allow(error):
        told.append(error.position)
        return len(told) < 3

    want = []
    positions = []
    left_out = []
    failed_at = None
    for position, record in enumerate(records, 100):
        if record not in broken:
            want.append(record)
            positions.append(position)
            continue
        if on_error == "raise" or (on_error == "some" and len(left_out) == 2):
            failed_at = position
            break
        left_out.append(position)
    found = read(Numbers(broken, as_columns), np.array(records), allow if on_error == "some" else on_error)
    assert found == (want, positions, left_out if failed_at is None else failed_at)
    if on_error == "some":
        assert told == left_out + ([] if failed_at is None else [failed_at])


def test_one_broken_record_among_many_takes_few_reads_and_ends_them_where_it_is_an_error():
    for on_error, most in (("skip", 40), ("raise", 33)):
        reader = Numbers({700}, as_columns=True)
        read(reader, np.arange(1024), on_error)
        assert len(reader.reads) <= most
    assert max(reader.reads[1:]) <= 128


def test_a_storage_that_fails_on_the_way_is_no_broken_record():
    class Failing(Numbers):
        def read(self, records):
            if len(records) == 1:
                raise StorageError("gone")
            return super().read(records)

    with pytest.raises(StorageError, match="gone"):
        read(Failing({3}, as_columns=False), np.arange(10), "skip")


@st.composite
def odd_rows(draw):
    odd = draw(st.sets(st.integers(300, 419), max_size=60))
    return odd, draw(st.lists(st.integers(0, 419), min_size=1, max_size=90))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("odd")


@pytest.mark.parametrize("kind", ["parquet", "json lines", "csv that does not parse"])
@given(given=odd_rows())
def test_rows_beside_odd_ones_are_those_that_a_loop_reads(folder, kind, given):
    """Row groups and blocks with odd rows, in any order, some rows twice: values, dtypes and what is left out."""
    odd, records = given
    rows = [
        {"x": None if n in odd else n, "text": f"t{n}", "list": [n, n + 1], "in": {"y": n / 2, "z": [f"é{n}"]}}
        for n in range(420)
    ]
    path = folder / "rows"
    if kind == "parquet":
        schema = pa.schema(
            {
                "x": pa.int32(), "text": pa.string(), "list": pa.list_(pa.int64()),
                "in": pa.struct({"y": pa.float64(), "z": pa.list_(pa.string())}),
            }
        )  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=70, write_statistics=False)
        reader = ParquetReader.of(path)
    elif kind == "json lines":
        # the first 4 MiB decide what columns become: they are of the first file here
        path.write_bytes(as_json(rows[:300]))
        others = [row | ({"x": "odd"} if row["x"] is None else {}) for row in rows[300:]]
        (folder / "rows2").write_bytes(as_json(others))
        reader = TextReader.of([path, folder / "rows2"], JSONLines(), column_types={"x": "int32"})
    else:
        path.write_text("x,text\n" + "".join(f"{n},t{n}\n" for n in range(300)))
        lines = (f"{n},t{n},more\n" if n in odd else f"{n},t{n}\n" for n in range(300, 420))
        (folder / "rows2").write_text("x,text\n" + "".join(lines))
        reader = TextReader.of([path, folder / "rows2"], CSV(), column_types={"x": "int32"})
    try:
        asked, columns = read_records(reader, np.arange(len(records)), np.array(records), "skip")
        kept = [n for n in records if n not in odd]
        assert [each.position for each in asked.skipped] == [i for i, n in enumerate(records) if n in odd]
        if not kept:
            return
        assert columns["x"].dtype == np.int32
        assert columns["x"].tolist() == kept
        assert columns["text"].tolist() == [f"t{n}" for n in kept]
        if kind != "csv that does not parse":
            assert columns["list"].tolist() == [[n, n + 1] for n in kept]
            assert columns["list"].shape == (len(kept), 2)
            assert columns["in"]["y"].tolist() == [n / 2 for n in kept]
            assert columns["in"]["z"].tolist() == [[f"é{n}"] for n in kept]
    finally:
        reader.close()


def test_a_file_that_begins_with_null_ends_no_process(tmp_path):
    (tmp_path / "a.jsonl").write_text("null\n" + '{"x": 1}\n' * 9)
    reader = TextReader.of(tmp_path / "a.jsonl", JSONLines(), column_types={"x": "int64"})
    asked, columns = read_records(reader, np.arange(10), np.arange(10), "skip")
    assert [each.where for each in asked.skipped] == [f"{tmp_path}/a.jsonl[0]"]
    assert columns["x"].tolist() == [1] * 9


def as_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("odd", ['{"x": 5}{"x": 6}', '{"x":', "6}", "null", '{"x": 5, "s": "\udcff"}', "[1]", '"{}"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_of_json_each_line_is_one_object_whatever_is_read_with_it(tmp_path, odd, end):
    """Lines that together would be as many rows, text that is no UTF-8, a first line that ends pyarrow's process."""
    told = [f'{{"x": {n}, "s": "a"}}' for n in range(20)]
    together = ['{"x": 100}{"x": 101}', '{"x":', "102}"]
    lines = [*told[:5], *together, *told[5:10], odd, *told[10:], ' {"x": 20, "s": "é"} ']
    broken = {5, 6, 7, 13}
    path = tmp_path / "a.jsonl"
    path.write_bytes(end.join(lines).encode("utf-8", "surrogateescape"))
    want = [(n, f"{path}[{n}]") for n in sorted(broken)]
    for records in (np.arange(len(lines)), np.arange(5, 8), np.arange(6, 14)[::-1], np.array([13]), np.array([7, 3])):
        reader = TextReader.of(path, JSONLines(), column_types={"x": "int64", "s": "string"})
        asked, columns = read_records(reader, np.arange(len(records)), records, "skip")
        assert [each.where for each in asked.skipped] == [where for n in records for m, where in want if m == n]
        kept = [n for n in records.tolist() if n not in broken]
        values = [n - 3 * (n > 7) - (n > 13) for n in kept]
        assert ([] if columns is None else columns["x"].tolist()) == values
