"""Rows: elements in the form in which a reader has them, as a list of elements or as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datarax_ray.plan.cipher import Indices
from datarax_ray.read.columns import concatenate, leaves, map_leaves, spec, unstack

Rows = list[Any] | Mapping[str, Any]


def join(parts: Sequence[Rows]) -> Rows:
    """All rows, one part after the other: columns where all are columns of one kind, else elements.

    >>> join([{"x": np.arange(2)}, {"x": np.arange(3)}])
    {'x': array([0, 1, 0, 1, 2])}
    >>> join([[{"x": 1}], {"x": np.arange(1)}])
    [{'x': 1}, {'x': np.int64(0)}]
    """
    parts = [rows for rows in parts if count(rows)]
    if len(parts) < 2:
        return parts[0] if parts else []
    if all(isinstance(rows, Mapping) for rows in parts):
        first = spec(parts[0])
        if all(spec(rows) == first for rows in parts):
            return concatenate(parts)
    return [element for rows in parts for element in elements(rows)]


def take(rows: Rows, indices: Indices) -> Rows:
    """The rows at these indices; views where they are consecutive."""
    where: Any = indices
    if len(indices) and (np.diff(indices) == 1).all():
        where = slice(int(indices[0]), int(indices[-1]) + 1)
    if not isinstance(rows, list):
        return map_leaves(lambda column: column[where], rows)
    return rows[where] if isinstance(where, slice) else [rows[index] for index in indices.tolist()]


def elements(rows: Rows) -> list[Any]:
    """The elements one by one."""
    return rows if isinstance(rows, list) else unstack(rows, count(rows))


def count(rows: Rows) -> int:
    """The number of rows."""
    if isinstance(rows, list):
        return len(rows)
    return next((len(column) for _, column in leaves(rows)), 0)
