"""Elements as bytes, and back: the same values of the same types, bit for bit. What is read here runs no code.

A stored record holds what became of one record of a source: a byte for its kind, then

    NOTHING   no element: it was left out
    ELEMENT   an element: its head and its payload
    ROW       a row of columns, likewise
    SEVERAL   what a flat_map gave, and what failed: msgpack of [[ordinal, record], ...] and [[where, reason], ...]

A head is a length (u32) and so many bytes of msgpack: the element's shape, fields and dtypes, which mostly are those of
the record before. The payload is its values, one after the other. Numbers are little-endian, NumPy's as they are.
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
_BY_CODE = {code: (packing, dtype) for code, packing, dtype in _NUMBERS.values()}
_KEYS = frozenset({str, bytes, int, bool, float, type(None)})
_DATES: dict[type, str] = {datetime.datetime: "datetime", datetime.date: "date", datetime.time: "time"}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    **{name: kind.fromisoformat for kind, name in _DATES.items()},  # type: ignore[attr-defined]
    "decimal": decimal.Decimal,
    "timedelta": lambda text: datetime.timedelta(*map(int, text.split())),
}
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
        length = _PREFIX.unpack_from(record)[1]
        start = _PREFIX.size + length
        value, end = _decoder(record[_PREFIX.size : start])(record, start)
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
        if node in _BY_CODE:
            fields.append((path, _BY_CODE[node][1], ()))
        return node in _BY_CODE
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


def _node(value: Any, path: Path, payload: list[bytes]) -> Any:
    """What the head says of a value, whose bytes join the payload."""
    kind = type(value)
    if value is None:
        return "n"
    if kind is np.ndarray:
        return _array_node(value, path, payload)
    if kind is dict:
        if odd := [key for key in value if type(key) not in _KEYS]:
            raise UnwritableError(f"{named(path)} has the key {odd[0]!r} of {type(odd[0]).__name__}; use a str")
        if beyond := [key for key in value if type(key) is int and not -(2**63) <= key < 2**64]:  # of msgpack
            raise UnwritableError(f"{named(path)} has the key {shown(beyond[0])}, which is beyond 64 bits; use a str")
        return ["d", list(value), [_node(item, (*path, str(key)), payload) for key, item in value.items()]]
    if kind in _NUMBERS and not (kind is int and not -(2**63) <= value < 2**63):
        code, packing, _ = _NUMBERS[kind]
        payload.append(packing.pack(value.real, value.imag) if kind is complex else packing.pack(value))
        return code
    if kind is str:
        return _sized("s", value.encode("utf-8", "surrogatepass"), payload)
    if kind is bytes:
        return _sized("y", value, payload)
    if kind is int:
        return _sized("I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), payload)
    if isinstance(value, np.generic):
        payload.append(value.tobytes()[: value.dtype.itemsize])  # of an empty np.str_ it gives a zero
        return ["g", _dtype_told(value.dtype, path)]
    if kind is list and len(kinds := set(map(type, value))) == 1 and (item := kinds.pop()) in _NUMBERS:
        numbers = _as_array(value, item)
        if numbers is not None:
            payload += [_LENGTH.pack(len(value)), numbers.tobytes()]
            return ["L", _NUMBERS[item][0]]
    if kind is list or kind is tuple:
        return ["l" if kind is list else "t", [_node(v, (*path, str(i)), payload) for i, v in enumerate(value)]]
    # not the name of a time zone, nor which one of two equal hours it is: these are not in the text
    if kind in _DATES and repr(kind.fromisoformat(value.isoformat())) == repr(value):
        _sized("", value.isoformat().encode(), payload)
        return ["x", _DATES[kind]]
    if kind is decimal.Decimal:
        _sized("", str(value).encode(), payload)
        return ["x", "decimal"]
    if kind is datetime.timedelta:
        _sized("", f"{value.days} {value.seconds} {value.microseconds}".encode(), payload)
        return ["x", "timedelta"]
    remedy = "np.asarray(value)" if hasattr(value, "__array__") else "a dict, a list, numbers, text or NumPy arrays"
    raise UnwritableError(f"{named(path)} is a {kind.__qualname__}, which cannot be written; make it {remedy}")


def _as_array(values: list[Any], kind: type) -> np.ndarray | None:
    try:
        return np.array(values, _NUMBERS[kind][2])
    except OverflowError:  # each is written alone
        return None


def _array_node(array: np.ndarray, path: Path, payload: list[bytes]) -> Any:
    is_ragged = is_ragged_row(array)
    if array.dtype == object:
        nodes = [_node(item, path, payload) for item in array.ravel().tolist()]
        return ["o", list(array.shape), nodes, is_ragged]
    if array.dtype.names is not None:  # what lies between the fields is whatever was in memory there
        array, given = np.zeros(array.shape, array.dtype), array
        for name in given.dtype.names or ():
            array[name] = given[name]
    payload.append(array.tobytes())
    return ["r" if is_ragged else "a", _dtype_told(array.dtype, path), list(array.shape)]


def _sized(code: str, data: bytes, payload: list[bytes]) -> str:
    payload += [_LENGTH.pack(len(data)), data]
    return code


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


def _reading(node: Any) -> Decoder:
    """What reads a value of this kind: (record, where it begins) -> the value, and where it ends."""
    if isinstance(node, str):
        return _PLAIN[node]
    code, *told = node
    return _COMPOSED[code](*told)


def _number(packing: struct.Struct) -> Decoder:
    return lambda data, at: (packing.unpack_from(data, at)[0], at + packing.size)


def _complex(data: bytes, at: int) -> tuple[Any, int]:
    return complex(*_NUMBERS[complex][1].unpack_from(data, at)), at + 16


def _sized_of(make: Callable[[bytes], Any]) -> Decoder:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise ValueError(f"a value ends at byte {end} of a record of {len(data)}; it is damaged")
        return make(data[start:end]), end

    return read


def _array(dtype: Any, shape: Any, is_ragged: bool = False) -> Decoder:
    kind, shape = _dtype(dtype), tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = count * kind.itemsize

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + nbytes > len(data):
            raise ValueError(f"an array ends at byte {at + nbytes} of a record of {len(data)}; it is damaged")
        found = np.frombuffer(data, kind, count, at).reshape(shape).copy() if nbytes else np.zeros(shape, kind)
        return (ragged_row(found) if is_ragged else found), at + nbytes

    return read


def _scalar(dtype: Any) -> Decoder:
    read = _array(dtype, (1,))

    def first(data: bytes, at: int) -> tuple[Any, int]:
        found, end = read(data, at)
        return found[0], end

    return first


def _whole_scalar(dtype: Any) -> Decoder:
    """One that was alone: of text, the NULs at its end are its own, where in an array they fill it up."""
    read, kind = _array(dtype, (1,)), _dtype(dtype)
    if kind.kind not in "SU":
        return _scalar(dtype)
    order = "be" if kind.str[0] == ">" else "le"

    def text(data: bytes, at: int) -> tuple[Any, int]:
        _, end = read(data, at)
        stored = data[at:end]
        return kind.type(stored if kind.kind == "S" else stored.decode(f"utf-32-{order}", "surrogatepass")), end

    return text


def _object_array(shape: Any, nodes: Any, is_ragged: bool) -> Decoder:
    read = _several(nodes, list)

    def made(data: bytes, at: int) -> tuple[Any, int]:
        items, end = read(data, at)
        found = np.fromiter(items, object, len(items)).reshape(tuple(shape))
        return (ragged_row(found) if is_ragged else found), end

    return made


def _several(nodes: Any, make: Callable[[list[Any]], Any]) -> Decoder:
    readers = [_reading(node) for node in nodes]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found = []
        for reader in readers:
            value, at = reader(data, at)
            found.append(value)
        return make(found), at

    return read


def _numbers(code: str) -> Decoder:
    dtype = _BY_CODE[code][1]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, start = _LENGTH.unpack_from(data, at)[0], at + _LENGTH.size
        return np.frombuffer(data, dtype, count, start).tolist(), start + count * dtype.itemsize

    return read


def _row(fields: Any) -> Decoder:
    """As unstack has it: numbers of columns as NumPy's, arrays as rows, and what an object column held."""
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
    return _array(dtype, shape) if shape else _scalar(dtype)


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
_PLAIN: dict[str, Decoder] = {
    "n": lambda data, at: (None, at),
    **{code: _number(packing) for code, (packing, _) in _BY_CODE.items()},
    "c": _complex,
    "s": _sized_of(lambda data: data.decode("utf-8", "surrogatepass")),
    "y": _sized_of(bytes),
    "I": _sized_of(lambda data: int.from_bytes(data, "little", signed=True)),
}
_COMPOSED: dict[str, Callable[..., Decoder]] = {
    "a": _array,
    "r": lambda dtype, shape: _array(dtype, shape, True),
    "g": _whole_scalar,
    "o": _object_array,
    "d": lambda keys, nodes: _several(nodes, lambda values: dict(zip(keys, values, strict=True))),
    "l": lambda nodes: _several(nodes, list),
    "t": lambda nodes: _several(nodes, tuple),
    "L": _numbers,
    "x": lambda kind: _sized_of(lambda data: _FROM_TEXT[kind](data.decode())),
    "R": _row,
}


def _packed(value: Any) -> bytes:
    import msgpack  # in here, as of the decoders: an actor that reads none of this does without

    found: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return found


def _unpacked(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
