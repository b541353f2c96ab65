"""Mixup, a stage that mixes each row of a batch with the row before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from datarax_ray.pipeline.producing import VALID_MASK
from datarax_ray.plan.arguments import NamedArguments, positive, whole
from datarax_ray.read.decode.dense import missing_field


@final
@dataclass(frozen=True)
class Mixup(NamedArguments):
    """A stage that mixes each row with the row before it in the batch, and the first row with the last one.

    The share of a row itself is drawn from Beta(alpha, alpha), for each row by its global position; torchvision draws
    one for the batch. So batches are the same for any number of actors and devices, and after a resume. Rows that fill
    up a short last batch (valid_mask) are mixed into no row of data.

    num_classes: of int labels, (batch,), which become float32 (batch, num_classes). A label that is no class, such as
        -1, gives nan in its row and the row behind it. None is for labels that are shares: float (batch, classes).
    alpha: more than 0. 1.0 makes all shares equally likely; 0.2 changes most rows little.
    field: the images or other numbers (batch, ...). Ints become float32, floats keep their dtype.
    label: the name of the labels.

    Raises: ValueError when the batch lacks a field or has other labels, and in a trainer by rank, without a sharding
    over all trainers, which holds only some rows of a batch.
    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization; torchvision.transforms.v2.MixUp.
    """

    num_classes: int | None = None
    alpha: float = 1.0
    field: str = "image"
    label: str = "label"

    needs_all_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_classes is not None:
            whole("num_classes", self.num_classes, least=1)
        positive("alpha", self.alpha)

    def __call__(self, batch: Any, keys: jax.Array) -> Any:
        """The batch with `field` and `label` mixed."""
        for name in (self.field, self.label):
            if name not in batch:
                raise missing_field(name, batch)
        labels, num_classes = batch[self.label], self.num_classes
        kind, axes = (jnp.floating, 2) if num_classes is None else (jnp.integer, 1)
        if labels.ndim != axes or not jnp.issubdtype(labels.dtype, kind):
            raise ValueError(
                f"labels are {labels.dtype} {labels.shape}; Mixup takes ints (batch,) with num_classes=10, say, and "
                f"float shares (batch, classes) without, and num_classes is {num_classes}"
            )
        if num_classes is not None:
            is_class = (labels >= 0) & (labels < num_classes)
            labels = jnp.where(is_class[:, None], jax.nn.one_hot(labels, num_classes, dtype=jnp.float32), jnp.nan)
        shares = jax.vmap(lambda key: jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32))(keys)
        num_rows = jnp.sum(batch[VALID_MASK]) if VALID_MASK in batch else len(shares)

        def mixed(values: jax.Array) -> jax.Array:
            dtype = values.dtype if jnp.issubdtype(values.dtype, jnp.floating) else jnp.float32
            before = jnp.roll(values, 1, axis=0).at[0].set(values[num_rows - 1])
            share = shares.reshape(-1, *(1,) * (values.ndim - 1))
            return (share * values + (1 - share) * before).astype(dtype)

        return batch | {self.field: mixed(batch[self.field]), self.label: mixed(labels)}
