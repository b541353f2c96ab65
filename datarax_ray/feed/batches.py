"""From the blocks of consecutive chunks to batches: rows are scattered by position, with one copy and no row in Python.

Legend: a row is an index into a global batch; a rank counts the elements of a chunk from 0; an ordinal counts those of
one position, where it gives several; ranges are the rows of the batch that are kept here (one trainer's).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import ONE_TO_ONE, Yields, ordinals, rows_of
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerRows, joined, local, num_rows_in, placed
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import Columns, FieldSpec, Path, leaves, map_leaves, odd_one, spec
from datarax_ray.read.elements.row_digests import Digests
from datarax_ray.read.elements.rows_consumed import Part
from datarax_ray.read.errors import Skipped
from datarax_ray.read.reused_memory import ReusedMemory

# Where the rows of a batch are kept until its end and nobody knows their number, room for this many at first.
_FIRST_ROWS = 1024
# Of each field, that wait to be filled: where a consumer lets go of one batch as it takes the next, it is one.
_FREE_BATCHES = 2
# A slice copied costs about what this many 8-byte rows cost by index.
_MIN_PIECE_ROWS = 128
# To look for a batch's rows in a block costs some 10 us and 2 for each field, to copy one row of a field 0.4.
_FEW_ROWS = 12
_MISSING = np.int64(-1)  # the position of a row that nobody has written


@dataclass(frozen=True)
class Pieces:
    """What a packed batch is made of, on the flat line of its batch_size * seq_len tokens: int64 (m,) each.

    A piece is a document, or the part of one that the batch holds. start: where it stands; size: its tokens. position:
    of its record; units: tokens or documents of that record, as states count them, before it.
    """

    start: Indices
    size: Indices
    position: Indices
    units: Indices


@dataclass(frozen=True)
class HostBatch:
    """One trainer's rows of one global batch, in their order there.

    columns: arrays of shape (num_rows, ...), written by nobody else.
    positions: int64 (num_rows,), of each row.
    start: the position at which the global batch begins.
    state: where the stream goes on after it.
    global_rows: of all trainers together.
    skipped: the broken records among them.
    ordinals: int64 (num_rows,), which element of its position each row is; None where all are the first.
    offset: how much of the record at start was in the batches before.
    pieces: of all rows of the global batch, where they are packed.
    digest: of those of its elements that count in this trainer's, see plan.rolling_digest; 0 where nobody wants one.
    last_run: how many of the last rows are consecutive in the stream; 0 where all are.
    documents: of packed rows, the last documents that end in them; see read.elements.rows_consumed.
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
    documents: Part | None = None

    @property
    def stop(self) -> int:
        """The position at which the stream goes on after it."""
        return self.state.position

    @property
    def num_rows(self) -> int:
        return len(self.positions)


