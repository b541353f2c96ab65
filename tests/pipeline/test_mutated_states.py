"""A state of any kind with anything in it changed is refused when it is set, or gone on from: not at the first read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray import Pipeline
from datarax_ray.read.errors import RecordError, SkippedError
from tests.pipeline.test_landed_states import KINDS, PINNED, made_with

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 70) | st.floats() | st.text(max_size=5),
    lambda plain: st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=5), plain, max_size=3),
    max_leaves=6,
)
# One of each kind of order, of packing, and of what stands beside a position.
CHOSEN = [
    "block order",
    "skipped records",
    "flat_map",
    "concat",
    "first fit",
    "concat in a mixture",
    "stream with flat_map",
    "packed stream",
]


@pytest.fixture(scope="module", params=CHOSEN)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A pipeline, a state that it stands at, and a whole one."""
    directory: Path = tmp_path_factory.mktemp("mutated")
    with KINDS[request.param](directory) as pipeline:
        whole = made_with(PINNED[request.param]["state"], pipeline.get_state(), request.param)
        yield pipeline, json.loads(json.dumps(pipeline.get_state())), whole


@given(data=st.data())
@hypothesis.settings(max_examples=60)
def test_it_is_refused_and_changes_nothing_or_is_gone_on_from(kind: Any, data: Any) -> None:
    pipeline: Pipeline
    pipeline, before, whole = kind
    pipeline.set_state(before)
    mutant = holder = copy.deepcopy(whole)
    del mutant["settings"]  # compared value by value, as tests/plan/test_fingerprint.py shows
    del mutant["evidence"]  # compared with rows, as tests/feed/test_trail.py shows
    while True:
        key = data.draw(st.sampled_from([*holder, "new", "offset"]))
        if not isinstance(holder.get(key), dict) or data.draw(st.integers(0, 4)) == 0:
            break
        holder = holder[key]
    if data.draw(st.booleans()):
        holder.pop(key, None)
    else:
        holder[key] = data.draw(PLAIN)
    mutant["settings"] = whole["settings"]
    try:
        pipeline.set_state(mutant)
    except (TypeError, ValueError):
        assert json.loads(json.dumps(pipeline.get_state())) == before
        return
    assert json.loads(json.dumps(pipeline.get_state()))["position"] == mutant["position"]
    try:
        next(iter(pipeline), None)
    except (ValueError, OverflowError, RecordError, SkippedError) as error:
        # What the data alone can tell: how much a record gives, that positions end, and that too much is broken. And
        # what is inside a cursor: that is the state of `datasets`, which looks at it when it reads.
        of_data = ("stream goes on behind", "positions end", "max_skipped=30 allows")
        of_cursors = ("the cursor of shard ", "reading raised ") if "cursors" in whole["rest"] else ()
        if not any(said in str(error) for said in of_data + of_cursors):
            raise


@given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_one_that_says_more_than_a_position_is_refused_after_any_change_of_that(kind: Any, data: Any) -> None:
    """Also of a cursor, and of the place of a mixture's component, which could be another state's."""
    pipeline: Pipeline
    pipeline, before, whole = kind
    pipeline.set_state(whole)
    mutant = holder = json.loads(json.dumps(pipeline.get_state()))
    pipeline.set_state(before)
    if "rest" not in mutant:
        return
    key = data.draw(st.sampled_from(["position", "rest"]))
    while isinstance(holder[key], dict) and holder[key] and data.draw(st.integers(0, 4)):
        holder, key = holder[key], data.draw(st.sampled_from([*holder[key]]))
    was = holder.pop(key)
    if data.draw(st.booleans()):
        holder[key] = was + data.draw(st.sampled_from([-1, 1])) if type(was) is int else data.draw(PLAIN)
        hypothesis.assume(json.dumps(holder[key]) != json.dumps(was))
    with pytest.raises((TypeError, ValueError)):
        pipeline.set_state(mutant)
    assert json.loads(json.dumps(pipeline.get_state())) == before
