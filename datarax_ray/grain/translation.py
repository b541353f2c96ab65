"""Grain's samplers, transforms and states in terms of plan, read and feed.

Source: grain._src.python.data_loader, samplers, operations; grain._src.core.transforms, sharding.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from grain import python as grain_python

from datarax_ray.grain.engine.outputs import Batching, Group
from datarax_ray.grain.engine.stream import Sampling, split
from datarax_ray.grain.engine.transform_chain import Kind, Operation
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.kinds import FileOrder, GlobalShuffle
from datarax_ray.read.code_digests import code_digests

logger = logging.getLogger("datarax_ray")


# In Grain's order: the first match counts.
_METHODS: tuple[tuple[Any, Kind, str], ...] = (
    (grain.transforms.Map, "map", "map"),
    (grain.transforms.RandomMap, "random_map", "random_map"),
    (getattr(grain.transforms, "TfRandomMap", ()), "random_map", "np_random_map"),  # not in every release
    (grain.experimental.FlatMapTransform, "flat_map", "flat_map"),
    (grain.transforms.Filter, "filter", "filter"),
    (grain.transforms.MapWithIndex, "map_with_index", "map_with_index"),  # which Grain's own DataLoader calls and fails
    (grain_python.MapOperation, "map", "map_function"),
    (grain_python.RandomMapOperation, "random_map", "random_map_function"),
    (grain_python.FilterOperation, "filter", "condition_function"),
)
_LEGACY = (grain_python.MapOperation, grain_python.RandomMapOperation, grain_python.FilterOperation)


@dataclass(frozen=True)
class TransformChain:
    """A loader's operations.

    first: operations on single elements.
    stages: batches, and groups of operations on batches.
    settings: for states.
    """

    first: Group
    stages: tuple[Batching | Group, ...]
    settings: Mapping[str, Any]

    @property
    def needs_rng(self) -> bool:
        return any(operation.kind == "random_map" for operation in (*self.first, *self._on_batches))

    @property
    def carries(self) -> bool:
        """Whether an operation on batches takes the index or random numbers of the last element."""
        return any(operation.kind in ("random_map", "map_with_index") for operation in self._on_batches)

    @property
    def sizes(self) -> list[int]:
        """The size of each kind of batch, the first batches first."""
        return [stage.size for stage in self.stages if isinstance(stage, Batching)]

    @property
    def _on_batches(self) -> list[Operation]:
        return [each for stage in self.stages if not isinstance(stage, Batching) for each in stage]


def operations_of(given: Iterable[Any]) -> TransformChain:
    """The operations, each checked to be one.

    Raises: TypeError for a function, a class, or an operation over the iterator of all records.
    """
    given = list(given)
    found = [_operation(operation, number) for number, operation in enumerate(given)]
    parts: list[Any] = [()]
    for operation in found:
        if isinstance(operation, Batching):
            parts += [operation]
        elif isinstance(parts[-1], Batching):
            parts += [(operation,)]
        else:
            parts[-1] += (operation,)
    return TransformChain(parts[0], tuple(parts[1:]), _settings(given, found))


def _operation(given: Any, number: int) -> Operation | Batching:
    name = type(given).__qualname__
    if inspect.isclass(given):
        raise TypeError(f"operation {number} is the class {given.__qualname__}; pass an instance of it")
    for cls, kind, method in _METHODS:
        if isinstance(given, cls):
            return Operation(kind, getattr(given, method), name, number, getattr(given, "max_fan_out", 1))
    # exactly this class, as in Grain: a subclass has a __call__ of its own
    if isinstance(given, grain.transforms.Batch) or type(given) is grain_python.BatchOperation:
        if given.batch_size <= 0:
            raise ValueError(f"batch_size must be positive, got {given.batch_size} in operation {number}")
        name = f"operation {number} (Batch of {given.batch_size})"
        return Batching(given.batch_size, bool(given.drop_remainder), given.batch_fn or _stack, name)
    raise TypeError(
        f"operation {number} ({given!r}) is none of grain.transforms. A function of the iterator of all records "
        "has no state that can be saved, and Grain's checkpoints of it are wrong; write a Map, Filter, FlatMap or "
        "Batch(batch_fn=...) instead."
    )


def _stack(values: list[Any]) -> Any:
    """Grain's own way to make a batch; nothing is padded where the size is right."""
    return grain.experimental.batch_and_pad(values, batch_size=len(values))


def _settings(given: list[Any], found: list[Operation | Batching]) -> dict[str, Any]:
    batches = [operation for operation in found if isinstance(operation, Batching)]
    settings: dict[str, Any] = {"transforms": code_digests(map(_code_of, given, found))}
    if len(batches) == 1:
        return settings | {"batch_size": batches[0].size, "drop_remainder": batches[0].drop_remainder}
    if batches:
        sizes = {str(number): batch.size for number, batch in enumerate(batches)}
        settings |= {"batch_size": sizes, "drop_remainder": [batch.drop_remainder for batch in batches]}
    return settings


