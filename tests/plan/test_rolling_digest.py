"""The rolling digest by value: parts of trainers add up, each goes on with its own, and nothing else loads."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from datarax_ray.plan.rolling_digest import RollingDigest, added
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import Share

WHOLE = RollingDigest((12, 3), 2**64 - 5)


def test_it_is_saved_as_its_sum_and_where_it_begins() -> None:
    assert WHOLE.to_json() == {"sum": "fffffffffffffffb", "since": [12, 3]}
    part = RollingDigest((0, 0), 10, (1, 3), 4)
    assert part.to_json() == {"sum": "000000000000000a", "since": [0, 0], "parts": [1, 3], "num_parts": 4}
    for digest in (WHOLE, part):
        assert RollingDigest.from_json(json.loads(json.dumps(digest.to_json()))) == digest


def test_the_sum_wraps_at_2_to_the_64() -> None:
    assert WHOLE.plus(7).total == 2
    assert WHOLE.plus(3 * 2**64).total == WHOLE.total


def test_the_parts_of_trainers_add_up_in_any_order_and_each_once() -> None:
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
def test_what_is_not_each_row_once_adds_up_to_nothing(others: list[RollingDigest]) -> None:
    assert added([RollingDigest((0, 0), 1, (0,), 2), *others]) is None


def test_a_whole_goes_on_with_the_first_of_any_number_of_trainers() -> None:
    for shares in ([Share()], [Share(2, (0,)), Share(2, (1,))], [Share(4, (1, 3)), Share(4, (0, 2)), Share(4, (0, 2))]):
        held = [WHOLE.held_by(share) for share in shares]
        assert added(digest for digest in held if digest is not None) == WHOLE
    assert WHOLE.held_by(Share(2, (0, 1))) == WHOLE  # all rows, on a mesh


def test_a_part_goes_on_with_its_own_trainer_alone() -> None:
    part = RollingDigest.begun(StreamState(7), Share(2, (1,))).plus(9)
    assert part == RollingDigest((7, 0), 9, (1,), 2)
    assert part.held_by(Share(2, (1,))) == part
    assert [part.held_by(share) for share in (Share(2, (0,)), Share(4, (1,)), Share())] == [None, None, None]


@pytest.mark.parametrize(
    "said",
    [
        None,
        "0123456789abcdef",
        {"sum": 5, "since": [0, 0]},
        {"sum": "5", "since": [0, 0]},
        {"sum": "0123456789abcdeg", "since": [0, 0]},
        {"sum": "0123456789abcdef"},
        {"sum": "0123456789abcdef", "since": [0]},
        {"sum": "0123456789abcdef", "since": [-1, 0]},
        {"sum": "0123456789abcdef", "since": [0, 0.5]},
        {"sum": "0123456789abcdef", "since": [0, 0], "parts": [1, 0], "num_parts": 2},
        {"sum": "0123456789abcdef", "since": [0, 0], "parts": [2], "num_parts": 2},
        {"sum": "0123456789abcdef", "since": [0, 0], "parts": 1},
    ],
)
def test_what_is_no_digest_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match=r"the state's digest cannot be read: .* damaged, restore an earlier one"):
        RollingDigest.from_json(said)