class Intake:
    """Takes the blocks of chunks in order; remembers what elements look like, and which records were skipped."""

    def __init__(self) -> None:
        self._spec: dict[Path, FieldSpec] = {}
        self._first = 0  # the position of an element that is so
        self.like: Columns = None  # zero rows of the columns seen first, to make buffers from; None before
        self._memories: list[ReusedMemory] = []  # of each field
        self._skipped: list[Skipped] = []

    def take(self, stop: int, blocks: Sequence[Block]) -> tuple[list[Block], int, Exception | None]:
        """The blocks of a chunk up to `stop` that hold elements, where the chunk fails (stop if nowhere), and why.

        What is before a failure is good, and the same for any number of actors; blocks may hold elements behind it.
        """
        for block in blocks:
            self._skipped += block.skipped
        failures = [(block.failure_position, block.failure) for block in blocks if block.failure is not None]
        # in the order of their elements, so that which of two kinds is the odd one does not depend on the actors
        found = sorted((b for b in blocks if len(b.positions)), key=lambda b: int(b.positions[0]))
        failures += [(int(block.positions[0]), odd) for block in found if (odd := self._oddity(block)) is not None]
        failed_at, failure = min(failures, key=lambda pair: pair[0], default=(stop, None))
        return [block for block in found if block.positions[0] < failed_at], failed_at, failure

    def waiting(self, most: int) -> tuple[Skipped, ...]:
        """The broken records that were not asked for yet, where they are more than this."""
        if len(self._skipped) <= most:
            return ()
        told, self._skipped = self.left_over, []
        return told

    def skipped_before(self, stop: int) -> tuple[Skipped, ...]:
        """The broken records before this position that were not asked for yet."""
        told = tuple(skip for skip in self.left_over if skip.position < stop)
        self._skipped = [skip for skip in self._skipped if skip.position >= stop]
        return told

    @property
    def left_over(self) -> tuple[Skipped, ...]:
        """Broken records that were not asked for yet."""
        return tuple(sorted(self._skipped, key=lambda skip: skip.position))

    def empty(self, rows: int) -> Columns:
        """So many rows of columns like those seen first, to be written."""
        memories = iter(self._memories)
        return map_leaves(lambda array: next(memories).empty((rows, *array.shape[1:]), array.dtype), self.like)

    def _oddity(self, block: Block) -> Exception | None:
        """What is wrong with a block that has not the fields, shapes and dtypes of the first one."""
        if not self._spec:
            self._spec, self._first = dict(leaves(spec(block.columns))), int(block.positions[0])
            self.like = map_leaves(lambda array: np.empty((0, *array.shape[1:]), array.dtype), block.columns)
            self._memories = [ReusedMemory(_FREE_BATCHES) for _ in self._spec]
        return odd_one(self._spec, self._first, block.columns, int(block.positions[0]))


@dataclass(frozen=True)
class Ranks:
    """Where the elements of a chunk are: the positions that gave any, and how many there are up to and with each.

    Both int64 (k,), ascending.
    """

    positions: Indices
    ends: Indices

    @property
    def total(self) -> int:
        """Elements in the chunk."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def behind(self, done: int) -> tuple[int, int]:
        """Where the stream goes on behind so many elements of the chunk: position, and elements of it before that."""
        index = int(np.searchsorted(self.ends, done))  # the position of the last of them
        position = int(self.positions[index])
        if self.ends[index] == done:
            return position + 1, 0
        return position, done - (int(self.ends[index - 1]) if index else 0)

    def of(self, positions: Indices) -> Indices:
        """The rank of the first element at each of these positions: int64 (k,). Ranks behind the last for those behind.

        positions: ascending, each in `self.positions` or behind the last of them.
        """
        if len(self.ends) and self.total == len(self.positions) == self.positions[-1] - self.positions[0] + 1:
            return positions - self.positions[0]  # one element of each; to look for them would be a fifth of the driver
        begins = np.concatenate([np.zeros(1, np.int64), self.ends])
        return begins[np.searchsorted(self.positions, positions)]

    def num_at(self, start: int) -> int:
        """Elements of the chunk's first position."""
        return int(self.ends[0]) if len(self.positions) and self.positions[0] == start else 0


@dataclass(frozen=True)
class OneEach:
    """The same of a chunk [start, stop) whose positions give one element each. Nothing is made of them: of a chunk for
    many trainers there are millions, and each trainer has some of them alone.

    >>> OneEach(5, 9).total, OneEach(5, 9).behind(3), OneEach(5, 9).of(np.array([6, 8])).tolist()
    (4, (8, 0), [1, 3])
    """

    start: int
    stop: int

    @property
    def total(self) -> int:
        return max(0, self.stop - self.start)

    def behind(self, done: int) -> tuple[int, int]:
        return self.start + done, 0

    def of(self, positions: Indices) -> Indices:
        return positions - self.start

    def num_at(self, start: int) -> int:
        return min(1, self.total)


