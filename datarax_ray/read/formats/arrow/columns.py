"""From Arrow to block columns: whole columns at once, without a copy where the two layouts are one.

What each type becomes stands in read.formats.arrow.column_types, which also decides what Arrow's types leave open. Here
lists are what their type says: fixed-size ones dense, others an array or a list for each row; and a null of a number,
or of a fixed-size list, has no place, and is an error unless `fill` says what to put there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns, concatenate, leaves

if TYPE_CHECKING:
    import pyarrow as pa

MAX_JOINED_NBYTES = 2**31 - 1  # of text and lists: Arrow counts what is in one array in 32 bits
Fill = Mapping[str, Any]  # field, dotted -> what stands for a null of it; None makes it an object column with None


class UnlikeError(ValueError):
    """Values of a field that have no place in the array that it is read as. The caller knows the remedy.

    is_of_nulls: whether they are nulls, in place of which a value would do.
    """

    def __init__(self, field: str, message: str, *, is_of_nulls: bool = False) -> None:
        super().__init__(message)
        self.field = field
        self.is_of_nulls = is_of_nulls


def table_columns(table: pa.Table, fill: Fill) -> Columns:
    """The columns of a table. Arrays are read-only, as many are views of its memory.

    Raises: UnlikeError for nulls that have no place, naming the field; ValueError for a fill that is no such value.
    """
    found = {name: _column(column, name, fill) for name, column in zip(table.column_names, table.columns, strict=True)}
    for _, array in leaves(found):
        array.setflags(write=False)
    return found


def refuse_null_structs(column: pa.ChunkedArray, name: str, fill: Fill, on_host: Collection[str]) -> None:
    """Raise UnlikeError for a struct that is null, where `fill` has nothing for it and for no field in it.

    on_host: fields that are objects, by dotted path; a null of these is None.

    A dict of columns would have it as a struct of which each field is null.
    """
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_struct(kind) or not kind.num_fields or name in fill or name in on_host:
        return
    if column.null_count and not any(field.startswith(f"{name}.") for field in fill):
        nulls = _count_of_nulls(column)
        raise UnlikeError(name, f"field {name!r} (struct) {nulls}, and a dict of columns has no place for that")
    for part, child in zip(kind, column.flatten(), strict=True):
        refuse_null_structs(child, f"{name}.{part.name}", fill, on_host)


def rows_of(table: pa.Table, rows: Indices) -> pa.Table:
    """These rows of the table, int64 (k,); not by Table.take, which has not all types, nor joins more than 2 GiB."""
    import pyarrow as pa

    bounds = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    runs = [table.slice(int(rows[first]), stop - first) for first, stop in itertools.pairwise(bounds)]
    return runs[0] if len(runs) == 1 else pa.concat_tables(runs).combine_chunks()


def plain_type(kind: pa.DataType) -> str:
    """What a column of this type becomes, in Arrow's words: types that give the same arrays have the same."""
    import pyarrow as pa

    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if not isinstance(kind, pa.FixedShapeTensorType):
            return plain_type(kind.storage_type)
        return f"tensor{[kind.shape[axis] for axis in _axes(kind)]} of {kind.value_type}"
    if t.is_dictionary(kind):
        return plain_type(kind.value_type)
    if t.is_struct(kind):
        return "struct<" + ", ".join(sorted(f"{field.name}: {plain_type(field.type)}" for field in kind)) + ">"
    if t.is_fixed_size_list(kind):
        return f"fixed_size_list<{plain_type(kind.value_type)}>[{kind.list_size}]"
    if t.is_map(kind):
        return f"map<{plain_type(kind.key_type)}, {plain_type(kind.item_type)}>"
    if _is_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    is_bytes = t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
    return "binary" if is_bytes else str(kind)


