"""From host arrays to device arrays, without changing a value, under the JAX settings of the loop's thread."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from datarax_ray.plan.runs import num_below
from datarax_ray.plan.trainer_rows import Share, TrainerRows, shares_of
from datarax_ray.read.elements.columns import concatenate, leaves, map_leaves
from datarax_ray.sources.base.device import narrow


def merge_host(batch: Any, host: Any) -> Any:
    """The batch with the host fields put back. Raises: ValueError where the stages return no dict."""
    if host is None:
        return batch
    if batch is None:
        return host
    if not isinstance(batch, Mapping):
        raise ValueError(
            f"the stages return {type(batch).__name__} and the fields {sorted(host)} stay on the host, so there is no "
            "dict for both; return a dict, or drop these fields in a transform"
        )
    merged = dict(batch)
    for key, value in host.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_host(merged[key], value)
        else:
            merged.setdefault(key, value)
    return merged


def to_device(columns: Any, sharding: NamedSharding | None, rows: TrainerRows, global_rows: int) -> Any:
    """This trainer's rows of a batch of `global_rows` as device arrays, unsharded on the default device, or sharded.

    Over devices of several processes the result is the global array, and each shard holds the rows and columns of its
    index; over devices of this process alone it is the array of these rows. Waits for no other process.

    Raises: OverflowError for 64-bit values that JAX's 32 bits do not hold (jax_enable_x64 is off); ValueError for a
    field with an axis that the sharding does not divide.
    """
    columns = narrow(columns)
    if sharding is None:
        return jax.device_put(columns)
    return jax.tree.map_with_path(lambda path, array: _shard(path, array, sharding, rows, global_rows), columns)


# A compiled program takes some 12 us for an array, and jax.device_put 90, most of it in Python. The program copies on
# the device: above this size device_put is cheaper, since a CPU device shares aligned memory.
_MAX_COPIED_NBYTES = 2**20
# Compiling takes 25 ms: as long as device_put takes for this many batches.
_COMPILED_AFTER = 256
_placed = jax.jit(lambda columns: columns)
# Small batches at hand go to the device together: of eight fields that takes 35 us a batch in place of 115, mostly in
# JAX. Compiling takes 0.1 to 0.2 s, as long as this many batches save; a program for more batches compiles for longer.
TOGETHER = 8
_TOGETHER_AFTER = 4096


@jax.jit
def _divided(columns: Any) -> list[Any]:
    """The batches that follow one another in these columns."""
    rows = len(next(leaves(columns))[1]) // TOGETHER
    parts = [slice(nth * rows, (nth + 1) * rows) for nth in range(TOGETHER)]
    return [map_leaves(operator.itemgetter(part), columns) for part in parts]


# Under these a program does more than device_put: it refuses NaN, or the transfer, or is not compiled.
_PLAIN = operator.attrgetter(
    "jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_transfer_guard_host_to_device", "jax_transfer_guard"
)


class Placer:
    """Puts the batches of one pipeline on the default device, small ones of one shape by a compiled program."""

    def __init__(self) -> None:
        self._num_rows = self._nbytes = self._count = 0

    def __call__(self, batches: Sequence[Any], series: tuple[Any, int] | None = None) -> Iterator[Any]:
        """The columns of batches at hand as to_device gives them without a sharding, byte for byte. Raises: as it.

        series: columns in which these follow one another, from a row on; None where there are none.
        """
        if self._count >= _TOGETHER_AFTER and len(batches) == TOGETHER and not any(_PLAIN(jax.config)):
            are_alike = all(len(next(leaves(columns))[1]) == self._num_rows for columns in batches)
            if are_alike and self._nbytes * TOGETHER <= _MAX_COPIED_NBYTES:
                with contextlib.suppress(OverflowError, TypeError):  # of a row among all: told by its batch alone
                    return iter(_divided(narrow(concatenate(batches) if series is None else self._rows_of(*series))))
        return map(self._placed_alone, batches)

    def _rows_of(self, columns: Any, first: int) -> Any:
        rows = slice(first, first + TOGETHER * self._num_rows)
        return map_leaves(operator.itemgetter(rows), columns)

    def _placed_alone(self, columns: Any) -> Any:
        columns = narrow(columns)
        self._count += 1
        if (num_rows := len(next(leaves(columns))[1])) != self._num_rows:  # columns of one stream differ in rows alone
            self._num_rows, self._count = num_rows, 0
            self._nbytes = sum(array.nbytes for _, array in leaves(columns))
        if self._count < _COMPILED_AFTER or self._nbytes > _MAX_COPIED_NBYTES or any(_PLAIN(jax.config)):
            return jax.device_put(columns)
        return _placed(columns)


def spans_processes(sharding: NamedSharding | None) -> bool:
    """Whether arrays with this sharding are global, with a part in each process."""
    return sharding is not None and not sharding.is_fully_addressable


def by_rows(sharding: NamedSharding | None) -> NamedSharding | None:
    """The sharding of the first axis alone."""
    return None if sharding is None else _fit(sharding, 1)


def constrain(arrays: Any, sharding: NamedSharding | None) -> Any:
    """Traced arrays (rows, ...), with the sharding that to_device gives."""
    if sharding is None:
        return arrays
    is_explicit = all(kind == AxisType.Explicit for kind in sharding.mesh.axis_types)
    lay_out = jax.sharding.reshard if is_explicit else jax.lax.with_sharding_constraint
    return jax.tree.map(lambda array: lay_out(array, _fit(sharding, array.ndim)), arrays)


def share_of(sharding: NamedSharding) -> Share:
    """The parts of every batch on this process's devices. Raises: ValueError where it has no device in the mesh."""
    along_rows, num_rows = _fit(sharding, 1), sharding.mesh.size  # a number of rows that every axis divides
    part_rows = along_rows.shard_shape((num_rows,))[0]
    held: dict[int, set[int]] = {}  # by process
    indices: Any = along_rows.devices_indices_map((num_rows,))
    for device, index in indices.items():
        held.setdefault(device.process_index, set()).add(index[0].indices(num_rows)[0] // part_rows)
    if jax.process_index() not in held:
        raise ValueError(
            f"the mesh {dict(sharding.mesh.shape)} has no device of this process (jax.process_index() is "
            f"{jax.process_index()}), so it has no rows; make the pipeline in the processes of the mesh alone"
        )
    return shares_of(held, num_rows // part_rows)[jax.process_index()]


def trainer_of(
    sharding: NamedSharding | None, process_index: int | None, process_count: int | None
) -> tuple[int, int, Share | None]:
    """(rank, number of trainers, share of every batch) of this process; JAX's rank by default.

    The share is None to divide batches by rank; over devices of several processes it follows the mesh.

    Raises: TypeError for another kind of sharding; ValueError for a rank that contradicts the mesh, or a count of
    processes that is not JAX's, without a rank.
    """
    own = (jax.process_index(), jax.process_count())
    given = (own[0] if process_index is None else process_index, own[1] if process_count is None else process_count)
    if sharding is not None and not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding is a jax.sharding.NamedSharding, got {type(sharding).__name__}")
    if process_index is None and given[1] != own[1]:
        raise ValueError(
            f"process_count={process_count} without process_index, and JAX knows of {own[1]} processes: each of them "
            f"would read the rows of process {own[0]}. Give both"
        )
    if sharding is None or sharding.is_fully_addressable:
        return *given, None
    if given != own:
        raise ValueError(
            f"process_index={given[0]} of process_count={given[1]} contradicts the sharding, which spans several "
            f"processes; this is process {own[0]} of {own[1]}. Omit both"
        )
    share = share_of(sharding)  # first: it refuses a mesh that this process has no part in
    devices: Any = sharding.device_set
    processes = sorted({device.process_index for device in devices})
    return processes.index(own[0]), len(processes), share


def check_sharding(sharding: NamedSharding | None, rows: TrainerRows, num_rows: int, what: str) -> None:
    """Raise ValueError unless the devices of the first axis divide `num_rows`."""
    if sharding is None:
        return
    num_trainers = rows.share.num_parts if sharding.is_fully_addressable else 1  # each with an array of its own
    num_parts = sharding.mesh.size // _fit(sharding, 1).shard_shape((sharding.mesh.size,))[0]
    if num_parts > 1 and num_rows % (num_parts * num_trainers):
        each = f" of each of {num_trainers} trainers" if num_trainers > 1 else ""
        raise ValueError(
            f"{what} has {num_rows} rows, which {sharding.spec} does not divide over the mesh "
            f"{dict(sharding.mesh.shape)}{each}. Use a multiple of {num_parts * num_trainers} for batch_size, and "
            "drop_remainder=True or pad_remainder=True for the last batch."
        )


def check_shape(sharding: NamedSharding | None, shape: tuple[int, ...], what: str) -> None:
    """Raise ValueError unless the sharding divides every axis of this shape."""
    if sharding is None:
        return
    try:
        _fit(sharding, len(shape)).shard_shape(shape)
    except ValueError as error:
        raise ValueError(
            f"{what} is of shape {shape}, which {sharding.spec} does not divide over the mesh "
            f"{dict(sharding.mesh.shape)}. Pad it in a transform (PadTo), or remove its axis from the spec"
        ) from error


def _shard(path: Any, array: np.ndarray, sharding: NamedSharding, rows: TrainerRows, global_rows: int) -> jax.Array:
    ranges = ((0, len(array)),) if sharding.is_fully_addressable else rows.of(global_rows)
    shape = (len(array) if sharding.is_fully_addressable else global_rows, *array.shape[1:])
    check_shape(sharding, shape, f"field {jax.tree_util.keystr(path)}")

    def shard(index: Any) -> np.ndarray:
        lo, hi, _ = index[0].indices(shape[0])
        return array[(slice(num_below(ranges, lo), num_below(ranges, hi)), *index[1:])]

    return jax.make_array_from_callback(shape, _fit(sharding, array.ndim), shard)


def _fit(sharding: NamedSharding, ndim: int) -> NamedSharding:
    # a spec may name more axes than a label has
    return sharding.update(spec=PartitionSpec(*sharding.spec[:ndim]))


# Settings that decide a transfer or a stage: jax.NAME is a context manager, jax.config.jax_NAME the value.
_NAMES = (
    "enable_x64",
    "default_device",
    "default_matmul_precision",
    "default_prng_impl",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "debug_nans",
    "debug_infs",
)


_NOTHING = contextlib.nullcontext()
_VALUES = operator.attrgetter(*(f"jax_{name}" for name in _NAMES))  # asked for twice a batch


@dataclass(frozen=True)
class JaxSettings:
    """JAX's settings in one thread at one time: `with jax.enable_x64(True):` around a loop must reach its worker."""

    values: tuple[Any, ...]

    @classmethod
    def of_this_thread(cls) -> Self:
        return cls(_VALUES(jax.config))

    def applied(self) -> contextlib.AbstractContextManager[None]:
        """These settings in the current thread. Never open over a yield."""
        present = _VALUES(jax.config)
        return _NOTHING if present == self.values else self._in_place_of(present)

    @contextlib.contextmanager
    def _in_place_of(self, present: tuple[Any, ...]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, here, value in zip(_NAMES, present, self.values, strict=True):
                if here != value:
                    stack.enter_context(getattr(jax, name)(value))
            yield
