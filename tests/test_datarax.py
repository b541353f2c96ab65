"""A RaySource under the released datarax.pipeline.Pipeline, unchanged. Where datarax is installed (see the example)."""

from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

pipeline = pytest.importorskip("datarax.pipeline", reason="datarax is no dependency: it pins protobuf < 6")

import datarax.operators as operators  # noqa: E402
from datarax.core.config import BatchMixOperatorConfig, ElementOperatorConfig, MapOperatorConfig  # noqa: E402
from datarax.sources import MemorySource, MemorySourceConfig  # noqa: E402

from datarax_ray import Pipeline, RaySource  # noqa: E402  after the skip
from datarax_ray.plan.fingerprint import DriftError  # noqa: E402
from datarax_ray.read.decode import DecodeRaw  # noqa: E402
from datarax_ray.sources import (  # noqa: E402
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    ParquetSource,
    ParquetSourceConfig,
)
from tests import oracle  # noqa: E402
from tests.data import in_memory, write_files  # noqa: E402
from tests.tables import write_tables  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("ray_local"),
    pytest.mark.filterwarnings("ignore"),  # datarax's and TensorFlow's own
]
N = 53


class PlusOne(nnx.Module):
    def __call__(self, batch):
        return {"index": batch["index"], "plus": batch["index"] + 1}


def array_records(directory):
    paths = write_files(directory, (20, 33))
    config = ArrayRecordSourceConfig(seed=3, shuffle_files=True, num_epochs=2)
    return ArrayRecordSourceModule(config, paths, transforms=[DecodeRaw("int32", (5,)), first_value])


def first_value(element):
    return {"index": element["data"][0]}


def test_its_batches_are_the_streams_and_it_ends(tmp_path):
    with RaySource(array_records(tmp_path), num_actors=2, num_cpus=0.5) as source:
        assert not source.supports_indexed_access()
        driven = pipeline.Pipeline(source=source, stages=[PlusOne()], batch_size=10, rngs=nnx.Rngs(0))
        batches = [{key: np.asarray(value).tolist() for key, value in batch.items()} for batch in driven]
    expected = [i for epoch in range(2) for i in oracle.order(N, epoch, 3)]
    assert [i for batch in batches for i in batch["index"]] == expected
    assert [i for batch in batches for i in batch["plus"]] == [i + 1 for i in expected]
    assert [len(batch["index"]) for batch in batches] == [10] * 10 + [6]


def test_the_sources_state_resumes_it_at_every_batch(tmp_path):
    write_tables(tmp_path, (20, 33))

    def run(state, num_actors):
        made = ParquetSource(ParquetSourceConfig(shuffle=True, num_epochs=1), tmp_path, columns=["index"])
        with RaySource(made, num_actors=num_actors, num_cpus=0.5) as source:
            if state is not None:
                source.set_state(state)
            driven = pipeline.Pipeline(source=source, stages=[], batch_size=10, rngs=nnx.Rngs(0))
            found = [(np.asarray(batch["index"]).tolist(), source.get_state()) for batch in driven]
        return [batch for batch, _ in found], [state for _, state in found]

    batches, states = run(None, 2)
    for number, state in enumerate(states):
        assert run(state, 1 + number % 3)[0] == batches[number + 1 :]


def as_lists(batches):
    return [{key: np.asarray(value).tolist() for key, value in batch.items()} for batch in batches]


def test_a_source_in_process_drives_it_to_the_end_of_its_epochs(tmp_path):
    source = array_records(tmp_path)
    found = as_lists(pipeline.Pipeline(source=source, stages=[PlusOne()], batch_size=10, rngs=nnx.Rngs(0)))
    expected = [i for epoch in range(2) for i in oracle.order(N, epoch, 3)]
    assert [i for batch in found for i in batch["index"]] == expected
    assert source.get_state()["position"] == 2 * N


