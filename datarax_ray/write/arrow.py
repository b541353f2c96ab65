"""From columns to Arrow: a schema of the first elements, and tables of that schema.

read.formats.arrow.columns is the way back: dense arrays come back as they were, objects as Python has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.formats.arrow.columns import UnlikeError
from datarax_ray.read.formats.arrow.elements import Exactly, inferred

if TYPE_CHECKING:
    import pyarrow as pa


class UnfitError(ValueError):
    """A value that has no place in the written format."""


def schema_of(columns: Columns) -> pa.Schema:
    """The Arrow schema of rows like these.

    Raises: UnfitError for a field that Arrow has no type for, and for one whose values are all None.
    """
    import pyarrow as pa

    if not isinstance(columns, Mapping):
        raise UnfitError("an element is no dict of fields, and columns have names; make it a dict in a transform")
    return pa.schema([pa.field(name, _type(columns[name], name)) for name in columns])


def table_of(columns: Columns, schema: pa.Schema) -> pa.Table:
    """The rows as a table of this schema. Raises: UnfitError for a field of another type, by name."""
    import pyarrow as pa

    if not isinstance(columns, Mapping) or set(columns) != set(schema.names):
        have = sorted(columns) if isinstance(columns, Mapping) else type(columns).__name__
        raise UnfitError(f"there are the fields {have}, and {sorted(schema.names)} in the first elements")
    return pa.Table.from_arrays([_array(columns[each.name], each.type, each.name) for each in schema], schema=schema)


def _type(column: Any, name: str) -> pa.DataType:
    import pyarrow as pa

    if isinstance(column, Mapping):
        return pa.struct([pa.field(key, _type(value, f"{name}.{key}")) for key, value in column.items()])
    try:
        kind = inferred(column.tolist()) if column.dtype == object else pa.from_numpy_dtype(column.dtype)
    except (pa.ArrowException, TypeError, ValueError) as error:
        found = type(column[0]).__name__ if column.dtype == object else str(column.dtype)
        raise UnfitError(
            f"field {name!r} is {found}, which Parquet has no type for ({error}); make it another in a transform, or "
            "write ArrayRecord"
        ) from error
    if _has_null(kind):
        raise UnfitError(
            f"field {name!r} is {column[0]!r} in the first {len(column)} elements, so its type is unknown; write "
            "ArrayRecord, which needs no type"
        )
    if column.ndim == 2:
        return pa.list_(kind, column.shape[1])
    return kind if column.ndim == 1 else pa.fixed_shape_tensor(kind, column.shape[1:])


def _has_null(kind: Any) -> bool:
    """Whether this type holds the null type: the type of None alone, and of the items of empty lists."""
    from pyarrow import types as t

    return bool(t.is_null(kind)) or any(_has_null(kind.field(index).type) for index in range(kind.num_fields))


def _array(column: Any, kind: Any, name: str) -> Any:
    import pyarrow as pa

    if isinstance(column, Mapping):
        if not pa.types.is_struct(kind) or {each.name for each in kind} != set(column):
            raise UnfitError(f"field {name!r} has the fields {sorted(column)}, and is {kind} in the first elements")
        return pa.StructArray.from_arrays(
            [_array(column[each.name], each.type, f"{name}.{each.name}") for each in kind], fields=list(kind)
        )
    try:
        if column.dtype == object:
            return Exactly(fills=True).array(column.tolist(), kind, name)
        if (found := _type(column, name)) != kind:
            raise UnfitError(f"field {name!r} is {found}, and {kind} in the first elements")
        if column.ndim == 1:
            return pa.array(column, kind)
        if column.ndim == 2:
            flat = pa.array(np.ascontiguousarray(column).reshape(-1), kind.value_type)
            return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))
    except (pa.ArrowException, UnlikeError, TypeError, OverflowError) as error:
        raise UnfitError(
            f"field {name!r} is {kind} in the first elements, and has another value here: {error}"
        ) from error
