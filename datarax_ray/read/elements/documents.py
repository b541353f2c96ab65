"""Documents for packing: the fields of elements laid end to end, with the length of each; and sizes of elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.read.elements.columns import (
    Columns,
    given_note,
    is_host_only,
    leaves,
    ragged_row,
    unstack,
    unstack_to_stack,
)
from datarax_ray.read.elements.progress import Call, Progress
from datarax_ray.read.elements.rows import Joined, joined


def join(progress: Progress, columns: Columns, documents: DocumentSpec) -> tuple[Columns, Indices]:
    """The fields of all documents, each end to end: {name: (sum of lengths, ...)}, and the lengths, int64 (k,).

    columns: the elements as columns; None where progress has them. Afterwards the positions in `progress` are those of
    the documents. An element that is no document is a failure of its record.
    """
    if columns is not None:
        if (made := _whole(columns, documents)) is not None:
            return made
        progress.elements = unstack(columns, len(progress.positions))
    progress.run([Call(lambda element, *_: list(_documents(element, documents)), "packing", "flat_map")])
    _cut_at_the_first_odd(progress, documents)
    elements = progress.elements
    if not elements:
        return None, np.empty(0, np.int64)
    lengths = np.array([len(element[documents.fields[0]]) for element in elements], np.int64)
    return {name: np.concatenate([element[name] for element in elements]) for name in documents.fields}, lengths


def as_rows(progress: Progress, columns: Columns, documents: DocumentSpec) -> Columns:
    """The elements as columns, with each document as a row of its own: an array in a column of objects.

    columns, failures: as of join; None where progress has the elements, to be stacked. Empty documents stay.
    """
    if columns is not None:
        fields = documents.fields
        if _whole(columns, documents) is not None and all(columns[name].dtype == object for name in fields):
            return columns
        progress.elements = unstack_to_stack(columns, len(progress.positions))

    def row(element: Any, *_: int) -> Any:
        arrays = _arrays(element, documents)
        length, limit = len(arrays[documents.fields[0]]), documents.max_length
        if limit is not None and length > limit:
            raise ValueError(
                f"{documents.fields[0]!r} has length {length}, and the last of the boundaries is {limit}; add one, cut "
                "such elements in a transform, or leave them out by a filter, or on_error='skip'"
            )
        return {**element, **{name: ragged_row(array) for name, array in arrays.items()}}

    progress.run([Call(row, "batching by length")])
    _cut_at_the_first_odd(progress, documents)
    return None


def _whole(columns: Columns, documents: DocumentSpec) -> tuple[Columns, Indices] | None:
    """Columns whose rows are documents as they are; None where a row must be looked at alone."""
    parts = [_end_to_end(columns.get(name)) for name in documents.fields] if isinstance(columns, Mapping) else [None]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    lengths = found[0][1]
    is_too_long = documents.max_length is not None and lengths.max(initial=0) > documents.max_length
    if is_too_long or any(not np.array_equal(lengths, its) for _, its in found[1:]):
        return None
    return {name: flat for name, (flat, _) in zip(documents.fields, found, strict=True)}, lengths


def _end_to_end(column: Any) -> tuple[np.ndarray, Indices] | None:
    """The rows of a column, end to end, and their lengths; None where one is empty, missing, or no array of numbers."""
    made = joined(column)
    if isinstance(made, Joined):
        return None if is_host_only(made.flat.dtype) or (made.lengths < 1).any() else (made.flat, made.lengths)
    if not isinstance(column, np.ndarray) or column.ndim < 2 or is_host_only(column.dtype) or not column.shape[1]:
        return None
    count, length = column.shape[:2]
    return column.reshape(count * length, *column.shape[2:]), np.full(count, length, np.int64)


def _documents(element: Any, documents: DocumentSpec) -> Iterator[dict[str, np.ndarray]]:
    """The documents of one element: none of an empty element, several of a long one that is split, else one."""
    arrays = _arrays(element, documents)
    length = len(arrays[documents.fields[0]])
    if not length:
        return
    limit = documents.max_length or length
    if length > limit and documents.too_long == "raise":
        raise ValueError(
            f"{documents.fields[0]!r} has {length} tokens, and a row has {limit}; use too_long='truncate' or 'split', "
            "a larger seq_len, or on_error='skip' to leave such documents out"
        )
    if length <= limit:
        yield arrays
        return
    for start in range(0, length if documents.too_long == "split" else 1, limit):
        yield {name: array[start : start + limit] for name, array in arrays.items()}


def _arrays(element: Any, documents: DocumentSpec) -> dict[str, np.ndarray]:
    """The fields of one element, which have one length."""
    if not isinstance(element, Mapping):
        raise TypeError(f"an element to pack is a dict, got {type(element).__name__}")
    if missing := [name for name in documents.fields if name not in element]:
        raise ValueError(
            f"the element has no field {missing[0]!r}, only {sorted(element)}.{nearest(missing, map(str, element))}"
        )
    arrays = {name: _array(name, element[name]) for name in documents.fields}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"fields that are packed together must have one length in each element, got {lengths}")
    return arrays


def _array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if not array.size and not isinstance(value, np.ndarray):
        return np.empty(0, np.int64)  # an empty list has no dtype, and an empty document needs none
    if is_host_only(array.dtype):
        raise TypeError(
            f"{name!r} is {type(value).__name__}, and packing joins numbers; make tokens of it in a transform, "
            "np.frombuffer(text.encode(), np.uint8) for its bytes"
        )
    if not array.ndim:
        raise ValueError(f"{name!r} is a single value; packing joins arrays and lists, one entry for each token")
    return array


def _cut_at_the_first_odd(progress: Progress, documents: DocumentSpec) -> None:
    """End the block before the first document of another dtype; np.concatenate would convert it silently."""
    for name in documents.fields:
        kinds = [(element[name].dtype, element[name].shape[1:]) for element in progress.elements if len(element[name])]
        found = next((kind for kind in kinds if kind != kinds[0]), None)
        if found is not None:
            (first, rows), (dtype, other_rows) = kinds[0], found
            each = ((array.dtype, array.shape[1:], len(array)) for array in (e[name] for e in progress.elements))
            odd = next(index for index, (*kind, size) in enumerate(each) if size and tuple(kind) == found)
            progress.cut(
                odd,
                f"field {name!r} is {first} with rows of shape {rows} in one document, {dtype} {other_rows} in "
                "another; make them alike in a transform",
            )


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


def sizes_of(columns: Columns, lengths: Indices | None, field: str) -> Indices:
    """The size of each element by this field, int64 (k,): the length of a list, array or text, or an integer itself.

    lengths: of documents that are packed. Raises: ValueError where the field is missing, or has no such size.
    """
    column = {".".join(path): array for path, array in leaves(columns)}.get(field)
    if column is None:
        error = KeyError(field)
        raise ValueError(f"weights_by={field!r} is no field of the elements: {given_note(columns, error)}")
    if lengths is not None:
        return lengths
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
