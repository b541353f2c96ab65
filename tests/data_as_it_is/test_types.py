"""Columns whose types differ between files: one type that loses nothing, or an error with both files and the setting.

Reported of pandas (one file of integers, one with a missing value is float), of Spark (INT96 beside microseconds) and
of Arrow's own writers (lists of one length beside lists).
"""

import datetime as dt
import decimal
import logging
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import ParquetSource, ParquetSourceConfig, load
from datarax_ray.feed.nulls import _warn_of_nulls
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.arrow.joining import joined
from datarax_ray.read.formats.arrow.types import plain_type, retyped
from datarax_ray.read.formats.parquet.footers import known_of, read_footers
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource, LanceSource, LanceSourceConfig, from_hf
from tests.data_as_it_is.streams import assert_gives, pipeline, rows
from tests.tars import write_tar

DAY = dt.datetime(2024, 1, 2, 3, 4, 5)
FAR = dt.datetime(9999, 12, 31)
INT8, INT16, INT32, INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
HALF, FLOAT, DOUBLE = pa.float16(), pa.float32(), pa.float64()
TEXT, INTS, LONGS = pa.string(), pa.list_(pa.int32()), pa.list_(pa.list_(pa.int64()))


def struct(**kinds):
    return pa.struct(list(kinds.items()))


