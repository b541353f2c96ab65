"""How does a Ray Data pipeline move here? read_parquet becomes load(..., num_actors=), map_batches a map_columns.

    dataset = ray.data.read_parquet(path).map_batches(halve).random_shuffle()                     # before
    for batch in dataset.iter_batches(batch_size=32): ...

Gained: one order for any number of actors, a state that resumes in the middle of an epoch, and batches on the device.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray import Pipeline, load


class Halve:
    def map_columns(self, columns):  # all rows of a block, as map_batches has them
        return {"x": columns["x"] / 2}


def numbers(path, num_actors):
    source = load(path, shuffle=True, seed=1, transforms=Halve(), num_actors=num_actors)
    with Pipeline(source=source, batch_size=32) as pipeline:
        return [batch["x"].tolist() for batch in pipeline]


with tempfile.TemporaryDirectory() as directory:
    pq.write_table(pa.table({"x": range(200)}), Path(directory) / "data.parquet", row_group_size=20)
    read = numbers(directory, num_actors=2)
    print(f"{len(read)} batches from 2 actors, the first begins {read[0][:3]}")
    assert read == numbers(directory, num_actors=None)  # in this process: the same, byte for byte

assert sorted(number for batch in read for number in batch) == [number / 2 for number in range(200)]
