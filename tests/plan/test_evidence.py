"""Evidence as values: what it records, at which size, and what it says of rows that were made otherwise."""

import itertools
import json

import numpy as np
import pytest

from datarax_ray.plan.evidence import MAX_ROWS, Evidence, RollingDigest, RowsDigested, added
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import Share


def rows(positions, ordinals=None, **fields):
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
    assert said in other.difference


def test_another_dtype_or_shape_is_said_as_that():
    other = RowsDigested(SEEN.positions, SEEN.ordinals, {"x": "int32 ()", "y": "int64 (3)"}, SEEN.fields)
    assert "'x' is int32 (), and was int64 ()" in Evidence.of(SEEN).differing(other).difference
    assert "'y' is int64 (3), and was int64 ()" in Evidence.of(SEEN).differing(other).difference


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
    with pytest.raises(ValueError, match="the state's evidence cannot be read: .* damaged"):
        Evidence.from_json(saved | {name: value})


# -- the rolling digest ------------------------------------------------------------------------------------------------

WHOLE = RollingDigest((12, 3), 2**64 - 5)


def test_it_is_saved_as_its_sum_and_where_it_begins():
    assert WHOLE.to_json() == {"sum": "fffffffffffffffb", "since": [12, 3]}
    part = RollingDigest((0, 0), 10, (1, 3), 4)
    assert part.to_json() == {"sum": "000000000000000a", "since": [0, 0], "parts": [1, 3], "num_parts": 4}
    for digest in (WHOLE, part):
        assert RollingDigest.from_json(json.loads(json.dumps(digest.to_json()))) == digest


def test_the_sum_wraps_at_2_to_the_64():
    assert WHOLE.plus(7).total == 2
    assert WHOLE.plus(3 * 2**64).total == WHOLE.total


def test_the_parts_of_trainers_add_up_in_any_order_and_each_once():
    parts = [RollingDigest((0, 0), 2**63 + n, (n,), 3) for n in range(3)]
    for some in itertools.permutations(parts):
        assert added([*some, some[0]]) == RollingDigest((0, 0), 2**63 + 3)
    assert added([WHOLE, WHOLE]) == WHOLE


@pytest.mark.parametrize(
    "others",
    [
        [],  # one is missing
        [RollingDigest((0, 0), 1, (0, 1), 2)],  # rows that both have
        [RollingDigest((5, 0), 1, (1,), 2)],  # begun elsewhere
        [RollingDigest((0, 0), 1, (1,), 3)],  # of another number of parts
        [RollingDigest((0, 0), 1)],  # of all rows
        [RollingDigest((0, 0), 1, (1,), 2), RollingDigest((0, 0), 2, (1,), 2)],  # two that say another
    ],
)
def test_what_is_not_each_row_once_adds_up_to_nothing(others):
    assert added([RollingDigest((0, 0), 1, (0,), 2), *others]) is None


def test_a_whole_goes_on_with_the_first_of_any_number_of_trainers():
    for shares in ([Share()], [Share(2, (0,)), Share(2, (1,))], [Share(4, (1, 3)), Share(4, (0, 2)), Share(4, (0, 2))]):
        held = [WHOLE.held_by(share) for share in shares]
        assert added(digest for digest in held if digest is not None) == WHOLE
    assert WHOLE.held_by(Share(2, (0, 1))) == WHOLE  # all rows, on a mesh


def test_a_part_goes_on_with_its_own_trainer_alone():
    part = RollingDigest.begun(StreamState(7), Share(2, (1,))).plus(9)
    assert part == RollingDigest((7, 0), 9, (1,), 2)
    assert part.held_by(Share(2, (1,))) == part
    assert [part.held_by(share) for share in (Share(2, (0,)), Share(4, (1,)), Share())] == [None, None, None]


@pytest.mark.parametrize(
    "said",
    [
        None,
        "0123456789abcdef",
        {"sum": "5", "since": [0, 0]},
        {"sum": "0123456789abcdeg", "since": [0, 0]},
        {"sum": "0123456789abcdef"},
        {"sum": "0123456789abcdef", "since": [-1, 0]},
        {"sum": "0123456789abcdef", "since": [0, 0.5]},
        {"sum": "0123456789abcdef", "since": [0, 0], "parts": [1, 0], "num_parts": 2},
        {"sum": "0123456789abcdef", "since": [0, 0], "parts": [2], "num_parts": 2},
    ],
)
def test_what_is_no_digest_is_refused(said):
    with pytest.raises(ValueError, match=r"the state's digest cannot be read: .* damaged, restore an earlier one"):
        RollingDigest.from_json(said)
