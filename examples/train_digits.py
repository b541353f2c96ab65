"""How do I train on ArrayRecord files that Ray actors read? With a Pipeline over a RaySource, as below.

A small Flax NNX classifier learns handwritten digits: two actors read, decode and shift the images.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from datarax_ray import Pipeline, RaySource
from datarax_ray.cli import digits
from datarax_ray.read.decode import DecodeFields
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

digits_source = ArrayRecordSourceModule(
    ArrayRecordSourceConfig(seed=0, shuffle_files=True, num_epochs=10),
    digits.TRAIN,  # a glob of files; records are 64 bytes of image and one of label
    transforms=[DecodeFields(digits.FIELDS), digits.RandomShift()],
)
# Before the model is made: a local Ray starts processes, which Python advises against once JAX has threads.
source = RaySource(digits_source, num_actors=2)


def normalize(batch):
    """A stage: runs on the device, under jit."""
    return batch | {"image": batch["image"].reshape(-1, 64).astype(jnp.float32) / 16}


rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(64, 128, rngs=rngs), jax.nn.relu, nnx.Linear(128, 10, rngs=rngs))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        labels = batch["label"].astype(jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), labels).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


with Pipeline(source=source, stages=[normalize], batch_size=64, rngs=rngs) as pipeline:
    losses = [float(train_step(model, optimizer, batch)) for batch in pipeline]

print(f"{len(losses)} batches, loss {losses[0]:.2f} at first and {sum(losses[-10:]) / 10:.2f} at last")
assert len(losses) == 234  # 10 epochs of 1,497 records, in batches of 64, the last one short
assert sum(losses[-10:]) / 10 < 0.6 * losses[0]