def typed(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a column of which some rows have the one and some the other: they are the same to plain_type, but for
    what is null in one of them, where no row has a value; None where they are not.

    >>> import pyarrow as pa
    >>> typed(pa.struct([("a", pa.null()), ("b", pa.int8())]), pa.struct([("a", pa.string()), ("b", pa.null())]))
    StructType(struct<a: string, b: int8>)
    >>> typed(pa.null(), pa.list_(pa.int64())), typed(pa.string(), pa.list_(pa.null()))
    (ListType(list<item: int64>), None)
    """
    import pyarrow as pa

    t = pa.types
    if plain_type(one) == plain_type(other):
        return one
    if t.is_null(one) or t.is_null(other):
        return other if t.is_null(one) else one
    if t.is_struct(one) and t.is_struct(other):
        names = [field.name for field in one]
        if sorted(names) != sorted(field.name for field in other):
            return None
        kinds = [typed(one.field(name).type, other.field(name).type) for name in names]
        return None if None in kinds else pa.struct(list(zip(names, kinds, strict=True)))
    if _is_list(one) and _is_list(other):
        kind = typed(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    return None


def retyped(column: pa.ChunkedArray, kind: pa.DataType, *, repair: bool = False) -> pa.ChunkedArray:
    """The column as of this type: what `typed` gave for its own and another, or its own with lists of one length.

    repair: also what has its type already, which may be lists of too few nulls, as pyarrow's parser of JSON makes them.
    Raises: pyarrow.ArrowInvalid for lists of another length.
    """
    import pyarrow as pa

    if column.type == kind and not repair:
        return column
    return pa.chunked_array([_retyped(each, kind, repair) for each in column.chunks], kind)


def _retyped(array: pa.Array, kind: pa.DataType, repair: bool) -> pa.Array:
    """Not by pyarrow's cast: it makes too few of nulls in lists (26.0), and breaks extension types in structs (24)."""
    import pyarrow as pa

    if array.type == kind and not repair:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    is_null = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind) and kind.num_fields:  # one without fields has its length from nothing else
        parts = [_retyped(array.field(field.name), field.type, repair) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)
    is_large = pa.types.is_large_list(kind)
    if (is_large or pa.types.is_list(kind)) and isinstance(array, pa.ListArray | pa.LargeListArray):
        # of a slice, the offsets are one too, which pyarrow does not take beside a mask
        offsets = pa.array(array.offsets.to_numpy(), pa.int64() if is_large else pa.int32())
        made = pa.LargeListArray if is_large else pa.ListArray
        values = pa.nulls(offsets[-1].as_py()) if pa.types.is_null(array.type.value_type) else array.values
        return made.from_arrays(offsets, _retyped(values, kind.value_type, repair), kind, mask=is_null)
    return array.cast(kind)


