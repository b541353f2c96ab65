"""Columns: elements stacked, and how columns are walked.

An element is a value or a (nested) dict of values. Its columns are the same dict with an array for each value, of shape
(k, ...) for k elements. Numbers and arrays make dense columns, and must agree in shape and dtype. Strings, bytes,
lists, None and other objects make object columns, which stay on the host. Rows of a ragged column, arrays of many
lengths, stay one too until a transform changes them. Nothing is converted silently.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.errors import UnlikeError

Columns = Any  # NDArray, or a dict of Columns
# A batch as people hold it: a column for each field, by name. Elements that are no dicts, and stages, may give another.
Batch: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class FieldSpec:
    """Shape and dtype of one field of an element; dtype object for what stays on the host."""

    shape: tuple[int, ...]
    dtype: np.dtype


Path = tuple[str, ...]

# Rows of ragged columns that are values of elements now, by their id. A row that a transform passes on is a ragged row
# still, even where all rows of a block have one length; an array that it makes of a row is like any other.
_RAGGED_ROWS: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()

_SCALARS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}

_NUMBERS = frozenset({bool, int, float})
_TO_ONE_DTYPE = "convert it to one dtype in a transform (and fill in missing values there)"
_FILL_IN = (
    "fill it in by a transform, or leave such elements out by a filter; of Parquet, CSV, JSON lines and Lance, "
    "on_null={'field': 0} of the source's config fills it in"
)
_TO_ONE_SHAPE = (
    "resize it, or pad it (PadTo({'field': shape}), with the length of each axis), or return it as a list to keep it "
    "ragged on the host"
)
_TO_AS_MANY_AXES = (
    "make it an array of as many axes in every element, in a transform; images of a Hugging Face column that are grey "
    "and in colour are all RGB behind dataset.cast_column('image', datasets.Image(mode='RGB'))"
)
# Grain's MapDataset.filter keeps the length, and gives None where it leaves an element out.
LEAVE_NONE_OUT = (
    "where it is None, as a filter of Grain's MapDataset gives in place of what it drops, leave it out by a first "
    "transform, an object with the method `def filter(self, element): return element is not None`"
)
ALIKE = "give every element the same fields, in a transform"
_MAX_LISTED = 20  # fields in a note of an error


class HostDict(dict[str, Any]):
    """A dict that is one value of an element and stays on the host: its keys make no fields, and may differ."""


class ColumnError(ValueError):
    """Elements that do not stack. index: the first element that differs from element 0."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message, index)
        self.message = message
        self.index = index

    def __str__(self) -> str:
        return self.message


def is_series(value: Any) -> bool:
    """Whether the value is a Series of pandas, as a row of a DataFrame is. Does not import pandas."""
    kinds = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__)
    return "pandas.Series" in kinds


def _has_fields(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, HostDict)


def stack(elements: Sequence[Any], path: Path = (), alike: str = ALIKE, as_objects: Container[Path] = ()) -> Columns:
    """The columns of at least one element.

    alike: how elements get the same fields.
    as_objects: fields of numbers, or of dicts, that are None in some elements, and so columns of objects.

    Raises: ColumnError where fields, shapes or dtypes differ, naming the field, both sides and the remedy.

    >>> stack([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'name': array(['a', 'b'], dtype=object), 'x': array([1, 2])}
    """
    first = elements[0]
    if not path and (isinstance(first, tuple) or is_series(first)):
        raise ColumnError(
            f"the element is a {type(first).__name__}, and a batch has its fields by name; make it a dict in a "
            "transform: lambda element: {'x': element[0], 'y': element[1]}",
            0,
        )
    if path in as_objects:
        return np.fromiter(elements, object, len(elements))
    if not _has_fields(first):
        return _column(elements, path)
    if not first or not all(isinstance(key, str) for key in first):
        raise ColumnError(f"{named(path)} has fields {list(first)}; an element needs at least one, named by a str", 0)
    for index, element in enumerate(elements):
        if not _has_fields(element) or element.keys() != first.keys():
            found = sorted(element, key=str) if _has_fields(element) else type(element).__name__
            remedy = LEAVE_NONE_OUT if element is None and not path else alike
            raise ColumnError(
                f"{named(path)}: fields {sorted(first)} in one element, {found} in another; {remedy}", index
            )
    return {
        key: stack([element[key] for element in elements], (*path, key), alike, as_objects) for key in sorted(first)
    }


def unstack(columns: Columns, count: int) -> list[Any]:
    """The elements of columns; arrays in them are views. Inverse of stack, but numbers are NumPy scalars."""
    if not isinstance(columns, Mapping):
        return list(columns)
    if not columns:
        return [{} for _ in range(count)]
    parts = {key: unstack(column, count) for key, column in columns.items()}
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def unstack_to_stack(columns: Columns, count: int) -> list[Any]:
    """As unstack, and stack() of the elements gives the same columns: ragged rows stay ragged."""
    for _, array in leaves(columns):
        if array.dtype == object:
            _RAGGED_ROWS.update((id(row), row) for row in array if isinstance(row, np.ndarray))
    return unstack(columns, count)


