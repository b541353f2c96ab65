"""Digests of rows: of a row alone, whatever stands beside it, in whichever process; and of everything in it."""

import datetime
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.read.elements.columns import map_leaves
from datarax_ray.read.elements.row_digests import row_digests

MIXED = {
    "image": np.arange(6 * 600, dtype=np.uint16).reshape(6, 20, 30),  # hashed by itself
    "small": np.arange(12, dtype=np.float32).reshape(6, 2),
    "nothing": np.empty((6, 0), np.int8),
    "of": {"when": np.arange(6).astype("datetime64[s]"), "is": np.arange(6) % 2 == 0},
    "held": np.array(["a", b"b", None, [1, 2.5], {"k": [np.arange(3)]}, ("ü\ud800", {"x", "y"})], object),
}
POSITIONS = np.array([3, 5, 5, 5, 9, 12])
PINNED = [
    4263449429554914788,
    6258160147621687386,
    7915371864139541594,
    10494747042142864928,
    14880362098921091352,
    5907550267747197237,
]


def some(columns, rows):
    return map_leaves(lambda array: array[rows], columns)


def test_they_are_what_they_were_in_every_process():
    """Pinned, for they stand in checkpoints; with another seed of Python's hashes in another process."""
    found = row_digests(POSITIONS, MIXED).tolist()
    assert found == PINNED
    program = "from tests.read.test_row_digests import *; print(row_digests(POSITIONS, MIXED).tolist())"
    env = os.environ | {"PYTHONHASHSEED": "7"}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(found)


@given(cuts=st.sets(st.sampled_from([1, 4, 5])))
def test_a_row_has_its_digest_whatever_stands_beside_it(cuts):
    """Wherever blocks are cut; all elements of a position are in one."""
    parts = np.split(np.arange(6), sorted(cuts))
    found = [row_digests(POSITIONS[part], some(MIXED, part)) for part in parts]
    assert np.concatenate(found).tolist() == row_digests(POSITIONS, MIXED).tolist()


def test_the_layout_in_memory_and_the_order_of_fields_are_nothing_of_a_row():
    turned = {name: MIXED[name] for name in reversed(MIXED)}
    turned["image"] = np.asfortranarray(MIXED["image"])
    turned["small"] = np.repeat(MIXED["small"], 2, axis=0)[::2]
    assert row_digests(POSITIONS, turned).tolist() == row_digests(POSITIONS, MIXED).tolist()


def test_one_bit_of_any_field_is_another_digest_of_that_row_alone():
    want = row_digests(POSITIONS, MIXED)
    for name in ("image", "small"):
        for byte in (0, MIXED[name][0].nbytes // 2, MIXED[name][0].nbytes - 1):
            for bit in (1, 128):
                changed = MIXED | {name: MIXED[name].copy()}
                changed[name].reshape(6, -1).view(np.uint8)[2, byte] ^= bit
                assert (row_digests(POSITIONS, changed) != want).tolist() == [False, False, True, False, False, False]


def test_the_position_and_the_place_among_its_equals_are_in_it():
    alike = {"x": np.zeros(6, np.int64)}
    assert len(set(row_digests(POSITIONS, alike).tolist())) == 6
    assert row_digests(POSITIONS[1:2], some(alike, [1])) == row_digests(POSITIONS, alike)[1]


@pytest.mark.parametrize("positions", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_rows_that_are_swapped_dropped_or_come_twice_have_another_sum(positions):
    x = {"x": np.array([7, 8, 9, 10])}
    at = np.array(positions)
    sums = {int(row_digests(at, x).sum())}
    for rows in ([1, 0, 2, 3], [3, 1, 2, 0], [0, 1, 2], [1, 2, 3], [0, 1, 2, 2], [0, 1, 1, 2], []):
        sums.add(int(row_digests(at[: len(rows)], some(x, np.array(rows, int))).sum()))
    assert len(sums) == 8


def test_names_dtypes_and_shapes_are_in_it():
    zeros = [
        {"x": np.zeros((1, 4), np.uint8)},
        {"y": np.zeros((1, 4), np.uint8)},
        {"x": np.zeros((1, 4), np.int8)},
        {"x": np.zeros((1, 2, 2), np.uint8)},
        {"x": np.zeros((1, 1), np.uint32)},
        {"x": {"y": np.zeros((1, 4), np.uint8)}},
        {"x": np.zeros((1, 2), np.uint8), "y": np.zeros((1, 2), np.uint8)},
        np.zeros((1, 4), np.uint8),
    ]
    assert len({row_digests(np.array([0]), columns).item() for columns in zeros}) == len(zeros)


def test_objects_that_look_alike_are_told_apart():
    values = [1, True, 1.0, 1 + 0j, "1", b"1", None, "None", [1], (1,), ["1"], [[1]], [], {}, {"1": 1}]
    values += [np.int64(1), np.int32(1), np.array(1), np.array([1]), np.array([1], object), Decimal(1), -0.0, 0.0]
    values += [
        datetime.date(1, 1, 1),
        datetime.datetime(1, 1, 1),
        ["a", "b"],
        ["ab"],
        ["a", ["b"]],
        {1},
        frozenset({1}),
    ]
    column = np.fromiter(values, object, len(values))
    found = [row_digests(np.array([0]), column[i : i + 1]).item() for i in range(len(column))]
    assert len(set(found)) == len(values)


def test_what_stands_between_the_fields_of_a_record_is_nothing_of_it():
    kind = np.dtype([("a", np.uint8), ("b", np.int64)], align=True)
    one, other = (np.full(2 * kind.itemsize, fill, np.uint8).view(kind) for fill in (0, 255))
    for array in (one, other):
        array["a"], array["b"] = [1, 2], [3, 4]
    assert one.tobytes() != other.tobytes()
    at = np.arange(2)
    assert row_digests(at, {"x": one}).tolist() == row_digests(at, {"x": other}).tolist()
    other["b"][1] = 5
    assert (row_digests(at, {"x": one}) != row_digests(at, {"x": other})).tolist() == [False, True]


def test_a_document_has_the_digest_of_its_tokens_wherever_they_lie():
    tokens, mask = np.arange(10, dtype=np.int32), np.arange(10) % 2 == 0
    lengths, at = np.array([3, 2, 5]), np.array([4, 4, 6])
    whole = row_digests(at, {"tokens": tokens, "mask": mask}, lengths)
    last = row_digests(at[2:], {"tokens": tokens[5:], "mask": mask[5:]}, lengths[2:])
    assert last.tolist() == whole[2:].tolist()
    cut = row_digests(at, {"tokens": tokens, "mask": mask}, np.array([2, 3, 5]))
    assert (cut != whole).tolist() == [True, True, False]


def test_of_what_has_no_bytes_of_its_own_there_is_none():
    said = r"a object has no bytes that are the same in every process.*or leave out digest"
    with pytest.raises(TypeError, match=said):
        row_digests(np.array([0]), np.array([object()]))
    column = np.array([1, [2, {"c": object()}]], object)
    with pytest.raises(TypeError, match=r"^field 'a\.b' at position 8: a object has no bytes"):
        row_digests(np.array([7, 8]), {"a": {"b": column}})
