"""Elements as arrays and back: types, values, and Grain's own batches as the oracle."""

from __future__ import annotations

import collections
import datetime
import pickle
from typing import Any

import grain.python as grain
import jax.numpy as jnp
import numpy as np
import pytest

from datarax_ray.grain.engine.pytrees import ObjectList, Stacked, batch, gather
from tests.grain_transforms import Point, assert_same

ALIKE: dict[str, list[Any]] = {
    "int": [1, 2, -3],
    "bool": [True, False, True],
    "float": [1.0, float("nan"), 2.5],
    "complex": [1j, 2j, 3 + 1j],
    "text of any length": ["a", "", "ccc"],
    "bytes": [b"a", b"\0\0", b"ccc"],
    "scalar": [np.float32(1), np.float32(2), np.float32(3)],
    "time": [np.datetime64("2020-01-01"), np.datetime64("2021-01-01"), np.datetime64("NaT", "D")],
    "bfloat16": [np.full(2, i, jnp.bfloat16) for i in range(3)],
    "array": [np.full((2, 2), i, np.uint8) for i in range(3)],
    "0-d array": [np.array(i, np.int8) for i in range(3)],
    "empty array": [np.zeros((0, 3), np.float16) for _ in range(3)],
    "in Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3) + i) for i in range(3)],
    "none": [None, None, None],
    "empty tree": [(), (), ()],
    "tree": [{"z": Point(i, [i, None]), "a": ("x" * i, {"m": np.ones(2) * i})} for i in range(3)],
    "integer keys": [{2: i, 1: float(i)} for i in range(3)],
}
UNLIKE: dict[str, list[Any]] = {
    "two dtypes": [np.int8(1), np.int16(2)],
    "two types": [1, 2.0],
    "a scalar among numbers": [1.0, np.float64(2)],
    "two shapes": [np.zeros(2), np.zeros(3)],
    "two trees": [{"a": 1}, {"b": 1}],
    "two orders of keys": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "more than 64 bits": [2**63, 1],
    "arrays of jax": [jnp.ones(2), jnp.zeros(2)],
    "objects": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
    "object arrays": [np.array([None, "a"]), np.array([None, "b"])],
    "text arrays": [np.array(["a"]), np.array(["bbb"])],
    "a scalar string": [np.str_("a"), np.str_("b")],
    "other byte order": [np.zeros(2, ">i4"), np.ones(2, ">i4")],
    "a dict of another class": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "keys that do not sort": [{1: 1, "a": 2}, {1: 1, "a": 2}],
}


@pytest.mark.parametrize("name", ALIKE)
def test_like_elements_are_arrays_and_come_back_as_they_were(name: str) -> None:
    elements = ALIKE[name]
    made = gather(elements)
    assert isinstance(made, Stacked)
    for buffered in (made, pickle.loads(pickle.dumps(made, 5))):
        for row, element in enumerate(elements):
            if name != "float":  # nan
                assert_same(buffered.element(row), element)


@pytest.mark.parametrize("name", UNLIKE)
def test_others_are_kept_as_they_are(name: str) -> None:
    elements = UNLIKE[name]
    made = gather(elements)
    assert isinstance(made, ObjectList)
    assert batch([(made, 0, 2)]) is NotImplemented
    back = pickle.loads(pickle.dumps(made, 5))
    assert [type(back.element(row)) for row in range(2)] == [type(element) for element in elements]
    if name not in ("object arrays", "text arrays", "other byte order", "two shapes", "arrays of jax"):
        assert [back.element(row) for row in range(2)] == elements


@pytest.mark.parametrize("name", ALIKE)
def test_a_batch_of_rows_is_grains_batch_of_elements(name: str) -> None:
    first, second = gather(ALIKE[name]), gather(ALIKE[name][::-1])
    rows = [*ALIKE[name][1:], *ALIKE[name][::-1][:2]]
    assert_same(batch([(first, 1, 3), (second, 0, 2)]), grain.experimental.batch_and_pad(rows, batch_size=4))
    alone = batch([(first, 1, 2)])
    assert_same(alone, grain.experimental.batch_and_pad(rows[:1], batch_size=1))


def test_rows_of_unlike_blocks_are_left_to_grain() -> None:
    assert batch([(gather([1]), 0, 1), (gather([2.0]), 0, 1)]) is NotImplemented
    assert batch([(gather([1]), 0, 1), (gather([object()]), 0, 1)]) is NotImplemented


def test_what_is_handed_out_may_be_written_to_and_keeps_no_block() -> None:
    element = {"x": np.zeros(1000)}
    made = gather([element, element])
    made.leaves[0].flags.writeable = False  # as it is in an object store
    assert made.element(0)["x"].base is None
    assert made.element(0)["x"].flags.writeable
    assert batch([(made, 0, 2)])["x"].flags.writeable


def test_a_box_is_one_buffer_and_its_arrays_may_be_written_to() -> None:
    buffers: list[Any] = []
    data = pickle.dumps(ObjectList([np.zeros(n) for n in range(100)]), 5, buffer_callback=buffers.append)
    assert buffers == []
    assert pickle.loads(data).element(3).flags.writeable


def test_a_box_of_what_pickle_cannot_is_left_to_the_pickler_around_it() -> None:
    reduced = ObjectList([lambda: 1]).__reduce__()
    assert reduced[0] is ObjectList


def test_bytes_are_counted() -> None:
    assert gather([{"x": np.zeros(4, np.int32), "y": 1}] * 3).nbytes == 3 * (16 + 8)
    assert gather(["ab", "cde"]).nbytes == 5
    assert gather([np.zeros(2, np.int8), np.zeros(3, np.int8)]).nbytes == 5
