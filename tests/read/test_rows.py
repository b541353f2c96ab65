"""Columns of rows of many lengths, on their way to another process."""

import pickle

import numpy as np
import pytest

from datarax_ray.read.block import Block


def objects(values):
    return np.fromiter(values, object, len(values))


def sent(columns):
    """The columns as they come out of another process, and how many buffers they went in."""
    count = len(columns["x"])
    buffers = []
    stored = pickle.dumps(Block(np.arange(count), columns), 5, buffer_callback=buffers.append)
    return pickle.loads(stored, buffers=[bytes(buffer.raw()) for buffer in buffers]).columns, len(buffers)


INT32 = [np.arange(n, dtype=np.int32) for n in (3, 0, 5, 1)]


@pytest.mark.parametrize(
    "values",
    [
        INT32,
        [None, *INT32, None],
        [np.empty(0, np.float16)] * 3,
        [np.arange(10)[::3], np.arange(2)[::-1]],  # not in one piece of memory
        [np.array(["2026-01-01", "NaT"], "M8[s]"), np.array([], "M8[s]")],
    ],
    ids=["many lengths", "some missing", "empty", "strided", "times"],
)
def test_rows_of_many_lengths_travel_as_two_arrays_and_are_the_same_rows(values):
    (found, num_buffers) = sent({"x": objects(values)})
    assert num_buffers <= 3  # the positions among them; times go in none
    for row, expected in zip(found["x"], values, strict=True):
        if expected is None:
            assert row is None
        else:
            assert row.dtype == expected.dtype
            np.testing.assert_array_equal(row, expected)
            assert not row.flags.writeable


@pytest.mark.parametrize(
    "values",
    [
        ["a", None, "ü"],
        [None, None],
        [[1, 2], [3]],
        [np.arange(2, dtype=np.int32), np.arange(2, dtype=np.int64)],
        [np.arange(4).reshape(2, 2), np.arange(2)],
        [np.array(["a", 1], object), np.array([None], object)],
        [np.ma.masked_array([1, 2], [True, False]), np.ma.masked_array([1], [False])],
        [np.arange(2), 3],
        [np.arange(2, dtype=">i4"), np.arange(3, dtype=">i4")],
    ],
    ids=["text", "none", "lists", "dtypes", "axes", "objects", "masked", "a number", "big-endian"],
)
def test_other_objects_travel_as_they_are(values):
    (found, _) = sent({"x": objects(values)})
    for value, expected in zip(found["x"], values, strict=True):
        assert type(value) is type(expected)
        np.testing.assert_array_equal(value, expected)
        assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)


def test_columns_inside_columns_and_blocks_without_any_travel_too():
    columns = {"x": np.arange(4), "of": {"tokens": objects(INT32)}}
    assert [row.tolist() for row in sent(columns)[0]["of"]["tokens"]] == [row.tolist() for row in INT32]
    empty = pickle.loads(pickle.dumps(Block(np.empty(0, np.int64), None)))
    assert (empty.columns, empty.nbytes) == (None, 0)
