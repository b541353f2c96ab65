"""Any value as msgpack, and back as it was, bit for bit and type for type. Reading it runs no code.

msgpack has None, bool, int of 64 bits, float, str, bytes, list and dict of its own. All other types are extensions:

    code  value                                    msgpack of
    1     tuple                                    its items
    2     int beyond 64 bits                       the bytes of its two's complement
    3     complex                                  real, imag
    4     date, time, datetime, Decimal, timedelta  name of the type, text
    5     NumPy scalar                             dtype, bytes
    6     NumPy array                              dtype, shape, bytes in C order
    7     row of a ragged column                   dtype, shape, bytes in C order
    8     array of objects                         shape, whether it is a row of a ragged column, items in C order
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgpack
import numpy as np

from datarax_ray.read.elements.columns import Path, is_ragged_row, named, ragged_row
from datarax_ray.read.errors import UnwritableError

_TUPLE, _LARGE_INT, _COMPLEX, _TEXT, _SCALAR, _ARRAY, _RAGGED, _OBJECTS = range(1, 9)

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_AS_TEXT: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {  # to text, and from it
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    decimal.Decimal: (str, decimal.Decimal),
    datetime.timedelta: (
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: datetime.timedelta(*map(int, text.split())),
    ),
}
_FROM_TEXT = {kind.__name__: from_text for kind, (_, from_text) in _AS_TEXT.items()}


def packed(value: Any, path: Path = ()) -> bytes:
    """The value as msgpack. path: the field that holds it, for errors.

    Raises: UnwritableError for a value of a type that would not come back, with its field and the remedy.
    """
    try:
        return pack(_plain(value, path))
    except (ValueError, RecursionError) as error:  # deeper or larger than msgpack writes
        raise UnwritableError(f"{named(path)} cannot be written: {error}") from error


def unpacked(data: bytes) -> Any:
    """The value that was packed. Raises: an Exception of msgpack, Python or NumPy for other bytes."""
    return msgpack.unpackb(data, ext_hook=_extended, strict_map_key=False, unicode_errors="surrogatepass")


def pack(plain: Any) -> bytes:
    """Plain values as msgpack; tuples become lists."""
    return msgpack.packb(plain, default=_large_int, unicode_errors="surrogatepass")


def list_of(values: Sequence[bytes]) -> bytes:
    return b"".join([msgpack.Packer().pack_array_header(len(values)), *values])


def _large_int(value: int) -> Any:
    return msgpack.ExtType(_LARGE_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _plain(value: Any, path: Path) -> Any:
    """The value with an extension in place of each part that msgpack has no type for."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return value if _PLAIN.issuperset(map(type, value)) else _plain_items(value, path)
    if kind is dict:
        if odd := [key for key in value if type(key) not in _PLAIN]:
            raise UnwritableError(f"{named(path)} has the key {odd[0]!r} of {type(odd[0]).__name__}; use a str")
        return {key: _plain(item, (*path, str(key))) for key, item in value.items()}
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, pack(_plain_items(value, path)))
    if kind is complex:
        return msgpack.ExtType(_COMPLEX, pack([value.real, value.imag]))
    if kind in _AS_TEXT:
        to_text, from_text = _AS_TEXT[kind]
        text = to_text(value)
        if repr(from_text(text)) == repr(value):  # text has no name of a time zone, and no fold
            return msgpack.ExtType(_TEXT, pack([kind.__name__, text]))
    if isinstance(value, np.generic):
        data = value.tobytes()[: value.dtype.itemsize]  # of an empty np.str_ tobytes gives a zero
        return msgpack.ExtType(_SCALAR, pack([dtype_node(value.dtype, path), data]))
    if kind is np.ndarray and value.dtype == object:
        items = _plain_items(value.ravel().tolist(), path)
        return msgpack.ExtType(_OBJECTS, pack([value.shape, is_ragged_row(value), items]))
    if kind is np.ndarray:
        parts = [dtype_node(value.dtype, path), value.shape, value.tobytes()]
        return msgpack.ExtType(_RAGGED if is_ragged_row(value) else _ARRAY, pack(parts))
    remedy = "np.asarray(value)" if hasattr(value, "__array__") else "a dict, a list, numbers, text or NumPy arrays"
    raise UnwritableError(f"{named(path)} is a {kind.__qualname__}, which cannot be written; make it {remedy}")


def _plain_items(values: Iterable[Any], path: Path) -> list[Any]:
    return [_plain(item, (*path, str(index))) for index, item in enumerate(values)]


def _extended(code: int, data: bytes) -> Any:
    if code == _LARGE_INT:
        return int.from_bytes(data, "little", signed=True)
    parts = unpacked(data)
    if code in (_ARRAY, _RAGGED):
        array = array_of(dtype_of(parts[0]), parts[1], parts[2])
        return ragged_row(array) if code == _RAGGED else array
    if code == _TUPLE:
        return tuple(parts)
    if code == _COMPLEX:
        return complex(*parts)
    if code == _TEXT:
        return _FROM_TEXT[parts[0]](parts[1])
    if code == _SCALAR:
        return _scalar(dtype_of(parts[0]), parts[1])
    if code == _OBJECTS:
        shape, is_ragged, items = parts
        array = np.fromiter(items, object, len(items)).reshape(shape)
        return ragged_row(array) if is_ragged else array
    raise ValueError(f"there is no extension {code}")


def array_of(dtype: np.dtype, shape: Sequence[int], data: bytes, start: int = 0) -> np.ndarray:
    """An array of the bytes from `start` on. It can be written to, and shares no memory with them."""
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype, count, start).reshape(shape).copy()


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    if dtype.kind == "S":  # NULs at the end of a text are its own, and in an array they fill it up
        return dtype.type(data)
    if dtype.kind == "U":
        return dtype.type(data.decode(f"utf-32-{'be' if dtype.str[0] == '>' else 'le'}", "surrogatepass"))
    return array_of(dtype, (1,), data)[0]


def dtype_node(dtype: np.dtype, path: Path) -> Any:
    """A dtype as plain values: the name of one of ml_dtypes (bfloat16, float8), else as NumPy has it.

    Raises: UnwritableError for one with Python objects, metadata or fields of its own, with the field.
    """
    if dtype.isbuiltin == 2:
        return ["ml_dtypes", dtype.name]
    if dtype.hasobject or dtype.metadata or dtype.names is not None:
        raise UnwritableError(f"{named(path)} is of dtype {dtype}, which cannot be written; make a field of each part")
    return dtype.str


def dtype_of(node: Any) -> np.dtype:
    return np.dtype(node) if isinstance(node, str) else _named_dtype(node[1])


@functools.lru_cache
def _named_dtype(name: str) -> np.dtype:
    import ml_dtypes  # comes with JAX, and does not load it

    return np.dtype(getattr(ml_dtypes, name))
