"""What the job trains: a small classifier by gradient descent. Put your own model and optimizer here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import jax
import jax.numpy as jnp
from flax import nnx

_NUM_HIDDEN = 64  # enough for 8 x 8 digits
_LEARNING_RATE, _MOMENTUM = 0.05, 0.9


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
    """The model and the momentum of its parameters: everything that learning changes and a step saves."""

    def __init__(self, num_inputs: int, num_classes: int, seed: int) -> None:
        self.model = Classifier(num_inputs, num_classes, rngs=nnx.Rngs(seed))
        self.velocity = nnx.clone(self.model)
        nnx.update(self.velocity, jax.tree.map(jnp.zeros_like, nnx.state(self.velocity)))


@nnx.jit
def learn(learner: Learner, batch: Mapping[str, jax.Array]) -> jax.Array:
    """One update; the mean loss before it, float32 ()."""

    def loss_of(model: Classifier) -> jax.Array:
        logs = jax.nn.log_softmax(model(batch["image"]))
        return -jnp.take_along_axis(logs, batch["label"][:, None].astype("int32"), 1).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(learner.model)
    velocity = jax.tree.map(lambda old, new: _MOMENTUM * old + new, nnx.state(learner.velocity), gradients)
    weights = jax.tree.map(lambda old, step: old - _LEARNING_RATE * step, nnx.state(learner.model), velocity)
    nnx.update(learner.velocity, velocity)
    nnx.update(learner.model, weights)
    return loss
