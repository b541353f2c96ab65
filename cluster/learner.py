"""The models of the job, trained by gradient descent: one for images and one for tokens. Put your own model here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
from flax import nnx
from only_job import RefusedError

_NUM_HIDDEN = 64  # enough for 8 x 8 digits
_NUM_INPUTS, _LEARNING_RATE, _MOMENTUM = 64, 0.05, 0.9  # the rate is one for 8 x 8 digits
_NUMBERS = (("i", 0), ("u", 0))  # kind of dtype, and number of axes


@final
class Classifier(nnx.Module):
    """Two layers over the flattened image: uint8 (rows, ...) to logits, float32 (rows, num_classes)."""

    def __init__(self, num_inputs: int, num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(num_inputs, rngs=rngs)
        self.hidden = nnx.Linear(num_inputs, _NUM_HIDDEN, rngs=rngs)
        self.out = nnx.Linear(_NUM_HIDDEN, num_classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        inputs = self.norm(image.reshape(len(image), -1).astype("float32"))
        # a step of one learning rate then changes the logits as much whatever the size of the image
        inputs *= math.sqrt(_NUM_INPUTS / inputs.shape[1])
        return self.out(nnx.relu(self.hidden(inputs)))

    def loss(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        return _cross_entropy(self(batch["image"]), batch["label"]).mean()


@final
class NextToken(nnx.Module):
    """The next token by the last: int32 (rows, length) to logits, float32 (rows, length, num_classes)."""

    def __init__(self, num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(num_classes, _NUM_HIDDEN, rngs=rngs)
        self.out = nnx.Linear(_NUM_HIDDEN, num_classes, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.out(self.embed(tokens))

    def loss(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        tokens = batch["tokens"]
        segments = batch.get("tokens_segment_ids", jnp.ones_like(tokens))  # 0 is padding
        is_next = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)  # of the same document
        losses = _cross_entropy(self(tokens[:, :-1]), tokens[:, 1:])
        return jnp.where(is_next, losses, 0).sum() / jnp.maximum(1, is_next.sum())


def _cross_entropy(logits: jax.Array, wanted: jax.Array) -> jax.Array:
    """The cross entropy of each row. NaN for a label or token that is no class: the job then ends."""
    wanted = wanted.astype("int32")[..., None]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), wanted, -1, mode="fill", fill_value=jnp.nan)
    return jnp.where(wanted < 0, jnp.nan, losses)[..., 0]


@final
class Learner(nnx.Module):
    """The model and the momentum of its parameters: all values that learning changes and a step saves.

    spec: dtype and shape of each field of an element.

    Raises: RefusedError for data with fields of neither model.
    """

    def __init__(self, spec: Any, num_classes: int, seed: int) -> None:
        fields = spec if isinstance(spec, Mapping) else {"": spec}
        kinds = {name: (of.dtype.kind, len(of.shape)) for name, of in fields.items() if hasattr(of, "dtype")}
        rngs, image = nnx.Rngs(seed), kinds.get("image", ("none", 0))
        if image[0] in "uif" and image[1] and kinds.get("label") in _NUMBERS:
            size = math.prod(fields["image"].shape)
            self.model: Classifier | NextToken = Classifier(size, num_classes, rngs=rngs)
        elif kinds.get("tokens") in (("i", 1), ("u", 1)):
            self.model = NextToken(num_classes, rngs=rngs)
        else:
            said = ", ".join(f"{name} ({_said(field)})" for name, field in fields.items())
            raise RefusedError(
                f"learner.py learns label (an int) from image, or the next of tokens (ints in a row); the data has "
                f"{said}. Return fields of these names from `example` of source.py, or put your model into learner.py"
            )
        self.velocity = nnx.clone(self.model)
        nnx.update(self.velocity, jax.tree.map(jnp.zeros_like, nnx.state(self.velocity)))


def _said(field: Any) -> str:
    """The field in words."""
    if not hasattr(field, "dtype"):
        return "fields of its own"
    return f"{field.dtype} {field.shape}" if field.dtype.kind != "O" else "objects"


@nnx.jit
def learn(learner: Learner, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Update the learner once. Returns the mean loss before the update, float32 ()."""
    loss, gradients = nnx.value_and_grad(lambda model: model.loss(batch))(learner.model)
    velocity = jax.tree.map(lambda old, new: _MOMENTUM * old + new, nnx.state(learner.velocity), gradients)
    weights = jax.tree.map(lambda old, step: old - _LEARNING_RATE * step, nnx.state(learner.model), velocity)
    nnx.update(learner.velocity, velocity)
    nnx.update(learner.model, weights)
    return loss


@nnx.jit
def evaluate(learner: Learner, batch: Mapping[str, jax.Array]) -> jax.Array:
    """The mean loss of a batch, float32 ()."""
    return learner.model.loss(batch)
