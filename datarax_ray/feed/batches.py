"""From the blocks of consecutive chunks to batches: rows are scattered by position, with one copy and no row in Python.

Legend: a row is an index into a global batch; a rank counts the surviving positions of a chunk from 0; [lo, hi) are the
rows of the batch that are kept here (one trainer's).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.cipher import Indices
from datarax_ray.plan.position import Rest, check_trainers, trainer_rows
from datarax_ray.read.blocks import Block
from datarax_ray.read.columns import Columns, FieldSpec, Path, leaves, map_leaves, spec
from datarax_ray.read.errors import Skipped


@dataclass(frozen=True)
class HostBatch:
    """One trainer's rows of one global batch.

    columns: arrays of shape (num_rows, ...), written by nobody else. positions: int64 (num_rows,), of each row.
    start, stop: the positions that the global batch covers; stop is where the stream goes on after it. global_rows: of
    all trainers together. skipped: the broken records among them. rest: what else the stream needs to go on after it,
    in plain values; None where the position is all.
    """

    columns: Columns
    positions: Indices
    start: int
    stop: int
    global_rows: int
    skipped: tuple[Skipped, ...] = ()
    rest: Rest = None

    @property
    def num_rows(self) -> int:
        return len(self.positions)


class Batcher:
    """Takes complete chunks in order, gives batches in order.

    start, stop: positions of the stream, stop None if endless. may_drop: whether positions may have no element. Then
    blocks must hold all survivors of a chunk; otherwise they hold at least this trainer's rows.
    """

    def __init__(
        self,
        *,
        start: int,
        stop: int | None,
        batch_size: int,
        drop_remainder: bool = False,
        may_drop: bool = False,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        check_trainers(batch_size, process_index, process_count)
        self._batch_size = batch_size
        self._stop = stop
        self._drop_remainder = drop_remainder
        self._may_drop = may_drop
        self._process = (process_index, process_count)
        self._spec: dict[Path, FieldSpec] = {}
        self._like: Columns = None  # zero rows of the columns seen first, to make buffers from
        self._skipped: list[Skipped] = []
        self._begin(start)

    def add(self, start: int, stop: int, blocks: Sequence[Block]) -> Iterator[HostBatch]:
        """The batches that the chunk [start, stop) completes. Blocks are read until the iterator is exhausted.

        Raises: the first failure in the blocks, after the batches that are whole before it.
        """
        for block in blocks:
            self._skipped += block.skipped
        failures = [(block.failure_position, block.failure) for block in blocks if block.failure is not None]
        # in the order of their elements, so that which of two kinds is the odd one does not depend on the actors
        blocks = sorted((b for b in blocks if len(b.positions)), key=lambda b: int(b.positions[0]))
        failures += [(int(block.positions[0]), odd) for block in blocks if (odd := self._oddity(block)) is not None]
        failed_at, failure = min(failures, key=lambda pair: pair[0], default=(stop, None))
        blocks = [block for block in blocks if block.positions[0] < failed_at]
        # what is before a failure is good, and the same for any number of actors
        survivors = self._survivors(start, stop, blocks)
        survivors = survivors[survivors < failed_at]
        # rank of each position of the chunk; searching in it gives each block's share of a run of ranks as a slice
        ranks = [np.searchsorted(survivors, block.positions) for block in blocks]
        done = 0
        while done < len(survivors):
            take = min(self._batch_size - self._row, len(survivors) - done)
            for block, rank in zip(blocks, ranks, strict=True):
                self._scatter(block, rank, done, done + take)
            done += take
            self._row += take
            if self._row == self._batch_size:
                yield self._emit(int(survivors[done - 1]) + 1)
        if failure is not None:
            raise failure

    def finish(self) -> Iterator[HostBatch]:
        """The short last batch, if there is one and it is wanted. Call once, after the last chunk."""
        if self._row and not self._drop_remainder:
            assert self._stop is not None
            yield self._emit(self._stop)

    @property
    def left_over(self) -> tuple[Skipped, ...]:
        """Broken records that no batch has told of: after the last chunk, those that stand after the last batch."""
        return tuple(sorted(self._skipped, key=lambda skip: skip.position))

    def _survivors(self, start: int, stop: int, blocks: Sequence[Block]) -> np.ndarray:
        if not self._may_drop:
            return np.arange(start, stop, dtype=np.int64)
        alive = np.zeros(stop - start, bool)
        for block in blocks:
            alive[block.positions - start] = True
        return np.flatnonzero(alive) + start

    def _begin(self, start: int) -> None:
        """Start the batch at this position; its buffers are made with the first rows."""
        self._start = start
        self._row = 0
        self._written = 0
        self._buffers: Columns = None
        self._positions = np.empty(0, np.int64)
        rows = self._batch_size
        if not self._may_drop and self._stop is not None:
            rows = min(rows, self._stop - start)
        # Where elements are dropped, the size of the last batch is known only at its end: keep all rows until then.
        self._lo, self._hi = (0, rows) if self._may_drop else trainer_rows(rows, *self._process)

    def _scatter(self, block: Block, rank: np.ndarray, first: int, last: int) -> None:
        """Copy what the block has of the ranks [first, last) to their rows of this batch."""
        lo, hi = np.searchsorted(rank, (first, last))
        rows = rank[lo:hi] - first + self._row
        inner = np.searchsorted(rows, (self._lo, self._hi))
        lo, hi, rows = lo + inner[0], lo + inner[1], rows[inner[0] : inner[1]] - self._lo
        if lo == hi:
            return
        if self._buffers is None:
            self._buffers = self._empty(self._hi - self._lo)
            self._positions = np.empty(self._hi - self._lo, np.int64)
        # consecutive rows (file order, or one actor) are one memory copy
        where = slice(rows[0], rows[0] + len(rows)) if rows[-1] - rows[0] + 1 == len(rows) else rows
        for (_, buffer), (_, column) in zip(leaves(self._buffers), leaves(block.columns), strict=True):
            buffer[where] = column[lo:hi]
        self._positions[where] = block.positions[lo:hi]
        self._written += len(rows)

    def _emit(self, stop: int) -> HostBatch:
        columns, positions = self._buffers, self._positions
        if columns is None:
            if self._like is None:
                raise ValueError(
                    f"the stream has fewer elements than there are trainers ({self._process[1]}), and the one with "
                    f"process_index {self._process[0]} got none; use fewer trainers, or drop_remainder=True."
                )
            columns = self._empty(0)
        expected = self._row if self._may_drop else self._hi - self._lo
        if self._written != expected:
            raise RuntimeError(f"positions [{self._start}, {stop}) came with {self._written} of {expected} rows")
        if self._may_drop:
            lo, hi = trainer_rows(self._row, *self._process)
            columns, positions = map_leaves(lambda array: array[lo:hi], columns), positions[lo:hi]
        skipped = tuple(sorted((s for s in self._skipped if s.position < stop), key=lambda s: s.position))
        self._skipped = [s for s in self._skipped if s.position >= stop]
        batch = HostBatch(columns, positions, self._start, stop, self._row, skipped)
        self._begin(stop)
        return batch

    def _empty(self, rows: int) -> Columns:
        return map_leaves(lambda array: np.empty((rows, *array.shape[1:]), array.dtype), self._like)

    def _oddity(self, block: Block) -> Exception | None:
        """What is wrong with a block that has not the fields, shapes and dtypes of the first one."""
        found: dict[Path, FieldSpec] = dict(leaves(spec(block.columns)))
        if not self._spec:
            self._spec = found
            self._like = map_leaves(lambda array: np.empty((0, *array.shape[1:]), array.dtype), block.columns)
        for path in self._spec.keys() | found.keys():
            if self._spec.get(path) != found.get(path):
                name = ".".join(path) or "the element"
                return ValueError(
                    f"{name} was {_say(self._spec.get(path))} so far and is {_say(found.get(path))} from position "
                    f"{block.positions[0]} on; make every element alike in a transform (PadTo for ragged fields)."
                )
        return None


def _say(field: FieldSpec | None) -> str:
    return "missing" if field is None else f"{field.dtype} {field.shape}"
