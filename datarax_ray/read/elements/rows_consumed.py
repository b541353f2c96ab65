"""The last consumed rows, kept until a state is taken, and their digests, the evidence in a state.

Legend: a part is some consecutive rows of one batch, or of one block; its fields are views of the batch's columns where
nobody writes to them, copies where they are small, and digests otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from datarax_ray.plan.evidence import MAX_POSITIONS, MAX_ROWS, RowsDigested
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.position import element_ids, ordinals
from datarax_ray.read.elements.columns import Columns, leaves, map_leaves
from datarax_ray.read.elements.row_digests import Digests, row_digests

# Of the rows of one batch, at least one of which is kept whatever its size.
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


class Part(NamedTuple):
    """Consecutive rows. positions, ordinals: int64 (k,). is_cut: whether rows are missing before this part."""

    positions: Indices
    ordinals: Indices
    fields: dict[str, Field]
    is_cut: bool = False


class Rows(NamedTuple):
    """The last rows of a batch that nobody writes to, at most `most`: a Part is made of them when it is needed."""

    positions: Indices
    ordinals: Indices | None
    columns: Columns
    most: int

    @property
    def is_cut(self) -> bool:
        return self.most < len(self.positions)


Parts: TypeAlias = tuple[Part | Rows, ...]


def part_of(
    positions: Indices,
    ordinals: Indices | None,
    columns: Columns,
    lengths: Indices | None = None,
    *,
    is_written: bool = False,
    most: int | None = MAX_ROWS,
) -> Part:
    """The last rows of these. lengths: of documents, whose columns hold one token a row; else one element a row.

    is_written: whether whoever has the columns may write to them.
    most: rows, of which fewer are taken where they are large or hold lists; None for all.
    """
    is_all = most is None
    most = len(positions) if most is None else most
    if not is_all and any(array.dtype == object and not _is_immutable(array) for _, array in leaves(columns)):
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
    return Part(positions, ordinals, fields, first > 0)


def rows_of(
    positions: Indices, ordinals: Indices | None, columns: Columns, *, is_written: bool, most: int
) -> Part | Rows:
    """As part_of, at little cost where nobody writes to the columns, and they are small and hold no objects."""
    arrays = [array for _, array in leaves(columns)]
    if is_written or sum(array.nbytes for array in arrays) > _MAX_NBYTES or any(a.dtype == object for a in arrays):
        return part_of(positions, ordinals, columns, is_written=is_written, most=most)
    return Rows(positions, ordinals, columns, most)


def first_of(positions: Indices, ordinals: Indices | None, columns: Columns) -> Part:
    """The first rows of a batch, copied or digested, since they are kept for as long as the stream is read."""
    arrays = [array for _, array in leaves(columns)]
    row_nbytes = sum(array[:1].nbytes for array in arrays) or 1
    limit = _MAX_DIGESTED if any(array.dtype == object for array in arrays) else MAX_ROWS
    count = max(1, min(limit, len(positions), _MAX_NBYTES // row_nbytes))
    ordinals = None if ordinals is None else ordinals[:count]
    head = map_leaves(lambda array: array[:count], columns)
    return part_of(positions[:count], ordinals, head, is_written=True, most=None)


def digested(consecutive: Sequence[Part | Rows]) -> RowsDigested:
    """The digests of all rows, in order of position; of those behind the last gap."""
    parts: list[Part] = []
    for each in consecutive:
        part = part_of(each.positions, each.ordinals, each.columns, most=each.most) if isinstance(each, Rows) else each
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


def recent(rows: RowsDigested, position: int) -> RowsDigested:
    """The last rows that a state at this position keeps."""
    first = max(0, len(rows) - MAX_ROWS, int(np.searchsorted(rows.positions, position - MAX_POSITIONS)))
    return rows.part(first, len(rows))


def _digests(name: str, part: Part) -> Digests:
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
    """The digest of one row: of the class, where the value is an object of one."""
    try:
        return row_digests(ids, {name: value})
    except TypeError:
        return row_digests(ids, {name: np.array([type(value[0]).__qualname__], object)})


def _field(name: str, array: Any, lengths: Indices | None, ids: Indices, is_written: bool) -> Field:
    kind = f"{array.dtype} {array.shape[1:]}".replace(",)", ")")
    if array.dtype == object:
        if _is_immutable(array):
            return Field(kind, array.copy(), lengths, None)
    elif not is_written:
        return Field(kind, array, lengths, None)
    elif array.nbytes <= _MAX_COPIED_NBYTES:
        return Field(kind, array.copy(), lengths, None)
    return Field(kind, None, None, _digest(name, array, lengths, ids))


def _is_immutable(array: np.ndarray) -> bool:
    return all(type(value) in _IMMUTABLE for value in array[-MAX_ROWS:].flat)


def of_blocks(blocks: Sequence[Any]) -> list[Part]:
    """The rows of blocks, all of them. blocks: see read.block."""
    return [
        part_of(block.positions, ordinals(block.positions), block.columns, block.lengths, most=None)
        for block in blocks
        if len(block.positions)
    ]
