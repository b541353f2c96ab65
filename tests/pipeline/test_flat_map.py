"""One record into many elements: the stream of a plain loop, for any actors and trainers, resumed inside a record."""

import json
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline, RaySource
from tests import oracle
from tests.data import AddNoise, array_records, decode
from tests.resume import assert_equal, assert_resumes, joined, on_host, run_saving

SEED = 42


class Crops:
    """Record i gives i % 4 elements: nothing, then more."""

    max_fan_out = 3

    def flat_map(self, element):
        for crop in range(element["index"] % 4):
            yield {"index": element["index"], "crop": crop}


class KeepOdd:
    def filter(self, element):
        return (element["index"] + element["crop"]) % 2 == 1


TRANSFORMS = {
    "crops": [decode, Crops()],
    "crops, noise": [decode, Crops(), AddNoise()],
    "crops, filter, noise": [decode, Crops(), KeepOdd(), AddNoise()],
}


def wanted(files, transforms, num_epochs=2):
    """A plain loop over records in Grain's order."""
    records, out = oracle.stored(files), []
    n = len(records)
    for position in range(num_epochs * n):
        index = oracle.order(n, position // n, SEED)[position % n]
        for ordinal in range(index % 4):
            element = {"index": index, "crop": ordinal}
            if any(isinstance(t, KeepOdd) for t in transforms) and (index + ordinal) % 2 == 0:
                continue
            if isinstance(transforms[-1], AddNoise):
                bits = np.random.Philox(
                    key=np.array([SEED, len(transforms) - 1], np.uint64),
                    counter=np.array([0, 0, position, ordinal], np.uint64),
                )
                element["noise"] = np.random.Generator(bits).random(2, dtype=np.float32)
            out.append(element)
    return out


def make_source(files, transforms, **config):
    return array_records(files, *transforms, **config)


def make(of, batch_size=7, **options):
    return Pipeline(source=of, batch_size=batch_size, rngs=nnx.Rngs(0), **options)


def rows(batches):
    return [
        {key: column[row].tolist() for key, column in batch.items()}
        for batch in map(on_host, batches)
        for row in range(len(batch["index"]))
    ]


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_stream_is_the_plain_loops(files, kind, batch_size):
    transforms = TRANSFORMS[kind]
    got = rows(list(make(make_source(files[:3], transforms), batch_size)))
    want = wanted(files[:3], transforms)
    assert got == [{k: v.tolist() if hasattr(v, "tolist") else v for k, v in element.items()} for element in want]


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_every_batch_is_followed_by_the_ones_that_were_left_also_inside_a_record(files, kind):
    source = make_source(files[:3], TRANSFORMS[kind])
    batches, states = run_saving(make(source, 2))
    assert any("offset" in json.loads(state).get("rest", {}) for state in states)
    assert max(map(len, states)) < 2048
    assert_resumes(lambda _: make(source, 2), batches, states)


def test_a_position_is_a_record_for_random_access(files):
    source = make_source(files[:3], TRANSFORMS["crops"], shuffle_files=False)
    assert [(e["index"], e["crop"]) for e in source.get_batch_at(2, 3)] == [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    with pytest.raises(TypeError, match="an index gives any number of elements; get_batch_at"):
        source[3]


def test_without_the_flat_map_a_state_inside_a_record_is_refused(files):
    pipeline = make(make_source(files[:3], TRANSFORMS["crops"], shuffle_files=False), 2)
    pipeline.step()
    state = pipeline.get_state()
    assert (state["position"], state["rest"]) == (2, {"offset": 1})
    other = make(make_source(files[:3], [decode], shuffle_files=False), 2)
    with pytest.raises(ValueError, match="behind 1 elements of one record, and without a flat_map"):
        other.set_state(state)
    assert other.position == 0


class Noise(nnx.Module):
    """A number for the batch, from rngs of its own."""

    def __init__(self):
        self.rngs = nnx.Rngs(1)

    def __call__(self, batch):
        return batch | {"batch": jax.random.uniform(self.rngs(), batch["crop"].shape)}


def add_keys(batch, keys):
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


def test_rows_and_batches_inside_one_record_draw_other_numbers_in_random_stages(files):
    def pipeline(_=0):
        return make(make_source(files[:3], TRANSFORMS["crops"]), 1, stages=[add_keys, Noise()])

    batches, states = run_saving(pipeline())
    for key in ("uniform", "batch"):
        assert len({float(batch[key][0]) for batch in batches}) == len(batches) > 20
    assert_resumes(pipeline, batches, states, every=7)


def test_elements_one_by_one_are_resumed_at_every_place(files: list[Path]) -> None:
    transforms = TRANSFORMS["crops, noise"]
    source = make_source(files[:3], transforms, num_epochs=1)
    elements, states = [], [json.dumps(source.get_state())]
    for element in source:
        elements.append({key: np.asarray(value).tolist() for key, value in element.items()})
        states.append(json.dumps(source.get_state()))
    assert elements == rows(list(make(make_source(files[:3], transforms, num_epochs=1))))
    for number, state in enumerate(states):
        again = make_source(files[:3], transforms, num_epochs=1)
        again.set_state(json.loads(state))
        batch = again.get_batch(3)
        assert (batch["crop"].tolist() if batch else []) == [e["crop"] for e in elements[number : number + 3]]
        rest = [{key: np.asarray(value).tolist() for key, value in element.items()} for element in again]
        assert rest == elements[number + 3 :]


@pytest.mark.parametrize("pad_remainder", [False, True])
def test_the_rows_of_trainers_joined_by_rank_are_the_batch(files: list[Path], pad_remainder: bool) -> None:
    source = make_source(files[:3], TRANSFORMS["crops, noise"])
    whole = [on_host(b) for b in make(source, 12, pad_remainder=pad_remainder)]
    ranks = [
        list(make(source, 12, pad_remainder=pad_remainder, process_index=rank, process_count=3)) for rank in range(3)
    ]
    assert_equal(joined(ranks), whole)


@pytest.mark.usefixtures("ray_local")
def test_any_number_of_actors_gives_the_same_bytes_and_resumes_inside_a_record(files: list[Path]) -> None:
    source = make_source(files[:3], TRANSFORMS["crops, filter, noise"])
    batches, states = run_saving(make(source, 3))
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=3) as distributed:
        assert_equal([on_host(b) for b in make(distributed, 3)], batches)
        for number in range(1, len(states), 5):
            resumed = make(distributed, 3)
            resumed.set_state(json.loads(states[number]))
            assert_equal([on_host(b) for b in islice(resumed, 3)], batches[number : number + 3])
