"""Parquet rows by index against what was written, and every way in which a file can be broken."""

import datetime
import decimal
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.elements.columns import leaves, spec, unstack
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.arrow.types import plain_type
from datarax_ray.read.formats.parquet.footer import _footer_and_content
from datarax_ray.read.formats.parquet.reader import BrokenRowGroupError, ParquetReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.tables import rows, write_tables

FLIPS = """
import sys
import numpy as np
from datarax_ray.read.formats.parquet.reader import ParquetReader

path, copy = sys.argv[1:]
stored = bytearray(open(path, "rb").read())
begin = len(stored) - 8 - int.from_bytes(stored[-8:-4], "little")
num_told = 0
for at in range(begin, len(stored) - 8, 3):
    stored[at] ^= 1
    open(copy, "wb").write(stored)
    try:
        reader = ParquetReader.of([copy])
        try:
            assert {len(values) for values in reader.read(np.arange(9)).values()} == {9}
        except Exception as error:
            assert copy in str(error), error
    except ValueError as error:
        num_told += "complete" in str(error)
    stored[at] ^= 1
print(num_told)
"""

COUNTS = (7, 0, 9)
N = sum(COUNTS)


@pytest.fixture
def paths(tmp_path):
    return write_tables(tmp_path, COUNTS)


@pytest.fixture
def reader(paths):
    return ParquetReader.of(paths)


def written(records):
    """The same rows, from the table that was written, through Arrow's own Python objects."""
    table = pa.table(rows(0, N)).to_pylist()
    return [table[record] for record in records]


def as_python(found, count):
    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else value

    def row(element):
        return {key: row(value) if isinstance(value, dict) else plain(value) for key, value in element.items()}

    return [row(element) for element in unstack(found, count)]


@pytest.mark.parametrize(
    "records",
    [[0], [3, 4], list(range(N)), [15, 0, 7, 7, 6, 2], [5, 5], list(range(N))[::-1], [8, 9, 10], [4, 6, 5]],
    ids=str,
)
def test_rows_come_in_the_order_asked(reader, records):
    found = reader.read(np.array(records))
    assert as_python(found, len(records)) == written(records)


def test_rows_next_to_one_another_in_a_row_group_are_a_view_of_it(reader):
    first, second = reader.read(np.array([4, 5])), reader.read(np.array([4]))
    assert np.shares_memory(first["index"], second["index"])
    assert not first["index"].flags.writeable


def test_a_row_group_is_decoded_once_until_all_its_rows_were_read(reader, monkeypatch):
    decoded = count_decodes(monkeypatch)
    for record in [0, 8, 1, 2, 9, 3, 10, 7]:
        reader.read(np.array([record]))
    assert decoded == [0, 2]
    reader.read(np.array([3]))
    assert decoded == [0, 2, 0]  # nothing was left to read of it, so it was dropped


def test_no_more_is_kept_than_there_is_room_for(paths, monkeypatch):
    decoded = count_decodes(monkeypatch)
    reader = ParquetReader(ParquetReader.of(paths).footers, types=ParquetReader.of(paths)._types, max_nbytes=1)
    for record in [0, 1, 8, 2]:
        reader.read(np.array([record]))
    assert decoded == [0, 2, 0]


def test_a_cached_reader_keeps_the_row_groups_that_fit_until_it_is_cleared(paths, monkeypatch):
    decoded = count_decodes(monkeypatch)
    whole = ParquetReader.of(paths).cached()
    for _ in range(3):
        whole.read(np.arange(N))
    assert decoded == [0, 1, 2, 3, 4]
    whole.clear()
    whole.read(np.array([0, *range(N)]))
    assert decoded == [0, 1, 2, 3, 4] * 2
    del decoded[:]
    reader = ParquetReader.of(paths).cached(whole.counts()["kept_nbytes"] - 1)
    for _ in range(3):
        assert reader.read(np.arange(N))["index"].tolist() == list(range(N))
    assert decoded == [0, 1, 2, 3, 4, 4, 4]
    assert {**reader.counts(), "kept_nbytes": None} == {"num_kept": 4, "kept_nbytes": None, "num_decoded": 7}


def count_decodes(monkeypatch):
    decoded, decode = [], ParquetReader._decode
    monkeypatch.setattr(ParquetReader, "_decode", lambda self, group: decoded.append(group) or decode(self, group))
    return decoded


