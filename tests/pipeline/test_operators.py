"""Operators as datarax has them (`_apply_on_raw`) as stages: what they are given, and what a state says of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

_MADE = itertools.count()


@dataclass(frozen=True)
class OperatorConfig:
    scale: float = 1.0
    subtree: Any = None  # a dict, as in datarax's MapOperatorConfig: the config has no hash


class Operator(nnx.Module):
    """Adds scale * noise, and counts in the states; as datarax's OperatorModule a number of its own and a base key."""

    def __init__(self, config, rngs):
        self.config = nnx.static(config)
        self.rngs = rngs
        self._unique_id = next(_MADE)
        self._base_key = nnx.Variable(rngs.augment())

    def __call__(self, batch):
        return batch.data  # of a Batch of datarax's, which no pipeline makes

    def _apply_on_raw(self, data, states, stats=None, global_indices=None):
        assert stats is None
        keys = jax.vmap(jax.random.fold_in, (None, 0))(self._base_key[...], global_indices)
        noise = self.config.scale * jax.vmap(jax.random.uniform)(keys)
        calls = states.get("calls", jnp.zeros(len(noise)))
        return data | {"noise": noise, "index": global_indices, "calls": calls}, {"calls": calls + 1}


def make(*stages, batch_size=8, **options):
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=2), {"x": np.arange(20, dtype=np.int32)})
    return Pipeline(source=source, stages=stages or None, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def operator(seed=1, uses=0, **config):
    rngs = nnx.Rngs(augment=seed)
    for _ in range(uses):
        rngs.augment()
    return Operator(OperatorConfig(**config), rngs)


def rows(pipeline):
    names = ("x", "index", "noise", "calls")
    return [row for batch in pipeline for row in zip(*(batch[name].tolist() for name in names), strict=True)]


def test_it_is_given_the_global_position_of_every_row():
    found = rows(make(operator()))
    keys = nnx.Rngs(augment=1).augment()
    noise = [jax.random.uniform(jax.random.fold_in(keys, position)).item() for position in range(40)]
    assert found == [(position % 20, position, noise[position], 0) for position in range(40)]
    assert rows(make(operator(), batch_size=7)) == found


def test_states_go_from_one_to_the_next_and_plain_stages_stand_between():
    def double(batch):
        return batch | {"x": 2 * batch["x"]}

    batch = next(iter(make(operator(1), double, operator(2))))
    assert batch["calls"].tolist() == [1] * 8
    assert batch["x"].tolist() == list(range(0, 16, 2))
    nodes = {"first": operator(1), "second": operator(2), "joined": lambda a, b: {"a": a["calls"], "b": b["calls"]}}
    edges = {"second": ["first"], "joined": ["first", "second"]}
    graph = next(iter(make(nodes=nodes, edges=edges, sink="joined")))
    assert {name: values.tolist() for name, values in graph.items()} == {"a": [0] * 8, "b": [1] * 8}


def test_scan_runs_it_as_iteration_does():
    want = [np.asarray(batch["noise"]) for batch in itertools.islice(make(operator()), 5)]
    got = make(operator()).scan(lambda batch: batch["noise"], length=5)
    np.testing.assert_array_equal(got, want)


def test_another_config_informs_and_is_not_refused():
    one, other = (make(operator(scale=scale)).get_state() for scale in (1.0, 2.0))
    assert one["settings"]["stages"]["names"] == other["settings"]["stages"]["names"]
    make(operator(scale=2.0)).set_state(one)


def test_a_config_without_a_hash_is_no_hindrance():
    assert len(rows(make(operator(subtree={"x": None})))) == 40