def ranks_in(start: int, stop: int, blocks: Sequence[Block], *, is_one_to_one: bool) -> Ranks | OneEach:
    """The ranks of the chunk [start, stop) in these blocks. is_one_to_one: see Yields."""
    if is_one_to_one:
        return OneEach(start, stop)
    positions = np.concatenate([np.empty(0, np.int64), *(block.positions for block in blocks)])
    found, counts = np.unique(positions[positions < stop], return_counts=True)
    return Ranks(found, np.cumsum(counts, dtype=np.int64))


@dataclass(frozen=True)
class _Placed:
    """Elements of one block: their columns and positions, the rank of each in its chunk, ascending, and its ordinal.

    Searching in ranks gives a run of them as a slice. ordinals: None where all are the first of their position.
    digests: of each, None where nobody wants them.
    """

    columns: Columns
    positions: Indices
    ranks: Indices
    ordinals: Indices | None
    digests: Digests | None

    def copy(self, lo: int, hi: int, rows: Indices, pieces: list[tuple[slice, Any]], buffers: Columns) -> None:
        """Copy elements [lo, hi) to these rows of the buffers, ascending; pieces: of the rows, see _pieces."""
        columns = zip(leaves(buffers), leaves(self.columns), strict=True)
        pairs = [(buffer, column[lo:hi]) for (_, buffer), (_, column) in columns]
        for source, where in pieces:
            for buffer, column in pairs:
                buffer[where] = column[source]


@dataclass(frozen=True)
class _Together(_Placed):
    """The elements of several blocks as if they were one: for batches that have few rows of each.

    columns: the arrays of each block. block, index: of each element, in the order of their ranks: int64 (k,).
    """

    block: Indices
    index: Indices

    @classmethod
    def of(cls, parts: Sequence[_Placed]) -> _Together:
        ranks, positions = (np.concatenate(each) for each in zip(*((p.ranks, p.positions) for p in parts), strict=True))
        order = np.argsort(ranks)
        nth = [part.ordinals for part in parts if part.ordinals is not None]
        digests = [part.digests for part in parts if part.digests is not None]
        sizes = [len(part.ranks) for part in parts]
        return cls(
            [[array for _, array in leaves(part.columns)] for part in parts],
            positions[order],
            ranks[order],
            np.concatenate(nth)[order] if nth else None,
            np.concatenate(digests)[order] if digests else None,
            np.repeat(np.arange(len(parts)), sizes)[order],
            np.concatenate([np.arange(size) for size in sizes])[order],
        )

    def copy(self, lo: int, hi: int, rows: Indices, pieces: list[tuple[slice, Any]], buffers: Columns) -> None:
        """One by one, as slices: an array in a column of objects is no row of numbers."""
        where = list(zip(*(each.tolist() for each in (rows, self.block[lo:hi], self.index[lo:hi])), strict=True))
        for (_, buffer), *arrays in zip(leaves(buffers), *self.columns, strict=True):
            for row, block, index in where:
                buffer[row : row + 1] = arrays[block][index : index + 1]


