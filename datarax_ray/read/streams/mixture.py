"""A mixture as a description: several descriptions, and which of them stands at each position.

A component's records are read and transformed as if it were alone: by its own seed and its own positions. Only then do
its elements get the positions of the mixture.
"""

from __future__ import annotations

import functools
import operator
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from datarax_ray.plan.arguments import flag
from datarax_ray.plan.fingerprint import without_code
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.mixture import Mixture, MixtureOrder, WeightedOrder
from datarax_ray.plan.orders.order import RunRecords
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.plain_values import digest
from datarax_ray.plan.position import Yields, earliest
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.plan.weights import Weights, num_weights, pieces_of, plain_weights, weights_given
from datarax_ray.read.block import Block, first_failure
from datarax_ray.read.elements.columns import Columns, leaves, odd_one, spec
from datarax_ray.read.errors import RecordError, UnlikeError
from datarax_ray.read.stream import StreamTraits
from datarax_ray.read.streams.indexed import IndexedStream, names_of, request_at, scheduler_of
from datarax_ray.read.streams.open_shards import Pick, gather

AnyStream: TypeAlias = "IndexedStream | MixtureStream"
Located: TypeAlias = RecordError | UnlikeError

# Settings of a component take up to 500 bytes, and a state less than 4 KB: of more components, a digest of each.
_MAX_WHOLE_SETTINGS = 4


def component_name(index: int) -> str:
    """What stands before the names of a component's records, for two may have files or shards of the same name."""
    return f"component {index}"


