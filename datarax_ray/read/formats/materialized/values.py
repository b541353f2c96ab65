"""Any value as a head, which is plain values, and the bytes of its payload; and back, which runs no code.

The head of a value is a letter, or a list that begins with it. A size is a u64, a count of bytes or items.

    letter  value                           behind it in the head        payload
    n       None                                                         nothing
    b       bool                                                         1 byte
    i       int of 64 bits                                               8 bytes
    I       int beyond 64 bits                                           size, bytes of the two's complement
    f       float                                                        8 bytes
    c       complex                                                      16 bytes
    s       str                                                          size, UTF-8, lone surrogates as well
    y       bytes                                                        size, bytes
    x       date, time, datetime, Decimal,  name of the type             size, text
            timedelta
    g       NumPy scalar                    dtype                        bytes
    a       NumPy array                     dtype, shape                 bytes in C order
    r       array of a ragged column        dtype, shape                 bytes in C order
    o       array of objects                shape, heads, is it ragged   of each item in C order
    L       list of b, i, f or c alone      letter of all                size, numbers
    S       list of s or y alone            letter of all                size, size of each, bytes of all
    l       list                            heads                        of each item
    t       tuple                           heads                        of each item
    d       dict                            keys, heads                  of each item

In records that are older than S, lists of text are l.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.elements.columns import Path, is_ragged_row, named, ragged_row
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.materialized.arrays import (
    Decoder,
    decode_array,
    decode_scalar,
    encode_array,
    encode_ragged,
    encode_scalar,
)

LENGTH = struct.Struct("<Q")
_SIZES = np.dtype("<u8")  # the same, of many
_NUMBERS: dict[type, tuple[str, struct.Struct, np.dtype]] = {
    bool: ("b", struct.Struct("<?"), np.dtype(np.bool_)),
    int: ("i", struct.Struct("<q"), np.dtype("<i8")),
    float: ("f", struct.Struct("<d"), np.dtype("<f8")),
    complex: ("c", struct.Struct("<dd"), np.dtype("<c16")),
}
NUMBER_DTYPES = {letter: dtype for letter, _, dtype in _NUMBERS.values()}
_KEYS = frozenset({str, bytes, int, bool, float, type(None)})
_AS_TEXT: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {  # name, to text, and from it
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    datetime.timedelta: (
        "timedelta",
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: datetime.timedelta(*map(int, text.split())),
    ),
}
_FROM_TEXT = {name: from_text for name, _, from_text in _AS_TEXT.values()}
_STRINGS: dict[type, tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]] = {  # letter, to bytes, and back
    str: ("s", lambda text: text.encode("utf-8", "surrogatepass"), lambda data: data.decode("utf-8", "surrogatepass")),
    bytes: ("y", bytes, bytes),
}
_FROM_BYTES = {letter: from_bytes for letter, _, from_bytes in _STRINGS.values()}
# Decoders that are cached, which take some ten times the memory of their heads: 40 MB at the most. Of one dataset there
# is one, or one for each shape. A longer head has hundreds of values, and to read it adds half to their time.
_MAX_HEADS = 2**10
_MAX_HEAD_NBYTES = 2**12

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Code:
    """How values of a type are written and read.

    letter: what their heads begin with.
    type: theirs.
    encode: (value, path, payload) -> what is behind the letter in the head, after the bytes were added to the payload;
        None for a value that another code of the type is for.
    decode: what is behind the letter -> what reads such a value.
    """

    letter: str
    type: type
    encode: Callable[[Any, Path, list[bytes]], list[Any] | None]
    decode: Callable[..., Decoder]


def node_of(value: Any, path: Path, payload: list[bytes]) -> Any:
    """The head of a value, whose bytes are added to the payload."""
    kind = type(value)
    for code in _BY_TYPE.get(kind) or (_BY_TYPE[np.generic] if isinstance(value, np.generic) else ()):
        rest = code.encode(value, path, payload)
        if rest is not None:
            return [code.letter, *rest] if rest else code.letter
    remedy = "np.asarray(value)" if hasattr(value, "__array__") else "a dict, a list, numbers, text or NumPy arrays"
    raise UnwritableError(f"{named(path)} is a {kind.__qualname__}, which cannot be written; make it {remedy}")


def cached_by_head(make: Callable[[bytes], Made]) -> Callable[[bytes], Made]:
    """As make, with what it made of the last heads at hand. Not of long ones, or they would fill the memory."""
    cached = functools.lru_cache(_MAX_HEADS)(make)
    return lambda head: (cached if len(head) <= _MAX_HEAD_NBYTES else make)(head)


@cached_by_head
def decoder_of(head: bytes) -> Decoder:
    """What reads a value of this head, in msgpack."""
    return _reading(unpacked(head))


def _reading(node: Any) -> Decoder:
    """What reads a value of this head."""
    return _plain_reading(node) if isinstance(node, str) else _BY_LETTER[node[0]].decode(*node[1:])


@functools.cache  # a list has thousands of them
def _plain_reading(letter: str) -> Decoder:
    return _BY_LETTER[letter].decode()


def _number(kind: type) -> _Code:
    letter, packing, _ = _NUMBERS[kind]

    def encode(value: Any, path: Path, payload: list[bytes]) -> list[Any] | None:
        if kind is int and not -(2**63) <= value < 2**63:
            return None
        payload.append(packing.pack(value.real, value.imag) if kind is complex else packing.pack(value))
        return []

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return kind(*packing.unpack_from(data, at)), at + packing.size

    return _Code(letter, kind, encode, lambda: read)


def _sized(letter: str, kind: type, to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any]) -> _Code:
    def encode(value: Any, path: Path, payload: list[bytes]) -> list[Any]:
        _add_sized(to_bytes(value), payload)
        return []

    return _Code(letter, kind, encode, lambda: decode_sized(from_bytes))


def _add_sized(data: bytes, payload: list[bytes]) -> None:
    payload += [LENGTH.pack(len(data)), data]


def decode_sized(make: Callable[[bytes], Any]) -> Decoder:
    """What reads bytes behind their size, and makes the value of them."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + LENGTH.size
        end = start + LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise ValueError(f"a value ends at byte {end} of a record of {len(data)}; it is damaged")
        return make(data[start:end]), end

    return read


