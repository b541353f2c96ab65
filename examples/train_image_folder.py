"""How do I train on a folder of images, with random crops and flips? Load it by one call; both are transforms.

Their random numbers depend on seed and position alone, so the crops are the same wherever they are made, and after a
resume.
"""

import tempfile
from pathlib import Path

import cv2
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from datarax_ray import ImageFolder, Pipeline, RandomCrop, RandomFlip, load

SIDE = 24
AUGMENT = [RandomCrop(SIDE), RandomFlip()]  # in the actors, where there are some (num_actors=4)


def write_images(directory):
    """Bright and dark noise of many sizes, a folder for each class: directory/CLASS/NAME.png."""
    rng = np.random.default_rng(0)
    for name, brightness in (("bright", 150), ("dark", 90)):
        (directory / name).mkdir()
        for index in range(40):
            noise = rng.normal(brightness, 40, (rng.integers(24, 48), rng.integers(24, 48), 3))
            cv2.imwrite(str(directory / name / f"{index}.png"), noise.clip(0, 255).astype(np.uint8))


def normalize(batch):
    """A stage: runs on the device, under jit."""
    return batch | {"image": batch["image"].astype(jnp.float32).reshape(len(batch["image"]), -1) / 127.5 - 1}


model = nnx.Linear(SIDE * SIDE * 3, 2, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


with tempfile.TemporaryDirectory() as directory:
    write_images(Path(directory))
    print("classes:", ImageFolder(directory).class_names)
    source = load(f"imagefolder:{directory}", shuffle=True, seed=1, num_epochs=8, transforms=AUGMENT)
    with Pipeline(source=source, stages=normalize, batch_size=16) as pipeline:
        losses = [float(train_step(model, optimizer, batch)) for batch in pipeline]

print(f"{len(losses)} batches, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert len(losses) == 40
assert losses[-1] < 0.5 * losses[0]
