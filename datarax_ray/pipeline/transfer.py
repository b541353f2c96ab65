"""From host arrays to device arrays: what goes, what stays, and that no value changes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from datarax_ray.sources.device import narrow


def merge_host(batch: Any, host: Any) -> Any:
    """The batch with the host fields put back. Raises: ValueError where a stage left no place for them."""
    if host is None:
        return batch
    if batch is None:
        return host
    if not isinstance(batch, Mapping):
        raise ValueError(
            f"the stages return {type(batch).__name__} and the fields {sorted(host)} stay on the host, so there is no "
            "dict to carry both; return a dict, or leave these fields out in a transform"
        )
    merged = dict(batch)
    for key, value in host.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_host(merged[key], value)
        else:
            merged.setdefault(key, value)
    return merged


def to_device(columns: Any, sharding: NamedSharding | None, global_rows: int) -> Any:
    """Host arrays as device arrays, unsharded on the default device, or over the mesh of `sharding`.

    With several processes the arrays hold this process's rows, and the result is the global array.

    Raises: OverflowError for 64-bit values that JAX's 32 bits do not hold (jax_enable_x64 is off).
    """
    columns = narrow(columns)
    if sharding is None:
        return jax.device_put(columns)
    return jax.tree.map(lambda array: _shard(array, sharding, global_rows), columns)


def constrain(arrays: Any, sharding: NamedSharding | None) -> Any:
    """Traced arrays (rows, ...), laid out as to_device lays them out."""
    if sharding is None:
        return arrays
    is_explicit = all(kind == AxisType.Explicit for kind in sharding.mesh.axis_types)
    lay_out = jax.sharding.reshard if is_explicit else jax.lax.with_sharding_constraint
    return jax.tree.map(lambda array: lay_out(array, _fit(sharding, array.ndim)), arrays)


def check_sharding(sharding: NamedSharding | None, rows: int, what: str) -> None:
    """Raise ValueError unless `rows` divide over the devices that the first axis is sharded over."""
    if sharding is None:
        return
    try:
        sharding.shard_shape((rows, *[1] * (len(sharding.spec) - 1)))
    except ValueError as error:
        raise ValueError(
            f"{what} has {rows} rows, which {sharding.spec} does not divide over the mesh {dict(sharding.mesh.shape)}. "
            "Use a batch_size that divides, and drop_remainder=True or pad_remainder=True for the last batch."
        ) from error


def _shard(array: np.ndarray, sharding: NamedSharding, global_rows: int) -> jax.Array:
    rows = global_rows if jax.process_count() > 1 else len(array)
    return jax.make_array_from_process_local_data(_fit(sharding, array.ndim), array, (rows, *array.shape[1:]))


def _fit(sharding: NamedSharding, ndim: int) -> NamedSharding:
    # a spec may name more axes than a label has
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:ndim]))
