"""Elements as bytes, and back: the same values of the same types, bit for bit. What is read here runs no code.

A stored record holds what became of one record of a source: a byte for its kind, then

    NOTHING   no element: it was left out
    ELEMENT   an element: its head and its payload
    ROW       a row of columns, likewise
    SEVERAL   what a flat_map gave, and what failed: msgpack of [[ordinal, record], ...] and [[where, reason], ...]

A head is a length (u32) and so many bytes of msgpack: the element's shape, fields and dtypes, which mostly are those of
the record before. The payload is its values, one after the other. Numbers are little-endian, NumPy's as they are.

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
    l       list                            heads                        of each item
    t       tuple                           heads                        of each item
    d       dict                            keys, heads                  of each item

The head of a row is ["R", fields], in their order: [path, "a", dtype, shape] for values of one size, which come first
in the payload, and [path, "O"] for those of object columns, of which each has a size before it, and then its own head
behind a size, and payload.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.elements.columns import Columns, Path, is_host_only, is_ragged_row, named, ragged_row
from datarax_ray.read.elements.fixed_records import FixedRecords

NOTHING, ELEMENT, ROW, SEVERAL = range(4)
_PREFIX = struct.Struct("<BI")  # kind, length of the head
_LENGTH = struct.Struct("<Q")
_NUMBERS: dict[type, tuple[str, struct.Struct, np.dtype]] = {
    bool: ("b", struct.Struct("<?"), np.dtype(np.bool_)),
    int: ("i", struct.Struct("<q"), np.dtype("<i8")),
    float: ("f", struct.Struct("<d"), np.dtype("<f8")),
    complex: ("c", struct.Struct("<dd"), np.dtype("<c16")),
}
_NUMBER_DTYPES = {letter: dtype for letter, _, dtype in _NUMBERS.values()}
_KEYS = frozenset({str, bytes, int, bool, float, type(None)})
_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {  # name, to text, and from it
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
_FROM_TEXT = {name: from_text for name, _, from_text in _TEXTS.values()}
_MAX_HEADS = 4096  # that are known in a process: of one dataset there is one, or one for each shape

Decoder = Callable[[bytes, int], tuple[Any, int]]
_Field = tuple[Path, np.dtype, tuple[int, ...], int]  # where it is, and where its bytes begin


@dataclass(frozen=True)
class Failed:
    """What on_error told of a record, or of one of the elements that it gave. where: of the source's own files."""

    where: str
    reason: str


class UnwritableError(TypeError):
    """A value that cannot be written so that the same comes back."""


def record_of(elements: Sequence[tuple[int, bytes]], failed: Sequence[Failed]) -> bytes:
    """The stored record. elements: the ordinal of each, and its bytes, of encoded or encoded_rows."""
    if not elements and not failed:
        return bytes([NOTHING])
    if len(elements) == 1 and not failed and not elements[0][0]:
        return elements[0][1]
    told = [[failure.where, failure.reason] for failure in failed]
    return bytes([SEVERAL]) + _packed([list(map(list, elements)), told])  # ordinals as they are: some may be left out


def encoded(element: Any) -> bytes:
    """An element as bytes.

    Raises: UnwritableError for a value of a type that would not come back, with its field and the remedy.
    """
    payload: list[bytes] = []
    head = _packed(_node(element, (), payload))
    return b"".join([_PREFIX.pack(ELEMENT, len(head)), head, *payload])


def encoded_rows(columns: Columns, count: int) -> list[bytes]:
    """Each row of columns as bytes. Values of one size come first, those of object columns behind them."""
    fields, dense, objects = [], [], []
    for path, column in _fields_of(columns):
        if column.dtype == object:
            fields.append([list(path), "O"])
            objects.append((path, column))
            continue
        if not column.dtype.isnative:
            raise UnwritableError(
                f"{named(path)} is {column.dtype.str}, whose bytes are not in this machine's order; return "
                "column.astype(column.dtype.newbyteorder('='))"
            )
        fields.append([list(path), "a", _dtype_told(column.dtype, path), list(column.shape[1:])])
        dense.append(np.ascontiguousarray(column).reshape(count, -1).view(np.uint8).reshape(count, -1))
    head = _packed(["R", fields])
    begin = _PREFIX.pack(ROW, len(head)) + head
    rows = np.concatenate(dense, axis=1) if dense else np.empty((count, 0), np.uint8)
    found = []
    for index in range(count):
        parts = [begin, rows[index].tobytes()]
        for path, column in objects:
            payload: list[bytes] = []
            node = _packed(_node(column[index], path, payload))
            value = b"".join([_LENGTH.pack(len(node)), node, *payload])
            parts += [_LENGTH.pack(len(value)), value]
        found.append(b"".join(parts))
    return found


