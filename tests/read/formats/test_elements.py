"""Python's values as Arrow has them: each is the one that was given, by Python's own `==`, or an error."""

import datetime as dt
import itertools
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from datarax_ray.read.elements.columns import unstack
from datarax_ray.read.formats.arrow.columns import UnlikeError
from datarax_ray.read.formats.arrow.elements import ElementTypes, Exactly

EAST = dt.timezone(dt.timedelta(hours=5))
NUMBERS = [0, 1, -1, 300, 2**53 + 1, 2**63 - 1, 2**64 - 1, 0.5, 2.0, 1e300, 0.1, math.nan, math.inf, True, False]
NUMBERS += [Decimal("1.5"), Decimal("0.1"), Decimal(2)]
NUMBERS += [np.int8(1), np.int32(70_000), np.uint64(2**64 - 1), np.float16(1.5), np.float32(0.1), np.float64(0.1)]
NUMBERS += [np.bool_(True), np.array(1.5)]
TIMES = [dt.date(2020, 1, 2), dt.datetime(2020, 1, 2), dt.datetime(2020, 1, 2, 3, 4, 5, 6), dt.time(1, 2, 3, 4)]
TIMES += [dt.datetime(2020, 1, 2, 3, tzinfo=EAST), dt.datetime(2020, 1, 2, 3, 0, 1, tzinfo=dt.UTC)]
TIMES += [dt.time(1, 2, tzinfo=EAST), dt.timedelta(1, 2, 3), dt.datetime(9999, 1, 1)]
TIMES += [np.datetime64("2020-01-02"), np.datetime64("2020-01-02T03:04:05"), np.datetime64(1, "ns")]
TIMES += [np.timedelta64(1, "ns"), np.timedelta64(5, "s")]
VALUES = [*NUMBERS, *TIMES, None, "7", "x", b"x", np.str_("x")]
SHAPES = {
    "value": lambda value: value,
    "list": lambda value: [value, value],
    "dict in a list in a dict": lambda value: {"a": [{"b": value}]},
}


def moment(value):
    """A time as NumPy has it, in UTC; a date is its midnight; other values as they are."""
    if hasattr(value, "asm8"):  # of pandas, which is to_pylist's for ns
        return value.asm8
    if isinstance(value, dt.datetime):
        return np.datetime64(value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value)
    if isinstance(value, dt.time) and value.tzinfo is None:
        return np.datetime64(dt.datetime.combine(dt.date(1970, 1, 1), value)) - np.datetime64(0, "s")
    if isinstance(value, dt.date):
        return np.datetime64(value)
    return np.timedelta64(value) if isinstance(value, dt.timedelta) else value


def is_same(got, given):
    """Whether a value out of a column is the one that was given, by Python's own `==` but for times."""
    if isinstance(given, dict):
        return isinstance(got, dict) and got.keys() == given.keys() and all(is_same(got[k], given[k]) for k in given)
    if isinstance(given, list):
        return len(got) == len(given) and all(map(is_same, got, given))
    got, given = moment(got), moment(given)
    times = (np.datetime64, np.timedelta64)
    if isinstance(got, times):
        return bool(np.isnat(got) if given is None else isinstance(given, times) and got == given)
    if isinstance(got, np.generic):
        got = got.item()  # or NumPy would round Python's floats to compare them
    if isinstance(given, np.generic | np.ndarray) and not isinstance(given, times):
        given = given.item()
    return got is None if given is None else bool(got == given or (got != got and given != given))


def columns(types, values):
    found = types.columns([{"x": value} for value in values])
    return [row["x"] for row in unstack(found, len(values))]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_comes_later_is_what_was_given_or_an_error(shape):
    make, refused, taken = SHAPES[shape], 0, 0
    for first, later in itertools.product(VALUES, VALUES):
        types = ElementTypes.of([{"x": make(first)}] * 2, {}, (), ())
        assert types is not None
        try:
            got = columns(types, [make(first), make(later)])
        except UnlikeError as error:
            refused += error.field.startswith("x") and f"field '{error.field}'" in str(error)
            continue
        assert is_same(got[0], make(first)), (first, got)
        assert is_same(got[1], make(later)), (first, later, got)
        taken += 1
    assert refused > 500
    assert taken > 500


@pytest.mark.parametrize("shape", SHAPES)
def test_what_comes_first_together_is_what_was_given_or_as_transforms_have_it(shape):
    make, taken = SHAPES[shape], 0
    for values in itertools.permutations(VALUES, 2):
        made = [make(value) for value in values]
        types = ElementTypes.of([{"x": value} for value in made], {}, (), ())
        assert types is not None
        if "x" not in types.loose:  # else they stack, or are refused, as what transforms return
            assert is_same(columns(types, made), made), values
            taken += 1
    assert taken > 300


CHOSEN = [
    (pa.float32(), 0.1, float(np.float32(0.1))),
    (pa.float32(), 1e300, math.inf),
    (pa.float16(), 0.1, float(np.float16(0.1))),
    (pa.list_(pa.float32()), [0.1, 2, None], [float(np.float32(0.1)), 2.0, None]),
    (pa.list_(pa.float32()), [0.1, Decimal("0.1")], [float(np.float32(0.1))] * 2),
    (pa.int8(), np.int64(-128), -128),
    (pa.timestamp("s"), dt.datetime(2020, 1, 2, 3, 4, 5), dt.datetime(2020, 1, 2, 3, 4, 5)),
    (pa.timestamp("us"), dt.datetime(2020, 1, 2, 3, tzinfo=EAST), dt.datetime(2020, 1, 1, 22)),
    (pa.time32("ms"), dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4000)),
    (pa.list_(pa.int64(), 2), [1, 2.0], [1, 2]),
    (pa.map_(pa.string(), pa.int8()), [("k", 1)], [("k", 1)]),
    (pa.list_(pa.int64()), [1, 0.5], None),
    (pa.int64(), 0.5, None),
    (pa.int8(), 300, None),
    (pa.timestamp("s"), dt.datetime(2020, 1, 2, 3, 4, 5, 6), None),
    (pa.date32(), dt.datetime(2020, 1, 2, 3), None),
    (pa.time32("s"), dt.time(1, 2, 3, 4), None),
    (pa.float32(), "7", None),
]


@pytest.mark.parametrize(("kind", "value", "want"), CHOSEN, ids=lambda value: str(value))
def test_of_a_type_that_was_chosen_only_floats_lose_anything(kind, value, want):
    def made():
        return Exactly(rounds=True).array([value, None], kind, "x").to_pylist()

    if want is None:
        with pytest.raises((ValueError, TypeError)):
            made()
    else:
        assert made() == [want, None]


def test_missing_keys_are_none_where_that_is_said():
    kind = pa.list_(pa.struct({"a": pa.int64(), "b": pa.string()}))
    assert Exactly(fills=True).array([[{"a": 1}]], kind, "x").to_pylist() == [[{"a": 1, "b": None}]]
    with pytest.raises(UnlikeError, match=r"field 'x' is a dict with the keys \['a'\], and they were \['a', 'b'\]"):
        Exactly().array([[{"a": 1}]], kind, "x")
    with pytest.raises(UnlikeError, match=r"a dict with the keys \['a', 'c'\]"):
        Exactly(fills=True).array([[{"a": 1, "c": 2}]], kind, "x")