def test_it_pickles_without_open_files_or_rows_and_opens_them_again_also_after_it_was_closed(reader):
    reader.read(np.arange(N))
    copied = pickle.loads(pickle.dumps(reader))
    assert copied.fingerprint() == reader.fingerprint()
    assert as_python(copied.read(np.array([9])), 1) == written([9])
    reader.close()
    assert as_python(reader.read(np.array([0])), 1) == written([0])
    assert len(pickle.dumps(reader)) < 4096


def test_a_place_is_named_by_file_row_and_row_group(reader, paths):
    assert reader.locate(0) == f"{paths[0]}[0] (row group 0)"
    assert reader.locate(6) == f"{paths[0]}[6] (row group 1)"
    assert reader.locate(7) == f"{paths[2]}[0] (row group 0)"


def test_groups_are_row_groups_and_small_ones_go_together(tmp_path, reader):
    assert np.diff(reader.groups.starts).tolist() == [4, 3, 4, 4, 1]
    many = ParquetReader.of(write_tables(tmp_path, (256 * 4,), row_group=4))
    sizes = np.diff(many.groups.starts)
    assert 60 <= len(sizes) <= 70
    assert set(sizes[:-1] % 4) == {0}


def test_a_row_group_is_as_large_as_it_is_in_memory(tmp_path):
    table = pa.table({"x": np.zeros(1000), "y": pa.FixedSizeListArray.from_arrays(np.zeros(16_000, np.int8), 16)})
    parquet.write_table(table, tmp_path / "zeros.parquet")  # a few hundred bytes
    assert ParquetReader.of(tmp_path).mean_nbytes == 24


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"columns": ["index"]}, ["index"]),
        ({"columns": ["name", "inner.even"]}, ["inner.even", "name"]),
        ({"columns": ["inner"]}, ["inner.even", "inner.text"]),
        ({"columns": ["pair", "ragged"]}, ["pair", "ragged"]),
        ({"exclude": ["inner.text", "pair", "ragged", "name"]}, ["index", "inner.even", "square"]),
    ],
)
def test_columns_are_chosen_by_name(paths, options, fields):
    found = ParquetReader.of(paths, **options).read(np.array([2, 9]))
    assert [".".join(path) for path, _ in leaves(found)] == fields


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": ["nope", "index"]}, ValueError, r"has no columns \['nope'\]; its fields are \['index', 'inner'"),
        ({"exclude": ["inner.nope"]}, ValueError, r"no columns \['inner.nope'\]"),
        ({"exclude": ["inne"]}, ValueError, r"no columns \['inne'\]"),
        ({"columns": []}, ValueError, "no column of .* is left"),
        ({"columns": "index"}, TypeError, r"columns is a list of names, got 'index'; write \['index'\]"),
        ({"columns": ["index"], "exclude": ["name"]}, ValueError, "give columns or exclude_columns, not both"),
    ],
)
def test_names_that_are_no_columns_are_refused(paths, options, error, message):
    with pytest.raises(error, match=message):
        ParquetReader.of(paths, **options)


DOTTED = {"user": ["x"], "user.id": [7], "a": [{"b": {"c": 1}, "d.e": 2}], "both": [{"b": 1, "c": 2}], "both.b": [3]}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"columns": ["user"]}, ["user"]),
        ({"columns": ["user.id"]}, ["user.id"]),
        ({"columns": ["a.b", "a.d.e"]}, ["a.b.c", "a.d.e"]),
        ({"columns": ["a.b.c"]}, ["a.b.c"]),
        ({"columns": ["both", "both.b"]}, ["both.b", "both.b", "both.c"]),
        ({"exclude": ["user", "a", "both", "both.b"]}, ["user.id"]),
        ({"exclude": ["user.id", "a.b"]}, ["a.d.e", "both.b", "both.b", "both.c", "user"]),
    ],
)
def test_a_name_with_a_dot_is_that_of_a_column_first(tmp_path, options, fields):
    parquet.write_table(pa.table(DOTTED), tmp_path / "x.parquet")
    found = ParquetReader.of(tmp_path, **options).read(np.array([0]))
    assert sorted(".".join(path) for path, _ in leaves(found)) == fields


