"""The trail: the last rows that were consumed, until a state records evidence of them.

Indexed streams make any of their rows again. Streams of shards make those that a resume reads anyway, behind the
cursors of their state; if there are none, the first rows of the stream take their place.

Legend: a part is some consecutive rows of one batch, or of one block; its fields are views of the batch's columns where
nobody writes to them, copies where they are small, and digests otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from datarax_ray.plan.evidence import FIRST_PLACE, MAX_POSITIONS, MAX_ROWS, Evidence, RowsDigested
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import element_ids, ordinals
from datarax_ray.plan.state import StatefulOrder, StreamState
from datarax_ray.read.elements.columns import Columns, leaves, map_leaves, stays_on_host
from datarax_ray.read.elements.row_digests import Digests, row_digests

# Of all rows that are kept, of which there is one whatever its size.
_MAX_NBYTES = 16 * 2**20
# Of rows that somebody may write to: a larger field is digested at once, at 10 GB/s, and a smaller one is copied.
_MAX_COPIED_NBYTES = 64 * 2**10
_MAX_DIGESTED = 16
_IMMUTABLE = frozenset({str, bytes, int, float, bool, complex, type(None)})


class Field(NamedTuple):
    """One field of some rows. kind: its dtype and shape. values: of each row, or its digests where there are none."""

    kind: str
    values: np.ndarray | None
    lengths: Indices | None
    digests: Digests | None


class RowRun(NamedTuple):
    """Consecutive rows. positions, ordinals: int64 (k,). is_cut: whether rows are missing before this part."""

    positions: Indices
    ordinals: Indices
    fields: dict[str, Field]
    is_cut: bool = False

    def part(self, count: int) -> RowRun:
        """The first rows of elements."""
        fields = {
            name: field._replace(
                values=None if field.values is None else field.values[:count],
                digests=None if field.digests is None else field.digests[:count],
            )
            for name, field in self.fields.items()
        }
        return self._replace(positions=self.positions[:count], ordinals=self.ordinals[:count], fields=fields)


class BatchRows(NamedTuple):
    """The last rows of a batch that nobody writes to, at most `most`: a RowRun is made of them when it is needed."""

    positions: Indices
    ordinals: Indices | None
    columns: Columns
    most: int

    @property
    def is_cut(self) -> bool:
        return self.most < len(self.positions)


Parts: TypeAlias = tuple[RowRun | BatchRows, ...]


def part_of(
    positions: Indices,
    ordinals: Indices | None,
    columns: Columns,
    lengths: Indices | None = None,
    *,
    is_written: bool = False,
    most: int | None = MAX_ROWS,
) -> RowRun:
    """The last rows of these. lengths: of documents, whose columns hold one token a row; else one element a row.

    is_written: whether the user of the columns may write to them.
    most: number of rows, fewer if they are large or hold lists; None for all.
    """
    is_all = most is None
    most = len(positions) if most is None else most
    if not is_all and any(a.dtype == object and not _is_immutable(a[-MAX_ROWS:]) for _, a in leaves(columns)):
        most = min(most, _MAX_DIGESTED)  # at once, at some microseconds each
    if lengths is None:
        row_nbytes = sum(array[:1].nbytes for _, array in leaves(columns)) or 1
        most = len(positions) if is_all else max(1, min(most, len(positions), _MAX_NBYTES // row_nbytes))
        first, token = len(positions) - most, len(positions) - most
    else:
        most = min(most, len(positions))
        first, token = len(positions) - most, int(lengths[: len(positions) - most].sum())
        lengths = lengths[first:]
    positions = positions[first:]
    ordinals = np.zeros(len(positions), np.int64) if ordinals is None else ordinals[first:]
    ids = element_ids(positions, ordinals)
    fields = {
        ".".join(path): _field(".".join(path), array[token:], lengths, ids, is_written)
        for path, array in leaves(columns)
    }
    return RowRun(positions, ordinals, fields, first > 0)


def rows_of(
    positions: Indices, ordinals: Indices | None, columns: Columns, *, is_written: bool, most: int
) -> RowRun | BatchRows:
    """As part_of, at little cost where nobody writes to the columns, and they are small and hold no objects."""
    arrays = [array for _, array in leaves(columns)]
    if is_written or sum(a.nbytes for a in arrays) > _MAX_NBYTES or any(stays_on_host(a.dtype) for a in arrays):
        return part_of(positions, ordinals, columns, is_written=is_written, most=most)
    return BatchRows(positions, ordinals, columns, most)


def first_of(positions: Indices, ordinals: Indices | None, columns: Columns) -> RowRun:
    """The first rows of a batch, copied or digested, since they are kept for as long as the stream is read."""
    arrays = [array for _, array in leaves(columns)]
    row_nbytes = sum(array[:1].nbytes for array in arrays) or 1
    limit = _MAX_DIGESTED if any(array.dtype == object for array in arrays) else MAX_ROWS
    count = max(1, min(limit, len(positions), _MAX_NBYTES // row_nbytes))
    ordinals = None if ordinals is None else ordinals[:count]
    head = map_leaves(lambda array: array[:count], columns)
    return part_of(positions[:count], ordinals, head, is_written=True, most=None)


def digested(consecutive: Sequence[RowRun | BatchRows]) -> RowsDigested:
    """The digests of all rows behind the last gap, in order of position."""
    parts: list[RowRun] = []
    for part in consecutive:
        if isinstance(part, BatchRows):
            part = part_of(part.positions, part.ordinals, part.columns, most=part.most)
        if len(part.positions):
            parts = [part] if part.is_cut else [*parts, part]
    if not parts:
        return RowsDigested.none()
    positions, ordinals = (np.concatenate([getattr(p, name) for p in parts]) for name in ("positions", "ordinals"))
    order = np.lexsort((ordinals, positions))
    kinds: dict[str, str] = {name: field.kind for part in reversed(parts) for name, field in part.fields.items()}
    fields = {}
    for name in kinds:
        fields[name] = np.concatenate([_digests(name, part) for part in parts])[order]
    return RowsDigested(positions[order], ordinals[order], kinds, fields)


def _digests(name: str, part: RowRun) -> Digests:
    field = part.fields.get(name)
    if field is None:  # a stream refuses such rows before they are consumed
        return np.zeros(len(part.positions), np.uint64)
    if field.digests is not None:
        return field.digests
    assert field.values is not None
    return _digest(name, field.values, field.lengths, element_ids(part.positions, part.ordinals))


def _digest(name: str, values: np.ndarray, lengths: Indices | None, ids: Indices) -> Digests:
    try:
        return row_digests(ids, {name: values}, lengths)
    except TypeError:  # objects of a class, whose bytes differ in every process
        rows = [_digest_alone(name, values[at : at + 1], ids[at : at + 1]) for at in range(len(ids))]
        return np.concatenate(rows)


def _digest_alone(name: str, value: np.ndarray, ids: Indices) -> Digests:
    """The digest of one row; for an object, the digest of its class."""
    try:
        return row_digests(ids, {name: value})
    except TypeError:
        return row_digests(ids, {name: np.array([type(value[0]).__qualname__], object)})


def _field(name: str, array: Any, lengths: Indices | None, ids: Indices, is_written: bool) -> Field:
    kind = f"{array.dtype} {array.shape[1:]}".replace(",)", ")")
    if array.dtype == object:
        if _is_immutable(array):
            return Field(kind, array.copy(), lengths, None)
    elif not (is_written or stays_on_host(array.dtype)):  # then a batch has the array itself, for its user to write to
        return Field(kind, array, lengths, None)
    elif array.nbytes <= _MAX_COPIED_NBYTES:
        return Field(kind, array.copy(), lengths, None)
    return Field(kind, None, None, _digest(name, array, lengths, ids))


def _is_immutable(array: np.ndarray) -> bool:
    return all(type(value) in _IMMUTABLE for value in array.flat)


def of_blocks(blocks: Sequence[Any]) -> list[RowRun]:
    """The rows of blocks, all of them. blocks: see read.block."""
    return [
        part_of(block.positions, ordinals(block.positions), block.columns, block.lengths, most=None)
        for block in blocks
        if len(block.positions)
    ]


@dataclass(frozen=True)
class Trail:
    """The rows that were consumed last. All trails are equal: they do not say where a stream stands.

    parts: the last rows. num_rows: of the arrays of these parts.
    first: rows of the first batch, if this process read it; are_first: its first rows.
    saved: the evidence of the state that was restored, until it is followed by rows of this process.
    changed: names of transforms and stages whose code differs from the restored state.
    """

    parts: Parts = field(default=(), compare=False)
    first: Parts = field(default=(), compare=False)
    saved: Evidence | None = field(default=None, compare=False)
    changed: tuple[str, ...] = field(default=(), compare=False)
    are_first: bool = field(default=False, compare=False)
    num_rows: int = field(default=0, compare=False)

    def then(self, batch: Any, state: StreamState, *, is_written: bool, most: int = MAX_ROWS) -> Trail:
        """The trail behind one more batch.

        batch: a HostBatch. state: before it. is_written: whether others may write to its arrays. most: rows to keep.
        """
        parts: Parts = () if batch.documents is None else (batch.documents,)
        num_rows = 0
        if batch.pieces is None and batch.in_order and len(batch.positions):
            count = min(batch.last_run or len(batch.positions), most)
            last = rows_of(batch.positions, batch.ordinals, batch.columns, is_written=is_written, most=count)
            older: Parts = ()
            if batch.last_run == 0 and not last.is_cut:
                older, num_rows = self.parts, self.num_rows
            needless, enough = 0, MAX_ROWS
            if count < MAX_ROWS and older:
                nbytes = sum(array.nbytes for _, array in leaves(batch.columns))
                enough = min(MAX_ROWS, max(1, _MAX_NBYTES * len(batch.positions) // max(1, nbytes)))
            while needless < len(older) and count + num_rows - len(older[needless].positions) >= enough:
                num_rows -= len(older[needless].positions)
                needless += 1
            parts, num_rows = (*older[needless:], last), num_rows + len(last.positions)
        if not parts:
            return self
        first, are_first = self.first, self.are_first
        if state.position == state.offset == 0:
            are_first = batch.documents is None and batch.last_run == 0  # else some are of other trainers
            first = (first_of(batch.positions, batch.ordinals, batch.columns),) if are_first else parts[-1:]
        return Trail(parts, first, self.saved, are_first=are_first, num_rows=num_rows)

    def until(self, state: StreamState) -> Trail:
        """The trail without rows behind the state: elements handed out one by one are made many at a time."""
        if not self.parts or not isinstance(last := self.parts[-1], RowRun):
            return self
        count = _num_before(state, last.positions, last.ordinals)
        if not (num_behind := len(last.positions) - count):
            return self
        return replace(self, parts=(*self.parts[:-1], last.part(count)), num_rows=self.num_rows - num_behind)

    def evidence(self, state: StreamState, order: StatefulOrder) -> Evidence | None:
        """The evidence for a state; None if no row was consumed, or no row that could be made again."""
        rows = _before(state, self.parts)
        least = max(0, len(rows) - MAX_ROWS, int(np.searchsorted(rows.positions, state.position - MAX_POSITIONS)))
        rows = rows.part(least, len(rows))
        begin = bisect_left(rows.positions, True, key=lambda position: order.earlier(state, int(position)) is not None)
        if begin < len(rows):
            return Evidence.of(rows.part(begin, len(rows)))
        if len(rows := _before(state, self.first).part(0, MAX_ROWS)):
            return Evidence.of(rows, are_first=self.are_first)
        saved = self.saved
        is_made = saved is not None and (saved.start == FIRST_PLACE or order.earlier(state, saved.start[0]) is not None)
        return saved if is_made else None


def _before(state: StreamState, parts: Parts) -> RowsDigested:
    """The rows consumed before this state. The last part may hold later elements, handed out one by one."""
    rows = digested(parts)
    return rows.part(0, _num_before(state, rows.positions, rows.ordinals))


def _num_before(state: StreamState, positions: Indices, ordinals: Indices) -> int:
    count = int(np.searchsorted(positions, state.position))
    if state.offset and state.unit == "elements":
        count += int(np.searchsorted(ordinals[positions == state.position], state.offset))
    return count