def _encode_text(value: Any, path: Path, payload: list[bytes]) -> list[Any] | None:
    name, to_text, from_text = _AS_TEXT[type(value)]
    text = to_text(value)
    if repr(from_text(text)) != repr(value):  # the name of a time zone, or which one of two equal hours it is
        return None
    _add_sized(text.encode(), payload)
    return [name]


def _decode_text(name: str) -> Decoder:
    return decode_sized(lambda data: _FROM_TEXT[name](data.decode()))


def _encode_objects(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any] | None:
    if array.dtype != object:
        return None
    nodes = [node_of(item, path, payload) for item in array.ravel().tolist()]
    return [list(array.shape), nodes, is_ragged_row(array)]


def _decode_objects(shape: Any, nodes: Any, is_ragged: bool) -> Decoder:
    def array_of(items: list[Any]) -> np.ndarray:
        array = np.fromiter(items, object, len(items)).reshape(tuple(shape))
        return ragged_row(array) if is_ragged else array

    return _decode_items(array_of, nodes)


def _encode_numbers(values: list[Any], path: Path, payload: list[bytes]) -> list[Any] | None:
    kinds = set(map(type, values))
    if len(kinds) != 1 or (kind := kinds.pop()) not in _NUMBERS:
        return None
    letter, _, dtype = _NUMBERS[kind]
    try:
        numbers = np.array(values, dtype)
    except OverflowError:  # each is written alone
        return None
    payload += [LENGTH.pack(len(values)), numbers.tobytes()]
    return [letter]


def _decode_numbers(letter: str) -> Decoder:
    dtype = NUMBER_DTYPES[letter]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, start = LENGTH.unpack_from(data, at)[0], at + LENGTH.size
        return np.frombuffer(data, dtype, count, start).tolist(), start + count * dtype.itemsize

    return read


