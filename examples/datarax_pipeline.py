"""Can datarax's own Pipeline stay, and only the reading move to Ray? Yes: a RaySource is a source of datarax's, too.

datarax asks a source for supports_indexed_access() and get_batch(n), which answers {} at the end. Its pipeline saves no
state of such a source; the RaySource has it, and it is exact after every batch. Needs `pip install datarax`, which
brings TensorFlow and protobuf < 6, so datarax_ray does not depend on it.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from datarax.pipeline import Pipeline
from flax import nnx
from pyarrow import parquet

from datarax_ray import RaySource
from datarax_ray.sources import ParquetSource, ParquetSourceConfig


class Standardize(nnx.Module):
    def __call__(self, batch):
        return batch | {"x": (batch["x"] - 49.5) / 28.9}


def open_pipeline(directory, num_actors):
    config = ParquetSourceConfig(seed=7, shuffle=True, num_epochs=1)
    source = RaySource(ParquetSource(config, directory), num_actors=num_actors, num_cpus=0.5)
    return source, Pipeline(source=source, stages=[Standardize()], batch_size=32, rngs=nnx.Rngs(0))


with tempfile.TemporaryDirectory() as directory:
    table = pa.table({"index": np.arange(100), "x": np.arange(100, dtype=np.float32)})
    parquet.write_table(table, Path(directory) / "data.parquet", row_group_size=10)

    source, pipeline = open_pipeline(directory, num_actors=2)
    batches, states = [], []
    for batch in pipeline:
        batches.append(batch["index"].tolist())
        states.append(source.get_state())
    source.close()
    print("rows in a batch:", [len(batch) for batch in batches])
    assert sorted(index for batch in batches for index in batch) == list(range(100))

    source, pipeline = open_pipeline(directory, num_actors=3)  # after a crash, with another number of actors
    source.set_state(states[1])
    rest = [batch["index"].tolist() for batch in pipeline]
    source.close()
    print("after the second batch:", rest == batches[2:])
    assert rest == batches[2:]
