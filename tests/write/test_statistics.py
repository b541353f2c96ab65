"""Statistics of elements, against NumPy over all of them at once."""

import functools
import json
import operator
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.write.statistics import FieldStatistics, Moments, Statistics, fields_of_columns, fields_of_elements


def close(moments, numbers):
    want = np.asarray(numbers, np.float64)
    assert moments.count == want.size
    assert moments.mean == pytest.approx(want.mean(), rel=1e-12)
    assert moments.std == pytest.approx(want.std(), rel=1e-9, abs=1e-12)
    assert (moments.least, moments.most) == (want.min(), want.max())


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=9))
def test_pieces_add_up_to_what_numpy_says_of_all(pieces):
    numbers = [number + 1e9 for piece in pieces for number in piece]  # far from 0, close together
    found = functools.reduce(operator.add, (Moments.of(np.array(piece) + 1e9) for piece in pieces), Moments())
    want = np.array(numbers)
    assert found.count == want.size
    assert found.mean == pytest.approx(want.mean(), rel=1e-14)
    assert found.std == pytest.approx(want.std(), rel=1e-6, abs=1e-6)
    assert (found.least, found.most) == (want.min(), want.max())


def test_many_numbers_of_any_dtype():
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.int16, np.float32, np.float64, np.bool_, ml_dtypes.bfloat16, np.float16):
        column = rng.integers(0, 2 if dtype is np.bool_ else 100, (50, 60, 30)).astype(dtype)
        found = FieldStatistics.of(column)
        close(found.numbers, column.astype(np.float64))
        assert (found.count, found.shape_least, found.shape_most) == (50, [60, 30], [60, 30])
        assert found.kinds == {str(np.dtype(dtype)): 50}


def test_whole_numbers_are_exact_beyond_what_a_float_holds():
    found = FieldStatistics.of(np.array([2**62 + 1, -(2**62) - 1]))
    assert (found.numbers.least, found.numbers.most) == (-(2**62) - 1, 2**62 + 1)
    assert FieldStatistics.of([2**70, 3]).count == 2


def test_what_is_no_number_is_counted_and_left_out_of_moments():
    found = FieldStatistics.of(np.array([1.0, np.nan, 3.0, np.inf, -np.inf], np.float32))
    assert (found.num_nan, found.num_infinite) == (1, 2)
    close(found.numbers, [1.0, 3.0])


def test_lengths_kinds_and_values_of_objects():
    texts = ["cat", "dog", "cat", None, ""]
    found = FieldStatistics.of(np.array(texts, object))
    assert (found.count, found.num_null, found.kinds) == (5, 1, {"str": 4, "NoneType": 1})
    close(found.lengths, [3, 3, 3, 0])
    assert found.by_value == {"cat": 2, "dog": 1, "": 1}
    lists = FieldStatistics.of([[1, 2, 3], [], [4.5]])
    close(lists.numbers, [1, 2, 3, 4.5])
    close(lists.lengths, [3, 0, 1])
    assert lists.by_value is None
    arrays = FieldStatistics.of([np.zeros((2, 5)), np.ones((7, 4))])
    assert (arrays.shape_least, arrays.shape_most) == ([2, 4], [7, 5])
    close(arrays.numbers, [0.0] * 10 + [1.0] * 28)


def test_labels_are_counted_as_long_as_they_are_few():
    labels = np.random.default_rng(1).integers(0, 10, 1000)
    halves = FieldStatistics.of(labels[:300]) + FieldStatistics.of(labels[300:])
    assert halves.by_value == Counter(map(str, labels.tolist()))
    assert FieldStatistics.of(np.arange(65)).by_value is None
    assert (FieldStatistics.of(np.arange(40)) + FieldStatistics.of(np.arange(40, 80))).by_value is None


def test_columns_and_elements_say_the_same_and_json_keeps_it():
    columns = {"x": np.arange(12.0).reshape(4, 3), "in": {"label": np.array([1, 0, 1, 1])}}
    elements = [{"x": columns["x"][i], "in": {"label": int(columns["in"]["label"][i])}} for i in range(4)]
    by_columns, by_elements = fields_of_columns(columns), fields_of_elements(elements)
    assert list(by_columns) == ["x", "in.label"] == list(by_elements)
    assert by_columns["x"] == by_elements["x"]
    whole = Statistics(5, 4, 1, 0, by_columns)
    again = Statistics.from_json(json.loads(json.dumps(whole.to_json())))
    assert again == whole
    assert (whole + again).fields["x"].count == 8
    assert whole + Statistics() == whole == Statistics() + whole


def test_a_dict_that_names_no_fields_is_a_value():
    element = {"a": {"b": 1}, "empty": {}, "numbered": {1: 2}}
    found = fields_of_elements([element, element])
    assert {name: of.kinds for name, of in found.items()} == {
        "a.b": {"int64": 2},
        "empty": {"dict": 2},
        "numbered": {"dict": 2},
    }
    assert list(fields_of_elements([1, 2])) == ["element"] == list(fields_of_columns(np.ones(2)))
