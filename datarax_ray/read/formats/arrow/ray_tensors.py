"""Tensors of one shape as Ray Data writes them: a list for each row, of which the extension type knows the shape.

The type is registered where Ray Data was imported; elsewhere its words stand beside the field. Both come to the same.
Source: ray.data._internal.tensor_extensions.arrow (ArrowTensorType, ArrowTensorTypeV2).
"""

from __future__ import annotations

import functools
import json
import math
import pickletools
from typing import TYPE_CHECKING, Any

from datarax_ray.read.formats.arrow.exact import is_list

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = (b"ray.data.arrow_tensor", b"ray.data.arrow_tensor_v2")


def with_shapes(table: pa.Table) -> pa.Table:
    """The table with nested fixed-size lists in place of tensors of Ray Data's. Nothing but offsets is looked at.

    Raises: ValueError for a field whose shape cannot be read, or is not that of its rows.
    """
    import pyarrow as pa

    for index, part in enumerate(table.schema):
        (name, told), kind = _told(part), getattr(part.type, "storage_type", part.type)
        if name not in _NAMES or not is_list(kind):
            continue
        try:
            shape = _shape(told)
            chunks = [_shaped(getattr(chunk, "storage", chunk), shape) for chunk in table.column(index).chunks]
            column = pa.chunked_array(chunks, functools.reduce(pa.list_, reversed(shape), kind.value_type))
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(
                f"field {part.name!r} is a tensor of Ray Data, and its rows are not of the shape {told!r} that is "
                f"written beside it: {error}"
            ) from error
        table = table.set_column(index, part.name, column)
    return table


def _told(part: Any) -> tuple[bytes, bytes]:
    """The name of a field's extension type, and what it was written with; nothing of a field of Arrow's own types."""
    import pyarrow as pa

    if isinstance(part.type, pa.ExtensionType):
        return part.type.extension_name.encode(), part.type.__arrow_ext_serialize__()
    found = part.metadata or {}
    return found.get(b"ARROW:extension:name", b""), found.get(b"ARROW:extension:metadata", b"")


def _shape(told: bytes) -> list[int]:
    """Raises: ValueError for what is none."""
    try:
        shape = json.loads(told)
    except ValueError:  # Ray 2.49 to 2.54 pickled it: a pickle of numbers, of which nothing is run
        shape = [value for code, value, _ in pickletools.genops(told) if code.name.startswith("BININT")]
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