@pytest.mark.parametrize("kind", ["array_record", "parquet", "ray"])
def test_step_and_scan_give_the_batches_at_their_positions(tmp_path, kind):
    if kind == "parquet":
        write_tables(tmp_path, (20, 33))
        config = ParquetSourceConfig(seed=3, shuffle=True, shuffle_block_size=1, num_epochs=2)
        source = ParquetSource(config, tmp_path, columns=["index"])
    else:
        source = array_records(tmp_path)
    if kind == "ray":
        source = RaySource(source, num_actors=2, num_cpus=0.5)
    expected = [i for epoch in range(2) for i in oracle.order(N, epoch, 3)]
    with source:
        driven = pipeline.Pipeline(source=source, stages=[PlusOne()], batch_size=10, rngs=nnx.Rngs(0))
        assert [driven.step()["index"].tolist() for _ in range(3)] == [expected[i : i + 10] for i in (0, 10, 20)]
        scanned = driven.scan(lambda batch: batch["plus"], length=4)
        assert scanned.ravel().tolist() == [i + 1 for i in expected[30:70]]
        driven._position[...] = jax.numpy.int32(7)
        assert driven.step()["index"].tolist() == expected[7:17]
        driven._position[...] = jax.numpy.int32(100)
        with pytest.raises(Exception, match=r"positions \[100, 110\) of a stream that ends at 106"):
            jax.block_until_ready(driven.step())


def operators_of(kind):
    rngs = nnx.Rngs(7, augment=3)
    stochastic = ElementOperatorConfig(stochastic=True, stream_name="augment")
    plain = operators.MapOperator(MapOperatorConfig(subtree={"x": None}), fn=lambda x, key: x * 2, rngs=rngs)
    noisy = operators.ElementOperator(stochastic, fn=add_noise, rngs=rngs)
    match kind:
        case "deterministic":
            return [plain]
        case "stochastic":
            return [plain, noisy, PlusTwo(), operators.ElementOperator(stochastic, fn=add_noise, rngs=rngs)]
        case "composed":
            config = operators.CompositeOperatorConfig(
                strategy=operators.CompositionStrategy.SEQUENTIAL, operators=[plain, noisy]
            )
            maybe = operators.ProbabilisticOperatorConfig(operator=plain, probability=0.5)
            return [
                operators.CompositeOperatorModule(config, rngs=rngs),
                operators.ProbabilisticOperator(maybe, rngs=nnx.Rngs(augment=4)),
            ]
        case _:
            return [operators.BatchMixOperator(BatchMixOperatorConfig(data_field="x", label_field="y"), rngs=rngs)]


def add_noise(element, key):
    return element.update_data({"x": element.data["x"] + jax.random.normal(key, element.data["x"].shape)})


class PlusTwo(nnx.Module):
    def __call__(self, batch):
        return batch | {"x": batch["x"] + 2}


def memory():
    return {"x": np.arange(150, dtype=np.float32).reshape(50, 3), "y": np.eye(50, dtype=np.float32)}


@pytest.mark.parametrize("kind", ["deterministic", "stochastic", "composed", "mixing"])
def test_its_operators_give_the_same_numbers_as_in_its_own_pipeline_and_resume(kind):
    theirs = pipeline.Pipeline(
        source=MemorySource(MemorySourceConfig(), memory()), stages=operators_of(kind), batch_size=10, rngs=nnx.Rngs(0)
    )
    want = list(theirs)

    def make():
        source = in_memory(memory())
        return Pipeline(source=source, stages=operators_of(kind), batch_size=10, rngs=nnx.Rngs(0))

    ours = make()
    states, found = [], []
    for batch in ours:
        states.append(ours.get_state())
        found.append(batch)
    assert len(found) == len(want) == 5
    for got, expected in zip(found, want, strict=True):
        assert got.keys() == expected.keys()
        for key in got:
            np.testing.assert_allclose(got[key], expected[key], rtol=1e-6)  # fused otherwise, they round otherwise
    again = make()
    again.set_state(states[1])
    assert as_lists(again) == as_lists(found[2:])


@pytest.mark.parametrize(("probability", "factor"), [(0.25, 2), (0.5, 3)])
def test_another_operator_inside_an_operator_is_refused(probability, factor):
    def make(probability, factor):
        inner = operators.MapOperator(MapOperatorConfig(), fn=partial(scale, factor), rngs=nnx.Rngs(0))
        config = operators.ProbabilisticOperatorConfig(operator=inner, probability=probability)
        stage = operators.ProbabilisticOperator(config, rngs=nnx.Rngs(augment=4))
        source = in_memory(memory())
        return Pipeline(source=source, stages=[stage], batch_size=10, rngs=nnx.Rngs(0))

    state = make(0.5, 2).get_state()
    make(0.5, 2).set_state(state)
    with pytest.raises(DriftError, match="stages"):
        make(probability, factor).set_state(state)


def scale(factor, x, key):
    return x * factor
