"""What the job trains: a small classifier and its optimizer. Put your own model here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import jax
import optax
from flax import nnx

_NUM_HIDDEN = 64  # enough for 8 x 8 digits


@final
class Classifier(nnx.Module):
    """Two layers over the flattened image: uint8 (rows, ...) to logits, float32 (rows, num_classes)."""

    def __init__(self, num_inputs: int, num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(num_inputs, rngs=rngs)
        self.hidden = nnx.Linear(num_inputs, _NUM_HIDDEN, rngs=rngs)
        self.out = nnx.Linear(_NUM_HIDDEN, num_classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        inputs = image.reshape(len(image), -1).astype("float32")
        return self.out(nnx.relu(self.hidden(self.norm(inputs))))


@final
class Learner(nnx.Module):
    """The model with its optimizer: everything that learning changes, and so everything that a step saves of it."""

    def __init__(self, num_inputs: int, num_classes: int, seed: int) -> None:
        self.model = Classifier(num_inputs, num_classes, rngs=nnx.Rngs(seed))
        self.optimizer = nnx.Optimizer(self.model, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def learn(learner: Learner, batch: Mapping[str, jax.Array]) -> jax.Array:
    """One update; the mean loss before it, float32 ()."""

    def loss_of(model: Classifier) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"].astype("int32")).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(learner.model)
    learner.optimizer.update(learner.model, gradients)
    return loss
