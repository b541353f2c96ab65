"""Arrow's types: which are the same to us, casts that pyarrow gets wrong, and tables without extension types.

Extension types exist only in processes that registered them (`datasets` and Ray Data do). What a column becomes must
not depend on that, so tables are taken as they are stored; tensors as nested lists of one length.
"""

from __future__ import annotations

import functools
import json
import math
import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax_ray.plan.plain_values import digest

if TYPE_CHECKING:
    import pyarrow as pa

_RAY_TENSORS = (b"ray.data.arrow_tensor", b"ray.data.arrow_tensor_v2")


def is_number(kind: Any) -> bool:
    from pyarrow import types as t

    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind))


def is_list(kind: Any) -> bool:
    """Whether this is a list of any layout but a view."""
    from pyarrow import types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def is_list_view(kind: Any) -> bool:
    """Whether this is a list whose offsets and lengths stand apart."""
    from pyarrow import types as t

    return bool(t.is_list_view(kind) or t.is_large_list_view(kind))


def is_varying_list(kind: Any) -> bool:
    """Whether this is a list, or a view of one, whose type leaves the length open."""
    from pyarrow import types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or is_list_view(kind))


def named_type(name: str, kind: Any) -> pa.DataType:
    """The type that column_types gives for a field: Arrow's own, or its name. Raises: ValueError for what is none."""
    import pyarrow as pa

    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.field(name, kind).type
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"column_types gives {kind!r} for {name!r}, which is no type of Arrow; it knows names as 'int64', "
            "'float32', 'string', 'bool', 'date32', 'timestamp[s]', and takes its own types"
        ) from error


def without_extension(kind: pa.DataType) -> pa.DataType:
    """The type that a column of this type is read as: how it is stored, but for Arrow's bools, and its tensors of one
    shape, which are nested lists.

    Raises: ValueError for tensors of permuted axes: pyarrow (26.0) writes the inverse of Arrow's specification.
    """
    import pyarrow as pa

    if getattr(kind, "extension_name", None) == "arrow.bool8":
        return pa.bool_()
    if isinstance(kind, pa.FixedShapeTensorType):
        if list(kind.permutation or ()) != sorted(kind.permutation or ()):
            raise ValueError(f"{kind} has its axes in an order that writers mean in two ways; write it without one")
        return functools.reduce(pa.list_, reversed(kind.shape), kind.value_type)
    return getattr(kind, "storage_type", kind)


@functools.lru_cache(maxsize=1024)
def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type without extensions (as without_extension) and without views of lists, at any depth."""
    import pyarrow as pa

    kind = without_extension(kind)
    if pa.types.is_struct(kind):
        parts = [part.with_type(storage_type(part.type)) for part in kind]
        return kind if parts == list(kind) else pa.struct(parts)
    if is_list_view(kind):
        made = pa.list_ if pa.types.is_list_view(kind) else pa.large_list
        return made(storage_type(kind.value_type))
    if is_list(kind) and (inner := storage_type(kind.value_type)) != kind.value_type:
        return pa.list_(inner, kind.list_size if pa.types.is_fixed_size_list(kind) else -1)
    return kind


def plain_type(kind: pa.DataType) -> str:
    """What a column of this type becomes, in Arrow's words: types that give the same arrays have the same."""
    import pyarrow as pa

    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(without_extension(kind))
    if t.is_dictionary(kind):
        return plain_type(kind.value_type)
    if t.is_struct(kind):
        return "struct<" + ", ".join(sorted(f"{field.name}: {plain_type(field.type)}" for field in kind)) + ">"
    if t.is_fixed_size_list(kind):
        return f"fixed_size_list<{plain_type(kind.value_type)}>[{kind.list_size}]"
    if t.is_map(kind):
        return f"map<{plain_type(kind.key_type)}, {plain_type(kind.item_type)}>"
    if is_varying_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    is_bytes = t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
    return "binary" if is_bytes else str(kind)


