"""NumPy arrays, scalars and dtypes as plain values of a head and bytes of a payload, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from datarax_ray.read.elements.columns import Path, is_ragged_row, named, ragged_row
from datarax_ray.read.errors import UnwritableError

Decoder = Callable[[bytes, int], tuple[Any, int]]


def encode_array(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any]:
    """The dtype and shape of an array, whose bytes are added to the payload."""
    if array.dtype.names is not None:  # what lies between the fields is whatever was in memory there
        array, given = np.zeros(array.shape, array.dtype), array
        for name in given.dtype.names or ():
            array[name] = given[name]
    payload.append(array.tobytes())
    return [dtype_node(array.dtype, path), list(array.shape)]


def encode_ragged(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any] | None:
    """As encode_array, of a row of a ragged column; None for any other array."""
    return encode_array(array, path, payload) if is_ragged_row(array) else None


def decode_array(dtype: Any, shape: Any, is_ragged: bool = False) -> Decoder:
    """What reads an array, or a row of a ragged column. It can be written to, and shares no memory with the record."""
    kind, shape = dtype_of(dtype), tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = count * kind.itemsize

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + nbytes > len(data):
            raise ValueError(f"an array ends at byte {at + nbytes} of a record of {len(data)}; it is damaged")
        array = np.frombuffer(data, kind, count, at).reshape(shape).copy() if nbytes else np.zeros(shape, kind)
        return (ragged_row(array) if is_ragged else array), at + nbytes

    return read


def encode_scalar(value: Any, path: Path, payload: list[bytes]) -> list[Any]:
    """The dtype of a NumPy scalar, whose bytes are added to the payload."""
    payload.append(value.tobytes()[: value.dtype.itemsize])  # of an empty np.str_ it gives a zero
    return [dtype_node(value.dtype, path)]


def decode_scalar(dtype: Any) -> Decoder:
    """What reads a scalar that stood alone: NULs at the end of a text are its own, and in an array they fill it up."""
    read, kind = decode_array(dtype, (1,)), dtype_of(dtype)
    if kind.kind not in "SU":
        return decode_first(dtype)
    order = "be" if kind.str[0] == ">" else "le"

    def text(data: bytes, at: int) -> tuple[Any, int]:
        _, end = read(data, at)
        stored = data[at:end]
        return kind.type(stored if kind.kind == "S" else stored.decode(f"utf-32-{order}", "surrogatepass")), end

    return text


def decode_first(dtype: Any) -> Decoder:
    """What reads one item of an array, as a NumPy scalar."""
    read = decode_array(dtype, (1,))

    def first(data: bytes, at: int) -> tuple[Any, int]:
        array, end = read(data, at)
        return array[0], end

    return first


def dtype_node(dtype: np.dtype, path: Path) -> Any:
    """A dtype as plain values; those of ml_dtypes (bfloat16, float8) by name.

    Raises: UnwritableError for one with Python objects or metadata, with the field.
    """
    if dtype.isbuiltin == 2:
        return ["ml_dtypes", dtype.name]
    if dtype.hasobject or dtype.metadata:
        raise UnwritableError(f"{named(path)} is of dtype {dtype}, which cannot be written; make a field of each part")
    return dtype.str if dtype.names is None else _lists(np.lib.format.dtype_to_descr(dtype))


def dtype_of(node: Any) -> np.dtype:
    """The dtype of what dtype_node gave."""
    if isinstance(node, str):
        return np.dtype(node)
    return _named_dtype(node[1]) if node[0] == "ml_dtypes" else np.lib.format.descr_to_dtype(_fields(node))


@functools.lru_cache
def _named_dtype(name: str) -> np.dtype:
    import ml_dtypes  # adds these to NumPy; comes with JAX, and does not load it

    return np.dtype(getattr(ml_dtypes, name))


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, list | tuple) else value


def _fields(node: list[Any]) -> list[Any]:
    """The list of fields that NumPy's own files have; a field is (name, dtype) or (name, dtype, shape)."""
    fields = []
    for name, dtype, *shape in node:
        name = tuple(name) if isinstance(name, list) else name  # with a title
        fields.append((name, _fields(dtype) if isinstance(dtype, list) else dtype, *map(tuple, shape)))
    return fields