def test_files_with_other_fields_are_refused_with_both(tmp_path, paths):
    other = tmp_path / "other.parquet"
    parquet.write_table(pa.table(rows(0, 3)).set_column(0, "index", pa.array(["1", "2", "3"])), other)
    with pytest.raises(ValueError, match=r"field 'index' is int64 in .*part-00000.* and string in .*other.parquet"):
        ParquetReader.of([*paths, other])
    parquet.write_table(pa.table(rows(0, 3)).drop_columns("name"), other)
    with pytest.raises(ValueError, match=r"field 'name' is string in .* and missing in .*other.parquet"):
        ParquetReader.of([*paths, other], schema="strict")
    assert ParquetReader.of([*paths, other], columns=["index"]).num_records == N + 3
    with pytest.raises(ValueError, match=r"field 'name' is missing in .*other.* and string in .*columns=\["):
        ParquetReader.of([other, *paths], schema="strict")
    assert ParquetReader.of([other, *paths], columns=["index"]).num_records == N + 3


@pytest.mark.parametrize("name", ["0.parquet", "2.parquet"])
def test_the_types_of_a_file_without_rows_do_not_matter(tmp_path, name):
    parquet.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    alone = ParquetReader.of(tmp_path).fingerprint()
    parquet.write_table(pa.table({"a": pa.array([], pa.string()), "c": pa.array([], pa.null())}), tmp_path / name)
    for options in ({}, {"columns": ["a", "b"]}, {"exclude": ["b"]}):
        reader = ParquetReader.of(tmp_path, **options)
        assert reader.read(np.array([0]))["a"].tolist() == [1]
    assert ParquetReader.of(tmp_path).fingerprint()["schema"] == alone["schema"]


def _written(folder, tables):
    folder.mkdir()
    for number, table in enumerate(tables):
        parquet.write_table(table, folder / f"{number}.parquet")
    return folder


@pytest.mark.parametrize(
    ("null", "values", "kind"),
    [
        (None, ["x", None], pa.string()),
        (None, ["x", None], pa.dictionary(pa.int32(), pa.large_string())),
        (None, [2, 3], pa.int64()),
        (None, [True], pa.bool_()),
        (None, [b"x"], pa.binary()),
        (None, [datetime.datetime(2024, 1, 2)], pa.timestamp("us", "UTC")),
        (None, [decimal.Decimal("1.25")], pa.decimal128(10, 2)),
        ([], [[2, 5], [3, 6]], pa.list_(pa.int64())),
        ([None], [[2, 3]], pa.large_list(pa.int64())),
        (None, [[2, 3]], pa.list_(pa.int64())),
        (None, [[{"b": 2}], []], pa.list_(pa.struct([("b", pa.int64())]))),
        (None, [{"b": 2, "c": "x"}], pa.struct([("b", pa.int64()), ("c", pa.string())])),
        ({"b": None, "c": 1}, [{"b": "x", "c": 2}], pa.struct([("c", pa.int64()), ("b", pa.string())])),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_file_without_values_has_the_types_of_the_others(tmp_path, null, values, kind, order):
    # as pandas writes a column of None alone; the oracle is the same rows under the type that the others have
    untyped = pa.table({"a": [null] * 3, "t": pa.array(["p", "q", "r"], pa.large_string())})
    rows = pa.table({"a": pa.array(values, kind), "t": ["s"] * len(values)})
    declared = pa.table({"a": pa.array([null] * 3, kind), "t": ["p", "q", "r"]})
    assert "null" in str(untyped.schema.field("a").type)
    reader = ParquetReader.of(_written(tmp_path / "x", [(untyped, rows)[index] for index in order]))
    wanted = ParquetReader.of(
        _written(tmp_path / "y", [declared, rows, rows])
    )  # the first rows say that there are nulls
    parts = np.split(np.arange(3 + 2 * len(values)), [3, 3 + len(values)])
    records = np.concatenate([parts[place] for place in np.argsort(np.argsort(order, kind="stable"), kind="stable")])
    found, expected = reader.read(np.arange(len(records))), wanted.read(records)
    assert spec(found) == spec(expected)
    assert repr(as_python(found, len(records))) == repr(as_python(expected, len(records)))
    assert reader.fingerprint()["schema"] == wanted.fingerprint()["schema"]
    assert len({plain_type(reader.table(row, row + 1).schema.field("a").type) for row in range(len(records))}) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([[{"b": 2}]], [[], [], None]),
        ([[["u"]]], [[], [None, None]]),
        ([{"f": {"g": "x"}}], [{"f": None}, None]),
        ([{"f": ["x"], "g": 1}], [{"f": None, "g": 2}, {"f": None, "g": 3}]),
        ([{"a": "x", "b": [None]}], [{"a": None, "b": []}, {"a": None, "b": [None]}, {"a": None, "b": [None] * 3}]),
        ([[{"a": "x", "b": [None]}]], [[{"a": None, "b": [None, None]}], [], [{"a": None, "b": []}] * 2]),
        ([[None, None], [None]], [[None] * 3]),
        ([[{"n": None, "r": "u"}] * 2], [[{"n": None, "r": "v"}] * 3, []]),
    ],
)
def test_nulls_below_lists_and_structs_are_read_beside_what_others_have_there(tmp_path, first, second):
    others = {"note": ["x"] * len(first)}, {"note": [None] * len(second)}  # null in one file
    tables = [pa.table({"a": a, **other}) for a, other in zip((first, second), others, strict=True)]
    for order in (tables, tables[::-1]):
        reader = ParquetReader.of(_written(tmp_path / str(len(os.listdir(tmp_path))), order))
        wanted = [row for table in order for row in table.to_pylist()]
        found = as_python(reader.read(np.arange(len(wanted))), len(wanted))
        assert repr(found) == repr(wanted)
        for row in range(len(wanted)):
            table = reader.table(row, row + 1)
            table.validate(full=True)
            assert table.to_pylist() == [wanted[row]]