def _code_of(given: Any, operation: Operation | Batching) -> Any:
    """The code of an operation: the user's function in one of Grain's own shells, else the transform."""
    if isinstance(operation, Batching):
        return given.batch_fn or given
    return operation.call if isinstance(given, _LEGACY) else given


def shard_options_of(sampler: Any, given: grain.sharding.ShardOptions | None) -> grain.sharding.ShardOptions:
    """The given shard, or the sampler's. Raises: ValueError where there is neither."""
    found = given if given is not None else getattr(sampler, "_shard_options", None)
    if not isinstance(found, grain.sharding.ShardOptions):
        raise ValueError(
            f"no shard_options were given, and {type(sampler).__qualname__} brings none; pass "
            "shard_options=grain.sharding.NoSharding(), or the shard of this process"
        )
    return found


def size_of(sampler: Any) -> int:
    """The length of a sampler, or the first index that raises IndexError, by bisection as in Grain."""
    if hasattr(sampler, "__len__"):
        return len(sampler)
    low, high = 0, sys.maxsize
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
            low = middle + 1
        except IndexError:
            high = middle
    return low


def sampling_of(sampler: Any, size: int) -> Any:
    """A Sampling, which computes whole arrays, if it equals the sampler; otherwise the sampler."""
    try:
        sampling = _sampling(sampler)
    except (AttributeError, TypeError, ValueError):  # another release of Grain, or a sampler that refuses it
        return sampler
    if sampling is None or not _agree(sampler, sampling, size):
        return sampler
    return sampling


def _sampling(sampler: Any) -> Sampling | None:
    seed = sampler._seed
    if seed is not None and seed < 0:
        return None
    if type(sampler) is grain.samplers.SequentialSampler:
        return Sampling(FileOrder(sampler._num_records), seed=seed)
    if type(sampler) is not grain.samplers.IndexSampler:
        return None
    shard = sampler._shard_options
    start, stop = split(sampler._num_records, shard.shard_index, shard.shard_count, shard.drop_remainder)
    if stop == start:
        return None  # Grain's sampler divides by zero, where it is asked at all
    if (rest := sampler._num_records % shard.shard_count) and sampler._num_epochs and not shard.drop_remainder:
        logger.warning(
            "%d of %d records are in no shard: Grain's loader gives %d shards equally many records also without "
            "drop_remainder, and so does this loader. A Pipeline with process_index and process_count divides all "
            "records",
            *(rest, sampler._num_records, shard.shard_count),
        )
    if not sampler._shuffle:
        return Sampling(FileOrder(stop - start), start, shard.shard_count, seed)
    if cipher.grain_is_broken_at(stop - start):
        logger.warning(
            "with %d records in a shard, Grain's shuffle gives one of them twice in every epoch and another never, and "
            "so does this loader. To see all records, remove or add one, or use datarax_ray.sources.",
            stop - start,
        )
        return None
    return Sampling(GlobalShuffle(stop - start, int(seed), rounds=4), start, shard.shard_count, seed)


def _agree(sampler: Any, sampling: Sampling, size: int) -> bool:
    """Whether both agree at the ends of the stream, its shards and its epochs, for any release of Grain."""
    num_records, count = sampling.order.num_records, sampling.shard_count
    edges = {0, 1, num_records - 1, num_records, num_records * count - 1, num_records * count, size // 2, size - 1}
    indices = sorted(index for index in edges if 0 <= index < min(size, 2**62))
    # one by one: an order is made for positions that lie close together
    records = [int(sampling.records(np.array([index], np.int64))[0]) for index in indices]
    return list(zip(indices, records, strict=True)) == [
        (metadata.index, metadata.record_key) for metadata in map(sampler.__getitem__, indices)
    ]


def sampler_settings(sampler: Any, shard: grain.sharding.ShardOptions, length: int) -> dict[str, Any]:
    """The sampler and shard in a checkpoint, in plain values."""
    order: dict[str, Any] = {"shard_index": shard.shard_index, "shard_count": shard.shard_count}
    cls = type(sampler)
    if cls in (grain.samplers.IndexSampler, grain.samplers.SequentialSampler):
        names = ("num_records", "shuffle", "num_epochs", "seed")
        values = {name: getattr(sampler, f"_{name}", None) for name in names}
        its = sampler._shard_options
        text = f"{its.shard_index} of {its.shard_count}" + (", drop_remainder" if its.drop_remainder else "")
        return order | values | {"sampler": cls.__qualname__, "sampler_shard": text}
    return order | {"num_positions": length, "sampler": code_digests((sampler,))["code"][0]}
