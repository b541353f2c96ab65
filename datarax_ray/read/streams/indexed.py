"""Streams of records by index: everything that decides the stream, and the reading of requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import EpochOrder, Order
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest, smallest_run
from datarax_ray.plan.position import ONE_TO_ONE, Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.state import BEGIN, StreamState
from datarax_ray.read.block import Block, block_of, takes_fixed_records, transformed
from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.columns import Columns, concatenate, spec, unstack, unstack_to_stack
from datarax_ray.read.elements.owning import writable
from datarax_ray.read.elements.progress import Call, ObjectsAt, Progress
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.elements.transforms import OnError, Step, check_arguments, steps
from datarax_ray.read.errors import is_of_data
from datarax_ray.read.laps import lap
from datarax_ray.read.stream import MAX_NAMES, Reader, StreamTraits, check_on_error, whole_epochs

_RUN_NBYTES = 256 * 2**10  # a small part of a block
_PARTS = 8  # of records of which some cannot be read; with 2 many of them cost twice as much, and few as much
_MAX_RUN_RECORDS = 1024  # more of them make a read no cheaper


def run_of(reader: Reader, most: int = _MAX_RUN_RECORDS) -> int:
    """Records for one actor to read in a row: 256 KiB of records, at most `most`.

    Small enough for runs for every actor in every chunk, and large enough to be one read.
    """
    return max(1, min(most, _RUN_NBYTES // max(1, reader.mean_nbytes)))


def request_at(start: int, stop: int, state: StreamState) -> ReadRequest:
    return ReadRequest(start, stop, wanted=Wanted(amendments=state.amendments))


def names_of(records: Indices, locate: Callable[[int], str]) -> list[str]:
    """The files of the first of these records, the last, and some between, each once."""
    if not len(records):
        return []
    some = records[np.unique(np.linspace(0, len(records) - 1, MAX_NAMES).astype(int))].tolist()
    return list(dict.fromkeys(name.rpartition("[")[0] or name for name in map(locate, some)))


def scheduler_of(stream: Any, order: Order, start: StreamState, stop: int | None, wanted: Wanted) -> RecordScheduler:
    """The scheduler of a stream of records, in this order, from a state on."""
    return RecordScheduler(
        order,
        order.partitioning(stream.run_records),
        start=start,
        stop=stop,
        wanted=wanted,
        first_size=smallest_run(stream.run_records),
        are_cycles_alike=stream.are_cycles_alike,
        droppers=stream.droppers(wanted.documents is not None),
        is_kept=stream.traits.is_kept,
    )


def read_records(
    reader: Reader, positions: Indices, records: Indices, on_error: OnError, ended: str = "", in_rows: bool = False
) -> tuple[Progress, Columns]:
    """The records for these positions, up to the first that cannot be read; columns where they are stored as such.

    positions, records: int64 (k,) each, positions ascending.
    ended: see Stream.read.
    in_rows: whether the decoder takes FixedRecords.
    """
    asked = Progress([], positions, records, on_error=on_error, locate=reader.name, alike=reader.traits.alike)
    if not len(records):
        return asked, None
    parts: list[tuple[range, Any]] = []  # which of them, in their order
    call = Call(lambda *_: None, "reading", catch=ChildProcessError if ended else reader.traits.broken)

    # After an error they are read in parts, since it names no record. No function that calls itself: Python would keep
    # it, and with it all records, until it collects cycles.
    todo = [(0, len(records))]
    with lap("reading"):
        while todo:
            first, stop = todo.pop()
            try:
                if ended:
                    raise ChildProcessError(f"every process that reads it ends: {ended}")
                parts.append((range(first, stop), reader.read_at(positions[first:stop], records[first:stop], in_rows)))
            except BaseException as error:
                if stop - first > 1:
                    if not is_of_data(error, call.catch):
                        raise
                    step = -(-(stop - first) // _PARTS)
                    todo += reversed([(at, min(at + step, stop)) for at in range(first, stop, step)])
                elif not asked.fail_or_skip(first, call, int(records[first]), error):
                    break  # later records are not wanted
    if sum(len(those) for those, _ in parts) < len(records):
        asked.keep([index for those, _ in parts for index in those])
    return asked, _joined(parts, asked)


def _joined(parts: list[tuple[range, Any]], asked: Progress) -> Columns:
    """The columns of records read in parts, if they fit together; else None, and the parts are elements of `asked`."""
    first = parts[0][1] if parts else []
    if isinstance(first, Mapping) and all(isinstance(part, Mapping) and spec(part) == spec(first) for _, part in parts):
        return first if len(parts) == 1 else concatenate([part for _, part in parts])
    if len(parts) == 1:
        asked.elements = first if isinstance(first, list | FixedRecords) else list(first)
        return None
    asked.elements = []
    for those, part in parts:  # bytes, or images of several sizes
        asked.elements += unstack_to_stack(part, len(those)) if isinstance(part, Mapping) else part
    return None


@dataclass(frozen=True)
class ElementStream:
    """The source and the transforms of a stream.

    num_epochs: passes over the records, -1 for endless.
    transforms: applied in this order on the host.
    on_error: what becomes of a record that cannot be read, decoded or transformed: "raise", "skip" it and say so, or a
        function of the RecordError that is asked, where it is read, whether to skip it (True) or to raise; what is no
        Exception, as a SystemExit, is raised.
    as_objects: fields that the transforms of single elements leave None where the source has a null. They are columns
        of objects, whichever elements stand together.
    """

    reader: Any
    order: Any
    num_epochs: int = -1
    transforms: tuple[Any, ...] = ()
    on_error: OnError = "raise"
    as_objects: frozenset[ObjectsAt] = field(default=frozenset(), kw_only=True)
    # Taken once: a transform that opens a file or fills a cache when it is first called is still the same one.
    _code: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", whole_epochs(self.num_epochs))
        check_on_error(self.on_error)
        check_arguments(self.transforms)
        object.__setattr__(self, "_code", code_digests(self.transforms))

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        return steps(self.transforms)

    @property
    def stop(self) -> int | None:
        return None if self.num_epochs == -1 else self.num_epochs * self.order.cycle

    @property
    def are_cycles_alike(self) -> bool:
        """See EmptyEpochs: the same records in each."""
        return True

    def droppers(self, is_packed: bool) -> list[str]:
        """The steps that may drop all elements, in words. is_packed: elements become documents."""
        kinds = {step.kind for step in self.steps}
        may_be = {
            "the filters drop everything (as one does that ends without `return`)": "filter" in kinds,
            "flat_map gives nothing": "flat_map" in kinds,
            "every document is empty": is_packed,
            "every record is broken": self.on_error != "raise",
        }
        return [what for what, is_so in may_be.items() if is_so]

    def counts(self) -> dict[str, int]:
        return {}

    @property
    def traits(self) -> StreamTraits:
        return StreamTraits()

    def expect(self, request: Any) -> None:
        """See Stream; a stream of shards reads nothing ahead."""

    def close(self) -> None:
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        return {
            "files": self.reader.fingerprint(),
            # num_epochs third, as in every state that was written
            "order": {"shuffle": None, "seed": None, "num_epochs": self.num_epochs} | self.order.settings(),
            "transforms": self._code,
            "on_error": "function" if callable(self.on_error) else self.on_error,
        }


@dataclass(frozen=True)
class IndexedStream(ElementStream):
    """A stream of records that are read by index; see ElementStream for the other fields.

    first_yields: how many elements the first transform gives of a record, where that is known of these records; None
    where its kind says it.
    """

    reader: Reader
    order: EpochOrder
    first_yields: Yields | None = None

    @property
    def run_records(self) -> int:
        """Records that one actor should read in a row in file order; see run_of."""
        return run_of(self.reader)

    @property
    def yields(self) -> Yields:
        """The number of elements per position; 0 where a filter drops the record."""
        first = self.first_yields or ONE_TO_ONE
        kinds = {step.kind for step in self.steps[self.first_yields is not None :]}
        is_one_to_one = first.is_one_to_one and self.on_error == "raise" and kinds.isdisjoint(("filter", "flat_map"))
        return Yields(is_one_to_one, may_repeat=first.may_repeat or "flat_map" in kinds)

    def __str__(self) -> str:
        return f"num_records={self.order.num_records}, shuffle={self.order.shuffle!r}"

    @property
    def traits(self) -> StreamTraits:
        its = self.reader.traits
        # groups only where they are shuffled: a request in file order cuts at most two
        is_kept = (its.keeps_groups and self.order.is_shuffled) or its.keeps_records or its.reads_ahead
        return StreamTraits(its.reads_ahead, its.is_managed, is_kept)

    def counts(self) -> dict[str, int]:
        return self.reader.counts()

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> RecordScheduler:
        return scheduler_of(self, self.order, start, stop, wanted)

    def read(self, request: ReadRequest, ended: str = "") -> Block:
        """The block that the request asks for; see Stream.read.

        A record that cannot be read, decoded, transformed or stacked ends the block before it, and is its failure.

        Raises: OSError and ValueError for a file that is gone or replaced.
        """
        return block_of(*self._elements(*request.select(self.order), ended), request.wanted.documents)

    def expect(self, request: ReadRequest) -> None:
        self.expect_at(*request.select(self.order))

    def expect_at(self, positions: Indices, records: Indices) -> None:
        """As expect, for a later call of block_at."""
        if self.reader.traits.reads_ahead:
            self.reader.expect(records)

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        """The elements at positions [start, stop), not stacked; filtered ones are missing.

        Raises: RecordError for the first record that cannot be read, decoded or transformed, unless they are skipped.
        """
        return self.elements_at(*request_at(start, stop, state).select(self.order))[1]

    def block_at(
        self, positions: Indices, records: Indices, documents: DocumentSpec | None = None, ended: str = ""
    ) -> Block:
        """The block of these positions, ascending, with their records: int64 (k,) both. Else as read."""
        return block_of(*self._elements(positions, records, ended), documents)

    def elements_at(self, positions: Indices, records: Indices) -> tuple[list[int], list[Any]]:
        """The elements of these positions and records, with their positions. Else as read_at."""
        progress, columns = self._elements(positions, records)
        if progress.failure is not None:
            raise progress.failure
        elements = list(progress.elements) if columns is None else unstack(writable(columns), len(progress.positions))
        return list(progress.positions), elements

    def in_runs(self, start: int, stop: int) -> Iterator[tuple[Indices, Progress, Columns]]:
        """The records [start, stop) of a stream in file order, as run_of has them at a time; each up to stacking."""
        size = run_of(self.reader)
        for first in range(start, stop, size):
            records = np.arange(first, min(first + size, stop))
            yield records, *self._elements(records, records)

    def _elements(self, positions: Indices, records: Indices, ended: str = "") -> tuple[Progress, Columns]:
        """Up to stacking; there are columns where nothing was done to single elements since they were made."""
        todo = self.steps
        in_rows = bool(todo) and takes_fixed_records(todo[0])
        progress, columns = read_records(self.reader, positions, records, self.on_error, ended, in_rows)
        return progress, transformed(progress, columns, todo, self.order.seed, self.as_objects)

    def names(self, request: ReadRequest) -> list[str]:
        return names_of(request.select(self.order)[1], self.locate)

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """The file and record of each position, in words; see Stream.locations."""
        return [self.name(record) for record in self.order.records(positions).tolist()]

    def locate(self, record: int) -> str:
        return self.reader.locate(record)

    def name(self, record: int) -> str:
        """The file and number of a record, and of the record that it was written from, in words."""
        return self.reader.name(record)
