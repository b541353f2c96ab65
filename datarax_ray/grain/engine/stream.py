"""The stream of a loader: the records that a sampler chooses, read and put through operations.

Legend: a position counts a shard's elements from 0; the sampler's index is position * shard_count + shard_index.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from datarax_ray.grain.engine.transform_chain import Item, Operation, expand
from datarax_ray.plan.orders.cipher import MAX_NUM_RECORDS, Indices
from datarax_ray.plan.orders.kinds import FileOrder
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import nbytes_of
from datarax_ray.read.errors import RecordError
from datarax_ray.read.stream import Reader, StreamTraits
from datarax_ray.read.streams.indexed import read_records, run_of

Rng = np.random.Generator | None

# Operations cost more than reads here, and neighbours lie together only without a shuffle: small runs give every
# actor a share of the first batch.
_MAX_RUN_RECORDS = 16


@dataclass(frozen=True)
class SampledStream:
    """The description of a loader's stream.

    sampler: a Sampling, or any object with `[index]` that gives index, record_key and rng.
    length: positions; more than 2**62 for an endless stream.
    operations: applied to each element here.
    needs_rng: some operation draws random numbers, here or later.
    carries: later operations need each element's index and generator.
    identity: everything that decides the stream, in plain values.
    """

    yields: ClassVar[Yields] = Yields(is_one_to_one=False, may_repeat=True)

    reader: Reader
    sampler: Any
    length: int
    shard_index: int
    shard_count: int
    operations: tuple[Operation, ...]
    needs_rng: bool
    carries: bool
    identity: Mapping[str, Any]

    @property
    def order(self) -> FileOrder:
        """Of positions, not of records: actors divide runs of positions, and ask the sampler for their records.

        Endless, for an epoch without elements is no error in Grain.
        """
        return FileOrder(MAX_NUM_RECORDS)

    @property
    def stop(self) -> int | None:
        return self.length if self.length <= MAX_NUM_RECORDS else None

    def __str__(self) -> str:
        return f"{self.length} positions of {self.reader.num_records} records by a sampler"

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> RecordScheduler:
        run_records = run_of(self.reader, _MAX_RUN_RECORDS)
        return RecordScheduler(
            self.order,
            self.order.partitioning(run_records),
            start=start,
            stop=stop,
            wanted=wanted,
            first_size=run_records,
            are_cycles_alike=False,  # operations see the sampler's index, and Grain searches for ever
        )

    def expect(self, request: ReadRequest) -> None:
        """Nothing: it reads nothing ahead."""

    def names(self, request: ReadRequest) -> list[str]:
        """No names: the sampler is not asked twice."""
        return []

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """The records that the sampler chose at these positions; see Stream.locations."""
        return [self.reader.name(record) for record in self._choose(positions).records.tolist()]

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        raise TypeError("a loader gives its outputs in order; index its data source for single records")

    @property
    def traits(self) -> StreamTraits:
        return StreamTraits(is_managed=self.reader.traits.is_managed)

    def close(self) -> None:
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        return dict(self.identity)

    def read(self, request: ReadRequest, ended: str = "") -> Block:
        """The elements of the request's positions, up to the first failure; a flat_map's share a position."""
        positions, _ = request.select(self.order)
        if not positions.size:
            return Block(positions, None)
        chosen = self._choose(positions)
        count = len(chosen.records)
        if not count:
            return Block(positions[:0], None, (), chosen.failure, int(positions[0]))
        progress, _ = read_records(self.reader, positions[:count], chosen.records, "raise", ended)
        read_positions = np.asarray(progress.positions).tolist()
        failure = progress.failure or chosen.failure
        items: list[Item] = []
        where: list[int] = []
        for number, (element, position) in enumerate(zip(progress.elements, read_positions, strict=True)):
            item = Item(chosen.indices[number], chosen.rng(number), element)
            outputs, error = expand(self.operations, item)
            items += outputs
            where += [position] * len(outputs)
            if error is not None:
                record = self.reader.name(int(progress.records[number]))
                failure = RecordError.of(record, position, error.reason, error.error)
                break
        at = 0 if failure is None else failure.position
        return Block(np.array(where, np.int64), self._elements(items) if items else None, (), failure, at)

    def _elements(self, items: list[Item]) -> Elements:
        values = ObjectList([item.data for item in items])
        if not self.carries:
            return Elements(values)
        indices = np.array([item.index for item in items], np.int64)
        return Elements(values, indices, ObjectList([item.rng for item in items]))

    def _choose(self, positions: Indices) -> _Chosen:
        indices = positions * self.shard_count + self.shard_index
        if isinstance(self.sampler, Sampling):
            # as in Grain, where a sampler's num_records differs from the source's
            records = self.sampler.records(indices) % self.reader.num_records
            return _Chosen(indices.tolist(), records, self._rngs(indices.tolist()))
        found: list[Any] = []
        failure = None
        for position, index in zip(positions.tolist(), indices.tolist(), strict=True):
            try:
                metadata = self.sampler[index]
                found.append((metadata.index, metadata.record_key % self.reader.num_records, metadata.rng))
            except Exception as error:
                reason = f"the sampler raised {type(error).__name__}: {error}"
                failure = RecordError.of(f"{type(self.sampler).__qualname__}[{index}]", position, reason, error)
                break
        records = np.array([key for _, key, _ in found], np.int64)
        return _Chosen([index for index, _, _ in found], records, lambda number: found[number][2], failure)

    def _rngs(self, indices: list[int]) -> Callable[[int], Rng]:
        seed = self.sampler.seed
        if seed is None or not self.needs_rng:
            return lambda number: None
        if self.carries:
            return lambda number: np.random.Generator(np.random.Philox(key=seed + indices[number]))
        rng_of = keyed_rng()
        return lambda number: rng_of(seed + indices[number])


@dataclass(frozen=True)
class _Chosen:
    """The sampler's choice for some positions, up to its first error."""

    indices: list[int]
    records: Indices
    rng: Callable[[int], Rng]
    failure: RecordError | None = None


