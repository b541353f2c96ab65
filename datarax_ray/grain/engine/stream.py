"""What a sampler chooses, read and put through operations: the description behind a loader with a sampler.

Legend: a position counts a shard's elements from 0; the sampler's index is position * shard_count + shard_index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.grain.engine.pytrees import Elements, ObjectList, gather
from datarax_ray.grain.engine.sampler import Sampling
from datarax_ray.grain.engine.transform_chain import Item, Operation, expand
from datarax_ray.plan.orders.cipher import MAX_NUM_RECORDS, Indices
from datarax_ray.plan.orders.file_order import FileOrder
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.errors import RecordError
from datarax_ray.read.stream import Reader
from datarax_ray.read.streams.indexed import read_records, run_of

Rng = np.random.Generator | None

# Operations cost more than reads here, and neighbours lie together only without a shuffle: small runs give every
# actor a share of the first batch.
_MAX_RUN_RECORDS = 16


@dataclass(frozen=True)
class SampledStream:
    """What the stream of a loader is made of.

    sampler: a Sampling, or any object with `[index]` that gives what has index, record_key and rng.
    length: positions; more than 2**62 for an endless stream.
    operations: applied to each element here.
    needs_rng: whether any operation draws random numbers, here or later.
    carries: whether later operations need each element's index and generator.
    stacks: whether to make arrays of like elements.
    identity: what the stream depends on, in plain values.
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
    stacks: bool
    identity: Mapping[str, Any]

    @property
    def order(self) -> FileOrder:
        """Of positions, not of records: runs of them are dealt to the actors, and each asks the sampler for its own.

        Endless, since an epoch that gives nothing is no error where Grain gives nothing.
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
            are_cycles_alike=False,  # operations are told the sampler's index, and Grain looks for ever
        )

    def names(self, request: ReadRequest) -> list[str]:
        """None: to say which records they are, the sampler would be asked again."""
        return []

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """The records that the sampler has chosen there; see Stream.locations."""
        return [self.reader.locate(record) for record in self._choose(positions).records.tolist()]

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        raise TypeError("a loader gives its outputs in order; index its data source for single records")

    @property
    def is_managed(self) -> bool:
        return getattr(self.reader, "is_managed", False)

    def close(self) -> None:
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        return dict(self.identity)

    def read(self, request: ReadRequest, ended: str = "") -> Block:
        """The elements of the request's positions, up to the first that fails; a flat_map's share their position."""
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
                record = self.reader.locate(int(progress.records[number]))
                failure = RecordError.of(record, position, error.reason, error.error)
                break
        at = 0 if failure is None else failure.position
        return Block(np.array(where, np.int64), self._elements(items) if items else None, (), failure, at)

    def _elements(self, items: list[Item]) -> Elements:
        data = [item.data for item in items]
        values = gather(data) if self.stacks else ObjectList(data)
        if not self.carries:
            return Elements(values)
        indices = np.array([item.index for item in items], np.int64)
        return Elements(values, indices, ObjectList([item.rng for item in items]))

    def _choose(self, positions: Indices) -> _Chosen:
        indices = positions * self.shard_count + self.shard_index
        if isinstance(self.sampler, Sampling):
            # as Grain does where a sampler's num_records is not the source's
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
    """What the sampler gives for some positions, up to the first for which it raises."""

    indices: list[int]
    records: Indices
    rng: Callable[[int], Rng]
    failure: RecordError | None = None


def keyed_rng() -> Callable[[int], np.random.Generator]:
    """key -> Generator(Philox(key)), the same object set anew: a quarter of the cost, so a transform must not keep it.

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