def test_what_is_no_whole_parquet_file_is_refused_at_once_and_all_are_named(tmp_path, paths):
    text, cut, empty = tmp_path / "x.parquet", tmp_path / "y.parquet", tmp_path / "z.parquet"
    text.write_text("no parquet, and long enough to be one")
    cut.write_bytes(paths[0].read_bytes()[:-20])
    empty.write_bytes(b"")
    for path in (text, cut, empty):
        said = f"{path.name} is not a complete Parquet file: .*(write or copy it|a text file)"
        with pytest.raises(ValueError, match=said):
            ParquetReader.of(path)
    with pytest.raises(ValueError, match=r"(?s)3 of 6 files cannot be read:.*x\.parquet.*y\.parquet.*z\.parquet"):
        ParquetReader.of(tmp_path)


def test_of_a_file_without_its_end_no_more_than_its_tail_is_read(tmp_path):
    content = np.random.default_rng(0).bytes(2**20)
    for tail in (b"\0\0\x08\0cut!", b"\xff\xff\xff\x7fPAR1"):  # of 512 KiB, were it a footer; of 2 GiB in 1 MiB
        path = tmp_path / "cut.parquet"
        path.write_bytes(b"PAR1" + content + tail)
        assert len(_footer_and_content(pa.OSFile(str(path)), path.stat().st_size)[0]) == 2**16
        with pytest.raises(ValueError, match=r"cut.parquet is not a complete Parquet file: .*write or copy it again"):
            ParquetReader.of(path)


def test_a_footer_longer_than_the_tail_is_read_whole(tmp_path):
    path = tmp_path / "wide.parquet"
    parquet.write_table(pa.table({f"column_{i}": [i] for i in range(2_000)}), path)
    footer = _footer_and_content(pa.OSFile(str(path)), path.stat().st_size)[0]
    assert len(footer) > 2**16
    assert parquet.read_metadata(pa.BufferReader(footer)).num_columns == 2_000


def test_no_rows_at_all_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there are 0 rows in .*part-00000.parquet and 1 more files"):
        ParquetReader.of(write_tables(tmp_path, (0, 0)))


@pytest.fixture
def damaged(tmp_path):
    """A file whose second row group of four has a flipped bit, with page checksums to tell."""
    (path,) = write_tables(tmp_path, (13,), write_page_checksum=True, compression="none", use_dictionary=False)
    chunk = parquet.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    path.write_bytes(data)
    return path


def description(path, **options):
    reader = ParquetReader.of(path, columns=["index"])
    return IndexedStream(reader, order_of(reader.num_records, groups=reader.groups), num_epochs=1, **options)


def test_a_broken_page_ends_the_stream_before_its_row_group_which_can_be_skipped_and_is_tried_once(
    damaged, monkeypatch
):
    block = description(damaged).read(ReadRequest(0, 13))
    assert (block.columns["index"].tolist(), block.failure_position) == ([0, 1, 2, 3], 4)
    assert isinstance(block.failure, RecordError)
    assert f"{damaged}[4] (row group 1) (position 4): reading raised BrokenRowGroupError" in str(block.failure)
    assert "CRC checksum verification failed" in str(block.failure)
    decoded = count_decodes(monkeypatch)
    block = description(damaged, on_error="skip").read(ReadRequest(0, 13))
    assert block.columns["index"].tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 12]
    assert [skip.position for skip in block.skipped] == [4, 5, 6, 7]
    assert block.skipped[0].where == f"{damaged}[4] (row group 1)"
    assert decoded.count(1) == 1