def keyed_rng() -> Callable[[int], np.random.Generator]:
    """key -> Generator(Philox(key)), reusing one object at a quarter of the cost: a transform must not keep it.

    >>> keyed_rng()(7).random() == np.random.Generator(np.random.Philox(key=7)).random()
    True
    """
    bits = np.random.Philox(key=0)
    fresh = bits.state
    rng = np.random.Generator(bits)

    def rng_of(key: int) -> np.random.Generator:
        fresh["state"]["key"] = np.array([key & (2**64 - 1), key >> 64], np.uint64)
        bits.state = fresh
        return rng

    return rng_of


def split(num_records: int, shard_index: int, shard_count: int, drop_remainder: bool) -> tuple[int, int]:
    """The records [start, stop) of one shard: num_records // shard_count of them.

    The first shards get one record more each, until none is left over; with drop_remainder no shard gets them.

    >>> [split(10, shard, 3, drop_remainder=False) for shard in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    >>> [split(10, shard, 3, drop_remainder=True) for shard in range(3)]
    [(0, 3), (3, 6), (6, 9)]
    """
    size, left_over = divmod(num_records, shard_count)
    if drop_remainder:
        left_over = 0
    start = size * shard_index + min(shard_index, left_over)
    return start, start + size + (shard_index < left_over)


@dataclass(frozen=True)
class Sampling:
    """`first + order((index // shard_count)-th position)`: one shard's consecutive records, in order or shuffled.

    A shuffle permutes inside the shard, by the same permutation in every shard of one size.

    order: of the shard's records, with Grain's 4 rounds where it is shuffled.
    seed: keys random transforms, with the index; None without.

    >>> import numpy as np
    >>> from datarax_ray.plan.orders.kinds import GlobalShuffle
    >>> shard = GlobalShuffle(num_records=4, seed=1, rounds=4)
    >>> Sampling(first=4, order=shard, shard_count=2).records(np.array([1, 3, 5, 7])).tolist()
    [5, 6, 7, 4]
    """

    order: Order
    first: int = 0
    shard_count: int = 1
    seed: int | None = None

    def records(self, indices: Indices) -> Indices:
        """The record at each index of the sampler. indices: int64 (k,), ascending, >= 0. Returns int64 (k,)."""
        return self.first + self.order.records(indices // self.shard_count)


class ObjectList:
    """A list of any Python objects. It pickles in one piece, so small arrays share a buffer and stay writable."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _unbox, (pickle.dumps(self.values, pickle.HIGHEST_PROTOCOL),)
        except Exception:  # a class of __main__, say: the pickler around this one may know how (cloudpickle does)
            return ObjectList, (self.values,)


def _unbox(data: bytes) -> ObjectList:
    return ObjectList(pickle.loads(data))


@dataclass(frozen=True)
class Elements:
    """The elements of a block. indices, rngs: of each element, where operations on batches need them."""

    values: ObjectList
    indices: Indices | None = None
    rngs: ObjectList | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(map(nbytes_of, self.values.values)))
