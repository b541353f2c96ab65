"""Stacking against NumPy by hand; nothing is converted in silence."""

import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.read.elements.columns import ColumnError, FieldSpec, leaves, nbytes, spec, stack, unstack


def listed(columns):
    return {".".join(path): (array.tolist(), str(array.dtype), array.shape) for path, array in leaves(columns)}


def test_numbers_and_arrays_become_dense_and_the_rest_stays_as_it_is():
    elements = [
        {"i": 1, "f": 0.5, "b": True, "c": 1j, "u": np.uint8(3), "a": np.ones((2, 1), np.int16), "s": "x", "y": b"q",
         "l": [1], "n": None, "t": (1, 2)},
        {"i": 2, "f": 1.5, "b": False, "c": 2j, "u": np.uint8(4), "a": np.zeros((2, 1), np.int16), "s": "yy", "y": b"",
         "l": [], "n": "z", "t": ()},
    ]  # fmt: skip
    assert listed(stack(elements)) == {
        "a": ([[[1], [1]], [[0], [0]]], "int16", (2, 2, 1)),
        "b": ([True, False], "bool", (2,)),
        "c": ([1j, 2j], "complex128", (2,)),
        "f": ([0.5, 1.5], "float64", (2,)),
        "i": ([1, 2], "int64", (2,)),
        "l": ([[1], []], "object", (2,)),
        "n": ([None, "z"], "object", (2,)),
        "s": (["x", "yy"], "object", (2,)),
        "t": ([(1, 2), ()], "object", (2,)),
        "u": ([3, 4], "uint8", (2,)),
        "y": ([b"q", b""], "object", (2,)),
    }


def test_lists_of_equal_lengths_stay_lists_and_elements_need_not_be_dicts():
    assert stack([1, 2]).tolist() == [1, 2]
    assert stack([b"x", b""]).tolist() == [b"x", b""]
    column = stack([{"l": [1, 2]}, {"l": [3, 4]}])["l"]
    assert column.shape == (2,)
    assert column.tolist() == [[1, 2], [3, 4]]
    assert all(type(value) is list for value in column)


def test_a_stack_is_a_copy():
    array = np.zeros(2)
    columns = stack([array, array])
    array[:] = 1
    assert columns.tolist() == [[0, 0], [0, 0]]


def test_python_numbers_and_numpy_numbers_of_one_dtype_mix():
    assert stack([1.0, np.float64(2), np.array(3.0)]).tolist() == [1, 2, 3]
    assert stack([np.array(3.0), 1.0]).dtype == np.float64


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (1, 1.0, "is int64 in one element, float64 in another; convert it to one dtype"),
        (True, 1, "is bool in one element, int64 in another"),
        (1, None, "is int64 in one element, NoneType in another"),
        (None, 1, "is NoneType in one element, int64 in another"),
        ("a", 1, "is str in one element, int64 in another"),
        (1, Colour.RED, "is int64 in one element, Colour in another"),
        (np.float32(1), 1.0, "is float32 in one element, float64 in another"),
        (np.zeros(2), np.zeros(3), r"has shape \(2,\) in one element, \(3,\) in another.*pad it \(PadTo"),
        (np.zeros(2), 1.0, r"has shape \(2,\) in one element, \(\) in another.*of as many axes in every element"),
        (1.0, np.zeros(2), r"has shape \(\) in one element, \(2,\) in another"),
        (1, np.zeros(1, int), r"has shape \(\) in one element, \(1,\) in another"),
        ([1], np.zeros(1), "is list in one element, float64 in another"),
        ({"z": 1}, 1, "fields .*'z'.* in one element, int in another"),
        (1, {"z": 1}, "is int64 in one element, dict in another"),
        (None, {"z": 1}, "is NoneType in one element, dict in another; fill it in by a transform"),
        ({"z": 1}, None, "fields .*'z'.* in one element, NoneType in another"),
        ("a", {"z": 1}, "is str in one element, dict in another"),
        (1, 2**63, "is 9223372036854775808, which does not fit in int64"),
        (np.int64(1), 2**63, "is 9223372036854775808, which does not fit in int64"),
        (-(2**63) - 1, 1, "is -9223372036854775809, which does not fit in int64"),
    ],
)  # fmt: skip
def test_values_that_differ_are_refused_with_field_both_sides_and_remedy(left, right, message):
    with pytest.raises(ColumnError, match="field 'deep.x'.*" + message) as caught:
        stack([{"deep": {"x": left}}, {"deep": {"x": right}}])
    assert isinstance(caught.value, ValueError)


