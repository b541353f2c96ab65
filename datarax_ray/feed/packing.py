"""Packed batches: the documents of consecutive chunks into rows of seq_len tokens, with one copy, no token in Python.

Legend: a batch is one flat line of batch_size * seq_len tokens; a piece is a document, or the part of one that a batch
holds; a unit is what offsets in a record count (Packing.unit).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from datarax_ray.feed.batches import HostBatch, Intake
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import Packing, Placer, padding, segments
from datarax_ray.plan.position import ordinals
from datarax_ray.plan.state import StreamState
from datarax_ray.plan.trainer_rows import TrainerRows, joined
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.errors import Skipped


@dataclass(frozen=True)
class _Documents:
    """The documents of a chunk in the order of the stream: int64 (k,) each.

    position, length; ends: running sum of lengths. block, begin: where its tokens are. size: in units; units: delivered
    of its position when the document before it is.
    """

    position: Indices
    length: Indices
    ends: Indices
    block: Indices
    begin: Indices
    size: Indices
    units: Indices

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class _Pieces:
    """Where pieces stand in the flat batch, of which position they are, and how many units of it precede them."""

    start: Indices
    position: Indices
    units: Indices


class PackedBatcher:
    """Takes complete chunks of documents in order, gives batches of packed rows; in every other way a Batcher.

    Each trainer packs the whole batch and keeps its rows: no one knows which documents are in them before.
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
        self._intake = Intake()
        self._delivered = offset  # units of the first position of the next chunk
        self._begin(start, offset)

    def add(self, start: int, stop: int, blocks: Sequence[Block]) -> Iterator[HostBatch]:
        """The batches that the chunk [start, stop) completes. Blocks are read until the iterator is exhausted.

        Raises: the first failure in the blocks, after the batches that are whole before it.
        """
        blocks, failed_at, failure = self._intake.take(stop, blocks)
        documents = self._documents(blocks, failed_at)
        index, skip = self._first(documents, start) if failed_at > start else (0, 0)
        while index < len(documents):
            starts, sizes, is_full = self._place.take(documents.length, documents.ends, index, skip)
            if len(starts):
                self._copy(documents, blocks, index, skip, starts, sizes)
                skip = (skip if len(starts) == 1 else 0) + int(sizes[-1])
                index += len(starts) - 1
                if skip == documents.length[index]:
                    index, skip = index + 1, 0
                self._after = self._place_at(documents, index, skip)
            if is_full:
                yield self._emit(*self._after)
        if failure is not None:
            raise failure

    def finish(self) -> Iterator[HostBatch]:
        """The last batch, if there is one and it is wanted. Call once, after the last chunk."""
        rows = len(self._place.used)
        if rows and not (self._drop_remainder and rows < self._batch_size):
            assert self._stop is not None
            yield self._emit(self._stop, 0)

    @property
    def left_over(self) -> tuple[Skipped, ...]:
        """Broken records that no batch has told of: after the last chunk, those that stand after the last batch."""
        return self._intake.left_over

    def _documents(self, blocks: Sequence[Block], failed_at: int) -> _Documents:
        none = np.empty(0, np.int64)
        lengths = [none if block.lengths is None else block.lengths for block in blocks]
        position = np.concatenate([none, *(block.positions for block in blocks)])
        length = np.concatenate([none, *lengths])
        owner = np.repeat(np.arange(len(blocks)), [len(part) for part in lengths])
        begin = np.concatenate([none, *(np.cumsum(part) - part for part in lengths)])
        order = np.argsort(position, kind="stable")  # all of a position are in one block, and in order there
        order = order[position[order] < failed_at]
        position, length = position[order], length[order]
        ends = np.cumsum(length)
        size = self._packing.unit_sizes(length)
        units = np.cumsum(size) - size
        units = units - units[np.arange(len(position)) - ordinals(position)]
        return _Documents(position, length, ends, owner[order], begin[order], size, units)

    def _first(self, documents: _Documents, start: int) -> tuple[int, int]:
        """The document to begin with, and how many of its tokens to leave out."""
        offset, self._delivered = self._delivered, 0
        if not offset:
            return 0, 0
        of_first = documents.units[documents.position == start]
        index = int(np.searchsorted(of_first, offset, "right")) - 1
        behind = offset - int(of_first[index]) if len(of_first) else offset
        if not len(of_first) or behind > documents.size[index]:
            raise ValueError(
                f"the stream goes on behind {offset} {self._packing.unit} of the record "
                f"at position {start}, and that has fewer: a transform gives others than when the state was taken, so "
                "going on would skip or repeat some. Make transforms functions of their element alone."
            )
        return (index + 1, 0) if behind == documents.size[index] else (index, behind)

    def _place_at(self, documents: _Documents, index: int, skip: int) -> tuple[int, int]:
        """Where the stream goes on when the documents before `index` are delivered, and `skip` tokens of that one."""
        last = int(documents.position[index - (skip == 0)])
        if index < len(documents) and documents.position[index] == last:
            return last, int(documents.units[index]) + skip
        return last + 1, 0

    def _begin(self, start: int, offset: int) -> None:
        """Start the batch at this place; its buffers are made with the first document."""
        self._start, self._offset = start, offset
        self._after = (start, offset)
        self._place: Placer = self._packing.placer(self._batch_size)
        self._buffers: dict[str, np.ndarray] | None = None
        self._pieces: list[_Pieces] = []

    def _copy(
        self,
        documents: _Documents,
        blocks: Sequence[Block],
        index: int,
        skip: int,
        starts: Indices,
        sizes: Indices,
    ) -> None:
        """Copy the pieces from documents [index, index + m) to their places: one slice for each run that is a run in
        its block, too.
        """
        of = slice(index, index + len(starts))
        source, units = documents.begin[of].copy(), documents.units[of].copy()
        source[0] += skip
        units[0] += skip
        self._pieces.append(_Pieces(starts, documents.position[of], units))
        if self._buffers is None:
            self._buffers = self._empty(self._batch_size * self._packing.seq_len)
        owner = documents.block[of]
        follows = (
            (owner[1:] == owner[:-1])
            & (source[1:] == source[:-1] + sizes[:-1])
            & (starts[1:] == starts[:-1] + sizes[:-1])
        )
        firsts = np.flatnonzero(np.concatenate([[True], ~follows]))
        runs = zip(owner[firsts], source[firsts], starts[firsts], np.add.reduceat(sizes, firsts), strict=True)
        for block, begin, start, size in ((int(x) for x in run) for run in runs):
            for name, buffer in self._buffers.items():
                buffer[start : start + size] = blocks[block].columns[name][begin : begin + size]

    def _emit(self, stop: int, offset: int) -> HostBatch:
        """The batch, and the next one begun: behind `offset` units of the record at stop."""
        assert self._buffers is not None
        used = self._place.used
        ranges = self._rows.of(len(used))
        mine = joined(ranges, np.arange(len(used), dtype=np.int64))
        positions, units = self._row_begins(mine)
        parts = [self._columns(used, lo, hi) for lo, hi in ranges or ((0, 0),)]
        columns = parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        batch = HostBatch(
            columns,
            positions,
            self._start,
            StreamState(stop, offset, self._packing.unit),
            len(used),
            self._intake.skipped_before(stop),
            units,
            self._offset,
        )
        self._begin(stop, offset)
        return batch

    def _columns(self, used: Indices, lo: int, hi: int) -> dict[str, np.ndarray]:
        """The columns of rows [lo, hi). used: tokens in each row of the batch."""
        assert self._buffers is not None
        seq_len, packing = self._packing.seq_len, self._packing
        starts = np.concatenate([piece.start for piece in self._pieces]) - lo * seq_len
        starts = starts[(starts >= 0) & (starts < (hi - lo) * seq_len)]
        ids, places = segments(starts, used[lo:hi], seq_len)
        columns: dict[str, np.ndarray] = {}
        for name, buffer in self._buffers.items():
            rows = buffer.reshape(self._batch_size, seq_len, *buffer.shape[1:])[lo:hi]
            if (used[lo:hi] < seq_len).any():
                rows[ids == 0] = padding(packing)[name]
            if (first := packing.first_token(name)) is not None:
                rows[(ids > 0) & (places == 0)] = first
            columns |= {name: rows, f"{name}_segment_ids": ids, f"{name}_positions": places}
        return columns

    def _row_begins(self, rows: Indices) -> tuple[Indices, Indices]:
        """Of these rows: the position of the first token, and the units of it that are before the row."""
        start, position, units = (
            np.concatenate([getattr(piece, name) for piece in self._pieces]) for name in ("start", "position", "units")
        )
        order = np.argsort(start, kind="stable")
        begins = rows * self._packing.seq_len
        first = order[np.searchsorted(start[order], begins, "right") - 1]
        return position[first], units[first] + begins - start[first]

    def _check_fill(self, like: Columns) -> None:
        fill: list[tuple[str, str, int | None]] = [
            (name, "pad_id", value) for name, value in padding(self._packing).items()
        ]
        fill += [(name, "bos_token_id", self._packing.first_token(name)) for name in like]
        for name, what, value in fill:
            if value is None:
                continue
            dtype = like[name].dtype
            if dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                raise ValueError(
                    f"{what}={value} is no {dtype}, which {name!r} is; choose another, for this field alone with "
                    f"pad_id={{{name!r}: ...}} or bos_fields, or convert the field in a transform"
                )

    def _empty(self, size: int) -> dict[str, np.ndarray]:
        like = self._intake.like
        self._check_fill(like)
        return {name: np.empty((size, *array.shape[1:]), array.dtype) for name, array in like.items()}
