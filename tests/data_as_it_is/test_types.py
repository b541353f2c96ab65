"""Columns whose types differ between files: one type that loses nothing, or an error with both files and the setting.

Reported of pandas (one file of integers, one with a missing value is float), of Spark (INT96 beside microseconds) and
of Arrow's own writers (lists of one length beside lists).
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from datarax_ray.read.formats.arrow.joining import joined
from datarax_ray.read.formats.arrow.types import plain_type, retyped

DAY = dt.datetime(2024, 1, 2, 3, 4, 5)
INT8, INT16, INT32, INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
HALF, FLOAT, DOUBLE = pa.float16(), pa.float32(), pa.float64()
TEXT, INTS, LONGS = pa.string(), pa.list_(pa.int32()), pa.list_(pa.list_(pa.int64()))


def struct(**kinds: Any) -> Any:
    return pa.struct(list(kinds.items()))


# One column, another, and the type of both; None where a value would be lost.
JOINS: dict[str, tuple[tuple[list[Any], Any], tuple[list[Any], Any], Any]] = {
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


def filled(value: Any, kind: Any) -> Any:
    """The value as Python has it under this type: None in place of fields that it lacks, and midnight of a date."""
    if pa.types.is_timestamp(kind) and type(value) is dt.date:
        return dt.datetime.combine(value, dt.time())
    if pa.types.is_struct(kind) and value is not None:
        return {field.name: filled(value.get(field.name), field.type) for field in kind}
    return value


@pytest.mark.parametrize("name", JOINS)
def test_two_types_are_one_that_keeps_every_value_or_none(name: str) -> None:
    (one, first), (other, second), want = JOINS[name]
    for a, b in ((first, second), (second, first)):
        found = joined(a, b)
        assert (found and plain_type(found)) == (want and plain_type(want))
    for values, kind in ((one, first), (other, second)) if want else ():
        for array in (pa.array(values, kind), pa.array([*values, *values], kind)[len(values) :]):
            made = retyped(array, want)
            made.validate(full=True)
            assert (made.type, made.to_pylist()) == (want, [filled(value, want) for value in values])


def test_integers_that_are_known_to_be_small_are_floats_and_no_others() -> None:
    one, other = struct(a=INT64, b=INT64), struct(a=DOUBLE, b=INT64)
    assert joined(one, other, path="x") is None
    assert joined(one, other, path="x", small={"x.a"}) == struct(a=DOUBLE, b=INT64)
    with pytest.raises(pa.ArrowInvalid, match="not in range"):  # whatever was said of them
        retyped(pa.array([2**53 + 1]), DOUBLE)


@pytest.mark.parametrize("name", JOINS)
def test_strictly_only_types_of_the_same_arrays_are_one(name: str) -> None:
    (_, first), (_, second), _ = JOINS[name]
    is_same = plain_type(first) == plain_type(second) or "null" in name
    assert (joined(first, second, strict=True) is not None) == is_same
