"""Open shards: iterators that stand somewhere in a shard, and go on where the next request begins there.

Rows are elements in the form in which a reader has them, as a list of elements or as columns.

What a request gets depends on the request alone; the iterators kept here only save reading a shard again up to it.

Legend: ordinals are those of plan.orders.interleaved, in the order of delivery; a shard is read in the order in which
it is stored, so elements of the window that is being delivered wait in a buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.interleaved import Cursor, InterleavedOrder
from datarax_ray.read.elements.columns import Columns, leaves, map_leaves, unstack_to_stack
from datarax_ray.read.errors import is_of_data
from datarax_ray.read.retry import retried

if TYPE_CHECKING:
    from datarax_ray.read.formats.arrow.columns import ColumnTypes


@dataclass(frozen=True)
class Broken:
    """One row that cannot be read. error: why, which on_error decides about."""

    error: Exception


Rows = list[Any] | Mapping[str, Any] | Broken


@dataclass(frozen=True)
class Pick:
    """Some rows, and where they are to stand. rows: int64 (k,) of them; places: int64 (k,) in the result."""

    source: Rows
    rows: Indices
    places: Indices


def gather(picks: Sequence[Pick], total: int) -> Rows:
    """The picked rows in their places, `total` in all: columns where all are columns of one kind, else elements.

    Each is copied once; a single run of rows is not copied at all.

    >>> columns, rows = {"x": np.arange(5)}, np.array([3, 4])
    >>> gather([Pick(columns, rows, np.array([0, 2])), Pick(columns, rows - 3, np.array([3, 1]))], 4)
    {'x': array([3, 1, 4, 0])}
    >>> gather([Pick(columns, rows[:1], np.array([1])), Pick([{"x": 7}], np.array([0]), np.array([0]))], 2)
    [{'x': 7}, {'x': np.int64(3)}]
    """
    picks = [pick for pick in picks if len(pick.rows)]
    if not picks or any(isinstance(pick.source, list) for pick in picks):
        return _elements(picks, total)
    found = [list(leaves(pick.source)) for pick in picks]
    kinds = [[(path, array.shape[1:], array.dtype) for path, array in arrays] for arrays in found]
    if any(kind != kinds[0] for kind in kinds):
        return _elements(picks, total)
    runs = [(_run(pick.rows), _run(pick.places)) for pick in picks]
    if len(picks) == 1 and isinstance(runs[0][1], slice):
        return map_leaves(lambda column: column[runs[0][0]], picks[0].source)
    out = map_leaves(lambda column: np.empty((total, *column.shape[1:]), column.dtype), picks[0].source)
    written = [column for _, column in leaves(out)]
    for arrays, (rows, places) in zip(found, runs, strict=True):
        for column, (_, array) in zip(written, arrays, strict=True):
            # take is half of what array[rows] costs
            column[places] = array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)
    return out


def rows_at(rows: Rows, chosen: Indices) -> Rows:
    """These of the rows. chosen: int64 (k,)."""
    if isinstance(rows, list):
        return [rows[index] for index in chosen.tolist()]
    return map_leaves(lambda column: column[chosen], rows)


def count(rows: Rows) -> int:
    if isinstance(rows, Broken):
        return 1
    return len(rows) if isinstance(rows, list) else len(next(column for _, column in leaves(rows)))


def _elements(picks: Sequence[Pick], total: int) -> list[Any]:
    out: list[Any] = [None] * total
    for pick in picks:
        source = pick.source if isinstance(pick.source, list) else unstack_to_stack(pick.source, count(pick.source))
        for row, place in zip(pick.rows.tolist(), pick.places.tolist(), strict=True):
            out[place] = source[row]
    return out


def _run(indices: Indices) -> Any:
    """The indices, as a slice where they are consecutive: then NumPy copies nothing, or all at once."""
    if int(indices[-1]) - int(indices[0]) == len(indices) - 1 and (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


# Lengths of shards that are remembered, each some 200 bytes: where the elements of a batch were stored is told by them,
# and a batch of a small dataset goes through many epochs.
_MAX_LENGTHS = 2**14


class ShardRun(Protocol):
    """One pass through a shard, forwards."""

    def next(self) -> list[Rows] | None:
        """The elements that come next, at least one, in the parts in which they are stored; None at the end."""
        ...

    def state(self) -> Mapping[str, Any] | None:
        """What a run needs to begin behind the elements given so far: plain values, equal to their JSON.

        None where it cannot begin there, as what comes next fails: one from an earlier state comes to the same.
        """
        ...

    def close(self) -> None: ...


class RetriedRun:
    """A run through a shard that is opened again after its last rows where the network failed.

    open_run: opens a run at a state.
    """

    def __init__(
        self, open_run: Callable[[Mapping[str, Any] | None], ShardRun], state: Mapping[str, Any] | None
    ) -> None:
        self._open = open_run
        self._state = state
        self._run: ShardRun | None = open_run(state)

    def next(self) -> list[Rows] | None:
        return retried(self._next)

    def state(self) -> Mapping[str, Any] | None:
        return self._state

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _next(self) -> list[Rows] | None:
        if self._run is None:
            self._run = self._open(self._state)
        try:
            given = self._run.next()
        except Exception:
            self.close()
            raise
        if given is not None:
            self._state = self._run.state()
        return given


class ShardReader(Protocol):
    """Host-side code that reads the shards of one source. Picklable; opens files on first use."""

    num_shards: int

    def run(self, epoch: int, shard: int, state: Mapping[str, Any] | None) -> ShardRun:
        """A pass through the shard as it is in this epoch, from a state of such a pass on; None for the beginning.

        The same elements in the same portions wherever it is called: a run from a state goes on as the first would.
        """
        ...

    @property
    def column_types(self) -> ColumnTypes | None:
        """See Reader."""
        return None

    @property
    def decode(self) -> Callable[[Any], Callable[[], Any]] | None:
        """What begins to decode an element and returns what to call for it decoded; None where they come decoded."""
        return None

    def loose(self, columns: Columns) -> dict[str, Any]:
        """Of the columns of a run, those of values that are decoded first, or stacked as they are, by name."""
        return {}

    def locate(self, shard: int, index: int) -> str:
        """Where an element is, for people. index: of the elements that the shard's run gives."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that identify the data, of constant size."""
        ...

    def close(self) -> None:
        """Close what is open; reading opens it again."""
        return