# One column, another, and the type of both; None where a value would be lost.
JOINS = {
    "int32 int64": (([1, None], INT32), ([2**40], INT64), INT64),
    "uint8 int16": (([255], pa.uint8()), ([-3], INT16), INT16),
    "uint8 int8": (([255], pa.uint8()), ([-3], INT8), INT16),
    "uint32 int32": (([2**32 - 1], pa.uint32()), ([-3], INT32), INT64),
    "uint64 int8": (([2**64 - 1], pa.uint64()), ([-3], INT8), None),
    "uint16 uint64": (([7], pa.uint16()), ([2**64 - 1], pa.uint64()), pa.uint64()),
    "float32 float64": (([0.5], FLOAT), ([0.1], DOUBLE), DOUBLE),
    "float16 float32": (([0.5], HALF), ([2.0**100], FLOAT), FLOAT),
    "int32 float64": (([2**31 - 1], INT32), ([0.1], DOUBLE), DOUBLE),
    "int32 float32": (([2**31 - 1], INT32), ([0.5], FLOAT), DOUBLE),
    "int16 float32": (([-(2**15)], INT16), ([0.5], FLOAT), FLOAT),
    "int16 float16": (([2**15 - 1], INT16), ([0.5], HALF), FLOAT),
    "int64 float64": (([2**53 + 1], INT64), ([0.5], DOUBLE), None),
    "uint64 float32": (([2**53 + 1], pa.uint64()), ([0.5], FLOAT), None),
    "bool int": (([True], pa.bool_()), ([1], INT64), None),
    "text int": ((["1"], TEXT), ([1], INT64), None),
    "text bytes": ((["a"], TEXT), ([b"a"], pa.binary()), None),
    "text large text": ((["a"], TEXT), (["b"], pa.large_string()), TEXT),
    "text view": ((["a"], TEXT), (["b"], pa.string_view()), TEXT),
    "text dictionary": ((["a"], TEXT), (["b", None], pa.dictionary(INT8, TEXT)), TEXT),
    "dictionary of ints, int64": (([5], pa.dictionary(INT8, INT32)), ([6], INT64), INT64),
    "seconds nanoseconds": (([DAY], pa.timestamp("s")), ([DAY, None], pa.timestamp("ns")), pa.timestamp("ns")),
    "date milliseconds": (([DAY.date()], pa.date32()), ([DAY], pa.timestamp("ms")), pa.timestamp("ms")),
    "two zones": (
        ([DAY.replace(tzinfo=dt.UTC)], pa.timestamp("s", "Europe/Berlin")),
        ([DAY.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        pa.timestamp("us", "UTC"),
    ),
    "zone none": (([DAY], pa.timestamp("us")), ([DAY.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC")), None),
    "time of day": (([dt.time(1)], pa.time32("ms")), ([dt.time(2)], pa.time64("us")), pa.time64("us")),
    "durations": (([dt.timedelta(1)], pa.duration("s")), ([dt.timedelta(2)], pa.duration("us")), pa.duration("us")),
    "decimals": (
        ([decimal.Decimal("1.5")], pa.decimal128(3, 1)),
        ([decimal.Decimal("0.125")], pa.decimal128(5, 4)),
        pa.decimal128(6, 4),
    ),
    "fixed list": (([[1, 2], None], pa.list_(INT32, 2)), ([[1], [], None], INTS), INTS),
    "two fixed lists": (([[1, 2]], pa.list_(INT32, 2)), ([[1]], pa.list_(INT32, 1)), None),
    "fixed lists of more": (([[1, 2], None], pa.list_(INT32, 2)), ([[3, 4]], pa.list_(INT64, 2)), pa.list_(INT64, 2)),
    "view of lists": (([[1], None, [2]], pa.list_view(INT32)), ([[1, 2]], pa.large_list(INT64)), pa.list_(INT64)),
    "lists of lists": (([[[1]]], pa.list_(INTS)), ([[[2], None], []], LONGS), LONGS),
    "null": (([None], pa.null()), ([[1]], INTS), INTS),
    "list of null": (([[], [None]], pa.list_(pa.null())), ([["a"]], pa.list_(TEXT)), pa.list_(TEXT)),
    "one field more": (
        ([{"a": 1}, None], struct(a=INT32)),
        ([{"a": 2, "b": "x"}], struct(a=INT64, b=TEXT)),
        struct(a=INT64, b=TEXT),
    ),
    "list struct": (([[1]], INTS), ([{"a": 1}], struct(a=INT32)), None),
    "field of two kinds": (([{"a": 1}], struct(a=INT32)), ([{"a": "x"}], struct(a=TEXT)), None),
}  # fmt: skip


def filled(value, kind):
    """The value as Python has it under this type: None in place of fields that it lacks, and midnight of a date."""
    if pa.types.is_timestamp(kind) and type(value) is dt.date:
        return dt.datetime.combine(value, dt.time())
    if pa.types.is_struct(kind) and value is not None:
        return {field.name: filled(value.get(field.name), field.type) for field in kind}
    return value


@pytest.mark.parametrize("name", JOINS)
def test_two_types_are_one_that_keeps_every_value_or_none_and_strictly_of_the_same_arrays_alone(name):
    (one, first), (other, second), want = JOINS[name]
    for a, b in ((first, second), (second, first)):
        found = joined(a, b)
        assert (found and plain_type(found)) == (want and plain_type(want))
    is_same = plain_type(first) == plain_type(second) or "null" in name
    assert (joined(first, second, strict=True) is not None) == is_same
    for values, kind in ((one, first), (other, second)) if want else ():
        for array in (pa.array(values, kind), pa.array([*values, *values], kind)[len(values) :]):
            made = retyped(array, want)
            made.validate(full=True)
            assert (made.type, made.to_pylist()) == (want, [filled(value, want) for value in values])


def test_integers_that_are_known_to_be_small_are_floats_and_no_others():
    one, other = struct(a=INT64, b=INT64), struct(a=DOUBLE, b=INT64)
    assert joined(one, other, path="x") is None
    assert joined(one, other, path="x", small={"x.a"}) == struct(a=DOUBLE, b=INT64)
    with pytest.raises(pa.ArrowInvalid, match="not in range"):  # whatever was said of them
        retyped(pa.array([2**53 + 1]), DOUBLE)


def uuids(*values):
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


# Files of one source: the tables, the settings, the rows of all, and the dtype of the column x; None for the host.
MANY = 300  # rows, more than the first ones by which columns were decided alone
FILES = {
    "int32 and int64": ([{"x": pa.array([1, 2], INT32)}, {"x": [2**40]}], {}, [1, 2, 2**40], "int64"),
    "int64 and float, all small": ([{"x": [1, 2]}, {"x": [0.5]}], {}, [1.0, 2.0, 0.5], "float64"),
    "int64 and float, as chosen": (
        [{"x": [1, 2**53 + 1]}, {"x": [0.5]}],
        {"column_types": {"x": "float64"}},
        [1.0, 2.0**53, 0.5],
        "float64",
    ),
    "text and int, as chosen": ([{"x": ["a"]}, {"x": [5]}], {"column_types": {"x": "string"}}, ["a", "5"], None),
    "a null far behind": ([{"x": [1] * MANY}, {"x": [1] * MANY + [None]}], {}, [1] * 2 * MANY + [None], None),
    "a null far behind, a value": (
        [{"x": [1] * MANY}, {"x": [1] * MANY + [None]}],
        {"on_null": 0},
        [1] * 2 * MANY + [0],
        "int64",
    ),
    "a value that no integer is": ([{"x": [1, None]}], {"on_null": 0.5}, [1, None], None),
    "a missing column": ([{"x": [1]}, {"y": ["a"], "x": [2]}], {}, [1, 2], "int64"),
    "a missing column of numbers": ([{"y": ["a"]}, {"y": ["b"], "x": [2]}], {"on_null": "host"}, [None, 2], None),
    "a missing struct": ([{"y": [1]}, {"y": [2], "x": [{"a": 1}]}], {}, [None, {"a": 1}], None),
    "one field more": (
        [{"x": [{"a": "u"}]}, {"x": [{"a": "v", "b": "w"}]}],
        {},
        [{"a": "u", "b": None}, {"a": "v", "b": "w"}],
        None,
    ),
    "nulls of a struct late": (
        [{"x": [{"a": 1, "b": 2}] * MANY + [None]}],
        {},
        [{"a": 1, "b": 2}] * MANY + [None],
        None,
    ),
    "empty lists late": ([{"x": [[1]] * MANY + [[], None]}], {}, [[1]] * MANY + [[], None], None),
    "nulls in lists late": ([{"x": [[1, 2]] * MANY + [[3, None]]}], {}, [[1, 2]] * MANY + [[3, None]], None),
    "fixed lists and lists": (
        [{"x": pa.array([[1, 2]], pa.list_(INT32, 2))}, {"x": [[3, 4]]}],
        {},
        [[1, 2], [3, 4]],
        "int64",
    ),
    "views of lists": ([{"x": pa.array([[1], [2]], pa.list_view(INT32))}, {"x": [[3]]}], {}, [[1], [2], [3]], "int64"),
    "views in a struct, in many lengths": (
        [{"x": pa.array([{"a": [1]}, {"a": [2, 3]}], struct(a=pa.large_list_view(INT8)))}],
        {},
        [{"a": [1]}, {"a": [2, 3]}],
        None,
    ),
    "bools in a byte": (
        [{"x": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], INT8))}, {"x": [True]}],
        {},
        [True, False, True],
        "bool",
    ),
    "JSON text": ([{"x": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}']))}], {}, ['{"a": 1}'], None),
    "UUID": ([{"x": uuids(b"u" * 16)}], {}, [b"u" * 16], None),
    "INT96 and microseconds": (
        [{"x": pa.array([DAY], pa.timestamp("ns"))}, {"x": pa.array([DAY], pa.timestamp("us"))}],
        {},
        [DAY] * 2,
        "datetime64[us]",
    ),
    "INT96 for no end": ([{"x": pa.array([FAR], pa.timestamp("us"))}], {}, [FAR], "datetime64[us]"),
}  # fmt: skip


def parquet(folder, tables):
    for number, table in enumerate(tables):
        options = {"use_deprecated_int96_timestamps": True} if number == 0 else {}
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=200, **options)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_files_of_several_types_are_one_column(name, tmp_path):
    tables, settings, want, dtype = FILES[name]
    folder = parquet(tmp_path, tables)

    def make():
        return ParquetSource(ParquetSourceConfig(num_epochs=1, **settings), folder, columns=["x"])

    column = make().describe().reader.read(np.arange(len(want)))["x"]
    assert (None if isinstance(column, dict) or column.dtype == object else str(column.dtype)) == dtype
    assert_gives(make, [{"x": value} for value in want])


REFUSED = {
    "int64 beyond 2**53 and float": (
        [{"x": [2**53 + 1]}, {"x": [0.5]}],
        {},
        r"int64 in .*0\.parquet and double in .*1\.parquet; no one type .* set column_types=\{'x': 'float64'\}",
    ),
    "text and int": ([{"x": ["a"]}, {"x": [1]}], {}, r"string in .*0\.parquet and int64 .*=\{'x': 'string'\}"),
    "strictly": ([{"x": pa.array([1], INT32)}, {"x": [1]}], {"schema": "strict"}, r"not widened to int64 "),
    "strictly one more": ([{"x": [1]}, {"x": [1], "y": [1]}], {"schema": "strict"}, "'y' is missing in .* and"),
    "nothing in common": ([{"x": [1]}, {"y": [1]}], {}, "'x' is int64 in .* and missing in"),
    "a type that cannot be": ([{"x": [[1]]}], {"column_types": {"x": "int64"}}, "does not fit: .* is list<int64> in"),
    "a type of no field": ([{"x": [1]}], {"column_types": {"z": "int64"}}, r"column_types names \['z'\]"),
    "nulls, all at once": (
        [{"x": [1, None], "y": [0.5, None], "z": ["a", None]}],
        {"on_null": "error"},
        r"'x' \(1 nulls in 2 rows\), 'y' \(1 nulls in 2 rows\)\. on_null=\{'x': value\}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_is_refused_before_the_first_batch(name, tmp_path):
    tables, settings, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        ParquetSource(ParquetSourceConfig(**settings), parquet(tmp_path, tables))


def test_what_is_widened_is_said_and_all_nulls_in_one_warning(tmp_path, caplog):
    folder = parquet(tmp_path, [{"x": pa.array([1], INT32)}, {"x": [2], "y": ["a"], "z": [0.5]}])
    with caplog.at_level(logging.INFO):
        ParquetSource(ParquetSourceConfig(), folder)
    told = [line for line in caplog.messages if "field" in line]
    assert len(told) == 4
    assert told[0].startswith(f"field 'x' is read as int64: it is int64 in {folder}/1.parquet, int32 in")
    assert [line.split(". ")[0] for line in told[1:3]] == [
        f"field {name!r} is in {folder}/1.parquet and not in {folder}/0.parquet: there it is null" for name in "yz"
    ]
    assert told[3].startswith(
        "fields with nulls stay on the host, as objects with None: z (1 nulls in 2 rows). on_null={'z'"
    )


def test_a_row_that_a_chosen_type_does_not_hold_is_broken_alone(tmp_path):
    folder = parquet(tmp_path, [{"x": ["1", "many", "3"]}])
    types = {"column_types": {"x": "int64"}, "num_epochs": 1}
    with pytest.raises(RecordError, match=r"0\.parquet\[1\].*'x' is string here and read as int64.*column_types=\{'x'"):
        list(ParquetSource(ParquetSourceConfig(**types), folder))
    skipping = ParquetSource(ParquetSourceConfig(on_error="skip", **types), folder)
    assert [int(row["x"]) for row in skipping] == [1, 3]


def test_a_resume_with_other_values_for_nulls_names_both(tmp_path):
    folder = parquet(tmp_path, [{"x": [1, None, 3]}])
    state = ParquetSource(ParquetSourceConfig(on_null=0), folder).get_state()
    with pytest.raises(DriftError, match=r"files\.on_null: .* written with '0', this pipeline has '-1'"):
        ParquetSource(ParquetSourceConfig(on_null=-1), folder).set_state(state)
    with pytest.raises(DriftError, match=r"files\.columns"):
        ParquetSource(ParquetSourceConfig(on_null="host"), folder).set_state(state)
    host = ParquetSource(ParquetSourceConfig(), folder).get_state()
    ParquetSource(ParquetSourceConfig(on_null="host"), folder).set_state(host)  # the same stream, without the warning


# A column, and what its footer tells: sure nulls, whether they may be those of a struct, of many lengths, nulls inside.
KNOWN = {
    "a number": (pa.array([1, None, 3, None]), (2, False, False, False)),
    "a number in a struct": (
        pa.array([{"a": 1, "b": 1}, None, {"a": None, "b": 2}, {"a": 2, "b": 3}]),
        (1, False, False, False),
    ),
    "a struct": (pa.array([{"a": 1, "b": 1}, None, {"a": 2, "b": 3}]), (0, True, False, False)),
    "a list": (pa.array([[1, 2], None, [3, 4]]), (0, False, True, False)),
    "an empty list": (pa.array([[1], [], [3]]), (0, False, True, False)),
    "in a list": (pa.array([[1, 2], [3, None]]), (0, False, False, True)),
    "a fixed list": (pa.array([[1, 2], None], pa.list_(INT64, 2)), (0, False, True, False)),
    "none": (pa.array([{"a": 1, "b": 1}]), (0, False, False, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("is_counted", [True, False])
def test_footers_tell_of_nulls_at_each_level(name, is_counted, tmp_path):
    column, want = KNOWN[name]
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", write_statistics=is_counted)
    footers = read_footers(tmp_path, None, (), None)
    known = known_of(footers.files, footers.schema)
    path = "x.a" if pa.types.is_struct(column.type) else "x"
    found = (known.nulls.get(path, 0), path in known.unsure, path in known.ragged, path in known.inside)
    assert found == (want if is_counted else (0, False, name == "a list" or name == "a fixed list", False))
    unknown = known_of(footers.files, footers.schema, unknown_are_null=True)
    assert (path in unknown.nulls) == (
        (is_counted and bool(want[0] or want[3])) or (not is_counted and "list" not in name)
    )


def test_load_takes_the_settings_of_tables_and_names_the_formats_that_have_them(tmp_path):
    folder = parquet(tmp_path, [{"x": [1, None], "y": [1, 2], "z": ["a", "b"]}])
    (tmp_path / "x.csv").write_text("x,y\n1,2\n,4\n")
    assert rows(pipeline(load(f"{folder}/*.parquet", columns=["x"], on_null=0))) == [{"x": 1}, {"x": 0}]
    typed = load(f"{folder}/*.parquet", exclude_columns=["x", "z"], column_types={"y": "float32"})
    assert rows(pipeline(typed)) == [{"y": 1.0}, {"y": 2.0}]
    assert rows(pipeline(load(tmp_path / "x.csv", on_null=-1, column_types={"y": "float32"}))) == [
        {"x": 1, "y": 2.0},
        {"x": -1, "y": 4.0},
    ]
    with pytest.raises(TypeError, match="columns is for Parquet, MDS, Lance, Hugging Face, and load found CSV"):
        load(tmp_path / "x.csv", columns=["x"])
    datasets.Dataset.from_dict({"x": [1], "y": [2]}).save_to_disk(tmp_path / "saved")
    assert rows(pipeline(load(tmp_path / "saved", columns=["y"]))) == [{"y": 2}]
    with pytest.raises(TypeError, match="column_types is for Parquet, CSV, JSON lines, .*, and load found a Hug"):
        load(tmp_path / "saved", column_types={"x": "float32"})
    with pytest.raises(TypeError, match="fields is for tar, and load found CSV"):
        load(tmp_path / "x.csv", fields=["x"])
    members = [("0.txt", b"a"), ("0.cls", b"1"), ("1.cls", b"2")]
    chosen = load(write_tar(tmp_path / "x.tar", members), fields=["txt"], missing="skip")
    assert chosen.get_batch(2)["txt"].tolist() == ["a"]


# Columns of a Hugging Face dataset, the setting, and the rows or the error; and the fields of the warning.
MANY_FIRST = 300  # rows that tell of a stream, and more
OF_HF = {
    "a value": ({"x": [1, None], "t": ["a", None]}, 0, [{"x": 1, "t": "a"}, {"x": 0, "t": None}], ""),
    "for each": ({"x": [1, None], "t": ["a", None]}, {"x": 7, "t": ""}, [{"x": 1, "t": "a"}, {"x": 7, "t": ""}], ""),
    "in a struct": ({"s": [{"a": 1}, None, {"a": None}]}, {"s.a": 7}, [{"s": {"a": v}} for v in (1, 7, 7)], ""),
    "of lists": ({"x": [[1, 2], None]}, {"x": [0, 0]}, [{"x": [1, 2]}, {"x": [0, 0]}], ""),
    "said by nobody": ({"x": [1, None], "y": [None, 0.5]}, None, [{"x": 1, "y": None}, {"x": None, "y": 0.5}], "x, y"),
    "on the host": ({"x": [1, None]}, "host", [{"x": 1}, {"x": None}], ""),
    "refused": ({"x": [1, None]}, "error", r"there are nulls, and on_null has 'error' for them: 'x'", ""),
    "another column": ({"x": [1]}, {"y": 0}, r"on_null names \['y'\], and the fields that are read are \['x'\]", ""),
}  # fmt: skip


@pytest.mark.parametrize("of", ["eager", "stream", "elements"])
@pytest.mark.parametrize("name", OF_HF)
def test_nulls_of_hugging_face_datasets_are_those_of_tables(name, of, caplog):
    columns, on_null, want, told = OF_HF[name]
    _warn_of_nulls.cache_clear()

    def make():
        dataset = datasets.Dataset.from_dict(columns)
        if of != "eager":
            dataset = dataset.to_iterable_dataset()
        return from_hf(dataset.map(dict) if of == "elements" else dataset, on_null=on_null)

    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            make()
        return
    assert_gives(make, want)
    assert [line.partition(". ")[0].rpartition(": ")[2] for line in caplog.messages if "with nulls" in line] == (
        [told] if told else []
    )


def test_a_later_null_of_a_stream_names_on_null_and_a_dataset_decides_as_a_whole(tmp_path):
    column = {"x": [1] * MANY_FIRST + [None, 2]}
    dataset = datasets.Dataset.from_dict(column)
    said = r"is null.* on_null=\{'x': value\} to put .* or name the column in host_keys"
    with pytest.raises(RecordError, match=said) as e:
        rows(pipeline(from_hf(dataset.to_iterable_dataset()), MANY_FIRST))
    assert "`datarax-ray check PATHS`" in e.value.__notes__[-1]
    for streaming in (True, False):
        found = from_hf(dataset.to_iterable_dataset() if streaming else dataset, on_null={"x": 0})
        assert [row["x"] for row in rows(pipeline(found, MANY_FIRST))] == [1] * MANY_FIRST + [0, 2]
    assert from_hf(dataset).get_batch(1)["x"] == [1]
    state = from_hf(dataset, on_null=0).get_state()
    with pytest.raises(DriftError, match="on_null"):
        from_hf(dataset, on_null=1).set_state(state)
    with pytest.raises(ValueError, match="elements of dataset stay as the dataset makes them .*in a transform"):
        from_hf(dataset.to_iterable_dataset().map(dict).with_format("numpy"), on_null=0)
    with pytest.raises(ValueError, match=r"on_null gives a value for \['x'\], which are objects on the host"):
        HFStreamingSource(HFStreamingConfig(host_keys=("x",), on_null={"x": 0}), dataset=dataset.to_iterable_dataset())


def test_rows_of_lance_decide_as_a_whole_where_they_are_few_and_it_is_told_where_not(tmp_path, monkeypatch, caplog):
    lance = pytest.importorskip("lance")
    values = [1] * 5000 + [None]
    lance.write_dataset(pa.table({"x": values, "y": [[1]] * 5000 + [[1, 2]]}), tmp_path / "x.lance")

    def made(**settings):
        config = LanceSourceConfig(num_epochs=1, **settings)
        return rows(pipeline(LanceSource(config, tmp_path / "x.lance"), 5001))

    want = [{"x": x, "y": [1]} for x in values[:-1]]
    assert made() == [*want, {"x": None, "y": [1, 2]}]
    assert made(on_null={"x": 0}) == [*want, {"x": 0, "y": [1, 2]}]
    assert "fields with nulls stay on the host, as objects with None: x. " in caplog.text
    monkeypatch.setattr("datarax_ray.read.formats.lance._WHOLE_NBYTES", 1000)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(RecordError, match=r"x\.lance@1\[5000\].*is null.*on_null=\{'x': value\}"),
    ):
        made()
    assert "the first 4,096 of 5,001 rows decide" in caplog.text


# Files that other writers wrote, here beside: by polars.DataFrame(...).write_parquet (2.1.0), and by DuckDB's
# COPY (VALUES ...) TO ... (FORMAT parquet) (2.0.1).
WRITTEN = {
    "polars.parquet": [
        {"x": 1, "l": [1, 2], "f": [1, 2], "t": "a", "s": {"a": 1}, "c": "u", "b": True},
        {"x": None, "l": [3], "f": [3, 4], "t": None, "s": {"a": 2}, "c": "v", "b": False},
        {"x": 3, "l": None, "f": [5, 6], "t": "c", "s": None, "c": "u", "b": True},
    ],
    "duckdb.parquet": [
        {
            "x": 1, "l": [1, 2], "f": [1, 2], "t": "a", "s": {"a": 1},
            "u": bytes(15) + b"\x01", "j": '{"k":1}', "d": DAY.date(),
        },
        {"x": None, "l": [3], "f": [3, 4], "t": None, "s": {"a": 2}, "u": bytes(15) + b"\x02", "j": "[]", "d": None},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_other_writers_are_read(name):
    path = Path(__file__).parent / "written" / name
    assert_gives(lambda: ParquetSource(ParquetSourceConfig(num_epochs=1), path), WRITTEN[name])
    dense = ParquetSource(ParquetSourceConfig(num_epochs=1, on_null=0), path, columns=["x", "f"]).get_batch(2)
    assert [(column.dtype.kind, column.tolist()) for column in dense.values()] == [
        ("i", [[1, 2], [3, 4]]),
        ("i", [1, 0]),
    ]


def test_lists_and_times_in_the_layout_of_spark_are_those_of_others(tmp_path):
    legacy = pa.list_(pa.field("array", INT32))
    table = pa.table({"x": pa.array([[1, 2], [3, 4]], legacy), "t": pa.array([DAY, None], pa.timestamp("ns"))})
    layout = {"use_compliant_nested_type": False, "use_deprecated_int96_timestamps": True}
    pq.write_table(table, tmp_path / "0.parquet", store_schema=False, **layout)
    pq.write_table(pa.table({"x": [[5, 6]], "t": pa.array([DAY], pa.timestamp("us"))}), tmp_path / "1.parquet")
    found = ParquetSource(ParquetSourceConfig(num_epochs=1), tmp_path).get_batch(3)
    assert (found["x"].dtype, found["x"].tolist()) == (np.int64, [[1, 2], [3, 4], [5, 6]])
    day = np.datetime64(DAY, "us")
    assert found["t"].dtype == "datetime64[us]"
    np.testing.assert_array_equal(found["t"], [day, np.datetime64("NaT"), day])


def test_files_of_several_types_are_one_column_over_actors(tmp_path, ray_local):
    tables, settings, want, _ = FILES["one field more"]
    folder = parquet(tmp_path, tables)
    config = ParquetSourceConfig(num_epochs=1, **settings)
    assert_gives(lambda: ParquetSource(config, folder, columns=["x"]), [{"x": value} for value in want], num_actors=2)
