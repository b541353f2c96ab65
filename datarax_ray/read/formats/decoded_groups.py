"""Rows out of groups that are decoded as a whole or not at all: of Parquet, of text, of ArrayRecord."""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.elements.columns import Columns, concatenate, leaves, map_leaves, nbytes
from datarax_ray.read.elements.owning import unshared
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.arrow.columns import ColumnTypes, UnlikeError
from datarax_ray.read.formats.file_spans import BrokenRecordError
from datarax_ray.read.stream import Reader, ReaderTraits

# Of decoded groups that wait for the rest of their rows to be asked for: two windows of shuffled ones.
DEFAULT_MAX_NBYTES = 512 * 2**20
# Groups smaller than this are dealt, shuffled and asked for together: a block of this size is worth its overhead, and
# 64 of them are 256 MiB.
_GROUP_NBYTES = 4 * 2**20
_MIN_GROUPS = 64  # of a small dataset, so that it can be shuffled, and dealt to actors, all the same
# To look into a group costs some microseconds, whatever is taken of it, and to copy one of this size as much. Measured,
# 64-byte records in groups of 256: 16 of each a read, 510 to 640 ns a record for all that reading does, 316 to 374 with
# groups joined first; the same for 256 of each.
_SMALL_NBYTES = 64 * 2**10
_MAX_SLICES = 1024  # runs of rows that are looked at one by one; more are sorted


class BrokenRowGroupError(BrokenRecordError):
    """The bytes of a group of rows are there and do not decode: its rows are broken, and no others."""


class UnlikeRowsError(BrokenRowGroupError):
    """A group of rows decodes, and some of them have no place in the columns: these are broken, and no others."""


@dataclass(frozen=True)
class OddGroup:
    """A group with broken rows among good ones.

    take: gives the columns of some rows, int64 (k,); raises BrokenRowGroupError where one is broken.
    nbytes: of all rows.
    """

    take: Callable[[Indices], Columns]
    nbytes: int


@dataclass
class _Decoded:
    """A group in memory. unread: the number of rows that nobody has read yet."""

    columns: Columns | OddGroup
    nbytes: int
    rows: int
    unread: int