@dataclass(frozen=True)
class Portion:
    """The elements [start, stop) of a shard, as stored."""

    start: int
    stop: int
    rows: Rows


class OpenShard:
    """A shard at one place of one epoch, which gives its elements in the order of delivery.

    ordinal: of the next element to give. length: of the shard, None until its end was seen. failure: what reading
    raised; then the shard gives the windows before it, and nothing more. num_read: elements of the shard, as stored,
    that were read or passed over; the next one is what failed.
    """

    def __init__(
        self, reader: ShardReader, order: InterleavedOrder, epoch: int, shard: int, start: int, cursor: Cursor
    ) -> None:
        self.epoch, self.shard, self.ordinal = epoch, shard, start
        self.length: int | None = None
        self.failure: BaseException | None = None
        self._order = order
        self._begin = order.window_start(start)  # what is stored before it is not wanted
        if cursor.ordinal > self._begin:
            raise ValueError(
                f"shard {shard} is wanted from element {self._begin} of epoch {epoch} on, and the cursor stands at "
                f"{cursor.ordinal}: the state was not written by this stream"
            )
        self._run = reader.run(epoch, shard, cursor.state)
        self.num_read = cursor.ordinal
        self._cursors = deque([cursor])
        self._buffer: list[Portion] = []

    def take(self, stop: int) -> tuple[Indices, list[Portion]]:
        """The elements up to an ordinal, or to the shard's end or failure: where each is in the shard as stored.

        And the portions of the shard that hold them.
        """
        self._fill(self._order.window_stop(stop))
        if self.length is not None:
            stop = min(stop, self.length)
        elif self.failure is not None:
            stop = min(stop, self._order.window_start(self.num_read))  # of a window that is not whole, nothing is known
        start, self.ordinal = self.ordinal, max(self.ordinal, stop)
        sources = self._order.sources(self.epoch, self.shard, start, self.ordinal, self.length)
        portions = list(self._buffer)
        needed = self._order.window_start(self.ordinal)  # what lies before the window that comes next is not
        self._buffer = [portion for portion in self._buffer if portion.stop > needed]
        while len(self._cursors) > 1 and self._cursors[1].ordinal <= needed:
            self._cursors.popleft()
        return sources, portions

    @property
    def cursor(self) -> Cursor:
        """The last cursor at or before the next element."""
        return self._cursors[0]

    def close(self) -> None:
        self._run.close()

    def _fill(self, stop: int) -> None:
        while self.num_read < stop and self.length is None and self.failure is None:
            try:
                given = self._run.next()
            except BaseException as error:  # whatever the data and the code inside the dataset raise
                if not (isinstance(error, Exception) or is_of_data(error)):
                    raise
                # told in its place
                self.failure = error
                return
            if given is None:
                self.length = self.num_read
                return
            for rows in given:
                start, self.num_read = self.num_read, self.num_read + count(rows)
                if self.num_read > self._begin:
                    self._buffer.append(Portion(start, self.num_read, rows))
            if (state := self._run.state()) is not None:
                self._cursors.append(Cursor(self.num_read, state))


class OpenShards:
    """The live shards of one process. Several consumers may read one shard, each by an iterator of its own.

    Picklable, as an empty one.
    """

    def __init__(self, reader: ShardReader, order: InterleavedOrder) -> None:
        self._reader = reader
        self._order = order
        self._lock = threading.Lock()
        self._idle: list[OpenShard] = []  # least recently used first
        self._lengths: dict[tuple[int, int], int] = {}

    def length(self, epoch: int, shard: int) -> int | None:
        """How many elements the shard has in an epoch, where a run came to its end."""
        return self._lengths.get((epoch, shard))

    def find(self, epoch: int, shard: int, start: int, cursor: Cursor) -> OpenShard:
        """The shard, standing at an ordinal. It is the caller's until it is put back."""
        with self._lock:
            for index, live in enumerate(self._idle):
                if (live.epoch, live.shard, live.ordinal) == (epoch, shard, start):
                    return self._idle.pop(index)
        return OpenShard(self._reader, self._order, epoch, shard, start, cursor)

    def put_back(self, live: OpenShard) -> None:
        """Keep the shard for the request that comes next, or close it where none will."""
        if live.length is not None:
            self._lengths[live.epoch, live.shard] = live.length
        with self._lock:
            kept = [live] if live.length is None and live.failure is None else []
            idle = [*self._idle, *kept]
            # shards that moved to other actors stay behind, open; of them no more than this is kept
            stale = [other for other in idle if other.epoch < live.epoch - 1] or idle[: -2 * self._order.num_shards]
            self._idle = [other for other in idle if other not in stale]
            while len(self._lengths) > max(_MAX_LENGTHS, 4 * self._order.num_shards):
                del self._lengths[next(iter(self._lengths))]
        for other in stale if kept else [*stale, live]:
            other.close()

    def close(self) -> None:
        """Close all iterators; requests open them again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for live in idle:
            live.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reader, self._order)
