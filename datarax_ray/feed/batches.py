"""From the blocks of consecutive chunks to batches: rows are scattered by position, with one copy and no row in Python.

A batch whose rows one block has alone and in order may show the block's memory, without a copy. Small batches whose
rows are all at hand are made together, as a series: one set of arrays, of which each batch shows a part.

Legend: a row is an index into a global batch. A rank counts the elements of a chunk from 0. An ordinal counts the
elements of one position, where the position gives several. Ranges are the rows of the batch that this trainer keeps.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from datarax_ray.feed.trail import RowRun
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import ONE_TO_ONE, Yields, ordinals
from datarax_ray.plan.runs import Pairs, num_rows_of, rows_in, rows_of, within
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerRows
from datarax_ray.read.block import Block, first_failure
from datarax_ray.read.elements.columns import Columns, FieldSpec, Path, leaves, map_leaves, odd_one, spec
from datarax_ray.read.elements.row_digests import Digests
from datarax_ray.read.errors import Skipped, advised, gives_fewer
from datarax_ray.read.reused_memory import ReusedMemory, lender

# (start, stop, blocks) of consecutive chunks.
Chunks: TypeAlias = Generator[tuple[int, int, list[Block]], None, None]
# The first room for the rows of a batch whose number is known only at its end.
_FIRST_ROWS = 1024
# Free buffers of each field: a consumer that lets go of one batch as it takes the next needs one.
_FREE_BATCHES = 2
# To copy a slice costs as much as to copy this many 8-byte rows by index.
_MIN_PIECE_ROWS = 128
# The least share of a block's memory in a batch that shows it: a kept batch keeps the block.
_MIN_SHOWN_SHARE = 0.25
# To look for a batch's rows in a block costs some 10 us and 2 for each field, to copy one row of a field 0.4.
_FEW_ROWS = 12
_MISSING = np.int64(-1)  # the position of a row that nobody has written
# Of a series. A batch costs some 50 us, however small, where it is made alone; a kept batch keeps the series.
_MAX_SERIES, _MAX_SERIES_NBYTES = 16, 2**18


@dataclass(frozen=True)
class Pieces:
    """The pieces of a packed batch, on the flat line of its batch_size * seq_len tokens: int64 (m,) each.

    A piece is a document, or the part of a document in the batch. start: its place; size: its tokens. position: of its
    record; units: tokens or documents of the record before the piece, as states count them.
    """

    start: Indices
    size: Indices
    position: Indices
    units: Indices


class HostBatch(NamedTuple):  # a class takes three times as long to make
    """One trainer's rows of one global batch, in their order there.

    columns: arrays of shape (num_rows, ...), written by nobody else.
    positions: int64 (num_rows,), of each row.
    start: the position at which the global batch begins.
    state: the place where the stream goes on after the batch.
    global_rows: rows of all trainers together.
    skipped: the broken records in the batch.
    ordinals: int64 (num_rows,), the number of each row among the elements of its position; None where all are 0.
    offset: elements of the record at start in earlier batches.
    pieces: of all packed rows of the global batch; None for elements.
    digest: of the elements that count for this trainer (plan.evidence); 0 without digests.
    last_run: number of last rows that are consecutive in the stream; 0 where this trainer has all rows of all batches.
    documents: the last documents that end in packed rows; see feed.trail.
    row_digests: uint64 (num_rows,), of each row; None without digests.
    in_order: whether rows follow each other as in the stream; else `documents` has the last rows that do.
    is_next_made: whether the next batch was made with this one.
    series: the columns of all batches that were made with this one, and its first row there; None where it was made
        alone.
    """

    columns: Columns
    positions: Indices
    start: int
    state: StreamState
    global_rows: int
    skipped: tuple[Skipped, ...] = ()
    ordinals: Indices | None = None
    offset: int = 0
    pieces: Pieces | None = None
    digest: int = 0
    last_run: int = 0
    documents: RowRun | None = None
    row_digests: Digests | None = None
    in_order: bool = True
    is_next_made: bool = False
    series: tuple[Columns, int] | None = None

    @property
    def stop(self) -> int:
        """The position after the batch."""
        return self.state.position

    @property
    def num_rows(self) -> int:
        return len(self.positions)


class Intake:
    """Takes the blocks of chunks in order; knows the spec of the elements, and the skipped records."""

    def __init__(self) -> None:
        self.like: Any = None  # the FieldSpec of each field seen first, as the columns are nested; None before
        self.spec: dict[Path, FieldSpec] = {}  # the same, by path
        self._first = 0  # the position of an element of this spec
        self._is_flat = False  # whether it is a dict without dicts
        self._memories: list[ReusedMemory] = []  # of each field
        self.skipped: list[Skipped] = []  # that no batch has reported, by position

    def take(self, stop: int, blocks: Sequence[Block]) -> tuple[list[Block], int, Exception | None]:
        """The blocks of a chunk that hold elements, the position where the chunk fails (stop if nowhere), and why.

        Elements before a failure are good, and the same for any number of actors; blocks may hold later elements.
        """
        unlike: list[tuple[int, Exception]] = []
        if skipped := [skip for block in blocks for skip in block.skipped]:
            self.skipped += sorted(skipped, key=lambda skip: skip.position)
        # in the order of their elements, so that the odd one of two kinds does not depend on the actors
        found = sorted((b for b in blocks if len(b.positions)), key=lambda b: int(b.positions[0]))
        for block in found:
            first = int(block.positions[0])
            if self.like is None:
                self.like, self._first = spec(block.columns), first
                self.spec = dict(leaves(self.like))
                depths = {len(path) for path in self.spec}
                self._is_flat = depths == {1} and len(self.spec) == len(self.like)  # a dict without fields has no path
                self._memories = [ReusedMemory(_FREE_BATCHES) for _ in self.spec]
            elif (odd := odd_one(self.spec, self._first, spec(block.columns), first)) is not None:
                unlike.append((first, odd))
        failed_at, failure = first_failure(blocks, stop, *unlike)
        if failure is not None:
            found = [block for block in found if block.positions[0] < failed_at]
        return found, failed_at, failure

    def skipped_before(self, stop: int | None) -> tuple[Skipped, ...]:
        """The broken records before this position, or all of them, each reported once."""
        if not self.skipped:
            return ()
        found = tuple(skip for skip in self.skipped if stop is None or skip.position < stop)
        self.skipped = self.skipped[len(found) :]
        return found

    def empty(self, rows: int) -> list[np.ndarray]:
        """An array of this many rows for each field, like those seen first, to be written."""
        kinds = zip(self._memories, self.spec.values(), strict=True)
        return [memory.empty((rows, *kind.shape), kind.dtype) for memory, kind in kinds]

    def columns(self, arrays: Sequence[np.ndarray]) -> Columns:
        """The columns that have these arrays, in the order of `empty`; arrays behind them are ignored."""
        if self._is_flat:
            return dict(zip(self.like, arrays, strict=False))
        each = iter(arrays)
        return map_leaves(lambda _: next(each), self.like)


@dataclass(frozen=True)
class Ranks:
    """Where the `total` elements of a chunk are.

    positions, ends: the positions that give any, and the number of elements up to and with each: int64 (k,), ascending.
    None where the positions from `start` on give one element each: a chunk for many trainers has millions.

    >>> Ranks(5, 4).behind(3), Ranks(5, 4).of(np.array([6, 8])).tolist()
    ((8, 0), [1, 3])
    """

    start: int
    total: int
    positions: Indices | None = None
    ends: Indices | None = None

    @classmethod
    def among(cls, start: int, stop: int, blocks: Sequence[Block]) -> Ranks:
        """The ranks of the chunk [start, stop) whose elements these blocks have."""
        positions = np.concatenate([np.empty(0, np.int64), *(block.positions for block in blocks)])
        found, counts = np.unique(positions[positions < stop], return_counts=True)
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if total and total == len(found) == found[-1] - found[0] + 1:  # to look for them is a fifth of the driver
            return cls(int(found[0]), total)
        return cls(start, total, found, ends)

    def behind(self, done: int) -> tuple[int, int]:
        """Where the stream goes on behind this many elements: the position, and its elements before that."""
        if self.positions is None or self.ends is None:
            return self.start + done, 0
        index = int(np.searchsorted(self.ends, done))  # the position of the last of them
        position = int(self.positions[index])
        if self.ends[index] == done:
            return position + 1, 0
        return position, done - (int(self.ends[index - 1]) if index else 0)

    def of(self, positions: Indices) -> Indices:
        """The rank of the first element at each position: int64 (k,); `total` or more behind the last element.

        positions: ascending; each gives elements, or lies behind the last position that does.
        """
        if self.positions is None or self.ends is None:
            return positions - self.start
        begins = np.concatenate([np.zeros(1, np.int64), self.ends])
        return begins[np.searchsorted(self.positions, positions)]

    def num_at(self, position: int) -> int:
        """Elements of the chunk's first position."""
        if self.positions is None or self.ends is None:
            return int(self.total > 0 and self.start == position)
        return int(self.ends[0]) if self.total and self.positions[0] == position else 0


