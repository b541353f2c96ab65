"""A RaySource under the released datarax.pipeline.Pipeline, unchanged. Where datarax is installed (see the example)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flax import nnx

pipeline = pytest.importorskip("datarax.pipeline", reason="datarax is no dependency: it pins protobuf < 6")

from datarax_ray import RaySource  # noqa: E402  after the skip
from datarax_ray.read.decode import DecodeRaw  # noqa: E402
from datarax_ray.sources import (  # noqa: E402
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    ParquetSource,
    ParquetSourceConfig,
)
from tests import oracle  # noqa: E402
from tests.data import write_files  # noqa: E402
from tests.tables import write_tables  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("ray_local"),
    pytest.mark.filterwarnings("ignore"),  # datarax's and TensorFlow's own
]
N = 53


class PlusOne(nnx.Module):
    def __call__(self, batch):
        return {"index": batch["index"], "plus": batch["index"] + 1}


def array_records(directory: Path) -> ArrayRecordSourceModule:
    paths = write_files(directory, (20, 33))
    config = ArrayRecordSourceConfig(seed=3, shuffle_files=True, num_epochs=2)
    return ArrayRecordSourceModule(config, paths, transforms=[DecodeRaw("int32", (5,)), first_value])


def first_value(element):
    return {"index": element["data"][0]}


def test_its_batches_are_the_streams_and_it_ends(tmp_path: Path) -> None:
    with RaySource(array_records(tmp_path), num_actors=2, num_cpus=0.5) as source:
        assert not source.supports_indexed_access()
        driven = pipeline.Pipeline(source=source, stages=[PlusOne()], batch_size=10, rngs=nnx.Rngs(0))
        batches = [{key: np.asarray(value).tolist() for key, value in batch.items()} for batch in driven]
    expected = [i for epoch in range(2) for i in oracle.order(N, epoch, 3)]
    assert [i for batch in batches for i in batch["index"]] == expected
    assert [i for batch in batches for i in batch["plus"]] == [i + 1 for i in expected]
    assert [len(batch["index"]) for batch in batches] == [10] * 10 + [6]


def test_the_sources_state_resumes_it_at_every_batch(tmp_path: Path) -> None:
    write_tables(tmp_path, (20, 33))

    def run(state: dict | None, num_actors: int) -> tuple[list, list]:
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
