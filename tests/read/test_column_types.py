"""How Arrow tables become columns: the same for every part of a table, and every value that of pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datarax_ray.read.elements.columns import spec
from datarax_ray.read.formats.arrow.columns import ColumnTypes


def plain(column: Any) -> list[Any]:
    """The rows, with lists in place of the arrays of a ragged column."""
    return [row.tolist() if isinstance(row, np.ndarray | np.generic) else row for row in column]


def chunked(*chunks: Any, kind: Any = None) -> pa.Table:
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
def test_every_part_has_the_dtype_and_shape_of_the_whole(table: pa.Table, dtype: str, shape: tuple[int, ...]) -> None:
    types = ColumnTypes.of(table)
    want = table.column("x").to_pylist()
    for start in range(3):
        for stop in range(start + 1, 4):
            column = types.columns(table.slice(start, stop - start))["x"]
            assert (str(column.dtype), column.shape) == (dtype, (stop - start, *shape))
            assert plain(column) == want[start:stop]
    taken = types.columns(table.take(np.array([2, 0, 2])))["x"]
    assert (str(taken.dtype), plain(taken)) == (dtype, [want[2], want[0], want[2]])


def test_a_struct_is_a_dict_of_columns() -> None:
    rows = [{"a": i, "b": {"c": [i, i], "d": None if i == 1 else i, "e": [0] * i}} for i in range(3)]
    table = pa.table({"x": rows})
    columns = ColumnTypes.of(table).columns(table.slice(1))["x"]
    assert columns["a"].tolist() == [1, 2]
    assert columns["b"]["c"].tolist() == [[1, 1], [2, 2]]
    assert columns["b"]["d"].tolist() == [None, 2]
    assert plain(columns["b"]["e"]) == [[0], [0, 0]]


def test_structs_without_fields_are_objects_at_any_depth() -> None:
    rows = [{"a": {}, "b": {"c": {}}, "d": i} for i in range(3)]
    for fill in ({}, {"x.a": {}}):
        column = ColumnTypes.of(pa.table({"x": rows}), fill=fill).columns(pa.table({"x": rows[1:]}))["x"]
        assert (column["a"].tolist(), column["b"]["c"].tolist(), column["d"].tolist()) == ([{}, {}], [{}, {}], [1, 2])


@pytest.mark.parametrize("fill", [{"x.f": 7}, {"x.f": 7, "x.t": None}], ids=str)
def test_a_field_is_filled_beside_a_struct_that_is_null(fill: dict[str, Any]) -> None:
    rows = [{"f": None, "t": {"g": [1, 2]}}, {"f": 5, "t": None}, {"f": 6, "t": {"g": [3, 4]}}]
    types = ColumnTypes.of(pa.table({"x": rows}), fill=fill)
    for start in range(3):
        column = types.columns(pa.table({"x": rows}).slice(start))["x"]
        assert (column["f"].dtype, column["f"].tolist()) == (np.int64, [7, 5, 6][start:])
        assert column["t"].tolist() == [row["t"] for row in rows[start:]]
    assert ColumnTypes.of(pa.table({"x": rows}), fill={"x.f": None}).fields[0].is_objects


def test_numbers_of_one_chunk_are_not_copied() -> None:
    table = pa.table({"x": np.arange(100), "v": pa.FixedSizeListArray.from_arrays(np.arange(200.0), 2)})
    columns = ColumnTypes.of(table).columns(table.slice(10, 50))
    address = table.column("x").chunk(0).buffers()[1].address
    assert columns["x"].__array_interface__["data"][0] == address + 10 * 8
    assert not columns["x"].flags.writeable


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
def test_only_the_rows_that_are_used_count(values: list[Any], rows: list[int], dtype: str, shape: Any) -> None:
    table = pa.table({"x": pa.array(values)})
    found = ColumnTypes.of(table, np.array(rows)).columns(table.take(rows))["x"]
    if dtype is None:
        assert found["y"].tolist() == [1, 2]
    else:
        assert (str(found.dtype), found.shape[1:]) == (dtype, shape)
        assert plain(found) == [values[row] for row in rows]


def test_rows_are_looked_at_to_the_last_however_many_there_are() -> None:
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