@dataclass(frozen=True)
class _BlockRows:
    """Elements of one block. ranks: of each in its chunk, int64 (k,), ascending; a range if they are consecutive.

    arrays: copied to the batch: every column, the positions, and, if there are any, ordinals and digests.
    """

    ranks: Any
    arrays: list[np.ndarray]

    def copy(self, lo: int, hi: int, rows: Any, buffers: list[np.ndarray]) -> None:
        """Copy elements [lo, hi) to these rows of the buffers, ascending: consecutive rows are one memory copy."""
        pieces: list[tuple[slice, Any]] = [(slice(lo, hi), slice(int(rows[0]), int(rows[0]) + len(rows)))]
        if rows[-1] - rows[0] + 1 != len(rows):
            cuts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
            if (len(cuts) - 2) * _MIN_PIECE_ROWS > len(rows):
                pieces = [(slice(lo, hi), rows)]
            else:
                runs = itertools.pairwise(cuts)
                pieces = [(slice(lo + a, lo + b), slice(rows[a], rows[a] + b - a)) for a, b in runs]
        for source, where in pieces:
            for buffer, array in zip(buffers, self.arrays, strict=True):
                buffer[where] = array[source]

    def shown(self, lo: int, hi: int) -> list[np.ndarray]:
        """The arrays of elements [lo, hi), the large ones without a copy. [] if others may use their memory, or if the
        batch would keep much more memory than it shows.
        """
        found, lenders = [array[lo:hi] for array in self.arrays], [*map(lender, self.arrays)]
        is_mine = [
            its is not None
            and lenders.count(its) == 1
            and array.flags.writeable
            and array.flags.c_contiguous
            and array.nbytes >= _MIN_SHOWN_SHARE * len(its)
            for array, its in zip(found, lenders, strict=True)
        ]
        return [a if its else a.copy() for a, its in zip(found, is_mine, strict=True)] if any(is_mine) else []