def test_the_index_is_that_of_the_first_element_that_differs():
    for values in ([1, 2, 3.0, 4.0], [np.zeros(2), np.zeros(2), np.zeros(1)], [1, 2, 2**70]):
        with pytest.raises(ColumnError) as caught:
            stack([{"x": value} for value in values])
        assert caught.value.index == 2


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([{"x": 1}, {"x": 1, "y": 2}], r"the element: fields \['x'\] in one element, \['x', 'y'\] in another"),
        ([{"x": 1}, {"y": 1}], r"fields \['x'\] in one element, \['y'\] in another"),
        ([{"x": 1}, 3], r"fields \['x'\] in one element, int in another"),
        ([{}], "needs at least one, named by a str"),
        ([{"a": {}}], "field 'a' has fields .*needs at least one"),
        ([{1: 2}], "named by a str"),
    ],
)
def test_fields_that_differ_are_refused(elements, message):
    with pytest.raises(ColumnError, match=message):
        stack(elements)


KINDS = st.sampled_from([
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.none(),
])  # fmt: skip


@given(st.dictionaries(st.text(max_size=3), KINDS, min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_unstacking_gives_the_elements_back(kinds, count, data):
    elements = [{name: data.draw(kind) for name, kind in kinds.items()} for _ in range(count)]
    assert unstack(stack(elements), count) == elements
    assert unstack(stack([{"deep": e} for e in elements]), count) == [{"deep": e} for e in elements]


def test_unstacked_arrays_are_views_and_numbers_are_numpys():
    columns = {"a": np.arange(4).reshape(2, 2), "b": np.array([1, 2], np.int8)}
    first, _ = unstack(columns, 2)
    assert np.shares_memory(first["a"], columns["a"])
    assert type(first["b"]) is np.int8


def test_the_spec_is_the_shape_of_one_element():
    assert spec({"a": np.zeros((5, 2), np.int8), "s": np.array(["x"], object)}) == {
        "a": FieldSpec((2,), np.dtype(np.int8)),
        "s": FieldSpec((), np.dtype(object)),
    }


def test_bytes_are_those_of_arrays_and_of_the_texts_in_object_columns():
    assert nbytes({"a": np.zeros((5, 2), np.int16)}) == 20
    assert nbytes(stack([{"s": "abc", "y": b"xy"}, {"s": "", "y": b"z"}])) == 6
    assert nbytes(stack([{"l": [1, 2]}])) >= 8


def test_an_element_that_is_a_tuple_is_refused_with_the_remedy():
    with pytest.raises(ColumnError, match=r"the element is a tuple, .*make it a dict in a transform") as caught:
        stack([(np.zeros(2), 3)] * 2)
    assert caught.value.index == 0
    assert stack([{"size": (1, 2)}])["size"].tolist() == [(1, 2)]  # inside an element it is a value as others


@pytest.mark.parametrize("shape", [(), (2,)])
def test_numbers_of_either_byte_order_are_of_one_dtype_wherever_they_are_stacked(shape):
    there, here = np.full(shape, 7, ">i4"), np.full(shape, 7, "<i4")
    for elements in ([there], [there, there], [there, here], [here, there]):
        column = stack([{"x": element} for element in elements])["x"]
        assert column.dtype.isnative
        assert column.tolist() == [here.tolist()] * len(elements)
