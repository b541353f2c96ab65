"""States as an earlier release wrote them, with all that it told of code, are taken by this one for the same programs.

landed_states.json is what `saved` gave there, two batches into each. It is never made anew: a program that is added is
added to it, by a release that has landed. The text of lambdas is another in other releases of Python.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import grain
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig, from_hf

PINNED = Path(__file__).with_name("landed_states.json")


class Tokenizer:
    factor = 3

    def __init__(self) -> None:
        self.table, self.path = {"a": 1}, "out"

    def __call__(self, element: Any) -> Any:
        return element

    def encode(self, element: Any) -> Any:
        return {"x": element["x"] * self.factor + self.table["a"]}

    def save(self) -> str:
        return self.path


TOKENIZER, PATTERN, CONFIG = Tokenizer(), re.compile("a+"), {"scale": 2}


def encodes(element: Any) -> Any:
    return TOKENIZER.encode(element)


def calls(element: Any) -> Any:
    return TOKENIZER(encodes(element))


def configured(element: Any) -> Any:
    return {"x": element["x"] * CONFIG["scale"] + len(PATTERN.findall("aa"))}


def odd(element: Any) -> bool:
    return element["x"] % 2 == 1


def as_element(index: Any) -> Any:
    return {"x": index}


class Add:
    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return {"x": element["x"] + self.by}


class Noise(nnx.Module):
    def __init__(self) -> None:
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, batch: Any) -> Any:
        return batch | {"y": self.dropout(jnp.ones(batch["x"].shape))}


def rows(first: int) -> Iterator[dict[str, int]]:
    for number in range(first, first + 40):
        yield {"x": number}


def arrays(first: int, *transforms: Any) -> RandomAccessSource:
    config = RandomAccessSourceConfig(num_epochs=2, shuffle=True)
    return RandomAccessSource(config, {"x": np.arange(first, first + 40)}, transforms=list(transforms))


def chain(seed: int) -> RandomAccessSource:
    data = grain.MapDataset.source(np.arange(40)).shuffle(seed=seed).map(as_element)
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data)


def stream() -> Any:
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"first": 0})


def pipeline(source: Any, **options: Any) -> Pipeline:
    return Pipeline(source=source, batch_size=4, rngs=nnx.Rngs(0), **options)


PROGRAMS: dict[str, Callable[[], Pipeline]] = {
    "arrays": lambda: pipeline(arrays(0, encodes, calls, configured, Add(3))),
    "stage": lambda: pipeline(arrays(0), stages=[Noise()]),
    "dataset": lambda: pipeline(
        from_hf(datasets.Dataset.from_dict({"x": list(range(30))}), num_epochs=1, transforms=[configured])
    ),
    "stream": lambda: pipeline(from_hf(stream().map(configured).filter(odd), transforms=[encodes])),
    "stream, called": lambda: pipeline(from_hf(stream().map(calls))),
    "mixture": lambda: pipeline(MixtureSource([arrays(0, encodes), arrays(100, calls)])),
    "many": lambda: pipeline(MixtureSource([arrays(index * 100, configured, Add(index)) for index in range(6)])),
    "many, encoded": lambda: pipeline(MixtureSource([arrays(index * 100, encodes) for index in range(6)])),
    "many with a stream": lambda: pipeline(
        MixtureSource([from_hf(stream().map(configured), num_epochs=2), *(arrays(n, Add(n)) for n in range(5))])
    ),
    "chain": lambda: pipeline(chain(1)),
    "many chains": lambda: pipeline(MixtureSource([chain(seed) for seed in range(6)])),
}


def saved(name: str) -> tuple[dict[str, Any], Pipeline]:
    """Two batches into a program: its state, and what gives the rest."""
    made = PROGRAMS[name]()
    made.step()
    made.step()
    return json.loads(json.dumps(made.get_state())), made


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="of Python 3.11")
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_state_of_an_earlier_release_is_taken(name: str) -> None:
    _, whole = saved(name)
    resumed = PROGRAMS[name]()
    resumed.set_state(json.loads(PINNED.read_text())[name])
    np.testing.assert_array_equal(resumed.step()["x"], whole.step()["x"])
