"""How do I train a language model on documents of many lengths? Pack them; attend within a segment only.

A model over bytes that predicts the next one from the last, on Python's own standard library.
"""

import sysconfig
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from datarax_ray import ConcatThenSplit, Pipeline, RandomAccessSource, RandomAccessSourceConfig

PATHS = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-c]*.py"))


def tokenise(path):
    return {"tokens": np.frombuffer(Path(path).read_bytes(), np.uint8).astype(np.int32)}


class Bigrams(nnx.Module):
    """Logits of the next byte by the last one: a table of 256 x 256."""

    def __init__(self, rngs):
        self.table = nnx.Embed(256, 256, rngs=rngs)

    def __call__(self, tokens):
        return self.table(tokens)


model = Bigrams(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    tokens, segments = batch["tokens"], batch["tokens_segment_ids"]  # int32 (8, 1024); segment 0 is padding
    is_counted = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)  # never across two documents

    def loss_of(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])
        return jnp.where(is_counted, losses, 0).sum() / is_counted.sum()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


source = RandomAccessSource(RandomAccessSourceConfig(shuffle=True), PATHS, transforms=tokenise)  # endless
with Pipeline(source=source, batch_size=8, packing=ConcatThenSplit(seq_len=1024, fields="tokens")) as pipeline:
    losses = pipeline.scan(train_step, length=60, modules=(model, optimizer))
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} nats a byte; {pipeline!r}")

assert losses.shape == (60,)
assert losses[-1] < 0.7 * losses[0]