def parts_of(record: bytes) -> list[list[Any]]:
    """What a stored record holds: [ordinal, bytes] of each element, and [None, where, reason] of what failed.

    Raises: ValueError for what is no such record.
    """
    kind = record[0] if record else -1
    if kind in (ELEMENT, ROW):
        return [[0, record]]
    if kind == NOTHING:
        return []
    if kind != SEVERAL:
        raise ValueError(f"this record was not written by materialize: it begins with {record[:1]!r}")
    try:
        elements, failed = _unpacked(record[1:])
        return [*elements, *([None, where, reason] for where, reason in failed)]
    except Exception as error:  # whatever msgpack and Python make of other bytes
        raise _damaged(error) from error


def value_of(record: bytes) -> Any:
    """The element of a stored record that holds one. Raises: ValueError for one that is damaged."""
    try:
        kind, length = _PREFIX.unpack_from(record)
        start = _PREFIX.size + length
        decoder = _row_decoder if kind == ROW else _decoder
        value, end = decoder(record[_PREFIX.size : start])(record, start)
    except Exception as error:  # whatever msgpack, struct and NumPy make of other bytes
        raise _damaged(error) from error
    if end != len(record):
        raise ValueError(f"a record has {len(record)} bytes, and its fields end at {end}; it is damaged")
    return value


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"this record was not written by materialize, or is damaged: {error}")


def columns_of(records: Sequence[bytes], are_last: bool) -> Columns | None:
    """The columns of stored records that are all alike and hold numbers alone, or rows of columns; else None.

    The same as of the single elements, stacked. are_last: whether nothing is done to single elements any more; else
    only what was rows of columns is columns again.
    """
    first = records[0] if len(records) else b""
    if not first or first[0] not in ((ELEMENT, ROW) if are_last else (ROW,)):
        return None
    try:
        begin = first[: _PREFIX.size + _PREFIX.unpack_from(first)[1]]
        layout = _layout(begin[_PREFIX.size :])
        if layout is None:
            return None
        found = _found(records, begin, *layout[:3])
    except Exception:  # whatever damaged bytes come to: each is looked at alone then, and told of by its name
        return None
    return None if found is None else _nested({path: found[path] for path in layout[3]})


def _found(
    records: Sequence[bytes], begin: bytes, fields: list[_Field], nbytes: int, objects: list[Path]
) -> dict[Path, np.ndarray] | None:
    """The column of each field; None where records are not alike."""
    start, stop = len(begin), len(begin) + nbytes
    if isinstance(records, FixedRecords):
        are_alike = (records.rows[:, :start] == np.frombuffer(begin, np.uint8)).all() and (
            objects or records.size == stop
        )
        rows = records.rows[:, start:stop]
    else:
        are_alike = all(record.startswith(begin) and (objects or len(record) == stop) for record in records)
        rows = np.frombuffer(b"".join([record[start:stop] for record in records]), np.uint8)
    if not are_alike:
        return None
    rows = rows.reshape(len(records), nbytes)
    made = {path: _column(rows, at, dtype, shape) for path, dtype, shape, at in fields}
    if objects:
        values = [_objects(record, stop, len(objects)) for record in records]
        for index, path in enumerate(objects):
            made[path] = np.fromiter((each[index] for each in values), object, len(records))
    return made


def _column(rows: np.ndarray, at: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not size:
        return np.empty((len(rows), *shape), dtype)
    column = np.array(rows[:, at : at + size]).view(dtype).reshape(len(rows), *shape)
    return column if dtype.isnative else column.astype(dtype.newbyteorder("="))  # as columns are


Layout = tuple[list[_Field], int, list[Path], list[Path]]


@functools.lru_cache(_MAX_HEADS)
def _layout(head: bytes) -> Layout | None:
    """The fields of one size, where each begins, and their bytes; the paths of others, and those of all in their order.
    None of an element that becomes no dense columns.
    """
    node = _unpacked(head)
    fields: list[tuple[Path, Any, tuple[int, ...]]] = []
    objects: list[Path] = []
    if node[0] == "R":
        for path, code, *told in node[1]:
            if code == "O":
                objects.append(tuple(path))
            else:
                fields.append((tuple(path), _dtype(told[0]), tuple(told[1])))
    elif not _all_numbers(node, (), fields):
        return None
    sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for _, dtype, shape in fields]
    starts = np.cumsum([0, *sizes]).tolist()
    order = [tuple(path) for path, *_ in node[1]] if node[0] == "R" else sorted(path for path, *_ in fields)
    return [(*field, at) for field, at in zip(fields, starts, strict=False)], starts[-1], objects, order


