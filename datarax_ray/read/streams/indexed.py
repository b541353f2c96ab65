"""A stream of records that are read by index: everything that decides it, and how its requests are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import EpochOrder
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.state import Extra, StreamState
from datarax_ray.read.block import Block, block_of, transformed
from datarax_ray.read.elements.columns import Columns, concatenate, spec, unstack, unstack_to_stack
from datarax_ray.read.elements.fixed_records import FixedRecords
from datarax_ray.read.elements.owning import writable
from datarax_ray.read.elements.transforms import Call, OnError, Progress, drops_alike, steps
from datarax_ray.read.errors import is_of_data
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.stream import MAX_NAMES, Reader, check_settings, on_error_setting

_RUN_NBYTES = 256 * 2**10  # a small part of a block
_MAX_RUN_RECORDS = 1024  # more of them make a read no cheaper


def run_of(reader: Reader, most: int) -> int:
    """Records that one actor should read in a row: 256 KiB of them, at most `most`.

    Small, so that every chunk has runs for every actor; large enough that a run is one read.
    """
    return max(1, min(most, _RUN_NBYTES // max(1, reader.mean_nbytes)))


def names_of(records: Indices, locate: Callable[[int], str]) -> list[str]:
    """The files of the first of these records, the last, and some between, each once."""
    if not len(records):
        return []
    some = records[np.unique(np.linspace(0, len(records) - 1, MAX_NAMES).astype(int))].tolist()
    return list(dict.fromkeys(name.rpartition("[")[0] or name for name in map(locate, some)))


def read_records(
    reader: Reader, positions: Indices, records: Indices, on_error: OnError, ended: str = ""
) -> tuple[Progress, Columns]:
    """The records for these positions, up to the first that cannot be read; columns where they are stored as such.

    positions, records: int64 (k,) each, positions ascending. ended: see Stream.read.
    """
    asked = Progress([], positions, records, on_error=on_error, locate=reader.locate)
    if not len(records):
        return asked, None

    def alone(record: int, *_: int) -> Any:
        if ended:
            raise ChildProcessError(f"every process that reads it ends: {ended}")
        return reader.read(np.array([record]))

    try:
        found = None if ended else reader.read(records)
    except BaseException as error:
        if not is_of_data(error, reader.broken):
            raise
        found = None  # it does not say which record it is about: each is asked for alone
    if found is None:
        asked.elements = records.tolist()
        asked.run([Call(alone, "reading", catch=ChildProcessError if ended else reader.broken)])
        if asked.elements and isinstance(asked.elements[0], Mapping):
            if all(spec(columns) == spec(asked.elements[0]) for columns in asked.elements):
                return asked, concatenate(asked.elements)
            asked.elements = [unstack_to_stack(columns, 1) for columns in asked.elements]  # images of several sizes
        asked.elements = [element for (element,) in asked.elements]
        return asked, None
    if isinstance(found, Mapping):
        return asked, found
    asked.elements = found if isinstance(found, list | FixedRecords) else list(found)
    return asked, None


@dataclass(frozen=True)
class IndexedStream:
    """What a stream is made of.

    num_epochs: passes over the records, -1 for endless. transforms: applied in this order on the host. on_error: what
    becomes of a record that cannot be read, decoded or transformed: "raise", "skip" it and say so, or a function of the
    RecordError that is asked, where it is read, whether to skip it (True) or to raise; what is no Exception, as a
    SystemExit, is raised.
    """

    reader: Reader
    order: EpochOrder
    num_epochs: int = -1
    transforms: tuple[Any, ...] = ()
    on_error: OnError = "raise"
    # Taken once: a transform that opens a file or fills a cache when it is first called is still the same one.
    _transforms: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", check_settings(self.num_epochs, self.on_error))
        steps(self.transforms)
        object.__setattr__(self, "_transforms", code_fingerprint(self.transforms))

    @property
    def run_records(self) -> int:
        """Records that one actor should read in a row in file order; see run_of."""
        return run_of(self.reader, _MAX_RUN_RECORDS)

    @property
    def stop(self) -> int | None:
        """The position after the last, None for an endless stream."""
        return None if self.num_epochs == -1 else self.num_epochs * self.order.num_records

    @property
    def yields(self) -> Yields:
        """How many elements its positions give: those of records that a filter, say, leaves out give none."""
        kinds = {step.kind for step in steps(self.transforms)}
        is_one_to_one = self.on_error == "raise" and kinds.isdisjoint(("filter", "flat_map"))
        return Yields(is_one_to_one, may_repeat="flat_map" in kinds)

    def __str__(self) -> str:
        return f"num_records={self.order.num_records}, shuffle={self.order.shuffle!r}"

    def drops_alike(self, is_packed: bool) -> bool:
        """See transforms.drops_alike."""
        return drops_alike(steps(self.transforms), self.on_error, is_packed)

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> RecordScheduler:
        """What deals it from this state on; see Stream.scheduler."""
        return RecordScheduler(
            self.order,
            self.order.partitioning(self.run_records),
            start=start.position,
            stop=stop,
            wanted=wanted,
            first_size=self.run_records,
            drops_alike=self.drops_alike(wanted.documents is not None),
        )

    def read(self, request: ReadRequest, ended: str = "") -> Block:
        """The block that the request asks for; see Stream.read.

        A record that cannot be read, decoded, transformed or stacked ends the block before it, and is its failure.

        Raises: OSError and ValueError for a file that is gone or replaced.
        """
        return self.block_at(*request.select(self.order), request.wanted.documents, ended)

    def read_at(self, start: int, stop: int, extra: Extra | None = None) -> list[Any]:
        """The elements at positions [start, stop), not stacked; filtered ones are missing.

        Raises: RecordError for the first record that cannot be read, decoded or transformed, unless they are skipped.
        """
        return self.elements_at(*ReadRequest(start, stop).select(self.order))[1]

    def block_at(
        self, positions: Indices, records: Indices, documents: DocumentSpec | None = None, ended: str = ""
    ) -> Block:
        """The block of these positions, ascending, with these records: int64 (k,) each. Else as read."""
        return block_of(*self._elements(positions, records, ended), documents)

    def elements_at(self, positions: Indices, records: Indices) -> tuple[list[int], list[Any]]:
        """The elements of these positions with these records, and the position of each. Else as read_at."""
        progress, columns = self._elements(positions, records)
        if progress.failure is not None:
            raise progress.failure
        elements = list(progress.elements) if columns is None else unstack(writable(columns), len(progress.positions))
        return list(progress.positions), elements

    def _elements(self, positions: Indices, records: Indices, ended: str = "") -> tuple[Progress, Columns]:
        """Up to stacking; there are columns where nothing was done to single elements since they were made."""
        progress, columns = read_records(self.reader, positions, records, self.on_error, ended)
        return progress, transformed(progress, columns, steps(self.transforms), self.order.seed)

    def names(self, request: ReadRequest) -> list[str]:
        """Some of the files in which the request's records are."""
        return names_of(request.select(self.order)[1], self.locate)

    def locate(self, record: int) -> str:
        """Where a record is, for people."""
        return self.reader.locate(record)

    @property
    def is_managed(self) -> bool:
        """Whether reading enters a context of a user's, which is to be left before the process ends."""
        return getattr(self.reader, "is_managed", False)

    def close(self) -> None:
        """Close files; reading opens them again."""
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        """What the stream of elements depends on, in plain values of constant size; see plan.fingerprint."""
        return {
            "files": self.reader.fingerprint(),
            # num_epochs third, as in every state that was written
            "order": {"shuffle": None, "seed": None, "num_epochs": self.num_epochs} | self.order.settings(),
            "transforms": self._transforms,
            "on_error": on_error_setting(self.on_error),
        }