def retyped(array: pa.Array, kind: pa.DataType, *, repair: bool = False, rounds: bool = False) -> pa.Array:
    """The array or column as of this type: a result of `joining.joined`, or of storage_type, or the array's own type
    with lists of one length. A field that a struct lacks is null.

    Not by pyarrow's cast: it makes too few of nulls in lists (26.0), breaks extension types in structs (24), and loses
    values of views of lists behind a null, or out of their order (26.0).
    repair: rebuild an array of this very type, which may hold lists of too few nulls, as pyarrow's parser of JSON makes
    them. rounds: integers may lose digits as floats; else no value changes.
    Raises: pyarrow.ArrowInvalid for lists of another length, and for values that the type does not hold.
    """
    import pyarrow as pa

    if array.type == kind and not repair:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([retyped(each, kind, repair=repair, rounds=rounds) for each in array.chunks], kind)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if isinstance(array, pa.FixedShapeTensorArray):
        array = _shaped(array.storage, array.type.shape)
    array = getattr(array, "storage", array)
    array = _without_view(array) if is_list_view(array.type) else array
    if array.type == kind and not repair:
        return array
    is_null = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind) and kind.num_fields:  # one without fields has its length from nothing else
        parts = [
            retyped(array.field(field.name), field.type, repair=repair)
            if array.type.get_field_index(field.name) >= 0
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)
    is_large = pa.types.is_large_list(kind)
    if (is_large or pa.types.is_list(kind)) and isinstance(array, pa.ListArray | pa.LargeListArray):
        # of a slice, the offsets are one too, which pyarrow does not take beside a mask
        offsets = pa.array(array.offsets.to_numpy(), pa.int64() if is_large else pa.int32())
        made = pa.LargeListArray if is_large else pa.ListArray
        values = pa.nulls(offsets[-1].as_py()) if pa.types.is_null(array.type.value_type) else array.values
        return made.from_arrays(offsets, retyped(values, kind.value_type, repair=repair), kind, mask=is_null)
    if isinstance(array, pa.FixedSizeListArray):
        size = array.type.list_size
        if pa.types.is_fixed_size_list(kind) and kind.list_size == size:
            # of a slice, all values; flatten() leaves those out that lie below nulls
            values = retyped(array.values.slice(array.offset * size, len(array) * size), kind.value_type)
            return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=is_null)
        if pa.types.is_list(kind):
            return retyped(array.cast(pa.list_(array.type.value_type)), kind)
    return array.cast(kind, safe=not (rounds and pa.types.is_integer(array.type) and pa.types.is_floating(kind)))


def _without_view(array: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy())])
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), array.flatten(), mask=mask)


def fixed_nbytes(kind: pa.DataType) -> int | None:
    """Bytes of one value in an array; None where values differ in size."""
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


def stored(table: pa.Table) -> pa.Table:
    """The table without extension types. Raises: as with_shapes."""
    table = with_shapes(table)
    for index, column in enumerate(table.columns):
        if (kind := storage_type(column.type)) != column.type:
            table = table.set_column(index, table.column_names[index], retyped(column, kind))
    return table


def with_shapes(table: pa.Table) -> pa.Table:
    """The table with nested fixed-size lists in place of Ray Data's tensors of one shape, whose values stay in place.

    Ray Data stores a flat list for each row; the type that knows the shape is registered where Ray Data was imported,
    and elsewhere its words stand beside the field. Source: ray.data._internal.tensor_extensions.arrow (ArrowTensorType,
    ArrowTensorTypeV2).

    Raises: ValueError for a field whose shape cannot be read, or is not that of its rows.
    """
    import pyarrow as pa

    for index, part in enumerate(table.schema):
        (name, shape_text), kind = _extension(part), getattr(part.type, "storage_type", part.type)
        if name not in _RAY_TENSORS or not is_list(kind):
            continue
        try:
            shape = _shape(shape_text)
            chunks = [_shaped(getattr(chunk, "storage", chunk), shape) for chunk in table.column(index).chunks]
            column = pa.chunked_array(chunks, functools.reduce(pa.list_, reversed(shape), kind.value_type))
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(
                f"field {part.name!r} is a tensor of Ray Data, and its rows are not of the shape {shape_text!r} that "
                f"is written beside it: {error}"
            ) from error
        table = table.set_column(index, part.name, column)
    return table


def _extension(part: Any) -> tuple[bytes, bytes]:
    """The name of a field's extension type, and the text that it was written with; empty for Arrow's own types."""
    import pyarrow as pa

    if isinstance(part.type, pa.ExtensionType):
        return part.type.extension_name.encode(), part.type.__arrow_ext_serialize__()
    found = part.metadata or {}
    return found.get(b"ARROW:extension:name", b""), found.get(b"ARROW:extension:metadata", b"")


