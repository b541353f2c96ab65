"""From host arrays to device arrays: what goes, what stays, and that no value changes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

# Kinds of NumPy dtypes that no accelerator holds: objects (strings, bytes, lists), text, times, records.
_HOST_KINDS = "OUSVMm"
_NARROW = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32, "complex128": np.complex64}


def split_host(columns: Any) -> tuple[Any, Any]:
    """The fields for the device and those that stay on the host, as two dicts (None where there are none).

    >>> split_host({"x": np.zeros(2), "name": np.array(["a", "b"], object)})
    ({'x': array([0., 0.])}, {'name': array(['a', 'b'], dtype=object)})
    """
    if not isinstance(columns, Mapping):
        return (None, columns) if columns.dtype.kind in _HOST_KINDS else (columns, None)
    parts = {key: split_host(column) for key, column in columns.items()}
    device = {key: part[0] for key, part in parts.items() if part[0] is not None}
    host = {key: part[1] for key, part in parts.items() if part[1] is not None}
    return device or None, host or None


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
    columns = jax.tree.map_with_path(_narrow, columns)
    if sharding is None:
        return jax.device_put(columns)
    return jax.tree.map(lambda array: _shard(array, sharding, global_rows), columns)


def check_sharding(sharding: NamedSharding | None, rows: int, what: str) -> None:
    """Raise ValueError unless `rows` divide over the devices that the first axis is sharded over."""
    if sharding is None:
        return
    try:
        sharding.shard_shape((rows, *[1] * (len(sharding.spec) - 1)))
    except ValueError as error:
        raise ValueError(
            f"{what} has {rows} rows, which {sharding.spec} does not divide over the mesh {dict(sharding.mesh.shape)}. "
            "Use a batch_size that divides, and drop_remainder=True for the last batch."
        ) from error


def _shard(array: np.ndarray, sharding: NamedSharding, global_rows: int) -> jax.Array:
    # a spec may name more axes than a label has
    fitting = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[: array.ndim]))
    rows = global_rows if jax.process_count() > 1 else len(array)
    return jax.make_array_from_process_local_data(fitting, array, (rows, *array.shape[1:]))


def _narrow(path: Any, array: np.ndarray) -> np.ndarray:
    """64-bit arrays as 32-bit ones where JAX would make them so, but never with another value in silence."""
    narrow: Any = _NARROW.get(array.dtype.name)
    if narrow is None or jax.config.read("jax_enable_x64"):
        return array
    with np.errstate(over="ignore"):
        narrowed: np.ndarray = array.astype(narrow)
    is_integer = array.dtype.kind in "iu"
    changed = narrowed != array if is_integer else np.isfinite(array) & ~np.isfinite(narrowed)
    if changed.any():
        row = int(np.argwhere(changed)[0][0]) if array.ndim else 0
        raise OverflowError(
            f"field {jax.tree_util.keystr(path)}, row {row}: a value of {array.dtype} does not fit {narrowed.dtype}, "
            "which JAX uses unless jax_enable_x64 is on. Turn it on, or convert the field in a transform."
        )
    return narrowed
