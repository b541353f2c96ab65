"""Can a compiled train step take its own batches? A small dataset lies on the device, and get_batch_at runs under jit.

The order is the host's: the steps of the compiled loop see the batches that a Pipeline over the same source gives.
"""

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.sources import HFEagerConfig, HFEagerSource

NUM_ROWS, BATCH, NUM_EPOCHS = 1000, 40, 4

rng = np.random.default_rng(0)
inputs = rng.normal(size=(NUM_ROWS, 3)).astype(np.float32)
rows = {"x": inputs, "y": inputs @ [1.0, -2.0, 3.0] + 0.5, "id": np.arange(NUM_ROWS)}
source = HFEagerSource(
    HFEagerConfig(shuffle=True, seed=7, num_epochs=NUM_EPOCHS), dataset=datasets.Dataset.from_dict(rows)
)

model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


@nnx.jit
def train(model, optimizer):
    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def step(carry, number):
        model, optimizer = carry
        batch = source.get_batch_at(number * BATCH, BATCH)  # on the device, no host in between
        loss, gradients = nnx.value_and_grad(lambda m: ((m(batch["x"])[:, 0] - batch["y"]) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return carry, (loss, batch["id"])

    return step((model, optimizer), jnp.arange(NUM_EPOCHS * NUM_ROWS // BATCH))[1]


losses, seen = jax.device_get(train(model, optimizer))
print(f"loss {losses[0]:.3f} -> {losses[-1]:.6f} in {len(losses)} steps of one compiled loop")
assert losses[-1] < 1e-3

streamed = np.concatenate([batch["id"] for batch in Pipeline(source=source, batch_size=BATCH)])
assert seen.reshape(-1).tolist() == streamed.tolist()
assert all(len(set(epoch.reshape(-1).tolist())) == NUM_ROWS for epoch in np.split(seen, NUM_EPOCHS))