@dataclass(frozen=True)
class Mixed:
    """What mixtures of every kind share.

    components: each with its own order, epochs, transforms and on_error.
    weights: constant, or a schedule of them.
    seed: see plan.orders.mixture.Mixture.
    length: where the stream ends, None where a component does, or never.
    is_strict: a component that gives nothing in a whole pass is an error.
    weights_by: the field whose sizes the weights share out; None for elements or records, each counts 1.
    """

    components: tuple[Any, ...]
    weights: Weights
    seed: int = 42
    length: int | None = None
    is_strict: bool = False
    weights_by: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", weights_given(self.weights))
        if len(self.components) != num_weights(self.weights) or not self.components:
            raise ValueError(
                f"got {len(self.components)} components and {num_weights(self.weights)} weights; give one for each"
            )
        object.__setattr__(self, "seed", operator.index(self.seed))  # NumPy's integers are not JSON
        if self.length is not None:
            object.__setattr__(self, "length", operator.index(self.length))
        object.__setattr__(self, "is_strict", flag("strict", self.is_strict))
        if not (self.weights_by is None or (isinstance(self.weights_by, str) and self.weights_by)):
            raise TypeError(
                "weights_by is the name of a field, such as 'tokens', or None where each element counts 1, got "
                f"{self.weights_by!r}"
            )
        if self.length is not None and self.length < 1:
            raise ValueError(f"length must be at least 1, or None for no end, got {self.length}")

    @property
    @abstractmethod
    def order(self) -> WeightedOrder:
        """The element at each position, with these weights from the beginning on."""

    @property
    def are_cycles_alike(self) -> bool:
        """See EmptyEpochs: not where weights change."""
        return len(pieces_of(self.weights)) == 1

    def droppers(self, is_packed: bool) -> list[str]:
        """Of all components, each once."""
        return list(dict.fromkeys(what for each in self.components for what in each.droppers(is_packed)))

    @property
    def traits(self) -> StreamTraits:
        each = [component.traits for component in self.components]
        return StreamTraits(
            any(its.reads_ahead for its in each),
            any(its.is_managed for its in each),
            is_kept=any(its.is_kept for its in each),
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides the stream, in plain values; a digest per component where there are many."""
        settings: list[Any] = [component.settings() for component in self.components]
        if len(settings) > _MAX_WHOLE_SETTINGS:
            settings = [digest(without_code(each)) for each in settings]
        return {
            "mixture": self.order.settings() | {"length": self.length},
            "components": {str(index): each for index, each in enumerate(settings)},
        }

    def counts(self) -> dict[str, int]:
        return dict(sum((Counter(component.counts()) for component in self.components), Counter[str]()))

    def close(self) -> None:
        for component in self.components:
            component.close()


@dataclass(frozen=True)
class MixtureStream(Mixed):
    """A mixture of records that are read by index; an IndexedStream to all who read."""

    components: tuple[AnyStream, ...]

    @property
    def order(self) -> MixtureOrder:
        """The record at each position, with these weights from the beginning on."""
        return self._order  # a cached_property is no property to a type checker, as Stream wants one

    @functools.cached_property
    def _order(self) -> MixtureOrder:
        orders = tuple(component.order for component in self.components)
        return MixtureOrder(Mixture(self.weights, self.seed), orders)

    def order_of(self, request: ReadRequest) -> MixtureOrder:
        return self.order.amended(request.wanted.amendments)

    @property
    def run_records(self) -> RunRecords:
        """By component, the records for one actor to read in a row."""
        return tuple(component.run_records for component in self.components)

    @property
    def stop(self) -> int | None:
        """The position after the last: before the first one that a component has no record for, at most length."""
        ends = [
            self.order.mixture.end_of(index, component.stop)
            for index, component in enumerate(self.components)
            if component.stop is not None
        ]
        return earliest([*ends, self.length])

    def __str__(self) -> str:
        return f"weights={plain_weights(self.weights)}, num_records={self.order.num_records}"

    @property
    def yields(self) -> Yields:
        """What holds for every component."""
        each = [component.yields for component in self.components]
        return Yields(all(c.is_one_to_one for c in each), any(c.may_repeat for c in each))

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> RecordScheduler:
        return scheduler_of(self, self.order, start, stop, wanted)

    def read(self, request: ReadRequest, ended: str = "") -> Block:
        order = self.order_of(request)
        return self.block_at(*request.select(order), request.wanted.documents, ended, order)

    def expect(self, request: ReadRequest) -> None:
        order = self.order_of(request)
        self.expect_at(*request.select(order), order)

    def expect_at(self, positions: Indices, records: Indices, order: MixtureOrder | None = None) -> None:
        """As expect, of what block_at will be asked for."""
        for index, _, own, its_records in self._parts(order or self.order, positions, records):
            self.components[index].expect_at(own, its_records)

    def names(self, request: ReadRequest) -> list[str]:
        return names_of(request.select(self.order_of(request))[1], self.locate)

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        order = self.order_of(request_at(0, 0, state))
        return [self.name(record) for record in order.records(positions).tolist()]

    def locate(self, record: int) -> str:
        """Where a record is, for people: of which component, and in what. record: numbered through all components."""
        index, own = self._own(record)
        return f"{component_name(index)}: {self.components[index].locate(own)}"

    def name(self, record: int) -> str:
        """As locate, with where the record was written from."""
        index, own = self._own(record)
        return f"{component_name(index)}: {self.components[index].name(own)}"

    def _own(self, record: int) -> tuple[int, int]:
        """The component of a record, and the record's number in it."""
        index = int(np.searchsorted(self.order.bases, record, "right")) - 1
        return index, record - int(self.order.bases[index])

    def block_at(
        self,
        positions: Indices,
        records: Indices,
        documents: DocumentSpec | None,
        ended: str = "",
        order: MixtureOrder | None = None,
    ) -> Block:
        """The block of these positions, of all components. order: see order_of; None for that of the beginning."""
        blocks = {}
        for index, its_positions, own, its_records in self._parts(order or self.order, positions, records):
            block = self.components[index].block_at(own, its_records, documents, ended)
            blocks[index] = _moved(block, component_name(index), own, its_positions)
        return next(iter(blocks.values())) if len(blocks) == 1 else _merged(blocks)

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        """The elements at positions [start, stop), not stacked, by the weights that hold in this state's stream."""
        request = request_at(start, stop, state)
        order = self.order_of(request)
        return self.elements_at(*request.select(order), order)[1]

    def elements_at(
        self, positions: Indices, records: Indices, order: MixtureOrder | None = None
    ) -> tuple[list[int], list[Any]]:
        """The elements of these positions, and the position of each. order: as of block_at."""
        found: list[tuple[int, Any]] = []
        failures = []
        for index, its_positions, own, its_records in self._parts(order or self.order, positions, records):
            try:
                at, elements = self.components[index].elements_at(own, its_records)
            except RecordError as error:  # another component's may stand before it
                failures.append(_moved_error(error, component_name(index), error.position, own, its_positions))
                continue
            found += zip(its_positions[np.searchsorted(own, at)].tolist(), elements, strict=True)
        if failures:
            raise min(failures, key=lambda error: error.position)
        found.sort(key=lambda pair: pair[0])
        return [position for position, _ in found], [element for _, element in found]

    def _parts(
        self, order: MixtureOrder, positions: Indices, records: Indices
    ) -> Iterator[tuple[int, Indices, Indices, Indices]]:
        """(index, positions in the mixture, own positions, records) of every component with any."""
        components, own = order.mixture.place(positions)
        for index in np.unique(components).tolist():
            mine = components == index
            yield index, positions[mine], own[mine], records[mine] - order.bases[index]


def _moved(block: Block, name: str, own: Indices, positions: Indices) -> Block:
    """The block of the component of that name in the mixture. own: its positions, positions: where they stand."""

    def moved(at: Any) -> Any:
        return positions[np.searchsorted(own, at)]

    failure, failed_at = block.failure, 0
    if failure is not None:
        failed_at = int(moved(block.failure_position))
        if isinstance(failure, Located):
            failure = _moved_error(failure, name, block.failure_position, own, positions)
    skipped = tuple(skip.moved(name, int(moved(skip.position))) for skip in block.skipped)
    taken = tuple((f"{step} of {name}", int(moved(first)), like) for step, first, like in block.taken)
    where = moved(block.positions)
    return Block(where, block.columns, skipped, failure, failed_at, block.lengths, taken=taken, may_come=block.may_come)


def _moved_error(error: Located, name: str, at: int, own: Indices, positions: Indices) -> Located:
    position = int(positions[np.searchsorted(own, at)])
    if isinstance(error, RecordError):
        error.move(name, at, position)
        return error
    error.position, error.first = position, int(positions[np.searchsorted(own, error.first)])
    error.add_note(f"position {at} of {name} of a mixture stands at position {position} of the mixture")
    return error


def _merged(blocks: Mapping[int, Block]) -> Block:
    """The blocks of components as one, in order of position, up to the first failure or element unlike the first."""
    of_all = blocks.values()
    skipped = tuple(sorted((skip for block in of_all for skip in block.skipped), key=lambda skip: skip.position))
    may_come = any(block.may_come for block in of_all)
    taken = tuple(each for block in of_all for each in block.taken)
    unlike: list[tuple[int, Exception]] = []
    by_first = {int(block.positions[0]): index for index, block in blocks.items() if len(block.positions)}
    found = [blocks[by_first[first]] for first in sorted(by_first)]
    so_far = dict(leaves(spec(found[0].columns))) if found else {}
    for block in found[1:]:
        first = int(block.positions[0])
        if (odd := odd_one(so_far, int(found[0].positions[0]), spec(block.columns), first)) is not None:
            odd.add_note(f"so far component {by_first[min(by_first)]} of the mixture, then component {by_first[first]}")
            unlike.append((first, odd))
    failed_at, failure = first_failure(of_all, 0, *unlike)
    if failure is not None:
        ends = [int(np.searchsorted(block.positions, failed_at)) for block in found]
        found = [block.part(0, end) for block, end in zip(found, ends, strict=True) if end]
    if not found:
        return Block(np.empty(0, np.int64), None, skipped, failure, failed_at, taken=taken, may_come=may_come)
    positions = np.concatenate([block.positions for block in found])
    order = np.argsort(positions, kind="stable")
    columns, lengths = _rows(found, order) if found[0].lengths is None else _documents(found, order)
    return Block(positions[order], columns, skipped, failure, failed_at, lengths, taken=taken, may_come=may_come)


def _rows(blocks: list[Block], order: Indices) -> tuple[Columns, None]:
    places = np.argsort(order)
    ends = np.cumsum([len(block.positions) for block in blocks])
    picks = [Pick(b.columns, np.arange(len(at)), at) for b, at in zip(blocks, np.split(places, ends[:-1]), strict=True)]
    return gather(picks, len(order)), None


def _documents(blocks: list[Block], order: Indices) -> tuple[Columns, Indices]:
    """The fields of all documents in this order, end to end, and their lengths."""
    assert all(block.lengths is not None for block in blocks)
    splits = [np.cumsum(block.lengths)[:-1] for block in blocks]  # type: ignore[arg-type]
    lengths = np.concatenate([block.lengths for block in blocks])
    columns = {}
    for name in blocks[0].columns:
        parts = [part for block, at in zip(blocks, splits, strict=True) for part in np.split(block.columns[name], at)]
        columns[name] = np.concatenate([parts[index] for index in order.tolist()])
    return columns, lengths[order]
