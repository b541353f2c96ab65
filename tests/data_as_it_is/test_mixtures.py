"""A component of a mixture that gives less than its weight says, and one that gives nothing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from datarax_ray import Pipeline, RaySource
from datarax_ray.actors.recovery import counts_of
from datarax_ray.plan.orders.mixture import Mixture
from datarax_ray.plan.orders.proportions import Proportions, Share
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig

NOTHING = "component 1 of the mixture gave no element at"


class Keep:
    """Keeps elements of which `every` divides x; none for 0."""

    def __init__(self, every: int) -> None:
        self.every = every

    def filter(self, element: dict[str, Any]) -> bool:
        return bool(self.every and element["x"] % self.every == 0)


def make(
    *every: int, sizes: tuple[int, ...] = (120, 120), weights: Any = None, strict: bool = False, **config: Any
) -> Any:
    sources = [
        RandomAccessSource(
            RandomAccessSourceConfig(**({"num_epochs": 1} | config)),
            {"x": np.arange(size), "source": np.full(size, number)},
            transforms=[] if each == 1 else [Keep(each)],
        )
        for number, (each, size) in enumerate(zip(every, sizes, strict=True))
    ]
    return MixtureSource(sources, weights, strict=strict)


def rows(pipeline: Pipeline) -> Counter[int]:
    return Counter(value for batch in pipeline for value in np.asarray(batch["source"]).tolist())


@pytest.mark.parametrize(
    ("every", "shares", "lines"),
    [
        ((1, 1), (Share(120, 120), Share(120, 120)), 0),
        ((1, 3), (Share(120, 120), Share(120, 40)), 0),
        ((1, 0), (Share(120, 120), Share(120, 0)), 1),  # 0 of 240 rows, in silence
    ],
)
@pytest.mark.parametrize("num_actors", [0, 2])
def test_what_each_component_gives_is_beside_its_weight(
    ray_local: None, caplog: Any, every: tuple[int, int], shares: tuple[Share, ...], lines: int, num_actors: int
) -> None:
    source = make(*every)
    with Pipeline(source=RaySource(source, num_actors=2) if num_actors else source, batch_size=8) as pipeline:
        found = rows(pipeline)
        stats = pipeline.stats()
    assert tuple(found[index] for index in range(2)) == tuple(share.num_elements for share in shares)
    assert stats.components == shares
    total = sum(found.values())
    assert stats.proportions == tuple((share.num_elements / total, 0.5) for share in shares)
    assert f"component 1 {found[1]} {found[1] / total:.1%}, by weight 50.0%" in " ".join(str(stats).split())
    assert counts_of(stats)["component", "1"] == found[1]
    assert len([line for line in caplog.messages if line.startswith(f"{NOTHING} 120 positions, a whole pass")]) == lines


@pytest.mark.parametrize("num_actors", [0, 2])
def test_a_strict_mixture_ends_behind_the_pass_that_gave_nothing(ray_local: None, num_actors: int) -> None:
    source = make(1, 0, num_epochs=-1, strict=True)
    with Pipeline(source=RaySource(source, num_actors=2) if num_actors else source, batch_size=8) as pipeline:
        with pytest.raises(RuntimeError, match=f"{NOTHING} .*, a whole pass of its 120 records: the filters drop"):
            rows(pipeline)
        assert pipeline.position >= 120


def test_in_the_middle_the_pass_is_counted_from_there(caplog: Any) -> None:
    with Pipeline(source=make(1, 0, num_epochs=-1), batch_size=8) as pipeline:
        pipeline.step()
        state = pipeline.get_state()
    with Pipeline(source=make(1, 0, num_epochs=-1, strict=True), batch_size=8) as other:
        other.set_state(state)  # strict is no setting of the stream
        with pytest.raises(RuntimeError, match=NOTHING):
            rows(other)
        assert other.position >= state["position"] + 2 * 112


def test_all_trainers_know_though_each_has_some_of_the_rows(ray_local: None, caplog: Any) -> None:
    """The only element of a component is one trainer's."""
    every, sizes = (1, 4), (40, 4)
    found = []
    for index in range(2):
        source = RaySource(make(*every, sizes=sizes, num_epochs=10), num_actors=1, name="both", num_cpus=0.1)
        found.append(Pipeline(source=source, batch_size=8, process_index=index, process_count=2))
    with found[0], found[1]:
        for pipeline in found:
            rows(pipeline)
            assert pipeline.stats().components[1].num_elements == 10
    assert not [line for line in caplog.messages if line.startswith(NOTHING)]


def test_a_component_whose_pass_takes_days_is_told_of_early(caplog: Any) -> None:
    proportions = Proportions(Mixture((3, 1), 0), 0, (10, 10**9), ((), ("why",)), is_exact=False, is_strict=True)
    proportions.add(8, [np.arange(8)[Mixture((3, 1), 0).place(np.arange(8))[0] == 0]])
    assert list(proportions.empty(8)) == []
    (line,) = proportions.empty(40_000)
    assert line.startswith("component 1 of the mixture gave no element at 10,000 positions: why, or all of it was")
    assert list(proportions.empty(80_000)) == []


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_plain_loop(seed: int) -> None:
    rng = random.Random(seed)
    weights = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 5)))
    mixture = Mixture(weights, seed, ((100, weights[::-1]),) if seed % 2 else ())
    start = rng.randint(0, 50)
    proportions = Proportions(mixture, start, weights, [()] * len(weights), is_exact=False, is_strict=False)
    due, elements = Counter[int](), Counter[int]()
    at = start
    while at < 300:
        stop = at + rng.randint(1, 40)
        kept = np.array([p for p in range(at, stop) for _ in range(rng.randint(0, 2))], np.int64)
        due.update(mixture.place(np.arange(at, stop))[0].tolist())
        elements.update(mixture.place(kept)[0].tolist())
        proportions.add(stop, [kept[::2], kept[1::2]])
        at = stop
    assert proportions.shares() == tuple(Share(due[index], elements[index]) for index in range(len(weights)))
