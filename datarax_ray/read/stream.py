"""The protocols of streams and readers, as feed, actors and sources see them.

A stream decides what is read, as one picklable host-side value. Sources make it, actors receive it, checkpoints record
its settings. It holds no position and no open file.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import Yields
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.scheduling import StreamScheduler
from datarax_ray.plan.state import BEGIN, StatefulOrder, StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import ALIKE
from datarax_ray.read.forked import ThreadLock, lock_of

if TYPE_CHECKING:
    from datarax_ray.read.formats.arrow.columns import ColumnTypes

MAX_NAMES = 4  # of files, in a line for people


@dataclass(frozen=True)
class ReaderTraits:
    """The facts of a reader that schedulers, caches and actors need. Each reader states them once.

    broken: the error that `read` raises for a broken record, rather than for the whole source.
    group_size: records that are stored and decoded together, where most are; 1 for single records.
    keeps_groups: decoded groups are kept until all of their records were read.
    keeps_records: decoded records are kept for later reads, for good.
    caches_itself: `cached` gives a reader that keeps records in its own way.
    reads_ahead: `expect` is of use.
    is_managed: reading enters a context of the user's, which is left at `close`.
    alike: for people, how its elements get the same fields.
    """

    broken: type[Exception]
    group_size: int = 1
    keeps_groups: bool = False
    keeps_records: bool = False
    caches_itself: bool = False
    reads_ahead: bool = False
    is_managed: bool = False
    alike: str = ALIKE


class Reader(Protocol):
    """Host-side code that reads records of one source by index. Picklable; opens what it needs when it needs it.

    name_firsts: the first records of runs whose `locate` counts on; None where only `locate` tells.
    """

    name_firsts: Indices | None = None

    @property
    def traits(self) -> ReaderTraits: ...

    @property
    def column_types(self) -> ColumnTypes | None:
        """How rows are read as columns; None where elements are typed by their values."""
        return None

    @property
    def num_records(self) -> int: ...

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a record, on average."""

    def read(self, records: Indices) -> Any:
        """The record at each index, in the order asked: a list, or FixedRecords; a dict of columns where records are
        stored as such.
        """

    def read_rows(self, records: Indices) -> Any:
        """As read, for callers that take FixedRecords, where that saves a copy."""
        return self.read(records)

    def read_at(self, positions: Indices, records: Indices, in_rows: bool = False) -> Any:
        """As read, for these positions of the stream, ascending. in_rows: as read_rows."""
        return self.read_rows(records) if in_rows else self.read(records)

    def expect(self, records: Indices) -> None:
        """One read will soon ask for these records, after those that were expected before."""
        return

    def locate(self, record: int) -> str:
        """Where a record is, for people."""

    def origin(self, record: int) -> str:
        """Where a record was written from, "" where that is not known; see read.formats.origins."""
        return ""

    def name(self, record: int) -> str:
        """Where a record is, and its origin where that is known, for people; see errors.Place."""
        origin = self.origin(record)
        return f"{self.locate(record)}, from {origin}" if origin else self.locate(record)

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that identify the data, of constant size."""

    def cached(self, max_nbytes: int) -> Reader:
        """Where traits.caches_itself, a reader of the same records that keeps so many bytes of them in memory.

        By default the reader itself, whose records are in memory anyway.
        """
        return self

    def counts(self) -> dict[str, int]:
        """Counts of records kept in memory, and of their uses; {} for a reader that keeps none."""
        return {}

    def clear(self) -> None:
        """Forget the records kept in memory."""
        return

    def close(self) -> None:
        """Close open files. Reading opens them again."""
        return


@dataclass(frozen=True)
class StreamTraits:
    """What schedulers and actors need to know of a stream.

    reads_ahead, is_managed: as in ReaderTraits.
    is_kept: an actor keeps decoded records for later reads, or fetches their bytes early, so that no other actor should
        read them too.
    """

    reads_ahead: bool = False
    is_managed: bool = False
    is_kept: bool = False


class CountedOrder(StatefulOrder, Protocol):
    """An order of any kind."""

    @property
    def num_records(self) -> int:
        """Records in one epoch, before filters. Raises: TypeError where that is not known before they are read."""


class Stream(Protocol):
    """A stream of any kind, before it is read, and how its requests are read. Picklable. str() describes it briefly."""

    @property
    def stop(self) -> int | None:
        """The position after the last; None for an endless stream, and for one of unknown length (see is_endless)."""

    @property
    def traits(self) -> StreamTraits: ...

    @property
    def order(self) -> CountedOrder:
        """The record at each position, as far as others than the scheduler need it."""

    @property
    def yields(self) -> Yields:
        """How many elements its positions give."""

    def scheduler(self, start: StreamState, stop: int | None, wanted: Wanted) -> StreamScheduler:
        """The scheduler from this state on, in requests for what is wanted. stop: None for an endless stream."""

    def read(self, request: Any, ended: str = "") -> Block:
        """The block of a request of its scheduler: the same wherever and whenever it is called.

        ended: what ended every process that read it, "" for nothing; then its records are broken, and not read.
        """

    def expect(self, request: Any) -> None:
        """Fetch ahead for a request that will be read soon, after the requests that were expected before.

        Reading does not depend on it: any request may be expected or not.
        """

    def read_at(self, start: int, stop: int, state: StreamState = BEGIN) -> list[Any]:
        """The elements at positions [start, stop). state: any state of the stream.

        Raises: TypeError without random access.
        """

    def names(self, request: Any) -> list[str]:
        """Some files or shards of a request's elements, for people."""

    def locations(self, positions: Indices, state: StreamState = BEGIN) -> list[str]:
        """Where the record of each position is, for people. positions: int64 (k,). state: of the stream, any.

        A stream of shards must have read the positions, to know where shards end.
        """

    def settings(self) -> dict[str, Any]:
        """The settings that decide the elements, in plain values of constant size; see plan.fingerprint."""

    def close(self) -> None:
        """Close open files. Reading opens them again."""