def _shifted(rows: Any, by: int) -> Any:
    return range(rows.start + by, rows.stop + by) if isinstance(rows, range) else rows + by


@dataclass(frozen=True)
class _Together(_BlockRows):
    """The elements of several blocks as if they were one: for batches that have few rows of each.

    parts: the arrays of each block. block, index: of each element, in the order of their ranks: int64 (k,).
    """

    parts: list[list[np.ndarray]]
    block: Indices
    index: Indices

    @classmethod
    def of(cls, parts: Sequence[_BlockRows]) -> _Together:
        ranks, sizes = np.concatenate([part.ranks for part in parts]), [len(part.ranks) for part in parts]
        order = np.argsort(ranks)
        block = np.repeat(np.arange(len(parts)), sizes)[order]
        index = np.concatenate([np.arange(size) for size in sizes])[order]
        return cls(ranks[order], parts[0].arrays, [part.arrays for part in parts], block, index)

    def copy(self, lo: int, hi: int, rows: Any, buffers: list[np.ndarray]) -> None:
        """One by one, as slices: an array in a column of objects is no row of numbers."""
        where = zip(rows.tolist(), self.block[lo:hi].tolist(), self.index[lo:hi].tolist(), strict=True)
        for row, block, index in where:
            for buffer, array in zip(buffers, self.parts[block], strict=True):
                buffer[row : row + 1] = array[index : index + 1]


