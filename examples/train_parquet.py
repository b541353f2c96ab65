"""How do I train on Parquet files? Load them by a glob; columns go from Arrow to the device without a row in Python.

Transforms with map_columns take all rows of a block at once; text stays on the host beside the arrays.
"""

import tempfile
from pathlib import Path

import numpy as np
import optax
import pyarrow as pa
import pyarrow.parquet as pq
from flax import nnx

from datarax_ray import Pipeline, load


class Standardize:
    def map_columns(self, columns):
        return columns | {"x": (columns["x"] - 50) / 29}


model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        return ((model(batch["x"][:, None])[:, 0] - batch["y"]) ** 2).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


with tempfile.TemporaryDirectory() as directory:
    for part in range(4):
        x = np.random.default_rng(part).uniform(0, 100, 250).astype(np.float32)
        table = pa.table({"x": x, "y": 0.1 * x - 3, "name": [f"row {part}.{row}" for row in range(250)]})
        pq.write_table(table, Path(directory) / f"part-{part}.parquet", row_group_size=50)

    # num_actors=4 would have Ray actors read, with the same batches
    source = load(f"{directory}/*.parquet", shuffle=True, seed=7, num_epochs=6, transforms=Standardize())
    with Pipeline(source=source, batch_size=50) as pipeline:
        print(f"{len(pipeline)} batches of {pipeline!r}")
        losses = []
        for batch in pipeline:
            names = batch.pop("name")  # NumPy, of str; jit takes no text
            losses.append(float(train_step(model, optimizer, batch)))

print(f"loss {losses[0]:.2f} -> {losses[-1]:.4f}; the last batch had {names[0]!r} first")
assert len(losses) == 6 * 1000 // 50
assert losses[-1] < 0.1
