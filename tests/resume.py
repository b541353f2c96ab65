"""The one resume helper: every iterator of batches goes through it, at every position."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np

from datarax_ray import Pipeline


def on_host(batch: Any) -> Any:
    return jax.tree.map(np.asarray, batch)


def plain(column: np.ndarray) -> list[Any]:
    """Objects as values that can be compared; arrays of many lengths by type and bytes."""
    return [(str(v.dtype), v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in column.tolist()]


def assert_equal(got: list[Any], want: list[Any]) -> None:
    """Byte for byte, batch for batch."""
    assert len(got) == len(want)
    for number, (left, right) in enumerate(zip(got, want, strict=True)):
        assert sorted(left) == sorted(right)
        for key in left:
            a, b = np.asarray(left[key]), np.asarray(right[key])
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (number, key)
            assert (plain(a) == plain(b)) if a.dtype == object else (a.tobytes() == b.tobytes()), (number, key)


def run_saving(pipeline: Pipeline, most: int | None = None) -> tuple[list[Any], list[str]]:
    """All batches, or so many, and the state as JSON text before the first and after each."""
    states = [json.dumps(pipeline.get_state())]
    batches = []
    for batch in islice(pipeline, most):
        batches.append(on_host(batch))
        states.append(json.dumps(pipeline.get_state()))
    return batches, states


def assert_resumes(make: Callable[[int], Pipeline], batches: list[Any], states: list[str], every: int = 1) -> None:
    """From each state a new pipeline, `make(its number)`, yields exactly what was left: batches, and their states.

    Two of them, which lead to a state that is looked at as well; from every sixth state all that is left.
    """
    for count, number in enumerate(range(0, len(states), every)):
        most = 2 if count % 6 else None
        with make(number) as pipeline:
            pipeline.set_state(json.loads(states[number]))
            rest, rest_states = run_saving(pipeline, most)
            end = None if most is None else number + most
            assert_equal(rest, batches[number:end])
            assert [*map(comparable, rest_states)] == [*map(comparable, states[number : end and end + 1])]


def comparable(state: Any) -> dict[str, Any]:
    """A state without the evidence, which begins where a pipeline began, and without what a stream of shards knows of
    where these end: a pipeline that resumes behind an end learns it later.
    """
    plain = json.loads(state) if isinstance(state, str) else dict(state)
    rest = {name: value for name, value in plain.pop("rest", {}).items() if name not in ("epoch", "cursors", "lengths")}
    plain.pop("rest_checksum", None)  # of all of it
    plain.pop("evidence", None)
    return plain | {"rest": rest}


def joined(ranks: Sequence[Sequence[Any]]) -> list[dict[str, np.ndarray]]:
    """The global batches of trainers by rank. ranks: the batches of each, in the order of their ranks."""
    return [
        {name: np.concatenate([part[name] for part in map(on_host, parts)]) for name in parts[0]}
        for parts in zip(*ranks, strict=True)
    ]
