"""The columns of stored records that are all alike, without making their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datarax_ray.read.elements.columns import Columns, Path, is_host_only
from datarax_ray.read.elements.fixed_records import FixedRecords
from datarax_ray.read.formats.materialized.arrays import dtype_of
from datarax_ray.read.formats.materialized.encoding import ELEMENT, PREFIX, ROW, nested, objects_of
from datarax_ray.read.formats.materialized.values import NUMBER_DTYPES, cached_by_head, unpacked

_Field = tuple[Path, np.dtype, tuple[int, ...], int]  # where it is, and where its bytes begin
_Layout = tuple[list[_Field], int, list[Path], list[Path]]


def columns_of(records: Sequence[bytes], are_last: bool) -> Columns | None:
    """The columns of stored records that are all alike and hold numbers alone, or rows of columns; else None.

    The same as of the single elements, stacked. are_last: whether nothing is done to single elements any more; else
    only what was rows of columns is columns again.
    """
    first = records[0] if len(records) else b""
    if not first or first[0] not in ((ELEMENT, ROW) if are_last else (ROW,)):
        return None
    try:
        begin = first[: PREFIX.size + PREFIX.unpack_from(first)[1]]
        layout = _layout(begin[PREFIX.size :])
        if layout is None:
            return None
        columns = _columns(records, begin, *layout[:3])
    except Exception:  # whatever damaged bytes come to: each is read alone then, and named in its error
        return None
    return None if columns is None else nested({path: columns[path] for path in layout[3]})


def _columns(
    records: Sequence[bytes], begin: bytes, fields: list[_Field], nbytes: int, objects: list[Path]
) -> dict[Path, np.ndarray] | None:
    """The column of each field; None where records are not alike."""
    start, stop = len(begin), len(begin) + nbytes
    if isinstance(records, FixedRecords):
        are_alike = (records.rows[:, :start] == np.frombuffer(begin, np.uint8)).all() and (
            objects or records.size == stop
        )
        rows = records.rows[:, start:stop]
    else:
        are_alike = all(record.startswith(begin) and (objects or len(record) == stop) for record in records)
        rows = np.frombuffer(b"".join([record[start:stop] for record in records]), np.uint8)
    if not are_alike:
        return None
    rows = rows.reshape(len(records), nbytes)
    columns = {path: _column(rows, at, dtype, shape) for path, dtype, shape, at in fields}
    if objects:
        values = [objects_of(record, stop, len(objects)) for record in records]
        for index, path in enumerate(objects):
            columns[path] = np.fromiter((each[index] for each in values), object, len(records))
    return columns


def _column(rows: np.ndarray, at: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not size:
        return np.empty((len(rows), *shape), dtype)
    column = np.array(rows[:, at : at + size]).view(dtype).reshape(len(rows), *shape)
    return column if dtype.isnative else column.astype(dtype.newbyteorder("="))  # as columns are


@cached_by_head
def _layout(head: bytes) -> _Layout | None:
    """The fields of one size, where each begins, and their bytes; the paths of others, and those of all in their order.
    None of an element that becomes no dense columns.
    """
    node = unpacked(head)
    fields: list[tuple[Path, Any, tuple[int, ...]]] = []
    objects: list[Path] = []
    if node[0] == "R":
        for path, code, *rest in node[1]:
            if code == "O":
                objects.append(tuple(path))
            else:
                fields.append((tuple(path), dtype_of(rest[0]), tuple(rest[1])))
    elif not _all_numbers(node, (), fields):
        return None
    sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for _, dtype, shape in fields]
    starts = np.cumsum([0, *sizes]).tolist()
    order = [tuple(path) for path, *_ in node[1]] if node[0] == "R" else sorted(path for path, *_ in fields)
    return [(*field, at) for field, at in zip(fields, starts, strict=False)], starts[-1], objects, order


def _all_numbers(node: Any, path: Path, fields: list[tuple[Path, Any, tuple[int, ...]]]) -> bool:
    """Whether this becomes dense columns, and their fields."""
    if isinstance(node, str):
        if node in NUMBER_DTYPES:
            fields.append((path, NUMBER_DTYPES[node], ()))
        return node in NUMBER_DTYPES
    if node[0] == "d":
        are_names = bool(node[1]) and all(isinstance(key, str) for key in node[1])
        return are_names and all(_all_numbers(n, (*path, k), fields) for k, n in zip(*node[1:], strict=True))
    if node[0] not in ("a", "g"):
        return False
    dtype = dtype_of(node[1])
    fields.append((path, dtype, tuple(node[2]) if node[0] == "a" else ()))
    return not is_host_only(dtype)