def _shape(text: bytes) -> list[int]:
    """Raises: ValueError for a text that is no shape."""
    try:
        shape = json.loads(text)
    except ValueError:  # Ray 2.49 to 2.54 pickled it: a pickle of numbers, of which nothing is run
        shape = [value for code, value, _ in pickletools.genops(text) if code.name.startswith("BININT")]
    if not isinstance(shape, list) or not shape or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("it is no list of sizes")
    return shape


def _shaped(array: Any, shape: list[int]) -> Any:
    """Lists as nested ones of these sizes, over the same values where no row is null."""
    import pyarrow as pa

    flat = array.cast(pa.list_(array.type.value_type, math.prod(shape)))
    found, stop = flat.values, flat.offset + len(flat)
    for axis in range(len(shape) - 1, 0, -1):
        count = stop * math.prod(shape[:axis])
        found = pa.Array.from_buffers(pa.list_(found.type, shape[axis]), count, [None], children=[found])
    kind = pa.list_(found.type, shape[0])
    return pa.Array.from_buffers(kind, len(flat), flat.buffers()[:1], offset=flat.offset, children=[found])


ERROR, HOST = "error", "host"
_MAX_SHOWN = 100  # characters in a fingerprint, of which a state has one for each component


@dataclass(frozen=True)
class OnNull:
    """default: None, "error", "host" or a value, for the fields that by_field does not name, dotted inside structs."""

    default: Any = None
    by_field: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, on_null: Any) -> OnNull:
        """The setting as a source has it. Raises: TypeError for what is neither a word, a value nor a dict of these.

        >>> OnNull.of({"x": 0}), OnNull.of("host")
        (OnNull(default=None, by_field={'x': 0}), OnNull(default='host', by_field={}))
        """
        if not isinstance(on_null, Mapping):
            if on_null is not None and not isinstance(on_null, Number | str | bytes):
                raise TypeError(
                    f"on_null is 'error', 'host', a number, a text, or a dict of these by field; {on_null!r}"
                )
            return cls(on_null)
        if not all(isinstance(name, str) for name in on_null):
            raise TypeError(f"on_null is a dict by field, got {on_null!r}")
        if unset := [name for name, value in on_null.items() if value is None]:
            raise TypeError(f"on_null gives None for {unset}; 'host' keeps such fields on the host, with None")
        return cls(by_field=dict(on_null))

    def says(self, path: str, word: str) -> bool:
        """Whether a field, or the nearest struct around it that is named, has this word; else the default."""
        names = [path] if path in self.by_field else [name for name in self.by_field if path.startswith(f"{name}.")]
        return _is(self.by_field[max(names, key=len)] if names else self.default, word)

    def fills(self, types: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """By field, the value for its nulls; None for a field on the host. types: of the fields, structs too.

        The default is the value for the fields whose type holds it exactly, and not for lists.
        """
        named = {path: None if _is(value, HOST) else value for path, value in self.by_field.items()}
        named = {path: value for path, value in named.items() if not _is(value, ERROR)}
        if self.default is None or _is(self.default, ERROR, HOST):
            return named
        return {path: self.default for path, kind in types if _holds(kind, self.default)} | named

    def identity(self) -> dict[str, str]:
        """The values that stand for nulls, for a fingerprint; {} without any, as the types of columns tell the rest."""
        found = {path: value for path, value in self.by_field.items() if not _is(value, ERROR, HOST)}
        text = repr(dict(sorted(found.items()))) if self.by_field else repr(self.default)
        if not found and (self.default is None or _is(self.default, ERROR, HOST)):
            return {}
        return {"on_null": text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... {digest(text)}"}


def value_like(kind: Any) -> Any:
    """A value for the nulls of a column of this type, as an example; None where a null of it has no such value."""
    from pyarrow import types as t

    if t.is_boolean(kind):
        return False
    if is_number(kind):
        return 0
    return "" if t.is_string(kind) or t.is_large_string(kind) else None


def _is(value: Any, *words: str) -> bool:
    return isinstance(value, str) and value in words


def _holds(kind: Any, value: Any) -> bool:
    """Whether a column of this type of numbers or text holds the value as it is."""
    import pyarrow as pa

    t = pa.types
    if t.is_boolean(kind) != isinstance(value, bool) or t.is_nested(kind) or t.is_temporal(kind) or t.is_null(kind):
        return False
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return False