class Batcher:
    """Takes complete chunks in order, gives batches in order.

    rows: which of every batch to keep.
    start, stop: positions of the stream, stop None if endless, or where the end is behind the last chunk.
    offset: elements of the record at start that were delivered before.
    yields: of the stream's positions; where that is not one element for each, blocks must tell of all elements of a
        chunk, otherwise of these rows at least.
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
        self._rows = rows
        self._batch_size = rows.batch_size
        self._stop = stop
        self._drop_remainder = drop_remainder
        self._yields = yields
        self._done = offset  # ranks of the next chunk that were delivered before
        self._reached = start
        self._intake = Intake()
        self._room = _FIRST_ROWS  # that the last batch took, where that is not known from the beginning
        self._begin(start, offset)

    def add(self, start: int, stop: int, blocks: Sequence[Block]) -> Iterator[HostBatch]:
        """The batches that the chunk [start, stop) completes. Blocks are read until the iterator is exhausted.

        Raises: the first failure in the blocks, after the batches that are whole before it.
        """
        self._reached = stop
        blocks, failed_at, failure = self._intake.take(stop, blocks)
        ranks = ranks_in(start, min(stop, failed_at), blocks, is_one_to_one=self._yields.is_one_to_one)
        parts = [self._place(ranks, block) for block in blocks]
        if self._batch_size < _FEW_ROWS * len(parts):
            parts = [_Together.of(parts)]
        done, self._done = self._done, 0
        if failed_at > start:
            self._check_offset(start, ranks, done)
        while done < ranks.total:
            take = min(self._batch_size - self._row, ranks.total - done)
            for part in parts:
                self._scatter(part, done, done + take)
            done += take
            self._row += take
            if self._row == self._batch_size:
                yield self._emit(*ranks.behind(done))
        if failure is not None:
            raise failure

    def finish(self) -> Iterator[HostBatch]:
        """The short last batch, if there is one and it is wanted. Call once, after the last chunk."""
        if self._row and not self._drop_remainder:
            yield self._emit(self._reached if self._stop is None else self._stop, 0)

    def waiting(self, most: int) -> tuple[Skipped, ...]:
        """The broken records that no batch has told of, where they are more than this: no batch will tell of them."""
        return self._intake.waiting(most)

    @property
    def left_over(self) -> tuple[Skipped, ...]:
        """Broken records that no batch has told of: after the last chunk, those that stand after the last batch."""
        return self._intake.left_over

    def _place(self, ranks: Ranks | OneEach, block: Block) -> _Placed:
        nth = ordinals(block.positions) if self._yields.may_repeat else None
        rank = ranks.of(block.positions) if nth is None else ranks.of(block.positions) + nth
        if block.selected is None:
            return _Placed(block.columns, block.positions, rank, nth, block.digests)
        selected = rows_of(block.selected)
        told = (block.positions, rank, nth, block.digests)
        return _Placed(block.columns, *(None if array is None else array[selected] for array in told))  # type: ignore[arg-type]

    def _check_offset(self, start: int, ranks: Ranks | OneEach, offset: int) -> None:
        given = ranks.num_at(start)
        if offset > given:
            raise ValueError(
                f"the stream goes on behind {offset} elements of the record at position {start}, and that gives "
                f"{given}: a transform gives other elements than when the state was taken, so going on would skip "
                "or repeat some. Make flat_map and filter functions of their element alone."
            )

    def _begin(self, start: int, offset: int) -> None:
        """Start the batch at this place; its buffers are made with the first rows."""
        self._start, self._offset = start, offset
        self._row = 0
        self._buffers: Columns = None
        self._positions = np.empty(0, np.int64)
        self._ordinals = np.empty(0, np.int64)
        self._digests: Digests | None = None  # where nobody wants them
        rows = self._batch_size
        if self._yields.is_one_to_one and self._stop is not None:
            rows = min(rows, self._stop - start)
        # Where elements are dropped, the size of the last batch is known only at its end: keep all rows until then.
        self._ranges = self._rows.of(rows) if self._yields.is_one_to_one else ((0, rows),)

    def _scatter(self, elements: _Placed, first: int, last: int) -> None:
        """Copy what the block has of the ranks [first, last) to their rows of this batch."""
        lo, hi = np.searchsorted(elements.ranks, (first, last))
        rows = elements.ranks[lo:hi] - first + self._row
        for begin, end, place in placed(self._ranges):
            inner = np.searchsorted(rows, (begin, end))
            if inner[0] < inner[1]:
                self._copy(elements, lo + inner[0], lo + inner[1], rows[slice(*inner)] - begin + place)

    def _copy(self, elements: _Placed, lo: int, hi: int, rows: Indices) -> None:
        """Copy elements [lo, hi) of the block to these rows of the buffers, ascending."""
        self._reserve(int(rows[-1]) + 1, is_digested=elements.digests is not None)
        pieces = _pieces(rows)
        elements.copy(lo, hi, rows, pieces, self._buffers)
        for source, where in pieces:
            self._positions[where] = elements.positions[lo:hi][source]
            if elements.ordinals is not None:
                self._ordinals[where] = elements.ordinals[lo:hi][source]
            if elements.digests is not None and self._digests is not None:
                self._digests[where] = elements.digests[lo:hi][source]

    def _reserve(self, rows: int, *, is_digested: bool) -> None:
        """Make the buffers hold so many rows: all that this trainer takes, or, where that is not known, what has come.

        Twice as many each time, and from the second batch on what the first one took: a batch_size beyond what the
        filters leave of the data costs no memory.
        """
        have = len(self._positions)
        if self._buffers is not None and rows <= have:
            return
        size = num_rows_in(self._ranges)
        if not self._yields.is_one_to_one:
            size = min(size, max(rows, 2 * have, self._room))
        buffers, positions, ordinals = self._intake.empty(size), np.full(size, _MISSING), np.empty(size, np.int64)
        digests = np.zeros(size, np.uint64) if is_digested else None
        if self._buffers is not None:
            for (_, new), (_, old) in zip(leaves(buffers), leaves(self._buffers), strict=True):
                new[:have] = old
            positions[:have] = self._positions
            ordinals[:have] = self._ordinals
            if digests is not None and self._digests is not None:
                digests[:have] = self._digests
        self._buffers, self._positions, self._ordinals, self._digests = buffers, positions, ordinals, digests
        self._room = size

    def _emit(self, stop: int, offset: int) -> HostBatch:
        """The batch, and the next one begun: behind `offset` elements of the record at stop."""
        columns, positions = self._buffers, self._positions
        if columns is None:
            if self._intake.like is None:
                raise ValueError(
                    f"the stream has fewer elements than there are trainers ({self._rows.share.num_parts}), and the "
                    f"one with process_index {self._rows.share.parts[0]} got none; use fewer trainers, or "
                    "drop_remainder=True."
                )
            columns = self._intake.empty(0)
        digests = self._digests
        ordinals = self._ordinals if self._yields.may_repeat else None
        ranges = self._ranges
        if not self._yields.is_one_to_one:
            ranges = self._rows.of(self._row)
            columns, positions = map_leaves(lambda array: joined(ranges, array), columns), joined(ranges, positions)
            ordinals = None if ordinals is None else joined(ranges, ordinals)
            digests = None if digests is None else joined(ranges, digests)
        counted = () if digests is None else (digests[local(ranges, *each)] for each in self._rows.counted(self._row))
        num_rows, wanted = int(np.count_nonzero(positions != _MISSING)), num_rows_in(ranges)
        if num_rows != wanted:
            raise RuntimeError(f"positions [{self._start}, {stop}) came with {num_rows} of {wanted} rows")
        batch = HostBatch(
            columns,
            positions,
            self._start,
            StreamState(stop, offset),
            self._row,
            self._intake.skipped_before(stop),
            ordinals,
            self._offset,
            digest=sum(int(each.sum()) for each in counted),
            last_run=ranges[-1][1] - ranges[-1][0] if num_rows < self._row and ranges else 0,
        )
        self._begin(stop, offset)
        return batch


def _pieces(rows: np.ndarray) -> list[tuple[slice, Any]]:
    """Which of these ascending rows go where: consecutive ones (file order, or one actor) are one memory copy."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return [(slice(None), slice(rows[0], rows[0] + len(rows)))]
    cuts = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
    if len(cuts) * _MIN_PIECE_ROWS > len(rows):
        return [(slice(None), rows)]
    return [
        (slice(lo, hi), slice(rows[lo], rows[lo] + hi - lo))
        for lo, hi in zip([0, *cuts], [*cuts, len(rows)], strict=True)
    ]