class DecodedGroups:
    """Rows by index. A group is decoded when one of its rows is first read.

    A group stays in memory until all of its rows were read. The groups that were read last stay, up to max_nbytes and
    max_rows; the first keep_nbytes of groups stay for good. A group that does not decode is tried once. For one thread
    at a time.
    """

    def __init__(
        self,
        groups: RecordGroups,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
        max_rows: int = sys.maxsize,
    ) -> None:
        self._groups = groups
        self._max_nbytes = max_nbytes
        self._max_rows = max_rows
        self._keep_nbytes = keep_nbytes
        self._kept: dict[int, _Decoded] = {}  # for good
        self._kept_nbytes = 0
        self._num_decoded = 0
        self._decoded: OrderedDict[int, _Decoded] = OrderedDict()  # others
        self._nbytes = self._rows = 0  # of those
        self._largest_nbytes = 0  # of all so far; 0 before there is one
        self._failures: dict[int, BrokenRowGroupError] = {}

    def read(self, records: Indices, decode: Callable[[int], Columns | OddGroup]) -> Columns:
        """The columns of these rows, in the given order. records: int64 (k,), repeats allowed.

        decode: gives the columns of a group. Neighbouring rows of one group are a read-only view of the group. Objects
        are copies where they may change.

        Raises: BrokenRowGroupError where decode() raised it, now or before, or a row is broken: then the caller reads
        each row alone. Other errors of decode().
        """
        return map_leaves(unshared, self._found(records, decode))

    def _found(self, records: Indices, decode: Callable[[int], Columns | OddGroup]) -> Columns:
        groups = self._groups.of(records)
        parts = _runs(groups)
        if len(parts) == 1:
            group = int(groups[0])
            found = self._taken(group, records - self._groups.starts[group], decode)
            self._served(group, len(records))
            return found
        if 0 < self._largest_nbytes <= _SMALL_NBYTES and isinstance(parts[0][1], np.ndarray):
            return self._gather_small(records, parts, decode)
        return self._gather(records, parts, decode)

    def missing(self, records: Indices) -> Indices:
        """The groups to decode for these rows, ascending."""
        groups = np.unique(self._groups.of(records)).tolist()
        return np.array([g for g in groups if not (g in self._kept or g in self._decoded)], np.int64)

    def counts(self) -> dict[str, int]:
        """The groups that stay for good and their bytes, and the number of groups decoded so far."""
        return {"num_kept": len(self._kept), "kept_nbytes": self._kept_nbytes, "num_decoded": self._num_decoded}

    def clear(self) -> None:
        self._kept.clear()
        self._decoded.clear()
        self._nbytes = self._rows = self._kept_nbytes = 0
        self._failures.clear()

    def _gather(
        self, records: Indices, parts: Sequence[tuple[int, Any]], decode: Callable[[int], Columns | OddGroup]
    ) -> Columns:
        """Rows of several groups. A group that was read to the end is dropped before the next is decoded."""
        found: Columns = None
        for number, (group, where) in enumerate(parts):
            rows = records[where] - self._groups.starts[group]
            try:
                columns = self._taken(group, rows, decode)
            except BrokenRowGroupError:
                self._ask_again(records, parts[:number])
                raise
            if found is None:
                found = map_leaves(lambda c: np.empty((len(records), *c.shape[1:]), c.dtype), columns)
            for (_, out), (_, column) in zip(leaves(found), leaves(columns), strict=True):
                out[where] = column
            self._served(group, len(rows))
        return found

    def _gather_small(
        self, records: Indices, parts: Sequence[tuple[int, Any]], decode: Callable[[int], Columns | OddGroup]
    ) -> Columns:
        """As _gather, from all groups joined: taking a few rows of each small group costs more than copying it."""
        columns = []
        for number, (group, where) in enumerate(parts):
            found = self._group(group, decode)
            if isinstance(found, OddGroup):
                self._ask_again(records, parts[:number])
                return self._gather(records, parts, decode)
            columns.append(found)
            self._served(group, len(where))
        groups = np.fromiter((group for group, _ in parts), np.int64, len(parts))
        starts, ends = self._groups.starts[groups], self._groups.starts[groups + 1]
        shift = np.concatenate([[0], np.cumsum(ends - starts)[:-1]]) - starts
        places = np.concatenate([where for _, where in parts])
        rows = np.empty_like(records)
        rows[places] = records[places] + np.repeat(shift, [len(where) for _, where in parts])
        return map_leaves(lambda column: column.take(rows, axis=0), concatenate(columns))

    def _taken(self, group: int, rows: Indices, decode: Callable[[int], Columns | OddGroup]) -> Columns:
        found = self._group(group, decode)
        if isinstance(found, OddGroup):
            return found.take(rows)
        return map_leaves(lambda column: _take(column, rows), found)

    def _group(self, group: int, decode: Callable[[int], Columns | OddGroup]) -> Columns | OddGroup:
        if group in self._kept:
            return self._kept[group].columns
        if group in self._decoded:
            self._decoded.move_to_end(group)
            return self._decoded[group].columns
        if group in self._failures:
            failure = self._failures[group]
            raise type(failure)(*failure.args)
        try:
            columns = decode(group)
        except BrokenRowGroupError as error:
            self._failures[group] = type(error)(*error.args)  # without a traceback, which would hold what was read
            raise
        rows = int(self._groups.starts[group + 1] - self._groups.starts[group])
        decoded = _Decoded(columns, columns.nbytes if isinstance(columns, OddGroup) else nbytes(columns), rows, rows)
        self._num_decoded += 1
        self._largest_nbytes = max(self._largest_nbytes, decoded.nbytes)
        if self._kept_nbytes + decoded.nbytes <= self._keep_nbytes:
            self._kept[group] = decoded
            self._kept_nbytes += decoded.nbytes
            return columns
        self._decoded[group] = decoded
        self._nbytes += decoded.nbytes
        self._rows += rows
        while len(self._decoded) > 1 and (self._nbytes > self._max_nbytes or self._rows > self._max_rows):
            self._drop(next(iter(self._decoded)))
        return columns

    def _drop(self, group: int) -> None:
        decoded = self._decoded.pop(group)
        self._nbytes -= decoded.nbytes
        self._rows -= decoded.rows

    def _served(self, group: int, count: int) -> None:
        """Count these rows as read, and drop a group whose rows were all read."""
        if (decoded := self._decoded.get(group)) is not None:
            decoded.unread -= count
            if decoded.unread <= 0:
                self._drop(group)

    def _ask_again(self, records: Indices, parts: Sequence[tuple[int, Any]]) -> None:
        """Count these rows as unread again."""
        for group, where in parts:
            self._served(group, -len(records[where]))


