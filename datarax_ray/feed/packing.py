"""Packed batches: the documents of consecutive chunks into rows of seq_len tokens, with one copy, no token in Python.

Legend: a batch is one flat line of batch_size * seq_len tokens. A piece is a document, or the part of a document in one
batch. Offsets in a record count units: tokens or documents (Packing.unit).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from datarax_ray.feed.batches import HostBatch, Intake, Pieces
from datarax_ray.feed.row_selection import rows_of_tail
from datarax_ray.feed.trail import RowRun, part_of
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import Packing, Placer, segments
from datarax_ray.plan.position import ordinals
from datarax_ray.plan.runs import NO_RUNS, Pairs, joined_runs, rows_of
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerRows
from datarax_ray.read.block import Block, first_failure
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.row_digests import Digests
from datarax_ray.read.errors import advised, gives_fewer

# Documents of a batch that a state records, and among how many they are looked for, where other trainers have some.
_MAX_LAST, _MAX_SEEN = 8, 32


@dataclass(frozen=True)
class _Documents:
    """The documents of a chunk in the order of the stream: int64 (k,) each.

    position, length; ends: running sum of lengths.
    block, begin: where the tokens are.
    size: in units; units: of the position, before the document.
    digest: uint64 (k,), None without digests.
    """

    position: Indices
    length: Indices
    ends: Indices
    block: Indices
    begin: Indices
    size: Indices
    units: Indices
    digest: Digests | None

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class _Pieces:
    """Consecutive pieces of one batch: int64 (m,) each, m may be 0.

    start: the place in the flat batch; size: tokens.
    begin: where the tokens are in the block; units: of the position, before the piece.
    documents: of the chunk. of: the documents of the pieces; ended: the documents that end with these pieces.
    is_full: whether these pieces complete the batch.
    """

    start: Indices
    size: Indices
    begin: Indices
    units: Indices
    documents: _Documents
    of: slice
    ended: range
    is_full: bool

    @property
    def block(self) -> Indices:
        return self.documents.block[self.of]

    @property
    def position(self) -> Indices:
        return self.documents.position[self.of]


class _Placing:
    """Places the documents of consecutive chunks in batches. offset: units of the first position delivered before.

    Needs only the lengths: a selector that has no tokens yet places documents, too.
    """

    def __init__(self, packing: Packing, batch_size: int, start: int, offset: int) -> None:
        self._packing = packing
        self._batch_size = batch_size
        self._delivered = offset  # units of the first position of the next chunk
        self._placer: Placer = packing.placer(batch_size)
        self.after = (start, offset)  # where the stream goes on behind the pieces so far: position, units

    @property
    def used(self) -> Indices:
        """Tokens per row of the batch, of rows with any."""
        return self._placer.used

    def place(self, start: int, failed_at: int, blocks: Sequence[Block]) -> Iterator[_Pieces]:
        """The pieces of a chunk from `start` on, up to where it fails. A full batch is over when the next are asked."""
        documents = self._documents(blocks, failed_at)
        index, skip = self._first(documents, start) if failed_at > start else (0, 0)
        while index < len(documents):
            starts, sizes, is_full = self._placer.take(documents.length, documents.ends, index, skip)
            first, of = index, slice(index, index + len(starts))
            begin, units = documents.begin[of].copy(), documents.units[of].copy()
            if len(starts):
                begin[0] += skip
                units[0] += skip
                skip = (skip if len(starts) == 1 else 0) + int(sizes[-1])
                index += len(starts) - 1
                if skip == documents.length[index]:
                    index, skip = index + 1, 0
                self.after = self._place_at(documents, index, skip)
            yield _Pieces(starts, sizes, begin, units, documents, of, range(first, index), is_full)
            if is_full:
                self._placer = self._packing.placer(self._batch_size)

    def _documents(self, blocks: Sequence[Block], failed_at: int) -> _Documents:
        none = np.empty(0, np.int64)
        lengths = [none if block.lengths is None else block.lengths for block in blocks]
        position = np.concatenate([none, *(block.positions for block in blocks)])
        length = np.concatenate([none, *lengths])
        owner = np.repeat(np.arange(len(blocks)), [len(part) for part in lengths])
        begin = np.concatenate([none, *(np.cumsum(part) - part for part in lengths)])
        digests = [block.digests for block in blocks if block.digests is not None]
        order = np.argsort(position, kind="stable")  # all of a position are in one block, and in order there
        order = order[position[order] < failed_at]
        position, length = position[order], length[order]
        ends = np.cumsum(length)
        size = length if self._packing.unit == "tokens" else np.ones_like(length)
        units = np.cumsum(size) - size
        units = units - units[np.arange(len(position)) - ordinals(position)]
        digest = np.concatenate(digests)[order] if digests else None
        return _Documents(position, length, ends, owner[order], begin[order], size, units, digest)

    def _first(self, documents: _Documents, start: int) -> tuple[int, int]:
        """The document to begin with, and how many of its tokens to skip."""
        offset, self._delivered = self._delivered, 0
        if not offset:
            return 0, 0
        of_first = documents.units[documents.position == start]
        index = int(np.searchsorted(of_first, offset, "right")) - 1
        behind = offset - int(of_first[index]) if len(of_first) else offset
        if not len(of_first) or behind > documents.size[index]:
            raise gives_fewer(start, offset, self._packing.unit)
        return (index + 1, 0) if behind == documents.size[index] else (index, behind)

    def _place_at(self, documents: _Documents, index: int, skip: int) -> tuple[int, int]:
        """Where the stream goes on behind the documents before `index`, and `skip` tokens of that document."""
        last = int(documents.position[index - (skip == 0)])
        if index < len(documents) and documents.position[index] == last:
            return last, int(documents.units[index]) + skip
        return last + 1, 0


class PackedRowSelector:
    """Selects the tokens that stand in this trainer's rows; in every other way a RowSelector."""

    def __init__(self, packing: Packing, rows: TrainerRows, *, stop: int | None, offset: int, is_fixed: bool) -> None:
        self._rows = rows
        self._seq_len = packing.seq_len
        self._stop = stop
        self._is_fixed = is_fixed
        self._placing = _Placing(packing, rows.batch_size, 0, offset)

    def select(self, start: int, stop: int, blocks: Sequence[Block]) -> list[Indices]:
        owners, runs = [np.empty(0, np.int64)], [NO_RUNS]
        for pieces in self._placing.place(start, first_failure(blocks, stop)[0], blocks):
            ranges = self._rows.full
            if not pieces.is_full:
                num_rows = len(self._placing.used) if stop == self._stop else None
                ranges = rows_of_tail(self._rows, num_rows, is_fixed=self._is_fixed)
            for lo, hi in ranges:
                first = np.maximum(pieces.start, lo * self._seq_len) - pieces.start
                last = np.minimum(pieces.start + pieces.size, hi * self._seq_len) - pieces.start
                mine = np.flatnonzero(first < last)
                owners.append(pieces.block[mine])
                runs.append((pieces.begin[:, None] + np.stack([first, last], axis=1))[mine])
        owner, found = np.concatenate(owners), np.concatenate(runs)
        return [joined_runs(found[owner == index]) for index in range(len(blocks))]