def test_a_null_without_a_place_names_file_row_group_and_field(tmp_path):
    path = tmp_path / "nulls.parquet"
    parquet.write_table(pa.table({"x": [1, 2, 3, None]}), path, row_group_size=2, write_statistics=False)
    with pytest.raises(ValueError, match=r"nulls.parquet, row group 1: field 'x' \(int64\) has 1 nulls in 2 rows"):
        ParquetReader.of(path).read(np.arange(4))
    filled = ParquetReader.of(path, on_null={"x": 0})
    assert filled.read(np.arange(4))["x"].tolist() == [1, 2, 3, 0]
    assert filled.fingerprint() != ParquetReader.of(path).fingerprint()


def test_the_fingerprint_knows_names_sizes_counts_and_types_but_no_directory(tmp_path, paths):
    def moved(name):
        (tmp_path / name).mkdir()
        return write_tables(tmp_path / name, COUNTS)

    def changed(table, *, row_group=4):
        other = moved(f"d{len(list(tmp_path.iterdir()))}")
        parquet.write_table(table, other[0], row_group_size=row_group)
        return ParquetReader.of(other).fingerprint()

    original = ParquetReader.of(paths).fingerprint()
    assert ParquetReader.of(moved("elsewhere")).fingerprint() == original
    assert ParquetReader.of(paths[::-1]).fingerprint() != original
    assert ParquetReader.of(paths, columns=["index"]).fingerprint()["schema"] != original["schema"]
    assert changed(pa.table(rows(0, 7)), row_group=3)["digest"] != original["digest"]
    assert len(str(original)) < 300


@pytest.mark.parametrize(
    ("name", "kind"),
    [("s.a", lambda twice: twice), ("s.element.a", lambda twice: pa.ListArray.from_arrays([0, 1], twice))],
)
def test_a_struct_with_two_fields_of_one_name_is_refused_and_left_out_where_that_is_said(tmp_path, name, kind):
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array(["b"])], names=["a", "a"])
    parquet.write_table(pa.table({"s": kind(twice), "x": [7]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"x.parquet has the fields \['{name}'\] more than once.*exclude_columns"):
        ParquetReader.of(tmp_path / "x.parquet")
    assert ParquetReader.of(tmp_path / "x.parquet", exclude=["s"]).read(np.arange(1))["x"].tolist() == [7]


# Found by mutants (tests/fuzz)


def test_a_footer_that_is_no_text_is_a_broken_file(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"a": [1, 2]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"parquet-cpp-arrow", b"parquet-cpp-\xce\xce\xce\xce\xce"))
    assert path.read_bytes() != whole
    with pytest.raises(ValueError, match=r"x\.parquet is not a complete Parquet file: 'utf-8' codec"):
        ParquetReader.of(path)


def test_a_footer_that_counts_other_rows_loses_none(tmp_path):
    """1,000 and 999 as Thrift's compact protocol writes them: of the file, of its row group, of its column."""
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"id": np.arange(1_000)}), path, use_dictionary=False, compression="zstd")
    whole, told = path.read_bytes(), []
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in [at for at in range(begin, len(whole)) if whole[at : at + 2] == b"\xd0\x0f"]:
        path.write_bytes(whole[:at] + b"\xce" + whole[at + 1 :])
        try:
            reader = ParquetReader.of(path)
        except ValueError as error:
            told.append(str(error))
        else:
            assert reader.read(np.arange(reader.num_records))["id"].tolist() == list(range(1_000))
    assert len(told) == 2
    assert f"{path} is not a complete Parquet file: its footer says 999 rows, and 1000 in its row groups" in told[0]