def is_endless(stream: Stream) -> bool:
    """Whether the stream never ends. The end of a finite one may be known only once it was read."""
    return getattr(stream, "is_endless", stream.stop is None)


def epoch_at(stream: Stream, position: int) -> int | None:
    """The epoch in which a position is, the first is 1; None for a mixture, whose components have their own."""
    size = None if hasattr(stream, "components") else getattr(stream.order, "cycle", None)
    last = position if stream.stop is None else min(position, stream.stop - 1)
    return None if size is None else 1 + max(0, last) // size


def whole_epochs(num_epochs: Any) -> int:
    """num_epochs as a plain int. Raises: TypeError, ValueError for what is no number of epochs."""
    epochs = whole("num_epochs", num_epochs, "; -1 for endless")
    if epochs < 1 and epochs != -1:
        raise ValueError(f"num_epochs must be at least 1, or -1 for endless, got {epochs}")
    return epochs


def check_on_error(on_error: Any) -> None:
    if not callable(on_error) and on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise', 'skip' or a function of the error, got {on_error!r}")


def transforms_of(stream: Stream) -> list[Any]:
    """The transforms of a stream, and of a mixture's components."""
    parts: tuple[Any, ...] = getattr(stream, "components", (stream,))
    return [transform for part in parts for transform in getattr(part, "transforms", ())]


def locks_of(description: Stream) -> Sequence[ThreadLock]:
    """The locks of all objects that read a stream: of its reader, and of the transforms, which may write to arrays.

    Another stream in this process, or who asks for single elements, may use one of the same objects, in another thread.
    The locks come in one order for everybody: otherwise two threads would wait for each other.
    """
    found = {id(part): part for part in _parts(description)}
    return [lock_of(found[key]) for key in sorted(found)]


@contextlib.contextmanager
def held(description: Stream) -> Iterator[None]:
    """Hold all locks of a stream: see locks_of."""
    with contextlib.ExitStack() as stack:
        for lock in locks_of(description):
            stack.enter_context(lock)
        yield


def _parts(description: Any) -> Iterator[Any]:
    """The objects that read a stream and the user's objects that transform its elements; of all components."""
    for each in getattr(description, "components", ()):
        yield from _parts(each)
    yield getattr(description, "reader", description)
    for transform in getattr(description, "transforms", ()):  # each access to a method makes another object
        yield transform.__self__ if isinstance(transform, types.MethodType) else transform
