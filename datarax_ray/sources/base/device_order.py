"""Orders under jit: those of plan.orders for positions that JAX traces, with the same cipher on uint32 arrays.

Legend: N is the number of records, an offset is a place in its epoch, position = epoch * N + offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.kinds import FileOrder, GlobalShuffle
from datarax_ray.plan.orders.order import EpochOrder

_MAX_INT32 = 2**31 - 1


def records_at(order: EpochOrder, start: Any, size: int) -> jax.Array:
    """The records at positions [start, start + size): what order.records gives, as int32 (size,).

    start: an integer scalar, traced or not, >= 0; int32 holds 2**31 positions, int64 (jax_enable_x64) all. The epochs
    run on without end: what ends a stream is not known here.

    A walk through the cipher, without a table: a table of an epoch is as large as its column, and would have to be
    made anew wherever an epoch begins, at a step that the compiled program does not know.

    Raises: NotImplementedError for an order without a traced form, and where N + size is beyond int32.
    """
    n = order.num_records
    if type(order) not in _TRACED:
        raise NotImplementedError(f"a {order.shuffle} order has no traced form; iterate a Pipeline over this source")
    if n + size > _MAX_INT32:
        raise NotImplementedError(f"{n} records are too many for int32 indices; iterate a Pipeline over this source")
    start = jnp.asarray(start)
    epoch, first = (start // n).astype(jnp.uint32), (start % n).astype(jnp.int32)
    rows = first + jnp.arange(size, dtype=jnp.int32)
    offsets = (rows % n).astype(jnp.uint32)
    seeds = np.uint32(order.seed) + epoch + (rows // n).astype(jnp.uint32)  # modulo 2**32, as uint32 is
    return _TRACED[type(order)](order, offsets, seeds).astype(jnp.int32)


def _walk(order: GlobalShuffle, offsets: jax.Array, seeds: jax.Array) -> jax.Array:
    """Encrypt until every value is back below n, as plan.orders.cipher does it."""
    n, keys = order.num_records, cipher.seed_seq(seeds, order.rounds)
    word_bits = cipher.block_bits(n) // 2

    def is_outside(values: jax.Array) -> jax.Array:
        return (values >= np.uint32(n)).any()

    def step(values: jax.Array) -> jax.Array:
        return jnp.where(values < np.uint32(n), values, cipher.encrypt(values, word_bits, keys))

    return jax.lax.while_loop(is_outside, step, cipher.encrypt(offsets, word_bits, keys))


# (order, offsets, the seed of each one's epoch) -> records; uint32 (k,) all
_TRACED: dict[type[EpochOrder], Callable[[Any, jax.Array, jax.Array], jax.Array]] = {
    FileOrder: lambda order, offsets, seeds: offsets,
    GlobalShuffle: _walk,
}
