"""Evidence as values: what it records, at which size, and what it says of rows that were made otherwise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from datarax_ray.plan.evidence import MAX_ROWS, Evidence, RowsDigested


def rows(positions, ordinals=None, **fields) -> RowsDigested:
    """Rows whose digests are the given numbers."""
    kinds = dict.fromkeys(fields, "int64 ()")
    nth = np.zeros(len(positions), np.int64) if ordinals is None else np.array(ordinals)
    return RowsDigested(np.array(positions), nth, kinds, {k: np.array(v, np.uint64) for k, v in fields.items()})


SEEN = rows([5, 6, 9], x=[11, 22, 33], y=[1, 2, 3])


def test_the_same_rows_are_the_same_also_after_json():
    evidence = Evidence.of(SEEN)
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence
    assert evidence.start == (5, 0)
    assert evidence.num_rows == 3
    assert evidence.differing(SEEN) is None


def test_rows_behind_those_that_were_consumed_do_not_count():
    assert Evidence.of(SEEN).differing(rows([5, 6, 9, 10], x=[11, 22, 33, 44], y=[1, 2, 3, 4])) is None


@pytest.mark.parametrize(
    ("found", "row", "said"),
    [
        (rows([5, 6, 9], x=[11, 23, 33], y=[1, 2, 3]), 1, "'x' has other values"),
        (rows([5, 6, 9], x=[11, 22, 34], y=[1, 2, 4]), 2, "'x', 'y' has other values"),
        (rows([5, 6, 8], x=[11, 22, 32], y=[1, 2, 9]), 2, "other records are kept"),
        (rows([5, 6], x=[11, 22], y=[1, 2]), 0, "other records are kept"),
        (rows([]), 0, "none of the 3 rows is made any more"),
        (rows([5, 6, 9], x=[11, 22, 33], y=[1, 2, 3], z=[0, 0, 0]), 0, "'z' is new"),
        (rows([5, 6, 9], x=[11, 22, 33]), 0, "'y' is missing"),
    ],
)
def test_the_first_row_that_differs_is_named_with_its_field(found, row, said):
    other = Evidence.of(SEEN).differing(found)
    assert other is not None
    assert other.row == row
    assert said in other.said


def test_another_dtype_or_shape_is_said_as_that():
    other = RowsDigested(SEEN.positions, SEEN.ordinals, {"x": "int32 ()", "y": "int64 (3)"}, SEEN.fields)
    assert "'x' is int32 (), and was int64 ()" in Evidence.of(SEEN).differing(other).said
    assert "'y' is int64 (3), and was int64 ()" in Evidence.of(SEEN).differing(other).said


def test_its_size_grows_neither_with_the_fields_nor_with_their_names():
    many = {f"{'a long name of a field ' * 5}{number}": range(MAX_ROWS) for number in range(200)}
    evidence = Evidence.of(rows(range(2**40, 2**40 + MAX_ROWS), **many))
    assert len(json.dumps(evidence.to_json())) < 2000
    changed = dict(many) | {[*many][150]: [*range(1, MAX_ROWS), 0]}
    assert evidence.differing(rows(range(2**40, 2**40 + MAX_ROWS), **changed)) is not None


def test_two_fields_take_some_three_hundred_bytes():
    evidence = Evidence.of(rows(range(2**40, 2**40 + MAX_ROWS), image=range(MAX_ROWS), label=range(MAX_ROWS)))
    assert len(json.dumps(evidence.to_json())) < 320


@pytest.mark.parametrize("name", ["start", "places", "fields", "rows", "digest"])
@pytest.mark.parametrize("value", [None, -1, [], {}, "zz", [1, 2, 3], {"x": 1}])
def test_what_is_no_evidence_is_a_damaged_state(name, value):
    saved = Evidence.of(SEEN).to_json()
    if (name, value) in [("fields", {}), ("places", "zz"), ("digest", "zz")]:
        assert Evidence.from_json(saved | {name: value}).differing(SEEN) is not None
        return
    with pytest.raises(ValueError, match="the state's evidence is none: .* damaged"):
        Evidence.from_json(saved | {name: value})
