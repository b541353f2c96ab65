"""A component of a mixture that gives less than its weight says, and one that gives nothing."""

import random
from collections import Counter, deque

import numpy as np
import pytest

from datarax_ray import ConcatThenSplit, Pipeline, RaySource
from datarax_ray.actors.recovery import counts_of
from datarax_ray.plan.orders.mixture import ComponentShare, Mixture, Proportions
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig
from tests.data import in_memory

NOTHING = "component 1 of the mixture gave no element at"


class Keep:
    """Keeps elements of which `every` divides x; none for 0."""

    def __init__(self, every):
        self.every = every

    def filter(self, element):
        return bool(self.every and element["x"] % self.every == 0)


def make(*every, sizes=(120, 120), weights=None, strict=False, **config):
    sources = [
        RandomAccessSource(
            RandomAccessSourceConfig(**({"num_epochs": 1} | config)),
            {"x": np.arange(size), "source": np.full(size, number)},
            transforms=[] if each == 1 else [Keep(each)],
        )
        for number, (each, size) in enumerate(zip(every, sizes, strict=True))
    ]
    return MixtureSource(sources, weights, strict=strict)


def rows(pipeline):
    return Counter(value for batch in pipeline for value in np.asarray(batch["source"]).tolist())


@pytest.mark.parametrize(
    ("every", "shares", "lines", "num_actors"),
    [
        ((1, 1), (ComponentShare(120, 120), ComponentShare(120, 120)), 0, 0),
        ((1, 3), (ComponentShare(120, 120), ComponentShare(120, 40)), 0, 2),
        ((1, 0), (ComponentShare(120, 120), ComponentShare(120, 0)), 1, 0),  # 0 of 240 rows, in silence
        ((1, 0), (ComponentShare(120, 120), ComponentShare(120, 0)), 1, 2),
    ],
)
def test_what_each_component_gives_is_beside_its_weight(ray_local, caplog, every, shares, lines, num_actors):
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


class Document:
    """Of `length` tokens, and every third one twice as long."""

    def __init__(self, length):
        self.length = length

    def map(self, element):
        return {"tokens": [element["source"]] * (self.length << (element["x"] % 3 == 0))}


@pytest.mark.parametrize("num_actors", [0, 2])
def test_tokens_are_shared_out_by_weight_in_packed_rows_and_shown_beside_it(ray_local, num_actors):
    sources = [
        in_memory(
            {"x": np.arange(50), "source": np.full(50, number)},
            transforms=[Document(length)],
            shuffle=True,
            seed=number,
            num_epochs=-1,
        )
        for number, length in enumerate((3, 40))
    ]
    source = MixtureSource(sources, [0.6, 0.4], weights_by="tokens")
    counts = np.zeros(2, np.int64)
    packing = ConcatThenSplit(64, "tokens")
    of = RaySource(source, num_actors=num_actors) if num_actors else source
    with Pipeline(source=of, batch_size=8, packing=packing, on_host=True) as pipeline:
        for _ in range(30):
            counts += np.bincount(pipeline.step()["tokens"].reshape(-1), minlength=2)
            assert abs(counts[0] - 0.6 * counts.sum()) <= 80  # the longest document
        stats = pipeline.stats()
    assert counts.sum() == 30 * 8 * 64
    (one, other), total = stats.components, sum(each.num_elements for each in stats.components)
    assert total >= counts.sum()
    assert abs(one.num_elements - 0.6 * total) <= 80
    assert one.num_positions + other.num_positions == total
    assert f"mixture, {total:,} by 'tokens':" in str(stats)


@pytest.mark.parametrize(
    ("weights_by", "packing", "error", "said"),
    [
        (3, None, TypeError, "weights_by is the name of a field, .* got 3"),
        ("sorce", None, ValueError, "weights_by='sorce' is no field of the elements: .*Did you mean 'source'?"),
        ("f", None, ValueError, "weights_by='f' is a list, .* got float64 such as -1.5"),
        ("n", None, ValueError, "a whole number from 0 on, got int64 such as -1"),
        ("none", None, ValueError, "weights_by='none' needs a length of every element: .*NoneType"),
        ("zero", None, ValueError, "size 0 in [0-9,]+ elements in a row, so no other"),
        ("n", ConcatThenSplit(8, "x"), ValueError, r"packing takes the fields \['x'\] alone"),
    ],
)
def test_sizes_that_nobody_can_share_out_are_refused(weights_by, packing, error, said):
    data = {
        "source": np.zeros(100, np.int64),
        "f": np.full(100, -1.5),
        "n": np.full(100, -1),
        "zero": np.zeros(100, np.int64),
        "none": np.full(100, None),
    }
    parts = [in_memory(data, num_epochs=-1)] * 2
    with pytest.raises(error, match=said):
        deque(Pipeline(source=MixtureSource(parts, weights_by=weights_by), batch_size=8, packing=packing, on_host=True))


@pytest.mark.parametrize("num_actors", [0, 2])
def test_a_strict_mixture_ends_behind_the_pass_that_gave_nothing(ray_local, num_actors):
    source = make(1, 0, num_epochs=-1, strict=True)
    with Pipeline(source=RaySource(source, num_actors=2) if num_actors else source, batch_size=8) as pipeline:
        with pytest.raises(RuntimeError, match=f"{NOTHING} .*, a whole pass of its 120 records: the filters drop"):
            rows(pipeline)
        assert pipeline.position >= 120


def test_in_the_middle_the_pass_is_counted_from_there(caplog):
    with Pipeline(source=make(1, 0, num_epochs=-1), batch_size=8) as pipeline:
        pipeline.step()
        state = pipeline.get_state()
    with Pipeline(source=make(1, 0, num_epochs=-1, strict=True), batch_size=8) as other:
        other.set_state(state)  # strict is no setting of the stream
        with pytest.raises(RuntimeError, match=NOTHING):
            rows(other)
        assert other.position >= state["position"] + 2 * 112


def test_all_trainers_know_though_each_has_some_of_the_rows(ray_local, caplog):
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


def test_a_component_whose_pass_takes_days_is_told_of_early(caplog):
    proportions = Proportions(Mixture((3, 1), 0), 0, (10, 10**9), ((), ("why",)), is_exact=False, is_strict=True)
    proportions.add(8, [np.arange(8)[Mixture((3, 1), 0).place(np.arange(8))[0] == 0]])
    assert list(proportions.empty(8)) == []
    (line,) = proportions.empty(40_000)
    assert line.startswith("component 1 of the mixture gave no element at 10,000 positions: why, or all of it was")
    assert list(proportions.empty(80_000)) == []


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_plain_loop(seed):
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
    assert proportions.shares() == tuple(ComponentShare(due[index], elements[index]) for index in range(len(weights)))