class Batcher:
    """Takes complete chunks in order, gives batches in order. intake: of the blocks; knows unreported skipped records.

    rows: the rows of every batch to keep.
    start, stop: positions of the stream; stop is None if the stream is endless, or ends behind the last chunk.
    offset: elements of the record at start that were delivered before.
    yields: of the stream's positions. If each gives one element, blocks need the positions of these rows only;
        otherwise of all elements of a chunk.
    """

    def __init__(
        self,
        rows: TrainerRows,
        *,
        start: int,
        stop: int | None,
        drop_remainder: bool = False,
        yields: Yields = ONE_TO_ONE,
        offset: int = 0,
    ) -> None:
        self.intake = Intake()
        self._rows = rows
        self._batch_size = rows.batch_size
        self._stop = stop
        self._drop_remainder = drop_remainder
        self._yields = yields
        self._done = offset  # ranks of the next chunk that were delivered before
        self._reached = start
        self._room = _FIRST_ROWS  # that the last batch took, where that is not known from the beginning
        self._begin(start, offset)

    def add(self, start: int, stop: int, blocks: Sequence[Block]) -> Iterator[HostBatch]:
        """The batches that the chunk [start, stop) completes. Blocks are read until the iterator is exhausted.

        Raises: the first failure in the blocks, after the batches that are whole before it.
        """
        self._reached = stop
        blocks, failed_at, failure = self.intake.take(stop, blocks)
        stop = min(stop, failed_at)
        is_one_to_one = self._yields.is_one_to_one
        ranks = Ranks(start, max(0, stop - start)) if is_one_to_one else Ranks.among(start, stop, blocks)
        parts = [self._part(ranks, block) for block in blocks]
        # with the values of objects, of which a column has the addresses
        nbytes = max((b.memory_nbytes / max(1, len(p.ranks)) for b, p in zip(blocks, parts, strict=True)), default=0)
        most = int(max(1, min(_MAX_SERIES, _MAX_SERIES_NBYTES / max(1, nbytes * num_rows_of(self._rows.full)))))
        if len(parts) > 1 and most * self._batch_size < _FEW_ROWS * len(parts):
            parts = [_Together.of(parts)]
        done, self._done = self._done, 0
        if done and failed_at > start and done > ranks.num_at(start):
            raise gives_fewer(start, done)
        while done < ranks.total:
            if not self._row and (at_hand := (ranks.total - done) // self._batch_size):
                self._begin(self._start, self._offset, min(at_hand, most))
            size = self._num_batches * self._batch_size
            take = min(size - self._row, ranks.total - done)
            for part in parts:
                self._scatter(part, done, done + take)
            done += take
            self._row += take
            if self._row == size:
                ends = [ranks.behind(done - size + row) for row in range(self._batch_size, size + 1, self._batch_size)]
                yield from self._emit(ends)
        if failure is not None:
            raise advised(failure)

    def finish(self) -> Iterator[HostBatch]:
        """The short last batch, unless drop_remainder skips it. Call once, after the last chunk."""
        if self._row and not self._drop_remainder:
            yield from self._emit([(self._reached if self._stop is None else self._stop, 0)])

    def _part(self, ranks: Ranks, block: Block) -> _BlockRows:
        rank = ranks.of(block.positions)
        arrays: list[np.ndarray] = [block.positions]
        if self._yields.may_repeat:
            arrays.append(ordinals(block.positions))
            rank = rank + arrays[-1]
        if block.digests is not None:
            arrays.append(block.digests)
        if block.selected is not None:
            selected = rows_of(block.selected)
            rank, arrays = rank[selected], [array[selected] for array in arrays]
        # behind a failure all have one rank, and so many may fill a gap before it
        is_run = len(rank) and int(rank[-1]) - int(rank[0]) + 1 == len(rank) and int(rank[-1]) < ranks.total
        run = range(int(rank[0]), int(rank[-1]) + 1) if is_run else rank
        return _BlockRows(run, [*(column for _, column in leaves(block.columns)), *arrays])

    def _begin(self, start: int, offset: int, at_hand: int = 0) -> None:
        """Start the batch at this place, or a series of so many whose rows are at hand; the first rows make buffers."""
        self._start, self._offset = start, offset
        self._row, self._num_batches = 0, max(1, at_hand)
        self._buffers: list[np.ndarray] = []  # as the arrays of a part; [] before there are any
        size = rows = self._batch_size
        if self._yields.is_one_to_one and self._stop is not None:
            rows = min(rows, self._stop - start)
        # Where elements are dropped, the size of the last batch is known only at its end: keep all rows until then.
        self._keeps_all = not (at_hand or self._yields.is_one_to_one)
        self._each: Pairs = ((0, rows),)  # the rows to keep of each batch
        if not self._keeps_all:
            self._each = self._rows.full if rows == size else self._rows.of(rows)
        count = num_rows_of(self._each)
        self._num_rows, self._ranges = self._num_batches * count, self._each
        if at_hand > 1:
            starts = range(0, at_hand * size, size) if count < size else ()
            self._ranges = tuple((at + lo, at + hi) for at in starts for lo, hi in self._each) or ((0, self._num_rows),)

    def _scatter(self, part: _BlockRows, first: int, last: int) -> None:
        """Copy the part's elements of the ranks [first, last) to their rows of this batch."""
        lo, hi = bisect_left(part.ranks, first), bisect_left(part.ranks, last)
        rows = _shifted(part.ranks[lo:hi], self._row - first)
        place = 0  # of the range, among this trainer's rows
        for begin, end in self._ranges:
            at, to = bisect_left(rows, begin), bisect_left(rows, end)
            if at < to:
                mine = _shifted(rows[at:to], place - begin)
                if isinstance(mine, range) and len(mine) == self._num_rows:
                    self._buffers = part.shown(lo + at, lo + to)
                    if self._buffers:
                        return
                self._make_room(int(mine[-1]) + 1, part)
                part.copy(lo + at, lo + to, mine, self._buffers)
            place += end - begin

    def _make_room(self, rows: int, part: _BlockRows) -> None:
        """Make the buffers hold this many rows: all rows of this trainer, or, if unknown, the rows so far.

        The room doubles each time, and later batches begin with the room of the last: a batch_size beyond the number of
        elements that filters leave costs no memory.
        """
        have = len(self._buffers[0]) if self._buffers else 0
        if rows <= have:
            return
        size = self._num_rows
        if self._keeps_all:
            self._room = size = min(size, max(rows, 2 * have, self._room))
        buffers = self.intake.empty(size)
        buffers += [np.full(size, _MISSING, array.dtype) for array in part.arrays[len(buffers) :]]
        for new, old in zip(buffers, self._buffers, strict=False):
            new[:have] = old
        self._buffers = buffers

    def _emit(self, ends: Sequence[tuple[int, int]]) -> Iterator[HostBatch]:
        """The batches of the series, each up to its end: a position, and elements of the record there."""
        arrays, ranges, size = self._buffers, self._each, self._row // len(ends)
        if not arrays:
            if self.intake.like is None:
                raise ValueError(
                    f"the stream has fewer elements than there are trainers ({self._rows.share.num_parts}), so the "
                    f"trainer of process_index {self._rows.share.parts[0]} got none; use fewer trainers, or "
                    "drop_remainder=True."
                )
            arrays = [*self.intake.empty(0), *[np.empty(0, np.int64)] * (1 + self._yields.may_repeat)]
        if self._keeps_all:
            ranges = self._rows.of(size)
            arrays = [rows_in(ranges, array) for array in arrays]
        num_rows, found = num_rows_of(ranges), int(np.count_nonzero(arrays[len(self.intake.spec)] != _MISSING))
        if found != num_rows * len(ends):
            raise RuntimeError(f"positions [{self._start}, {ends[-1][0]}) gave {found} of {num_rows * len(ends)} rows")
        is_alone = num_rows_of(self._rows.full) == self._batch_size  # also where a short last batch is all its own
        last_run = 0 if is_alone or not ranges else ranges[-1][1] - ranges[-1][0]
        start, offset = self._start, self._offset
        whole = self.intake.columns(arrays) if len(ends) > 1 else None
        for nth, (stop, its_offset) in enumerate(ends):
            part = arrays if len(ends) == 1 else [array[nth * num_rows : (nth + 1) * num_rows] for array in arrays]
            positions, *others = part[len(self.intake.spec) :]
            numbers = others.pop(0) if self._yields.may_repeat else None
            digests = others[0] if others else None
            yield HostBatch(
                self.intake.columns(part),
                positions,
                start,
                StreamState(stop, its_offset),
                size,
                self.intake.skipped_before(stop),
                numbers,
                offset,
                digest=0 if digests is None else self._digest(digests, ranges, size),
                last_run=last_run,
                row_digests=digests,
                is_next_made=nth < len(ends) - 1,
                series=None if whole is None else (whole, nth * num_rows),
            )
            start, offset = stop, its_offset
        self._begin(start, offset)

    def _digest(self, digests: Digests, ranges: Pairs, size: int) -> int:
        """The sum over those rows of a batch that count in this trainer's digest. ranges: its rows of `size`."""
        if (counted := self._rows.counted(size)) != ranges:
            digests = digests[within(counted, rows_of(ranges))]
        return int(digests.sum())