@dataclass(frozen=True)
class _Held:
    """The tokens that a block's columns hold, as runs: where each begins and ends, and its first row of the columns."""

    columns: Columns
    begins: list[int]
    ends: list[int]
    rows: list[int]

    @classmethod
    def of(cls, block: Block) -> _Held:
        assert block.lengths is not None
        runs = np.array([[0, block.lengths.sum()]]) if block.selected is None else block.selected
        sizes = runs[:, 1] - runs[:, 0]
        return cls(block.columns, *(part.tolist() for part in (runs[:, 0], runs[:, 1], np.cumsum(sizes) - sizes)))

    def of_run(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, row in the columns) of every held part of a run."""
        for at in range(bisect_right(self.ends, begin), bisect_left(self.begins, end)):
            first = max(begin, self.begins[at])
            yield first, min(end, self.ends[at]), self.rows[at] + first - self.begins[at]


def _last_documents(pieces: _Pieces, held: Sequence[_Held]) -> RowRun | None:
    """The last consecutive documents that end with these pieces and are held whole; None for none."""
    documents = pieces.documents
    rows: list[tuple[int, int, int, int]] = []
    for index in reversed(pieces.ended[-_MAX_SEEN:]):
        begin, length = int(documents.begin[index]), int(documents.length[index])
        parts = list(held[int(documents.block[index])].of_run(begin, begin + length))
        if length and (len(parts) != 1 or parts[0][1] - parts[0][0] != length):
            if rows:
                break
            continue
        rows.append((index, int(documents.block[index]), parts[0][2] if length else 0, length))
        if len(rows) == _MAX_LAST:
            break
    if not rows:
        return None
    rows.reverse()
    columns = {
        name: np.concatenate([held[block].columns[name][row : row + length] for _, block, row, length in rows])
        for name in held[rows[0][1]].columns
    }
    at = [index for index, *_ in rows]
    nth = ordinals(documents.position)[at]
    return part_of(documents.position[at], nth, columns, documents.length[at])


class PackedBatcher:
    """Takes complete chunks of documents in order, gives batches of packed rows; in every other way a Batcher.

    Each trainer places the documents of the whole batch, and has at least the tokens of its own rows.
    """

    def __init__(
        self,
        packing: Packing,
        rows: TrainerRows,
        *,
        start: int,
        stop: int | None,
        offset: int = 0,
        drop_remainder: bool = False,
    ) -> None:
        self._packing = packing
        self._rows = rows
        self._batch_size = rows.batch_size
        self._stop = stop
        self._drop_remainder = drop_remainder
        self.intake = Intake()
        self._placing = _Placing(packing, rows.batch_size, start, offset)
        self._reached = start
        self._begin(start, offset)

    def add(self, start: int, stop: int, blocks: Sequence[Block]) -> Iterator[HostBatch]:
        """As Batcher.add."""
        self._reached = stop
        blocks, failed_at, failure = self.intake.take(stop, blocks)
        held = [_Held.of(block) for block in blocks]
        for pieces in self._placing.place(start, failed_at, blocks):
            if len(pieces.start):
                self._copy(pieces, held)
            if pieces.is_full:
                yield self._emit(*self._placing.after)
        if failure is not None:
            raise advised(failure)

    def finish(self) -> Iterator[HostBatch]:
        """As Batcher.finish."""
        rows = len(self._placing.used)
        if rows and not (self._drop_remainder and rows < self._batch_size):
            yield self._emit(self._reached if self._stop is None else self._stop, 0)

    def _begin(self, start: int, offset: int) -> None:
        """Start the batch at this place; its buffers are made with the first document."""
        self._start, self._offset = start, offset
        self._buffers: dict[str, np.ndarray] | None = None
        self._digest = 0
        self._pieces: list[_Pieces] = []
        self._copied: list[tuple[int, int]] = []  # [start, stop) in the flat batch
        self._last: RowRun | None = None

    def _copy(self, pieces: _Pieces, held: Sequence[_Held]) -> None:
        """Copy the held tokens to their places, one slice per run of tokens in a block."""
        self._pieces.append(pieces)
        if pieces.documents.digest is not None:
            self._digest += int(pieces.documents.digest[pieces.ended.start : pieces.ended.stop].sum())
        self._last = _last_documents(pieces, held) or self._last
        if self._buffers is None:
            self._check_fill(self.intake.like)
            self._buffers = self.intake.columns(self.intake.empty(self._batch_size * self._packing.seq_len))
        starts, sizes, owner, source = pieces.start, pieces.size, pieces.block, pieces.begin
        follows = (
            (owner[1:] == owner[:-1])
            & (source[1:] == source[:-1] + sizes[:-1])
            & (starts[1:] == starts[:-1] + sizes[:-1])
        )
        firsts = np.flatnonzero(np.concatenate([[True], ~follows]))
        runs = zip(owner[firsts], source[firsts], starts[firsts], np.add.reduceat(sizes, firsts), strict=True)
        for block, begin, start, size in ((int(x) for x in run) for run in runs):
            for first, last, row in held[block].of_run(begin, begin + size):
                into = start + first - begin, start + last - begin
                self._copied.append(into)
                for name, buffer in self._buffers.items():
                    buffer[slice(*into)] = held[block].columns[name][row : row + last - first]

    def _emit(self, stop: int, offset: int) -> HostBatch:
        """The batch, and the next one begun: behind `offset` units of the record at stop."""
        assert self._buffers is not None
        used = self._placing.used
        ranges = self._rows.of(len(used))
        mine = rows_of(ranges)
        self._check_copied(ranges, int(used[mine].sum()))
        names = ("start", "size", "position", "units")
        pieces = Pieces(*(np.concatenate([getattr(piece, name) for piece in self._pieces]) for name in names))
        positions, units = self._row_begins(mine, pieces)
        parts = [self._columns(used, lo, hi) for lo, hi in ranges or ((0, 0),)]
        columns = parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        batch = HostBatch(
            columns,
            positions,
            self._start,
            StreamState(stop, offset, self._packing.unit),
            len(used),
            self.intake.skipped_before(stop),
            units,
            self._offset,
            pieces,
            self._digest,
            documents=self._last,
        )
        self._begin(stop, offset)
        return batch

    def _check_copied(self, ranges: Pairs, wanted: int) -> None:
        """Raise RuntimeError unless all tokens of these rows are there: each is copied once."""
        copied, seq_len = np.array(self._copied, np.int64).reshape(-1, 2), self._packing.seq_len
        found = sum(int(np.diff(np.clip(copied, lo * seq_len, hi * seq_len), axis=1).sum()) for lo, hi in ranges)
        if found != wanted:
            raise RuntimeError(f"the batch from position {self._start} on came with {found} of {wanted} tokens")

    def _columns(self, used: Indices, lo: int, hi: int) -> dict[str, np.ndarray]:
        """The columns of rows [lo, hi). used: tokens in each row of the batch."""
        assert self._buffers is not None
        seq_len, packing = self._packing.seq_len, self._packing
        starts = np.concatenate([piece.start for piece in self._pieces]) - lo * seq_len
        starts = starts[(starts >= 0) & (starts < (hi - lo) * seq_len)]
        ids, places = segments(starts, used[lo:hi], seq_len)
        columns: dict[str, np.ndarray] = {}
        for name, buffer in self._buffers.items():
            if columns:
                ids, places = ids.copy(), places.copy()  # who writes to those of one field writes to no other's
            rows = buffer.reshape(self._batch_size, seq_len, *buffer.shape[1:])[lo:hi]
            if (used[lo:hi] < seq_len).any():
                rows[ids == 0] = packing.padding[name]
            if (first := packing.first_token(name)) is not None:
                rows[(ids > 0) & (places == 0)] = first
            columns |= {name: rows, f"{name}_segment_ids": ids, f"{name}_positions": places}
        return columns

    def _row_begins(self, rows: Indices, pieces: Pieces) -> tuple[Indices, Indices]:
        """The position of the first token of each row, and the units of the position before the row."""
        order = np.argsort(pieces.start, kind="stable")
        begins = rows * self._packing.seq_len
        first = order[np.searchsorted(pieces.start[order], begins, "right") - 1]
        return pieces.position[first], pieces.units[first] + begins - pieces.start[first]

    def _check_fill(self, like: Columns) -> None:
        for name in like:
            dtype = like[name].dtype
            values = {"pad_id": self._packing.padding[name], "bos_token_id": self._packing.first_token(name)}
            for what, value in values.items():
                if value is None or dtype.kind not in "iu" or np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                    continue
                raise ValueError(
                    f"{what}={value} is no {dtype}, which {name!r} is; give {name!r} a value of its own (pad_id by "
                    "field, bos_fields), or convert the field in a transform"
                )