def is_ragged_row(row: np.ndarray) -> bool:
    return _RAGGED_ROWS.get(id(row)) is row


def ragged_row(row: np.ndarray) -> np.ndarray:
    """Mark the row as a row of a ragged column, and return it."""
    _RAGGED_ROWS[id(row)] = row
    return row


def leaves(columns: Columns, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every array with its path, sorted by the names of fields, as JAX sorts: like columns can be zipped."""
    if not isinstance(columns, Mapping):
        yield path, columns
        return
    for key in sorted(columns):
        column = columns[key]
        if isinstance(column, np.ndarray):  # asked for several times a batch: no iterator for each field
            yield (*path, key), column
        else:
            yield from leaves(column, (*path, key))


def map_leaves(function: Callable[[NDArray], Any], columns: Columns) -> Any:
    """The same dict with `function(array)` in place of each array."""
    if isinstance(columns, Mapping):
        return {key: map_leaves(function, columns[key]) for key in sorted(columns)}
    return function(columns)


def spec(columns: Columns) -> Any:
    """The columns' dict with a FieldSpec in place of each array: the element's shape, without the leading dimension."""
    return map_leaves(lambda array: FieldSpec(array.shape[1:], array.dtype), columns)


def odd_one(so_far: Mapping[Path, FieldSpec], first: int, like: Any, position: int) -> UnlikeError | None:
    """The error for columns whose fields, shapes or dtypes differ from earlier columns; None where they agree.

    first: the position of an element so far. like: the spec of the columns, position: that of their first element.
    """
    found: dict[Path, FieldSpec] = dict(leaves(like))
    for path in so_far.keys() | found.keys():
        if so_far.get(path) != found.get(path):
            name = ".".join(path) or "the element"
            return UnlikeError(
                f"{name} was {_described(so_far.get(path))} so far and is {_described(found.get(path))} from position "
                f"{position} on; make every element alike in a transform (PadTo for ragged fields).",
                position,
                first,
            )
    return None


def given_note(columns: Columns, error: BaseException) -> str:
    """A note for people on the argument that code failed on: every field, with dtype and shape or type.

    >>> given_note({"label": 3, "image": np.zeros((2, 3), np.uint8)}, KeyError("lable"))
    "given image: uint8 (2, 3), label: int. Did you mean 'label'?"
    """
    fields = {".".join(path): value for path, value in leaves(columns)}
    lines = []
    for name, value in fields.items():
        has_shape = hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)
        kind = f"{value.dtype} {value.shape}" if has_shape else type(value).__name__
        lines.append(f"{name}: {kind}" if name else kind)
    more = [f"and {len(lines) - _MAX_LISTED} more"] if len(lines) > _MAX_LISTED else []
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    hint = f".{near}" if isinstance(key, str) and (near := nearest([key], fields)) else ""
    return f"given {', '.join([*lines[:_MAX_LISTED], *more])}{hint}"


def nbytes(columns: Columns) -> int:
    """Bytes of the arrays; of object columns, about the bytes of their values."""
    return sum(
        sum(map(nbytes_of, array.flat)) if isinstance(array, np.ndarray) and array.dtype == object else array.nbytes
        for _, array in leaves(columns)
    )


def nbytes_of(value: Any) -> int:
    """About the bytes of any Python value: of text, of arrays, and of the values in containers.

    >>> nbytes_of({"tokens": [np.zeros(4, np.int32), b"abc"], "length": 4})
    27
    """
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)):  # a tenth of asking each
            return 8 * len(value)
        return sum(map(nbytes_of, value))
    nbytes = getattr(value, "nbytes", 8)
    return nbytes if isinstance(nbytes, int) else 8


def concatenate(parts: Sequence[Columns]) -> Columns:
    """The rows of at least one of the same columns after one another.

    >>> concatenate([{"x": np.array([1])}, {"x": np.array([2, 3])}])
    {'x': array([1, 2, 3])}
    """
    if isinstance(parts[0], Mapping):
        return {key: concatenate([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def dense_dtype(value: Any) -> np.dtype | None:
    """The dtype that a value has in a dense column, None if it belongs in an object column."""
    if type(value) in _SCALARS:
        return np.dtype(_SCALARS[type(value)])
    if isinstance(value, np.ndarray | np.generic):
        dtype = value.dtype
        return None if is_host_only(dtype) else dtype if dtype.isnative else dtype.newbyteorder("=")  # as columns are
    if hasattr(value, "__array__") and hasattr(value, "shape"):  # arrays of other libraries: jax, torch
        return np.asarray(value).dtype
    return None


def is_host_only(dtype: np.dtype) -> bool:
    """Whether arrays of this dtype belong in no dense column: objects, text, records.

    Kind V is records, and bfloat16 and its like, which are dtypes that ml_dtypes adds to NumPy.
    """
    return dtype.kind in "OUS" or (dtype.kind == "V" and dtype.isbuiltin != 2)


@functools.cache  # asked for each field of a batch
def stays_on_host(dtype: np.dtype) -> bool:
    """Whether no device has arrays of this dtype: those in no dense column, and times."""
    return is_host_only(dtype) or dtype.kind in "Mm"


def _is_ragged(values: Sequence[Any], path: Path) -> bool:
    """Whether these are unchanged rows of a ragged column; None among them is a missing row.

    Raises: ColumnError where some arrays are and others are not, as chance decides which stand in a block together.
    """
    if not _RAGGED_ROWS:
        return False
    arrays = [index for index, value in enumerate(values) if isinstance(value, np.ndarray)]
    ragged = [index for index in arrays if _RAGGED_ROWS.get(id(values[index])) is values[index]]
    if ragged and len(ragged) < len(arrays):
        is_first = ragged[0] == arrays[0]
        raise ColumnError(
            f"{named(path)} is a row of a ragged column, as it was read, in one element, and an array that a transform "
            "made in another, so batches would be ragged or dense by which rows are read together; make every row anew "
            "(np.array(row) of those that fit), or use PadTo",
            next(index for index in arrays if (index in ragged) != is_first),
        )
    return bool(ragged) and all(value is None or isinstance(value, np.ndarray) for value in values)


def _column(values: Sequence[Any], path: Path) -> NDArray:
    if _is_ragged(values, path):
        return np.fromiter(values, object, len(values))
    first = dense_dtype(values[0])
    if type(values[0]) is np.ndarray and first is not None and values[0].ndim and _are_alike(values):
        return np.concatenate(values).reshape(len(values), *values[0].shape)  # a third of what np.stack costs
    if type(values[0]) in _SCALARS and len(set(map(type, values))) == 1:
        return _numbers(values, np.dtype(_SCALARS[type(values[0])]), path)
    # dicts become columns, also where what comes first here (None, say) does not: another block may begin with one
    has_dicts = any(issubclass(kind, Mapping) and kind is not HostDict for kind in set(map(type, values)))
    for index, value in enumerate(values):
        dtype = dense_dtype(value)
        is_other = (dtype is None) != (first is None) or (dtype is not None and dtype != first)
        if is_other or (has_dicts and _has_fields(value)):
            is_none = value is None or values[0] is None
            remedy = (_of(path, _FILL_IN) if path else LEAVE_NONE_OUT) if is_none else _TO_ONE_DTYPE
            raise ColumnError(
                f"{named(path)} is {_kind(values[0])} in one element, {_kind(value)} in another; {remedy}", index
            )
    if first is None:
        none = next((index for index, value in enumerate(values) if value is None), None)
        if none is not None and not path:
            raise ColumnError(f"the element is None; {LEAVE_NONE_OUT}", none)
        return np.fromiter(values, object, len(values))
    shape = np.shape(values[0])
    for index, value in enumerate(values):
        if np.shape(value) != shape:
            remedy = _of(path, _TO_ONE_SHAPE) if np.ndim(value) == len(shape) else _TO_AS_MANY_AXES
            raise ColumnError(
                f"{named(path)} has shape {shape} in one element, {np.shape(value)} in another, and these do not "
                f"stack; {remedy}",
                index,
            )
    if any(type(value) in _SCALARS for value in values):  # beside NumPy's, which np.stack would make floats of
        return _numbers(values, first, path)
    return np.stack([np.asarray(value) for value in values])


def _of(path: Path, remedy: str) -> str:
    return remedy.replace("'field'", repr(".".join(path)))


def _are_alike(values: Sequence[Any]) -> bool:
    dtype, shape = values[0].dtype, values[0].shape
    return all(type(value) is np.ndarray and value.dtype == dtype and value.shape == shape for value in values)


def _numbers(values: Sequence[Any], dtype: np.dtype, path: Path) -> NDArray:
    try:
        return np.array(values, dtype)
    except OverflowError as error:  # only int has values that its dtype has not
        info = np.iinfo(dtype)
        index = next(i for i, value in enumerate(values) if not info.min <= value <= info.max)
        raise ColumnError(
            f"{named(path)} is {values[index]}, which does not fit in int64; make it a float, an np.uint64 or a str in "
            "a transform, or decode it as uint64: DecodeMsgpack(arrays={'field': 'uint64'}), or DecodeJson",
            index,
        ) from error


def _kind(value: Any) -> str:
    dtype = dense_dtype(value)
    return type(value).__name__ if dtype is None else str(dtype)


def named(path: Path) -> str:
    """A field, or the element itself, in a sentence."""
    return f"field {'.'.join(path)!r}" if path else "the element"


def _described(field: FieldSpec | None) -> str:
    return "missing" if field is None else f"{field.dtype} {field.shape}"
