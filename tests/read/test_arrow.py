"""Arrow's types as columns: every value that was written, the same for every part of a table, or an error."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from datarax_ray.read.elements.columns import spec
from datarax_ray.read.formats.arrow.columns import ColumnTypes, Field, UnlikeError, rows_of_table
from datarax_ray.read.formats.arrow.types import OnNull, fixed_nbytes, plain_type

DAY = dt.datetime(2020, 1, 2, 3, 4, 5)


def table_columns(table, fill):
    """The columns as their types alone decide."""
    fills = OnNull.of(fill).fills([])
    fields = sorted((Field.of_type(part.name, part.type, fills) for part in table.schema), key=lambda field: field.path)
    return ColumnTypes(tuple(fields)).columns(table)


def columns(values, **fill):
    """The column of a table that has one row more before and after, so that offsets count."""
    padded = pa.concat_arrays([values.slice(0, 1), values, values.slice(0, 1)])
    return table_columns(pa.table({"x": padded}).slice(1, len(values)), fill)["x"]


def test_numbers_are_views_of_arrows_memory_and_read_only():
    table = pa.table({"x": pa.array([1, 2, 3]), "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))})
    found = table_columns(table, {})
    address = table.column("x").chunk(0).buffers()[1].address
    assert found["x"].ctypes.data == address
    assert not found["x"].flags.writeable
    assert not found["v"].flags.owndata


@pytest.mark.parametrize("permutation", [None, [0, 1, 2]], ids=str)
def test_tensors_have_their_shape(permutation):
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 3, 4], permutation=permutation)
    stored = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * 24, dtype=np.int16)), 24)
    tensors = pa.FixedShapeTensorArray.from_storage(kind, stored)
    wanted = tensors.to_numpy_ndarray()
    found = table_columns(pa.table({"x": tensors}).slice(1), {})["x"]
    assert (found.dtype, found.flags.c_contiguous, found.flags.writeable) == (np.int16, True, False)
    np.testing.assert_array_equal(found, wanted[1:])
    assert plain_type(kind) == "fixed_size_list<fixed_size_list<fixed_size_list<int16>[4]>[3]>[2]"


def test_tensors_that_pyarrow_does_not_read_as_it_wrote_them_are_refused():
    written = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(48).reshape(2, 2, 3, 4).transpose(0, 3, 1, 2))
    for read in (lambda: table_columns(pa.table({"x": written}), {}), lambda: plain_type(written.type)):
        with pytest.raises(ValueError, match=r"permutation=\[1,2,0\].* has its axes in an order that .* two ways"):
            read()


def test_tensors_beside_nulls_have_their_shape_and_so_may_what_stands_for_these():
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    stored = pa.array([[*range(6)], None, [*range(6, 12)]], kind.storage_type)
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, stored)})
    wanted = pa.ExtensionArray.from_storage(kind, stored.drop_null()).to_numpy_ndarray()
    rows = [wanted[0].tolist(), None, wanted[1].tolist()]
    assert table_columns(table, {"x": "host"})["x"].tolist() == rows
    assert [row["x"] for row in rows_of_table(table)] == rows
    instead = np.arange(6, dtype=np.float32).reshape(wanted.shape[1:])
    found = table_columns(table, {"x": instead.tolist()})["x"]
    np.testing.assert_array_equal(found, [wanted[0], instead, wanted[1]])


@pytest.mark.parametrize("value_type", [pa.bool_(), pa.int32(), pa.float32()], ids=str)
def test_nulls_inside_a_tensor_stay_nulls_on_the_host(value_type):
    kind = pa.fixed_shape_tensor(value_type, [2, 3])
    stored = pa.array([[1, None, 0, 1, 0, 1], [0, 1, 1, 0, 0, 1]], pa.list_(pa.int32(), 6)).cast(kind.storage_type)
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, stored)})
    with pytest.raises(UnlikeError, match="nulls inside its lists"):
        table_columns(table, {})
    first, last = table_columns(table, {"x": "host"})["x"]
    assert first == [[1, None, 0], [1, 0, 1]]
    assert last == [[0, 1, 1], [0, 0, 1]]
    assert [row["x"] for row in rows_of_table(table)] == [first, last]


def test_a_column_of_more_than_arrow_joins_is_read():
    """Of text, as of these lists, a row group of more than 2 GiB has several arrays."""
    chunk = pa.array([np.zeros(2**27, np.int8), np.ones(1, np.int8)])
    column = pa.chunked_array([chunk] * 17)
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        column.combine_chunks()
    found = table_columns(pa.table({"x": column}), {})["x"]
    assert [len(row) for row in found] == [2**27, 1] * 17
    assert {int(row[0]) for row in found} == {0, 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, None]), r"field 'x' \(int64\) has 1 nulls in 2 rows, and a dense array has no place for that"),
        (pa.array([True, None]), r"field 'x' \(bool\) has 1 nulls"),
        (pa.array([{"a": 1}, {"a": None}]), r"field 'x\.a' \(int64\) has 1 nulls"),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "has 1 nulls in 2 rows"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), r"field 'x' has nulls inside its lists"),
        (pa.array([[[1], None]], pa.list_(pa.list_(pa.int8(), 1), 2)), r"field 'x' has nulls inside its lists"),
        (pa.array([[1, None]]), r"field 'x' has nulls inside its lists"),
    ],
    ids=str,
)
def test_a_null_without_a_place_names_the_field_and_the_remedy(values, message):
    with pytest.raises(ValueError, match=message):
        table_columns(pa.table({"x": values}), {})


@pytest.mark.parametrize(
    ("values", "fill", "expected"),
    [
        (pa.array([1, None]), -1, [1, -1]),
        (pa.array([0.5, None]), float("inf"), [0.5, float("inf")]),
        (pa.array([1, None]), "host", [1, None]),
        (pa.array([True, None]), False, [True, False]),
        (pa.array([[1, None], None]), "host", [[1, None], None]),
        (pa.array(["a", None]), "", ["a", ""]),
        (pa.array([{"a": 1}, None]), "host", [{"a": 1}, None]),
        (pa.nulls(2), "?", ["?", "?"]),
    ],
)
def test_nulls_are_filled_as_asked(values, fill, expected):
    found = columns(values, x=fill)
    assert found.tolist() == expected
    assert (found.dtype == object) == isinstance(fill, str)


@pytest.mark.parametrize(
    ("kind", "fill", "message"),
    [
        (pa.int64(), "no", "on_null gives 'no' for field 'x' of int64, which cannot be"),
        (pa.date32(), "2020-01-01", r"for field 'x' of date32\[day\], .* give a value of that type, or 'host'"),
        # Arrow cuts these without a word, and a mean in place of nulls would be zero
        (pa.int32(), 0.5, r"gives .*0\.5.* for field 'x' of int32, which cannot be: it would be 0"),
        (pa.int32(), np.float32(0.5), "it would be 0"),
        (pa.int32(), decimal.Decimal("0.5"), "it would be 0"),
    ],
)
def test_a_fill_that_is_no_such_value_is_refused(kind, fill, message):
    with pytest.raises(ValueError, match=message):
        columns(pa.array([None, None], kind), x=fill)
    assert columns(pa.array([None, 1], pa.int32()), x=2.0).tolist() == [2, 1]


def test_types_that_give_the_same_arrays_have_the_same_name():
    assert plain_type(pa.large_string()) == plain_type(pa.dictionary(pa.int8(), pa.string())) == "string"
    assert plain_type(pa.struct([("b", pa.int8()), ("a", pa.int8())])) == "struct<a: int8, b: int8>"
    assert plain_type(pa.list_(pa.int8())) == plain_type(pa.large_list(pa.int8())) != plain_type(pa.list_(pa.int8(), 3))
    assert plain_type(pa.timestamp("us")) != plain_type(pa.timestamp("ns"))


def test_the_size_of_a_value_is_that_of_its_array():
    assert fixed_nbytes(pa.list_(pa.list_(pa.int16(), 3), 2)) == 12
    assert fixed_nbytes(pa.struct([("a", pa.int8()), ("b", pa.bool_())])) == 2
    assert fixed_nbytes(pa.string()) is None
    assert fixed_nbytes(pa.struct([("a", pa.int8()), ("b", pa.string())])) is None


# Decided by the rows


def plain(column):
    """The rows, with lists in place of the arrays of a ragged column."""
    return [row.tolist() if isinstance(row, np.ndarray | np.generic) else row for row in column]


def chunked(*chunks, kind=None):
    kind = kind or pa.array([value for chunk in chunks for value in chunk]).type
    return pa.table({"x": pa.chunked_array([pa.array(chunk, kind) for chunk in chunks])})


@pytest.mark.parametrize(
    ("table", "dtype", "shape"),
    [
        (chunked([1, 2], [3], kind=pa.int16()), "int16", ()),
        (chunked([1.5, 2], [3], kind=pa.float16()), "float16", ()),
        (chunked([True], [False, True]), "bool", ()),
        (chunked([[1, 2], [3, 4]], [[5, 6]]), "int64", (2,)),
        (chunked([[1, 2]], [[3, 4], [5, 6]], kind=pa.large_list(pa.int8())), "int8", (2,)),
        (chunked([[1, 2]], [[3, 4], [5, 6]], kind=pa.list_(pa.float32(), 2)), "float32", (2,)),
        (chunked([[[1], [2]]], [[[3], [4]], [[5], [6]]]), "int64", (2, 1)),
        (chunked([[]], [[], []], kind=pa.list_(pa.int32())), "int32", (0,)),
        (chunked([["a"], ["b"]], [["c"]]), "object", ()),
        (chunked([[1, 2], [3]], [[5, 6]]), "object", ()),
        (chunked([[1, 2]], [[3]], [[5, 6]]), "object", ()),
        (chunked([[[1, 2]]], [[[3]], [[4]]]), "object", ()),
        (chunked([[1, None]], [[3, 4], [5, 6]]), "object", ()),
        (chunked([None], [[3, 4], [5, 6]]), "object", ()),
        (chunked([1, 2], [None]), "object", ()),
        (chunked(["a", None], ["b"]), "object", ()),
        (chunked([b"a"], [b"b", b""]), "object", ()),
        (chunked([{"y": 1}], [None, {"y": 2}]), "object", ()),
        (chunked([[{"y": 1}]], [[], [{"y": 2}]]), "object", ()),
        (chunked([None, None, None]), "object", ()),
    ],
)
def test_every_part_has_the_dtype_and_shape_of_the_whole(table, dtype, shape):
    types = ColumnTypes.of(table)
    want = table.column("x").to_pylist()
    for start in range(3):
        for stop in range(start + 1, 4):
            column = types.columns(table.slice(start, stop - start))["x"]
            assert (str(column.dtype), column.shape) == (dtype, (stop - start, *shape))
            assert plain(column) == want[start:stop]
    taken = types.columns(table.take(np.array([2, 0, 2])))["x"]
    assert (str(taken.dtype), plain(taken)) == (dtype, [want[2], want[0], want[2]])


def test_a_struct_is_a_dict_of_columns():
    rows = [{"a": i, "b": {"c": [i, i], "d": None if i == 1 else i, "e": [0] * i}} for i in range(3)]
    table = pa.table({"x": rows})
    columns = ColumnTypes.of(table).columns(table.slice(1))["x"]
    assert columns["a"].tolist() == [1, 2]
    assert columns["b"]["c"].tolist() == [[1, 1], [2, 2]]
    assert columns["b"]["d"].tolist() == [None, 2]
    assert plain(columns["b"]["e"]) == [[0], [0, 0]]


def test_structs_without_fields_are_objects_at_any_depth():
    rows = [{"a": {}, "b": {"c": {}}, "d": i} for i in range(3)]
    for fill in ({}, {"x.a": {}}):
        column = ColumnTypes.of(pa.table({"x": rows}), on_null=fill).columns(pa.table({"x": rows[1:]}))["x"]
        assert (column["a"].tolist(), column["b"]["c"].tolist(), column["d"].tolist()) == ([{}, {}], [{}, {}], [1, 2])


@pytest.mark.parametrize("fill", [{"x.f": 7}, {"x.f": 7, "x.t": "host"}], ids=str)
def test_a_field_is_filled_beside_a_struct_that_is_null(fill):
    rows = [{"f": None, "t": {"g": [1, 2]}}, {"f": 5, "t": None}, {"f": 6, "t": {"g": [3, 4]}}]
    types = ColumnTypes.of(pa.table({"x": rows}), on_null=fill)
    for start in range(3):
        column = types.columns(pa.table({"x": rows}).slice(start))["x"]
        assert (column["f"].dtype, column["f"].tolist()) == (np.int64, [7, 5, 6][start:])
        assert column["t"].tolist() == [row["t"] for row in rows[start:]]
    assert ColumnTypes.of(pa.table({"x": rows}), on_null={"x.f": "host"}).fields[0].is_objects


@pytest.mark.parametrize(
    ("values", "rows", "dtype", "shape"),
    [
        ([1, None, 3], [2, 0], "int64", ()),
        ([1, None, 3], [2, 1], "object", ()),
        ([[1], [2, 3], [4]], [0, 2], "int64", (1,)),
        ([[1], [2, 3], [4]], [1], "int64", (2,)),
        ([{"y": 1}, None, {"y": 2}], [0, 2], None, ()),
    ],
)
def test_only_the_rows_that_are_used_count(values, rows, dtype, shape):
    table = pa.table({"x": pa.array(values)})
    found = ColumnTypes.of(table, np.array(rows)).columns(table.take(rows))["x"]
    if dtype is None:
        assert found["y"].tolist() == [1, 2]
    else:
        assert (str(found.dtype), found.shape[1:]) == (dtype, shape)
        assert plain(found) == [values[row] for row in rows]


def test_rows_are_looked_at_to_the_last_however_many_there_are():
    """They are looked at in strips of 65,536."""
    same = pa.array([[1]] * 70_000)
    table = pa.table(
        {
            "x": pa.concat_arrays([same, pa.array([[2], None, [3, 4]], same.type)]),
            "y": pa.concat_arrays([same, pa.array([[2], None, [3]], same.type)]),
        }
    )
    found = ColumnTypes.of(table, np.delete(np.arange(70_003), 70_001)).columns(table.take([0, 70_000]))
    assert found["x"].tolist() == [[1], [2]]
    assert {key: str(field.dtype) for key, field in spec(found).items()} == {"x": "object", "y": "int64"}