def test_text_that_is_no_utf8_breaks_its_row_group_alone(tmp_path):
    path = tmp_path / "x.parquet"
    texts = pa.StringArray.from_buffers(4, pa.array([0, 1, 2, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"ab\xffd"))
    for values in (texts, pa.ListArray.from_arrays([0, 1, 2, 3, 4], texts)):
        parquet.write_table(pa.table({"text": values}), path, row_group_size=2)
        reader = ParquetReader.of(path)
        assert reader.read(np.array([0, 1]))["text"].tolist() == values.slice(0, 2).to_pylist()
        for _ in range(2):
            with pytest.raises(BrokenRowGroupError, match=r"x\.parquet, row group 1 does not decode"):
                reader.read(np.array([3]))


@pytest.mark.parametrize("how", ["in place", "by renaming", "cut"])
def test_a_file_that_changes_while_it_is_open_gives_no_row_and_skips_none(tmp_path, how):
    options = {"row_group_size": 1000, "compression": "none", "use_dictionary": False}
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    parquet.write_table(pa.table({"index": np.arange(4000)}), path, **options)
    parquet.write_table(pa.table({"index": np.arange(4000) + 7}), other, **options)
    assert path.stat().st_size == other.stat().st_size
    os.utime(path, ns=(0, 10**18))  # the clock of a file system ticks some times in a millisecond only
    whole = description(path, on_error="skip")
    assert whole.read(ReadRequest(0, 1000)).columns["index"].tolist() == list(range(1000))
    if how == "in place":
        with path.open("r+b") as file:
            file.write(other.read_bytes())
    elif how == "by renaming":
        other.rename(path)
    else:
        os.truncate(path, 20_000)
    with pytest.raises(ValueError, match=r"a\.parquet (changed while it was read: it had .* go on from the last|held)"):
        whole.read(ReadRequest(1000, 4000))


def test_a_file_of_the_same_size_rows_and_first_page_is_known_by_what_it_holds(tmp_path):
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    path, found = tmp_path / "a.parquet", []
    for last in (1, 2):
        values = np.concatenate([np.arange(1000), np.full(9000, last)])
        parquet.write_table(pa.table({"index": values}), path, **options)
        found.append(ParquetReader.of(path).fingerprint())
    assert {key for key in found[0] if found[0][key] != found[1][key]} == {"content"}


def test_threads_read_what_others_read_and_close(tmp_path):
    parquet.write_table(pa.table({"x": np.arange(600)}), tmp_path / "x.parquet", row_group_size=10)
    reader = ParquetReader.of(tmp_path / "x.parquet")
    records = np.random.default_rng(0).permutation(600)

    def read_and_close():
        for _ in range(8):
            np.testing.assert_array_equal(reader.read(records)["x"], records)
            reader.close()

    with ThreadPoolExecutor(2) as threads:
        for reading in [threads.submit(read_and_close) for _ in range(2)]:
            reading.result()


@pytest.mark.parametrize(
    ("years", "columns", "is_told"), [((1, 2), None, True), ((1, 1), None, False), ((1, 2), "a", False)]
)
def test_columns_that_only_directories_name_are_told(tmp_path, caplog, years, columns, is_told):
    for index, year in enumerate(years):
        folder = tmp_path / f"y={year}" / f"a={index}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"a": [index]}), folder / "x.parquet")  # which has `a` itself
    reader = ParquetReader.of(tmp_path, columns=columns and [columns])
    assert reader.read(np.arange(2))["a"].tolist() == [0, 1]
    assert ("partitioned by y in the names" in caplog.text) == is_told
    assert bool(caplog.text) == is_told


def test_no_bit_of_a_footer_ends_the_process(tmp_path):
    """pyarrow's metadata of a column of a row group throws where nothing catches; a bit of every third byte."""
    table = pa.table({"id": np.arange(9), "list": [[1, 2]] * 9})
    parquet.write_table(table, tmp_path / "p.parquet", store_schema=False)
    command = [sys.executable, "-c", FLIPS, tmp_path / "p.parquet", tmp_path / "copy.parquet"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-500:]
    assert int(run.stdout) > 15


def test_lists_may_be_of_items_in_one_file_and_of_elements_in_another(tmp_path):
    table = pa.table({"x": [[1, 2], [3, 4]], "y": [[{"z": [1]}], []]})
    for compliant in (True, False):
        parquet.write_table(table, tmp_path / f"{compliant}.parquet", use_compliant_nested_type=compliant)
    found = ParquetReader.of(tmp_path).read(np.arange(4))
    assert found["x"].tolist() == [[1, 2], [3, 4]] * 2
    assert found["y"].tolist() == [[{"z": [1]}], []] * 2


def test_a_file_that_is_replaced_is_refused_when_it_is_opened(reader, paths):
    parquet.write_table(pa.table(rows(1, 8)), paths[0], row_group_size=4)
    with pytest.raises(ValueError, match=r"part-00000.parquet had .* bytes .*, and has .* others now; it was replaced"):
        reader.read(np.array([0]))
