"""Elements as bytes come back as they were: value for value, bit for bit, type for type."""

import contextlib
import datetime
import decimal
import functools
import math
import zoneinfo

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from datarax_ray.read.elements.columns import is_ragged_row, ragged_row, stack, unstack_to_stack
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.materialized.records import (
    Failed,
    columns_of,
    encoded,
    encoded_rows,
    parts_of,
    record_of,
    value_of,
)


def same(one, other):
    """Also of NaNs with other bits, of signed zeros, and of the order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return same(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or repr(one) == repr(other)
    return bool(one == other)


CET = datetime.timezone(datetime.timedelta(hours=1), "CET")
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers(allow_nan=False) | st.binary()
) | st.text(st.characters(exclude_categories=()))
DTYPES = hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes()
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_comes_back(value):
    assert same(value_of(encoded(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1.5, -0.0]], ml_dtypes.bfloat16),
        ml_dtypes.bfloat16(2.5),
        np.array([1, -7], ml_dtypes.int4),
        np.array([1, None, "x", [2]], object),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::2],
        np.str_("é"),
        np.str_(""),
        np.str_("a\0"),
        np.str_("\ud800\0\0"),
        np.bytes_(b"a\0"),
        np.bytes_(b"\0"),
        [np.bytes_(b"a\0"), {"x": np.str_("\0")}],
        np.datetime64("2026-11-22T12:00:00.123", "ms"),
        np.float32(1) / np.float32(3),
        [1, 2, 2**70],
        [True, False],
        [1, 2.0, None, "a", b"b"],
        list(range(1000)),
        datetime.datetime(2026, 11, 22, 1, 2, 3, 4),
        datetime.datetime(2026, 11, 22, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        datetime.datetime(2026, 11, 22, tzinfo=datetime.timezone(-datetime.timedelta(seconds=5, microseconds=7))),
        datetime.date(1, 1, 1),
        datetime.time(1, tzinfo=datetime.UTC),
        datetime.time(23, 59),
        datetime.timedelta(-3, 5, 7),
        decimal.Decimal("1.50"),
        {"a": {"b": {"c": ()}}, "": {}, "l": []},
        [["", "a", "\ud800\0"] * 300, [b"", b"a\0"]],
        {-(2**63): 1, 2**70: 2, True: 3, 0.5: 4, None: 5, b"k": 6},
    ],
    ids=repr,
)
def test_what_hypothesis_does_not_make_comes_back(value):
    assert same(value_of(encoded(value)), value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"b": {1, 2}}}, r"field 'a.b' is a set, which cannot be written; make it a dict, a list"),
        ({"x": np.ma.masked_array([1], [True])}, r"field 'x' is a MaskedArray.*np.asarray\(value\)"),
        ({"x": {(1, 2): 3}}, r"field 'x' has the key \(1, 2\) of tuple; use a str"),
        ({(): 3}, r"the element has the key \(\) of tuple; use a str"),
        ({"x": bytearray(b"a")}, r"field 'x' is a bytearray, which"),
        ({"x": functools.reduce(lambda inner, _: [inner], range(600), 1)}, "field 'x' cannot be written: "),
        (object(), r"the element is a object"),
        ({"t": datetime.datetime(2026, 1, 1, tzinfo=CET)}, r"field 't' is a datetime, which"),
        (datetime.time(1, tzinfo=CET), r"the element is a time, which"),
        (datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), r"the element is a datetime, which"),
        (datetime.datetime(2026, 1, 1, fold=1), r"the element is a datetime, which"),
        (np.array([(None,)], [("a", object)]), r"of dtype .*, which cannot be written"),
        (np.zeros(2, [("a", "<i4"), ("b", ">f8")]), r"of dtype .*, which cannot be written; make a field of each part"),
    ],
)
def test_what_would_not_come_back_is_refused_by_its_field(value, message):
    with pytest.raises(UnwritableError, match=message):
        encoded(value)


def test_arrays_can_be_written_to_and_share_no_memory_with_the_record():
    record = encoded({"x": np.arange(3)})
    value_of(record)["x"][:] = 7
    assert value_of(record)["x"].tolist() == [0, 1, 2]


def test_rows_of_ragged_columns_are_such_again():
    row = ragged_row(np.arange(3))
    found = value_of(encoded({"x": row, "y": np.arange(3)}))
    assert is_ragged_row(found["x"])
    assert not is_ragged_row(found["y"])


COLUMNS = {
    "z": np.arange(6, dtype=np.int16).reshape(3, 2),
    "o": np.array([None, "a", [1, np.float32(2)]], object),
    "in": {"y": np.array([1.5, np.nan, -0.0], np.float32), "b": np.array([True, False, True])},
    "r": np.array([np.arange(2), None, np.arange(0)], object),
    "bf": np.array([1, 2, 3], ml_dtypes.bfloat16),
    "s": np.array(["a", "bc", ""]),
    "none": np.empty((3, 0, 4)),
}


@pytest.mark.parametrize("are_last", [True, False])
def test_rows_of_columns_are_columns_again(are_last):
    assert same(columns_of(encoded_rows(COLUMNS, 3), are_last), COLUMNS)
    plain = {name: COLUMNS[name] for name in ("z", "in", "bf")}
    assert same(columns_of(encoded_rows(plain, 3), are_last), plain)
    assert same(columns_of(encoded_rows(COLUMNS["z"], 3), are_last), COLUMNS["z"])


def test_a_row_alone_is_the_element_that_unstacking_gives():
    want = unstack_to_stack(COLUMNS, 3)
    found = [value_of(record) for record in encoded_rows(COLUMNS, 3)]
    assert all(map(same, found, want))
    assert is_ragged_row(found[0]["r"])


def test_elements_of_numbers_become_the_columns_that_stacking_makes():
    elements = [
        {"x": np.full((2, 2), n, ">i4"), "f": float(n), "in": {"b": n > 1, "g": np.float32(n), "n": n, "c": 1j * n}}
        for n in range(3)
    ]
    records = [encoded(element) for element in elements]
    assert same(columns_of(records, True), stack(elements))
    assert columns_of(records, False) is None  # a transform that comes is given what it was given before
    assert columns_of([*records, encoded(elements[0] | {"f": 1})], True) is None
    assert columns_of([encoded({"x": "text"})], True) is None


def test_a_record_holds_none_one_or_several_elements_and_what_failed():
    one, two = encoded(1), encoded("b")
    assert parts_of(record_of([], [])) == []
    assert parts_of(record_of([(0, one)], [])) == [[0, one]]
    several = record_of([(0, one), (2, two)], [Failed("a[1]", "why")])
    assert parts_of(several) == [[0, one], [2, two], [None, "a[1]", "why"]]
    assert parts_of(record_of([(1, one)], [])) == [[1, one]]


@given(st.binary(max_size=60), st.integers(0, 150), st.integers(0, 255))
def test_damaged_records_are_value_errors_and_nothing_else(noise, at, byte):
    whole = bytearray(encoded({"x": np.arange(2), "s": "text", "l": [1, 2.0], "t": ["a", "bc"]}))
    whole[at % len(whole)] = byte
    for record in (noise, bytes(whole), bytes(whole[:at])):
        with contextlib.suppress(ValueError):
            for _, *rest in parts_of(record):
                if len(rest) == 1:
                    value_of(rest[0])