def read_together(groups: RecordGroups, group_nbytes: Sequence[int]) -> RecordGroups:
    """Groups of rows to read together: small groups are merged with the groups behind them."""
    sizes: list[int] = []
    target = min(_GROUP_NBYTES, sum(group_nbytes) // _MIN_GROUPS)
    open_nbytes = target  # of the last one; full, so that the first group begins one
    for rows, size in zip(np.diff(groups.starts).tolist(), group_nbytes, strict=True):
        if open_nbytes >= target:
            sizes.append(0)
            open_nbytes = 0
        sizes[-1] += rows
        open_nbytes += size
    return RecordGroups(sizes)


def _runs(groups: Indices) -> list[tuple[int, Any]]:
    """Each group, with its places in `groups`: a slice where they are consecutive, else an int array."""
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    if len(cuts) > _MAX_SLICES:
        return _scattered(groups)
    bounds = [0, *cuts.tolist(), len(groups)]
    firsts = groups[bounds[:-1]]
    if len(np.unique(firsts)) < len(firsts):
        return _scattered(groups)
    return [(int(g), slice(lo, hi)) for g, lo, hi in zip(firsts, bounds, bounds[1:], strict=False)]


def _scattered(groups: Indices) -> list[tuple[int, Any]]:
    near = groups - groups.min()
    # NumPy sorts 16 bits by radix, four times as fast as 64
    order = np.argsort(near.astype(np.uint16) if near.max() < 2**16 else near, kind="stable")
    sorted_groups = groups[order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    return [
        (int(sorted_groups[lo]), order[lo:hi])
        for lo, hi in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True)
    ]


def _take(column: np.ndarray, rows: Indices) -> np.ndarray:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (len(rows) < 3 or bool((np.diff(rows) == 1).all())):
        return column[first : last + 1]
    return column.take(rows, axis=0)  # half of what column[rows] costs


class GroupedRows(Reader):
    """The rows of many files under one index, [0, num_records), in the order of the files.

    given: to the constructor of the reader, by name; it alone is pickled, so that only the first reader looks at all
        files.
    rows: in each group of each file.
    nbytes: of each group.
    schema: of the columns that are read, as Arrow has it. Several threads may read, and close.
    """

    breaks_whole = True  # one that does not decode has no row that can be read

    def __init__(
        self,
        given: dict[str, Any],
        rows: Sequence[Sequence[int]],
        nbytes: Sequence[Sequence[int]],
        schema: Any,
        types: ColumnTypes,
    ) -> None:
        self.schema = schema
        self._given = given
        self._rows_of_files = rows
        self._types = types
        # those without rows have no index
        self._places = [(file, index) for file, counts in enumerate(rows) for index, n in enumerate(counts) if n]
        self._groups = RecordGroups(rows[file][index] for file, index in self._places)
        self.name_firsts = self._groups.starts[:-1]
        self._group_nbytes = [nbytes[file][index] for file, index in self._places]
        self._decoded = DecodedGroups(self._groups, given["max_nbytes"], given["keep_nbytes"])
        self._lock = ThreadLock()  # pipelines over one source read in threads of their own

    @property
    def num_records(self) -> int:
        return self._groups.num_records

    @property
    def mean_nbytes(self) -> int:
        """About the bytes of a decoded row, of the columns that are read."""
        return sum(self._group_nbytes) // self.num_records

    @property
    def column_types(self) -> ColumnTypes:
        return self._types

    @property
    def groups(self) -> RecordGroups:
        """Groups of rows to read together: small groups are merged with the groups behind them."""
        return read_together(self._groups, self._group_nbytes)

    @property
    def traits(self) -> ReaderTraits:
        return ReaderTraits(
            BrokenRowGroupError, keeps_groups=True, keeps_records=bool(self._given["keep_nbytes"]), caches_itself=True
        )

    def cached(self, max_nbytes: int = sys.maxsize) -> Self:
        return type(self)(**self._given | {"keep_nbytes": max_nbytes})

    def counts(self) -> dict[str, int]:
        return self._decoded.counts()

    def with_room_for(self, nbytes: int) -> Self:
        """A reader of the same rows with room for at least nbytes of decoded groups."""
        return type(self)(**self._given | {"max_nbytes": max(self._given["max_nbytes"], nbytes)})

    def clear(self) -> None:
        with self._lock:
            self._decoded.clear()

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The rows [start, stop), cut where groups end, as `table` takes them."""
        if start >= stop:
            return []
        ends = self._groups.starts[self._group_of(start) + 1 : self._group_of(stop - 1) + 1].tolist()
        return list(itertools.pairwise([start, *ends, stop]))

    def table(self, start: int, stop: int) -> Any:
        """The rows [start, stop) of one group, as a pyarrow.Table: as they are stored, with their nulls.

        Raises: as read.
        """
        group = self._group_of(start)
        with self._lock:
            return self._table_of(group).slice(start - int(self._groups.starts[group]), stop - start)

    def _table_of(self, group: int) -> Any:
        raise NotImplementedError

    def _group_of(self, record: int) -> int:
        return int(self._groups.of(np.array([record]))[0])

    def _place(self, record: int) -> tuple[int, int, int]:
        """The file of a row, its group in the file, and its number in the file."""
        group = self._group_of(record)
        file, index = self._places[group]
        return file, index, record - int(self._groups.starts[group]) + sum(self._rows_of_files[file][:index])

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def columns_of(columns: Callable[[], Columns], where: str, instead: str = "") -> Columns:
    """What `columns` gives. where: the place of the rows, which begins the error; "" for a row alone, which the caller
    names. instead: a remedy beside on_null.
    """
    try:
        return columns()
    except UnlikeError as error:
        raise UnlikeRowsError(f"{where}{error}; {error.remedy}{instead}") from None