def _encode_strings(values: list[Any], path: Path, payload: list[bytes]) -> list[Any] | None:
    kinds = set(map(type, values))
    if len(kinds) != 1 or (kind := kinds.pop()) not in _STRINGS:
        return None
    letter, to_bytes, _ = _STRINGS[kind]
    items = list(map(to_bytes, values))
    sizes = np.fromiter(map(len, items), _SIZES, len(items))
    payload += [LENGTH.pack(len(items)), sizes.tobytes(), *items]
    return [letter]


def _decode_strings(letter: str) -> Decoder:
    from_bytes = _FROM_BYTES[letter]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, start = LENGTH.unpack_from(data, at)[0], at + LENGTH.size
        sizes = np.frombuffer(data, _SIZES, count, start).tolist()
        cuts = list(itertools.accumulate(sizes, initial=start + count * _SIZES.itemsize))
        if cuts[-1] > len(data):
            raise ValueError(f"a list ends at byte {cuts[-1]} of a record of {len(data)}; it is damaged")
        return [from_bytes(data[begin:end]) for begin, end in itertools.pairwise(cuts)], cuts[-1]

    return read


def _encode_items(values: Sequence[Any], path: Path, payload: list[bytes]) -> list[Any]:
    return [[node_of(value, (*path, str(index)), payload) for index, value in enumerate(values)]]


def _decode_items(make: Callable[[list[Any]], Any], nodes: Any) -> Decoder:
    readers = [_reading(node) for node in nodes]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for reader in readers:
            value, at = reader(data, at)
            values.append(value)
        return make(values), at

    return read


def _encode_dict(value: dict[Any, Any], path: Path, payload: list[bytes]) -> list[Any]:
    if odd := [key for key in value if type(key) not in _KEYS]:
        raise UnwritableError(f"{named(path)} has the key {odd[0]!r} of {type(odd[0]).__name__}; use a str")
    if beyond := [key for key in value if type(key) is int and not -(2**63) <= key < 2**64]:  # of msgpack
        raise UnwritableError(f"{named(path)} has the key {shown(beyond[0])}, which is beyond 64 bits; use a str")
    return [list(value), [node_of(item, (*path, str(key)), payload) for key, item in value.items()]]


def _decode_dict(keys: Any, nodes: Any) -> Decoder:
    return _decode_items(lambda values: dict(zip(keys, values, strict=True)), nodes)


# Of a type that has several, the first that is for the value.
_CODES = [
    _Code("n", type(None), lambda value, path, payload: [], lambda: lambda data, at: (None, at)),
    *map(_number, _NUMBERS),
    _sized(
        "I",
        int,
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
        lambda data: int.from_bytes(data, "little", signed=True),
    ),
    *(_sized(letter, kind, *both) for kind, (letter, *both) in _STRINGS.items()),
    *(_Code("x", kind, _encode_text, _decode_text) for kind in _AS_TEXT),
    _Code("g", np.generic, encode_scalar, decode_scalar),
    _Code("o", np.ndarray, _encode_objects, _decode_objects),
    _Code("r", np.ndarray, encode_ragged, functools.partial(decode_array, is_ragged=True)),
    _Code("a", np.ndarray, encode_array, decode_array),
    _Code("L", list, _encode_numbers, _decode_numbers),
    _Code("S", list, _encode_strings, _decode_strings),
    _Code("l", list, _encode_items, functools.partial(_decode_items, list)),
    _Code("t", tuple, _encode_items, functools.partial(_decode_items, tuple)),
    _Code("d", dict, _encode_dict, _decode_dict),
]
_BY_LETTER = {code.letter: code for code in _CODES}
_BY_TYPE = {kind: [code for code in _CODES if code.type is kind] for kind in {code.type for code in _CODES}}


def packed(value: Any) -> bytes:
    """Plain values as msgpack, lone surrogates as well."""
    import msgpack  # in here, as of the decoders: an actor that reads none of this does without

    data: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return data


def unpacked(data: bytes) -> Any:
    """The plain values that were packed; tuples are lists."""
    import msgpack

    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