def _all_numbers(node: Any, path: Path, fields: list[tuple[Path, Any, tuple[int, ...]]]) -> bool:
    """Whether this becomes dense columns, and their fields."""
    if isinstance(node, str):
        if node in _NUMBER_DTYPES:
            fields.append((path, _NUMBER_DTYPES[node], ()))
        return node in _NUMBER_DTYPES
    if node[0] == "d":
        are_names = bool(node[1]) and all(isinstance(key, str) for key in node[1])
        return are_names and all(_all_numbers(n, (*path, k), fields) for k, n in zip(*node[1:], strict=True))
    if node[0] not in ("a", "g"):
        return False
    dtype = _dtype(node[1])
    fields.append((path, dtype, tuple(node[2]) if node[0] == "a" else ()))
    return not is_host_only(dtype)


def _fields_of(columns: Columns, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every column with its path, in the order that they have."""
    if not isinstance(columns, Mapping):
        yield path, columns
        return
    for key, column in columns.items():
        yield from _fields_of(column, (*path, key))


def _nested(found: dict[Path, Any]) -> Any:
    """The dict of these fields, in their order."""
    if () in found:
        return found[()]
    nested: dict[str, Any] = {}
    for path in found:
        within = nested
        for key in path[:-1]:
            within = within.setdefault(key, {})
        within[path[-1]] = found[path]
    return nested


@functools.lru_cache(_MAX_HEADS)
def _decoder(head: bytes) -> Decoder:
    return _reading(_unpacked(head))


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


def _node(value: Any, path: Path, payload: list[bytes]) -> Any:
    """The head of a value, whose bytes are added to the payload."""
    kind = type(value)
    for code in _BY_TYPE.get(kind) or (_BY_TYPE[np.generic] if isinstance(value, np.generic) else ()):
        rest = code.encode(value, path, payload)
        if rest is not None:
            return [code.letter, *rest] if rest else code.letter
    remedy = "np.asarray(value)" if hasattr(value, "__array__") else "a dict, a list, numbers, text or NumPy arrays"
    raise UnwritableError(f"{named(path)} is a {kind.__qualname__}, which cannot be written; make it {remedy}")


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

    return _Code(letter, kind, encode, lambda: _sized_of(from_bytes))


def _add_sized(data: bytes, payload: list[bytes]) -> None:
    payload += [_LENGTH.pack(len(data)), data]


def _sized_of(make: Callable[[bytes], Any]) -> Decoder:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise ValueError(f"a value ends at byte {end} of a record of {len(data)}; it is damaged")
        return make(data[start:end]), end

    return read


def _encode_text(value: Any, path: Path, payload: list[bytes]) -> list[Any] | None:
    name, to_text, from_text = _TEXTS[type(value)]
    text = to_text(value)
    if repr(from_text(text)) != repr(value):  # the name of a time zone, or which one of two equal hours it is
        return None
    _add_sized(text.encode(), payload)
    return [name]


def _decode_text(name: str) -> Decoder:
    return _sized_of(lambda data: _FROM_TEXT[name](data.decode()))


def _encode_scalar(value: Any, path: Path, payload: list[bytes]) -> list[Any]:
    payload.append(value.tobytes()[: value.dtype.itemsize])  # of an empty np.str_ it gives a zero
    return [_dtype_told(value.dtype, path)]


def _decode_scalar(dtype: Any) -> Decoder:
    """One that was alone: of text, the NULs at its end are its own, where in an array they fill it up."""
    read, kind = _decode_array(dtype, (1,)), _dtype(dtype)
    if kind.kind not in "SU":
        return _scalar(dtype)
    order = "be" if kind.str[0] == ">" else "le"

    def text(data: bytes, at: int) -> tuple[Any, int]:
        _, end = read(data, at)
        stored = data[at:end]
        return kind.type(stored if kind.kind == "S" else stored.decode(f"utf-32-{order}", "surrogatepass")), end

    return text


def _encode_array(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any]:
    if array.dtype.names is not None:  # what lies between the fields is whatever was in memory there
        array, given = np.zeros(array.shape, array.dtype), array
        for name in given.dtype.names or ():
            array[name] = given[name]
    payload.append(array.tobytes())
    return [_dtype_told(array.dtype, path), list(array.shape)]


def _encode_ragged(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any] | None:
    return _encode_array(array, path, payload) if is_ragged_row(array) else None


def _decode_array(dtype: Any, shape: Any, is_ragged: bool = False) -> Decoder:
    kind, shape = _dtype(dtype), tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = count * kind.itemsize

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + nbytes > len(data):
            raise ValueError(f"an array ends at byte {at + nbytes} of a record of {len(data)}; it is damaged")
        array = np.frombuffer(data, kind, count, at).reshape(shape).copy() if nbytes else np.zeros(shape, kind)
        return (ragged_row(array) if is_ragged else array), at + nbytes

    return read


def _scalar(dtype: Any) -> Decoder:
    read = _decode_array(dtype, (1,))

    def first(data: bytes, at: int) -> tuple[Any, int]:
        array, end = read(data, at)
        return array[0], end

    return first


def _encode_objects(array: np.ndarray, path: Path, payload: list[bytes]) -> list[Any] | None:
    if array.dtype != object:
        return None
    nodes = [_node(item, path, payload) for item in array.ravel().tolist()]
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
    payload += [_LENGTH.pack(len(values)), numbers.tobytes()]
    return [letter]


def _decode_numbers(letter: str) -> Decoder:
    dtype = _NUMBER_DTYPES[letter]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, start = _LENGTH.unpack_from(data, at)[0], at + _LENGTH.size
        return np.frombuffer(data, dtype, count, start).tolist(), start + count * dtype.itemsize

    return read


def _encode_items(values: Sequence[Any], path: Path, payload: list[bytes]) -> list[Any]:
    return [[_node(value, (*path, str(index)), payload) for index, value in enumerate(values)]]


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
    return [list(value), [_node(item, (*path, str(key)), payload) for key, item in value.items()]]


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
    _sized("s", str, lambda text: text.encode("utf-8", "surrogatepass"), lambda d: d.decode("utf-8", "surrogatepass")),
    _sized("y", bytes, bytes, bytes),
    *(_Code("x", kind, _encode_text, _decode_text) for kind in _TEXTS),
    _Code("g", np.generic, _encode_scalar, _decode_scalar),
    _Code("o", np.ndarray, _encode_objects, _decode_objects),
    _Code("r", np.ndarray, _encode_ragged, functools.partial(_decode_array, is_ragged=True)),
    _Code("a", np.ndarray, _encode_array, _decode_array),
    _Code("L", list, _encode_numbers, _decode_numbers),
    _Code("l", list, _encode_items, functools.partial(_decode_items, list)),
    _Code("t", tuple, _encode_items, functools.partial(_decode_items, tuple)),
    _Code("d", dict, _encode_dict, _decode_dict),
]
_BY_LETTER = {code.letter: code for code in _CODES}
_BY_TYPE = {kind: [code for code in _CODES if code.type is kind] for kind in {code.type for code in _CODES}}


def _dtype_told(dtype: np.dtype, path: Path) -> Any:
    """A dtype as msgpack; those of ml_dtypes (bfloat16, float8) by name."""
    if dtype.isbuiltin == 2:
        return ["ml_dtypes", dtype.name]
    if dtype.hasobject or dtype.metadata:
        raise UnwritableError(f"{named(path)} is of dtype {dtype}, which cannot be written; make a field of each part")
    return dtype.str if dtype.names is None else _lists(np.lib.format.dtype_to_descr(dtype))


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, list | tuple) else value


@functools.lru_cache
def _named_dtype(name: str) -> np.dtype:
    import ml_dtypes  # adds these to NumPy; comes with JAX, and does not load it

    return np.dtype(getattr(ml_dtypes, name))


def _dtype(told: Any) -> np.dtype:
    if isinstance(told, str):
        return np.dtype(told)
    if told[0] == "ml_dtypes":
        return _named_dtype(told[1])
    return np.lib.format.descr_to_dtype(_fields(told))


def _fields(told: list[Any]) -> list[Any]:
    """The list of fields that NumPy's own files have; a field is (name, dtype) or (name, dtype, shape)."""
    found = []
    for name, dtype, *shape in told:
        name = tuple(name) if isinstance(name, list) else name  # with a title
        found.append((name, _fields(dtype) if isinstance(dtype, list) else dtype, *map(tuple, shape)))
    return found


@functools.lru_cache(_MAX_HEADS)
def _row_decoder(head: bytes) -> Decoder:
    """As unstack has it: numbers of columns as NumPy's, arrays as rows, and what an object column held."""
    _, fields = _unpacked(head)
    order = [tuple(path) for path, *_ in fields]
    readers = [(tuple(path), _row_field(*told)) for path, *told in sorted(fields, key=lambda field: field[1] == "O")]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: dict[Path, Any] = {}
        for path, reader in readers:
            found[path], at = reader(data, at)
        return _nested({path: found[path] for path in order}), at

    return read


def _row_field(code: str, dtype: Any = None, shape: Any = ()) -> Decoder:
    if code == "O":
        return _sized_of(_object)
    return _decode_array(dtype, shape) if shape else _scalar(dtype)


def _objects(record: bytes, at: int, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        value, at = _OBJECT(record, at)
        found.append(value)
    return found


def _object(data: bytes) -> Any:
    length, start = _LENGTH.unpack_from(data)[0], _LENGTH.size
    value, _ = _decoder(data[start : start + length])(data, start + length)
    return ragged_row(value) if isinstance(value, np.ndarray) else value


_OBJECT = _sized_of(_object)


def _packed(value: Any) -> bytes:
    import msgpack  # in here, as of the decoders: an actor that reads none of this does without

    found: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return found


def _unpacked(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
