"""A state with anything changed is refused when it is set, and moves nothing; names and code refuse nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import datasets
import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray import ConcatThenSplit, MixtureSource, Pipeline, RandomAccessSource, RandomAccessSourceConfig
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 70) | st.floats() | st.text(max_size=5),
    lambda plain: st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=5), plain, max_size=3),
    max_leaves=6,
)


class Thrice:
    def flat_map(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"tokens": np.arange(element["index"] % 5 + copy)} for copy in range(1, 4)]


def records() -> RandomAccessSource:
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=-1)
    return RandomAccessSource(config, {"index": np.arange(50)}, transforms=[Thrice()])


def shards() -> HFStreamingSource:
    data = datasets.Dataset.from_dict({"index": list(range(400))}).to_iterable_dataset(num_shards=3)
    config = HFStreamingConfig(shuffle=True, turn_size=2, shuffle_buffer_size=5)
    return HFStreamingSource(config, dataset=data, transforms=[Thrice()])


SOURCES: dict[str, Callable[[], Any]] = {
    "records": records,
    "mixture": lambda: MixtureSource([records(), records()], [2, 1]),
    "shards": shards,
    "mixture with shards": lambda: MixtureSource([records(), shards()], [2, 1]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_it_is_refused_and_changes_nothing(kind: str) -> None:
    with Pipeline(source=SOURCES[kind](), batch_size=3, packing=ConcatThenSplit(7, "tokens"), prefetch=0) as pipeline:
        before = json.dumps(pipeline.get_state())
        while "rest" not in (whole := json.loads(json.dumps(pipeline.get_state()))):
            pipeline.step()
        for _ in range(4):
            pipeline.step()
        pipeline.set_state(json.loads(before))

        @given(data=st.data())
        def refuse(data: Any) -> None:
            mutant = holder = json.loads(json.dumps(whole))
            key = data.draw(st.sampled_from(["position", "rest", "settings"]))
            while isinstance(holder[key], dict) and holder[key] and data.draw(st.integers(0, 4)):
                its = [each for each in holder[key] if each != "transforms"]
                holder, key = holder[key], data.draw(st.sampled_from(its))
            was = holder.pop(key)
            if data.draw(st.booleans()):
                changed = was + data.draw(st.sampled_from([-1, 1])) if type(was) is int else data.draw(PLAIN)
                hypothesis.assume(json.dumps(changed) != json.dumps(was))
                holder[key] = changed
            mutant = mutant if data.draw(st.integers(0, 9)) else data.draw(PLAIN)
            with pytest.raises((TypeError, ValueError)):
                pipeline.set_state(mutant)
            assert json.dumps(pipeline.get_state()) == before

        refuse()