def fixed_nbytes(kind: pa.DataType) -> int | None:
    """Bytes of one value as it lies in an array; None where that depends on the value."""
    import pyarrow as pa

    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_nbytes(kind.storage_type)
    if t.is_fixed_size_list(kind):
        inner = fixed_nbytes(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if t.is_struct(kind):
        parts = [fixed_nbytes(field.type) for field in kind]
        return None if None in parts else sum(part for part in parts if part is not None)
    if t.is_boolean(kind):
        return 1
    return max(1, kind.bit_width // 8) if t.is_primitive(kind) else None


def _column(column: pa.ChunkedArray, name: str, fill: Fill) -> Columns:
    if column.num_chunks == 1:
        return _convert(column.chunk(0), name, fill)
    if column.nbytes <= MAX_JOINED_NBYTES:
        return _convert(column.combine_chunks(), name, fill)  # a copy
    return concatenate([_convert(array, name, fill) for array in column.chunks])  # as of one row group of much text


def _convert(array: pa.Array, name: str, fill: Fill) -> Columns:
    import pyarrow as pa

    t, kind = pa.types, array.type
    if isinstance(kind, pa.BaseExtensionType):
        if not isinstance(kind, pa.FixedShapeTensorType):
            return _convert(array.storage, name, fill)
        if name in fill and fill[name] is None:
            return objects(array)
        as_stored = _convert(array.storage, name, _flat(fill, name, kind)).reshape(len(array), *kind.shape)
        return np.ascontiguousarray(as_stored.transpose(0, *(axis + 1 for axis in _axes(kind))))
    if t.is_dictionary(kind):
        if array.null_count or t.is_nested(kind.value_type):
            return _convert(array.dictionary_decode(), name, fill)
        return _convert(array.dictionary, name, fill)[array.indices.to_numpy()]
    if name in fill:
        if fill[name] is None:
            return objects(array)
        array = _filled(array, name, fill[name])
    if t.is_struct(kind) and not kind.num_fields:
        return objects(array)  # a dict of no columns would have no rows
    if t.is_struct(kind):
        # flatten() hands a null of the struct down to its fields, for which `fill` has values; see refuse_null_structs
        return {
            kind.field(index).name: _convert(child, f"{name}.{kind.field(index).name}", fill)
            for index, child in enumerate(array.flatten())
        }
    if t.is_fixed_size_list(kind):
        _refuse_nulls(array, name)
        _refuse_nulls_inside(array, name)
        inner = _convert(array.flatten(), name, {})
        if not isinstance(inner, np.ndarray):
            return objects(array)
        return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if t.is_map(kind):
        return objects(array)
    if _is_list(kind):
        return _lists(array, name)
    if t.is_time(kind):
        width = array.cast(pa.int32()).cast(pa.int64()) if t.is_time32(kind) else array.cast(pa.int64())
        array = width.view(pa.duration(kind.unit))
    elif is_number(kind):
        _refuse_nulls(array, name)
    if t.is_integer(kind) or t.is_floating(kind):
        return _view(array)
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    return found


def _view(array: Any) -> np.ndarray:
    """Numbers without nulls. to_numpy gives the same view, and imports pandas: 0.5 s and 40 MB in every actor."""
    import pyarrow as pa

    names = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    dtype = np.dtype(names.get(array.type, str(array.type)))
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _axes(kind: Any) -> list[int]:
    """The axes of one of Arrow's own tensors: of each, which it is in the shape as it is stored.

    Other extension types exist only in processes that registered them (`datasets` does), and what a column becomes must
    not depend on that.

    Raises: ValueError for an order that is not its own inverse: pyarrow (26.0) writes the inverse of what Arrow's
    specification has, and reads neither.
    """
    axes = list(kind.permutation or range(len(kind.shape)))
    if [axes[axis] for axis in axes] != sorted(axes):
        raise ValueError(f"{kind} has its axes in an order that writers mean in two ways; write it without one")
    return axes


def _lists(array: Any, name: str) -> np.ndarray:
    inner = array.type.value_type
    if not is_number(inner):
        return objects(array)
    _refuse_nulls_inside(array, name)
    if not array.values.null_count or not len(array):
        rows: np.ndarray = array.to_numpy(zero_copy_only=False)
        return rows
    import pyarrow.compute as pc  # nulls that lie below rows that are null: to_numpy would make floats of all

    flat = _convert(array.flatten(), name, {})
    stops = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy())
    parts = np.split(flat, stops[:-1])
    is_valid = array.is_valid().to_pylist()
    return np.fromiter(
        (part if valid else None for part, valid in zip(parts, is_valid, strict=True)), object, len(parts)
    )


def _filled(array: Any, name: str, value: Any) -> Any:
    import pyarrow as pa

    try:
        if pa.types.is_null(array.type):  # nothing tells what it would be, but the value
            array = array.cast(pa.scalar(value).type)
        scalar = pa.scalar(value, array.type)
        if isinstance(value, Number) and pa.types.is_integer(array.type) and scalar.as_py() != value:
            raise pa.ArrowInvalid(f"it would be {scalar}")  # Arrow cuts 0.5 to 0 and says nothing
        return array.fill_null(scalar)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise ValueError(
            f"fill_nulls gives {value!r} for field {name!r} of {array.type}, which cannot be: {error}; give a value of "
            f"that type{_example(array.type)}, or None to get objects with None"
        ) from error


def _example(kind: Any) -> str:
    """A value of this type as Python has it, with a comma before it; "" where no plain one is known."""
    import pyarrow as pa

    values: tuple[Any, ...] = (0, False, "", [])
    for value in values:
        try:
            return f", as {pa.scalar(value, kind).as_py()!r}"
        except (pa.ArrowException, TypeError, ValueError):
            continue
    return ""


def _refuse_nulls(array: Any, name: str) -> None:
    if array.null_count:
        raise UnlikeError(
            name,
            f"field {name!r} ({array.type}) {_count_of_nulls(array)}, and a dense array has no place for that",
            is_of_nulls=True,
        )


def _refuse_nulls_inside(array: Any, name: str) -> None:
    import pyarrow as pa

    inner = array.flatten()
    if inner.null_count and (is_number(inner.type) or pa.types.is_fixed_size_list(inner.type)):
        raise UnlikeError(
            name, f"field {name!r} has nulls inside its lists, and an array of {inner.type} has no place for them"
        )


def _count_of_nulls(array: Any) -> str:
    return f"has {array.null_count} nulls in {len(array)} rows" if len(array) > 1 else "is null"


def with_nulls_as_lists(array: Any) -> Any:
    """An array or column of Array2D to Array5D of `datasets` that has nulls, as lists: its own to_pylist fails on nulls
    where lengths differ. Any other as it is.
    """
    import pyarrow as pa

    if not array.null_count or not hasattr(array.type, "storage_dtype"):
        return array
    return pa.chunked_array([each.storage for each in getattr(array, "chunks", [array])])


def _flat(fill: Fill, name: str, kind: Any) -> Fill:
    """With what stands for a null tensor of this type as it is stored, where that has the tensor's shape."""
    axes = _axes(kind)
    value = np.asarray(fill.get(name))
    is_shaped = value.shape == tuple(kind.shape[axis] for axis in axes)
    return {**fill, name: value.transpose(axes).reshape(-1)} if is_shaped else fill


def _tensors(array: Any) -> Iterator[np.ndarray | list[Any] | None]:
    """Those of one of Arrow's own types, each in its shape; pyarrow's to_pylist has them flat. One with nulls inside is
    of nested lists, as no array has a place for these.
    """
    kind = array.type
    axes, dtype = _axes(kind), kind.value_type.to_pandas_dtype()
    for row in array.storage.to_pylist():
        if row is None:
            yield None
            continue
        has_nulls = None in row
        tensor = np.array(row, object if has_nulls else dtype).reshape(kind.shape).transpose(axes)
        yield tensor.tolist() if has_nulls else tensor


def objects(array: Any) -> np.ndarray:
    """The values of an array or a column as Python has them; of Arrow's own tensors arrays."""
    import pyarrow as pa

    if isinstance(array.type, pa.FixedShapeTensorType):
        tensors = (each for chunk in getattr(array, "chunks", [array]) for each in _tensors(chunk))
        return np.fromiter(tensors, object, len(array))
    return np.fromiter(with_nulls_as_lists(array).to_pylist(), object, len(array))


def rows_of_table(table: Any) -> list[dict[str, Any]]:
    """Its rows as Python has them; of Arrow's own tensors nested lists, in their shape."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = table.to_pylist()
    for part in table.schema:
        if isinstance(part.type, pa.FixedShapeTensorType):
            for row, tensor in zip(rows, objects(table[part.name]), strict=True):
                row[part.name] = tensor.tolist() if isinstance(tensor, np.ndarray) else tensor
    return rows


def is_number(kind: Any) -> bool:
    """Whether this is a number or a bool."""
    from pyarrow import types as t

    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types as t

    return any(is_list(kind) for is_list in (t.is_list, t.is_large_list, t.is_list_view, t.is_large_list_view))
