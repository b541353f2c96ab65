"""Sizes of elements, by a field: what the weights of a mixture share out, where that is not elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import given_note, leaves


def check_packed(stream: Any, fields: Iterable[str]) -> None:
    """Raise ValueError where packing drops the field whose sizes the weights of a mixture share out."""
    weights_by = getattr(stream, "weights_by", None)
    if weights_by is not None and weights_by not in fields:
        raise ValueError(
            f"the mixture has weights_by={weights_by!r}, and packing takes the fields {list(fields)} alone, so nobody "
            f"would know the sizes; name one of these, or add {weights_by!r} to the packing's fields"
        )
    for each in getattr(stream, "components", ()):
        check_packed(each, fields)


def sizes_of(block: Block, field: str) -> Indices:
    """The size of each element by this field, int64 (k,): the length of a list, array or text, or an integer itself.

    Of documents that are packed, their tokens. Raises: ValueError where the field is missing, or has no such size.
    """
    columns = {".".join(path): array for path, array in leaves(block.columns)}
    if (column := columns.get(field)) is None:
        error = KeyError(field)
        raise ValueError(f"weights_by={field!r} is no field of the elements: {given_note(block.columns, error)}")
    if block.lengths is not None:
        return block.lengths
    if column.dtype == object:
        try:
            return np.fromiter(map(len, column), np.int64, len(column))
        except TypeError as error:
            raise ValueError(f"weights_by={field!r} needs a length of every element: {error}") from error
    if column.ndim > 1:
        return np.full(len(column), column.shape[1], np.int64)
    if column.dtype.kind not in "iu" or column.min() < 0:
        raise ValueError(
            f"weights_by={field!r} is a list, an array or a text, whose length counts, or a whole number from 0 on, "
            f"got {column.dtype} such as {column.min()}; make one of it in a transform (milliseconds of seconds, say)"
        )
    return column.astype(np.int64)
