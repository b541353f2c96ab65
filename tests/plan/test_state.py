"""A saved state is external input: whatever is wrong with one is said when it is read, each in its own sentence."""

import copy
import json
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, Cursor, InterleavedOrder, ShardCursors
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.mixture import Mixture, MixtureOrder
from datarax_ray.plan.position import ONE_TO_ONE, Yields
from datarax_ray.plan.state import StreamState, written


@dataclass(frozen=True)
class Stream:
    order: Any
    yields: Yields = ONE_TO_ONE


RECORDS = Stream(order_of(10))
FANNED = Stream(order_of(10), Yields(may_repeat=True))
MIXED = Stream(MixtureOrder(Mixture((2, 1), seed=3), (order_of(5), order_of(7))))
SHARDS = Stream(InterleavedOrder(2, turn_size=2))
SETTINGS = {"mixture": {"weights": [2, 1]}, "batch_size": 4}
E = EPOCH_POSITIONS


def state(position, settings=SETTINGS, **rest):
    return written(position, rest, settings)


@pytest.mark.parametrize(
    ("stream", "unit", "wanted"),
    [
        (RECORDS, "elements", StreamState(7)),
        (FANNED, "elements", StreamState(7, 2)),
        (RECORDS, "tokens", StreamState(7, 2, "tokens")),
        (RECORDS, "documents", StreamState(7, 2, "documents")),
        (MIXED, "tokens", StreamState(7, 5, "tokens")),
        (SHARDS, "elements", StreamState(E + 12, extra=ShardCursors(1, {0: Cursor(4, {"at": [4]})}, {1: 6}))),
        (SHARDS, "elements", StreamState(E + 12, extra=ShardCursors(1, {0: Cursor(4, None), 1: Cursor(2)}, {1: 6}))),
        (SHARDS, "tokens", StreamState(12, 3, "tokens", ShardCursors(0, {}, {}))),
    ],
)
def test_what_was_written_is_read(stream, unit, wanted):
    plain = json.loads(json.dumps(wanted.to_json(SETTINGS)))
    found = StreamState.from_json(plain, stream, SETTINGS, unit=unit)
    assert found == wanted
    assert found.to_json(SETTINGS) == plain


def test_a_position_alone_says_no_more():
    assert StreamState(7, 0, "tokens").to_json(SETTINGS) == state(7)


def test_where_a_shard_stood_that_has_no_more_to_give_is_not_saved():
    extra = ShardCursors(0, {0: Cursor(4), 1: Cursor(4)}, {0: 4, 1: 5})
    assert set(extra.plain()["cursors"]) == {"1"}


def nested(depth):
    settings = {}
    for _ in range(depth):
        settings = {"a": settings}
    return settings


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, TypeError, "a state is a dict, got NoneType"),
        ("{}", TypeError, r"a state is a dict, got str; json\.loads\(text\) makes one of JSON"),
        ({"position": 3}, ValueError, r"has no version, only \['position'\]"),
        ({"version": 2}, ValueError, "the state has version 2, this release reads version 1"),
        ({"version": True}, ValueError, "the state has version True"),
        ({"version": 10**5000}, ValueError, "version a int, whose repr is an error: ValueError, this release"),
        ({"version": 1, "position": None, "settings": {}}, ValueError, "must be an integer, got None"),
        ({"version": 1, "position": -1, "settings": {}}, ValueError, "got -1"),
        ({"version": 1, "position": True, "settings": {}}, ValueError, "got True"),
        ({"version": 1, "position": 2**62 + 1, "settings": {}}, ValueError, "is at most 2\\*\\*62, got 46116"),
        ({"version": 1, "position": 10**5000, "settings": {}}, ValueError, "got an integer of 16610 bits"),
        ({"version": 1, "position": 7}, ValueError, "rest and settings must be dicts, got {} and None"),
        ({"version": 1, "position": 7, "settings": {}, "rest": 3}, ValueError, "must be dicts, got 3 and {}"),
        ({"version": 1, "position": 7, "settings": {}, "rest": {"a": object}}, ValueError, "rest cannot be read"),
        ({"version": 1, "position": 7, "settings": nested(20_000)}, ValueError, "settings nest 16 deep at most, 'a.a."),
        ({"version": 1, "position": 7, "settings": {"a": 10**5000}}, DriftError, "with a int, whose repr is an error"),
        ({"version": 1, "position": 7, "settings": {"a": "b" * 9999}}, DriftError, r"'b{199}\.\.\., this"),
        ({"version": 1, "position": 7, "settings": dict.fromkeys(range(999), 0)}, DriftError, "and 979 more settings"),
    ],
)
def test_what_is_no_state_is_refused(state, error, message):
    with pytest.raises(error, match=message):
        StreamState.from_json(state, RECORDS, {})


@pytest.mark.parametrize(
    ("stream", "unit", "rest", "message"),
    [
        (RECORDS, "elements", {"cursors": 7}, r"and an offset in it, and the state has {'cursors': 7}; it is another"),
        (MIXED, "elements", {"epoch": 0}, "the state has {'epoch': 0}"),
        (SHARDS, "elements", {"origin": {}}, "position and epoch, cursors, lengths, and the state has {'origin': {}}"),
        (RECORDS, "elements", {"token_offset": 3}, "the offset in its record, .* has {'token_offset': 3}; .*packing"),
        (FANNED, "tokens", {"offset": 3}, "and the token_offset in its record, and the state has {'offset': 3}"),
        (FANNED, "tokens", {"token_offset": 1, "document_offset": 1}, "has {'document_offset': 1}"),
        (RECORDS, "elements", {"offset": 2}, "behind 2 elements of one record, and without a flat_map it gives"),
    ],
)
def test_a_state_of_another_stream_is_refused(stream, unit, rest, message):
    with pytest.raises(ValueError, match=message):
        StreamState.from_json(state(7, **rest), stream, SETTINGS, unit=unit)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda plain: st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=5), plain, max_size=3),
    max_leaves=8,
)
WHOLE = [
    (FANNED, state(7, offset=2)),
    (SHARDS, state(12, epoch=0, cursors={"0": {"ordinal": 4, "state": {"at": 4}}}, lengths={"1": 6})),
]


@given(data=st.data())
def test_a_state_with_anything_changed_beside_its_position_is_refused(data):
    """Each example replaces, adds or removes one value, anywhere in what a state holds beside its settings."""
    stream, whole = data.draw(st.sampled_from(WHOLE))
    mutant = holder = copy.deepcopy(whole)
    key = data.draw(st.sampled_from(["position", "rest"]))
    while isinstance(holder[key], dict) and holder[key] and data.draw(st.booleans()):
        holder, key = holder[key], data.draw(st.sampled_from([*holder[key], "new"]))
        if key not in holder:
            holder[key] = None
    was = holder.pop(key)
    if was is None or data.draw(st.booleans()):
        holder[key] = data.draw(PLAIN)
        hypothesis.assume(json.dumps(holder[key]) != json.dumps(was))
    with pytest.raises((TypeError, ValueError)):
        StreamState.from_json(mutant, stream, SETTINGS)
