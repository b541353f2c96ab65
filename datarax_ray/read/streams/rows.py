"""Rows: elements in the form in which a reader has them, as a list of elements or as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import leaves, map_leaves, unstack_to_stack


@dataclass(frozen=True)
class Broken:
    """One row that cannot be read. error: why, which on_error decides about."""

    error: Exception


Rows = list[Any] | Mapping[str, Any] | Broken


@dataclass(frozen=True)
class Pick:
    """Some rows, and where they are to stand. rows: int64 (k,) of them; places: int64 (k,) in the result."""

    source: Rows
    rows: Indices
    places: Indices


def gather(picks: Sequence[Pick], total: int) -> Rows:
    """The picked rows in their places, `total` in all: columns where all are columns of one kind, else elements.

    Each is copied once; a single run of rows is not copied at all.

    >>> columns, rows = {"x": np.arange(5)}, np.array([3, 4])
    >>> gather([Pick(columns, rows, np.array([0, 2])), Pick(columns, rows - 3, np.array([3, 1]))], 4)
    {'x': array([3, 1, 4, 0])}
    >>> gather([Pick(columns, rows[:1], np.array([1])), Pick([{"x": 7}], np.array([0]), np.array([0]))], 2)
    [{'x': 7}, {'x': np.int64(3)}]
    """
    picks = [pick for pick in picks if len(pick.rows)]
    if not picks or any(isinstance(pick.source, list) for pick in picks):
        return _elements(picks, total)
    found = [list(leaves(pick.source)) for pick in picks]
    kinds = [[(path, array.shape[1:], array.dtype) for path, array in arrays] for arrays in found]
    if any(kind != kinds[0] for kind in kinds):
        return _elements(picks, total)
    runs = [(_run(pick.rows), _run(pick.places)) for pick in picks]
    if len(picks) == 1 and isinstance(runs[0][1], slice):
        return map_leaves(lambda column: column[runs[0][0]], picks[0].source)
    out = map_leaves(lambda column: np.empty((total, *column.shape[1:]), column.dtype), picks[0].source)
    written = [column for _, column in leaves(out)]
    for arrays, (rows, places) in zip(found, runs, strict=True):
        for column, (_, array) in zip(written, arrays, strict=True):
            # take is half of what array[rows] costs
            column[places] = array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)
    return out


def rows_at(rows: Rows, chosen: Indices) -> Rows:
    """These of the rows. chosen: int64 (k,)."""
    if isinstance(rows, list):
        return [rows[index] for index in chosen.tolist()]
    return map_leaves(lambda column: column[chosen], rows)


def count(rows: Rows) -> int:
    """The number of rows."""
    if isinstance(rows, Broken):
        return 1
    return len(rows) if isinstance(rows, list) else len(next(column for _, column in leaves(rows)))


def _elements(picks: Sequence[Pick], total: int) -> list[Any]:
    out: list[Any] = [None] * total
    for pick in picks:
        source = pick.source if isinstance(pick.source, list) else unstack_to_stack(pick.source, count(pick.source))
        for row, place in zip(pick.rows.tolist(), pick.places.tolist(), strict=True):
            out[place] = source[row]
    return out


def _run(indices: Indices) -> Any:
    """The indices, as a slice where they are consecutive: then NumPy copies nothing, or all at once."""
    if int(indices[-1]) - int(indices[0]) == len(indices) - 1 and (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
