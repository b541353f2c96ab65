"""Can many train steps run in one compiled loop? Yes, over any source, with the batches of a for loop: scan."""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig

rng = np.random.default_rng(0)
inputs = rng.normal(size=(640, 4)).astype(np.float32)
data = {"x": inputs, "y": inputs @ np.array([1, -2, 3, 0.5], np.float32)}


def make_model():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def make_pipeline():
    source = RandomAccessSource(RandomAccessSourceConfig(shuffle=True, seed=2, num_epochs=4), data)
    return Pipeline(source=source, batch_size=64)


def train_step(model, optimizer, batch):
    def loss_of(model):
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


model, optimizer = make_model()
with make_pipeline() as pipeline:
    scanned = jnp.concatenate([pipeline.scan(train_step, length=20, modules=(model, optimizer)) for _ in range(2)])

model, optimizer = make_model()
jitted = nnx.jit(train_step)
with make_pipeline() as pipeline:
    looped = jnp.stack([jitted(model, optimizer, batch) for batch in pipeline])

print(f"{len(scanned)} steps in 2 compiled loops: loss {scanned[0]:.2f} -> {scanned[-1]:.6f}")
assert np.allclose(scanned, looped, rtol=1e-4, atol=1e-7)
assert scanned[-1] < 1e-3 * scanned[0]
