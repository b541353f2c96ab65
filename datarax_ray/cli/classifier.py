"""The demo's model: a small NNX classifier of digits, its train step, and all of its state as one tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

LEARNING_RATE = 3e-3


class Classifier(nnx.Module):
    """Two convolutions and a linear layer, about 10,000 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.linear = nnx.Linear(4 * 4 * 32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: float32 (batch, 8, 8, 1). Returns logits: float32 (batch, 10)."""
        x = nnx.relu(self.conv1(image))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.linear(x.reshape(x.shape[0], -1))


class Training:
    """A classifier and its optimizer."""

    def __init__(self, seed: int) -> None:
        self.model = Classifier(nnx.Rngs(seed))
        self.optimizer = nnx.Optimizer(self.model, optax.adam(LEARNING_RATE), wrt=nnx.Param)

    def step(self, batch: dict[str, jax.Array]) -> jax.Array:
        """Train on one batch. Returns the loss: float32 ()."""
        return _train_step(self.model, self.optimizer, batch)

    def accuracy(self, batch: dict[str, jax.Array]) -> float:
        """The share of the batch's images that are read right."""
        return float((self.model(batch["image"]).argmax(1) == batch["label"]).mean())

    @property
    def state(self) -> Any:
        """Everything that training changes, as a tree that Orbax saves."""
        return nnx.to_pure_dict(nnx.state((self.model, self.optimizer)))

    @state.setter
    def state(self, state: Any) -> None:
        whole = nnx.state((self.model, self.optimizer))
        nnx.replace_by_pure_dict(whole, state)
        nnx.update((self.model, self.optimizer), whole)


def normalize(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A Pipeline stage: image uint8 (batch, 8, 8), 0 to 16, becomes float32 (batch, 8, 8, 1), 0 to 1."""
    return batch | {"image": batch["image"][..., None].astype(jnp.float32) / 16}


@nnx.jit
def _train_step(model: Classifier, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        labels = batch["label"].astype(jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), labels).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss
