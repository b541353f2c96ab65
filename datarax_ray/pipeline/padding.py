"""Batches of one shape: the last one filled up, and a mask in every one that tells its rows from the filling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from datarax_ray.feed.batches import HostBatch
from datarax_ray.read.elements.columns import map_leaves

VALID_MASK = "valid_mask"


def pad(batch: HostBatch, num_rows: int, global_rows: int, fill: Mapping[str, Any] | None = None) -> HostBatch:
    """The batch with `num_rows` rows in this process, of `global_rows` in all, and the field valid_mask.

    valid_mask: bool (num_rows,), True for the batch's own rows. Those after them are what `fill` has for their field,
    else zeros, or None in object columns, and stand at position 0.

    Raises: ValueError where the elements are no dicts, or have a field valid_mask of their own.
    """
    if not isinstance(batch.columns, Mapping):
        raise ValueError(
            f"the elements are single values ({batch.columns.dtype}), so {VALID_MASK!r} has no place beside them; "
            "return a dict from a transform, or use drop_remainder=True"
        )
    if VALID_MASK in batch.columns:
        raise ValueError(
            f"the elements have a field {VALID_MASK!r}, which pad_remainder=True would overwrite; "
            "give it another name in a transform, or use drop_remainder=True"
        )
    mask = np.arange(num_rows) < batch.num_rows
    columns = map_leaves(lambda column: _fill(column, num_rows), batch.columns)
    for name, value in (fill or {}).items():
        columns[name] = _fill(batch.columns[name], num_rows, value)
    return replace(
        batch,
        columns=columns | {VALID_MASK: mask},
        positions=_fill(batch.positions, num_rows),
        ordinals=None if batch.ordinals is None else _fill(batch.ordinals, num_rows),
        global_rows=global_rows,
    )


def _fill(column: np.ndarray, num_rows: int, value: Any = 0) -> np.ndarray:
    if len(column) == num_rows:
        return column
    filling = None if column.dtype == object else np.full((), value, column.dtype)
    filled = np.full((num_rows, *column.shape[1:]), filling, column.dtype)
    filled[: len(column)] = column
    return filled
