"""Stored records: the bytes that hold what became of one record of a source, and back; and the stream that a folder of
them belongs to.

A stored record is a byte for its kind, then

    NOTHING   no element: a filter dropped it
    ELEMENT   an element: its head and payload
    ROW       a row of columns: its head and payload
    SEVERAL   the results of a flat_map, and failures: msgpack of [[ordinal, record], ...] and [[where, reason], ...]

A head is a length (u32) and as many bytes of msgpack: the fields in their order, [path, form, dtype, shape] each. It is
mostly the head of the record before. The payload has the bytes of the numbers and arrays first, as NumPy holds them,
then msgpack of a list of all other values (see values). An element that is no dict is one field with an empty path.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.plan.fingerprint import DriftError, check_drift, code_changes, differences
from datarax_ray.plan.position import Yields
from datarax_ray.read.elements.columns import Columns, Path, is_host_only, is_ragged_row, named, ragged_row
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.inspecting import FINISHED, MAX_NBYTES, SHARD, UNFINISHED, check_shard
from datarax_ray.read.formats.materialized.values import array_of, dtype_node, dtype_of, list_of, pack, packed, unpacked
from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.remote.ranges import read_small

NOTHING, ELEMENT, ROW, SEVERAL = range(4)
_PREFIX = struct.Struct("<BI")  # kind, length of the head
_NUMBERS = {bool: np.dtype("?"), int: np.dtype("<i8"), float: np.dtype("<f8"), complex: np.dtype("<c16")}
# Forms of a field: a number of Python, a scalar or array of NumPy, and any other value.
_NUMBER, _SCALAR, _ARRAY, _OBJECT = "number", "scalar", "array", "object"


@dataclass(frozen=True)
class Failed:
    """A failure that on_error skipped: of a record, or of one of its elements.

    where: the record's place in the source's own files.
    reason: what was wrong, for people.
    """

    where: str
    reason: str


@final
@dataclass(frozen=True)
class DecodeMaterialized(NamedArguments):
    """Decode a record that materialize wrote: no element where a filter dropped it, several of a flat_map.

    The stream is one of its own, over the written files, in any order. States of the live source fit a
    MaterializedSource, not this stream. `load(DIR)` puts this decoder before the transforms by itself.

    Raises: ValueError for a record that failed when it was materialised, and for one that materialize did not write.
    """

    def flat_map(self, record: bytes) -> list[Any]:
        """The elements of a record."""
        parts = parts_of(record)
        for ordinal, *failure in parts:
            if ordinal is None:
                raise ValueError(f"it failed when it was materialised: {': '.join(failure)}")
        return [value_of(data) for _, data in parts]


def record_of(elements: Sequence[tuple[int, bytes]], failed: Sequence[Failed]) -> bytes:
    """The stored record of elements, (ordinal, bytes) each, and failures. See encoded, encoded_rows."""
    if not elements and not failed:
        return bytes([NOTHING])
    if len(elements) == 1 and not failed and not elements[0][0]:
        return elements[0][1]
    # ordinals are stored, as some may be missing
    return bytes([SEVERAL]) + pack([elements, [[each.where, each.reason] for each in failed]])


def encoded(element: Any) -> bytes:
    """An element as bytes. Raises: UnwritableError for a value that would not come back, with field and remedy."""
    fields, dense, objects = list[Any](), list[bytes](), list[bytes]()
    for path, value in _values_of(element):
        form, dtype = _form_of(value)
        if dtype is None:
            fields.append([path, form])
            objects.append(packed(value, path))
            continue
        array = np.asarray(value, dtype)
        fields.append([path, form, dtype_node(dtype, path), array.shape])
        dense.append(array.tobytes())
    head = pack(fields)
    return b"".join([_PREFIX.pack(ELEMENT, len(head)), head, *dense, list_of(objects) if objects else b""])


def encoded_rows(columns: Columns, count: int) -> list[bytes]:
    fields, dense, objects = list[Any](), list[np.ndarray](), list[tuple[Path, np.ndarray]]()
    for path, column in _values_of(columns):
        if column.dtype == object:
            fields.append([path, _OBJECT])
            objects.append((path, column))
            continue
        if not column.dtype.isnative:
            raise UnwritableError(
                f"{named(path)} is {column.dtype.str}, whose bytes are not in this machine's order; return "
                "column.astype(column.dtype.newbyteorder('='))"
            )
        form = _ARRAY if column.ndim > 1 else _SCALAR
        fields.append([path, form, dtype_node(column.dtype, path), column.shape[1:]])
        dense.append(np.ascontiguousarray(column).reshape(count, -1).view(np.uint8).reshape(count, -1))
    head = pack(fields)
    begin = _PREFIX.pack(ROW, len(head)) + head
    rows = np.concatenate(dense, axis=1) if dense else np.empty((count, 0), np.uint8)
    records = []
    for index in range(count):
        others = list_of([packed(column[index], path) for path, column in objects]) if objects else b""
        records.append(begin + rows[index].tobytes() + others)
    return records


def _values_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each value inside nested dicts, with its path and in their order. A dict without names of fields is a value."""
    if type(value) is dict and value and all(type(key) is str for key in value):
        for key, item in value.items():
            yield from _values_of(item, (*path, key))
    else:
        yield path, value


def _form_of(value: Any) -> tuple[str, np.dtype | None]:
    """The form of a field, and the dtype of its bytes; None where the value is an object."""
    kind = type(value)
    if kind in _NUMBERS and not (kind is int and not -(2**63) <= value < 2**63):
        return _NUMBER, _NUMBERS[kind]
    if isinstance(value, np.generic) and not is_host_only(value.dtype):
        return _SCALAR, value.dtype
    if kind is np.ndarray and not is_host_only(value.dtype) and not is_ragged_row(value):
        return _ARRAY, value.dtype
    return _OBJECT, None


def parts_of(record: bytes) -> list[list[Any]]:
    """The parts of a stored record: [ordinal, bytes] of each element, and [None, where, reason] of each failure.

    Raises: ValueError for bytes that are no such record.
    """
    kind = record[0] if record else -1
    if kind in (ELEMENT, ROW):
        return [[0, record]]
    if kind == NOTHING:
        return []
    if kind != SEVERAL:
        raise ValueError(f"this record was not written by materialize: it begins with {record[:1]!r}")
    try:
        elements, failed = unpacked(record[1:])
        return [*elements, *([None, where, reason] for where, reason in failed)]
    except Exception as error:  # whatever msgpack and Python make of other bytes
        raise _damaged(error) from error


def value_of(record: bytes) -> Any:
    """The element of a stored record with one element. Raises: ValueError for a damaged record."""
    try:
        kind, length = _PREFIX.unpack_from(record)
        start = _PREFIX.size + length
        layout = _layout(record[_PREFIX.size : start])
        values = {field.path: field.value(record, start) for field in layout.dense}
        end = start + layout.nbytes
        values.update(zip(layout.objects, _objects(record, end, layout, kind), strict=True))
        return _nested(values, layout.order)
    except Exception as error:  # whatever msgpack, struct and NumPy make of other bytes
        raise _damaged(error) from error


def columns_of(records: Sequence[bytes], are_last: bool) -> Columns | None:
    """The columns of stored records that are alike: rows of columns, or elements of numbers and arrays. Else None.

    The columns are those that stacking the elements gives, without making the elements.

    are_last: whether no transform follows. Where one does, only rows of columns become columns again.
    """
    first = records[0] if len(records) else b""
    if not first or first[0] not in ((ELEMENT, ROW) if are_last else (ROW,)):
        return None
    try:
        begin = first[: _PREFIX.size + _PREFIX.unpack_from(first)[1]]
        layout = _layout(begin[_PREFIX.size :])
        if first[0] == ELEMENT and layout.objects:
            return None
        columns = _columns(records, begin, layout)
    except Exception:  # whatever damaged bytes come to: each is read alone then, and named in its error
        return None
    order = layout.order if first[0] == ROW else sorted(layout.order)
    return None if columns is None else _nested(columns, order)


def _columns(records: Sequence[bytes], begin: bytes, layout: _Layout) -> dict[Path, np.ndarray] | None:
    """The column of each field; None where records are not alike. begin: of the first, up to its payload."""
    start, stop = len(begin), len(begin) + layout.nbytes
    if isinstance(records, FixedRecords):
        are_alike = bool((records.rows[:, :start] == np.frombuffer(begin, np.uint8)).all())
        are_alike = are_alike and (bool(layout.objects) or records.size == stop)
        rows = records.rows[:, start:stop]
    else:
        are_alike = all(record.startswith(begin) and (layout.objects or len(record) == stop) for record in records)
        rows = np.frombuffer(b"".join([record[start:stop] for record in records]), np.uint8)
    if not are_alike:
        return None
    rows = rows.reshape(len(records), layout.nbytes)
    columns = {field.path: field.column(rows) for field in layout.dense}
    if layout.objects:
        values = [_objects(record, stop, layout, ROW) for record in records]
        for path, column in zip(layout.objects, zip(*values, strict=True), strict=True):
            columns[path] = np.fromiter(column, object, len(records))
    return columns


def _objects(record: bytes, start: int, layout: _Layout, kind: int) -> list[Any]:
    """The objects of a record. The arrays of a row are rows of ragged columns."""
    if not layout.objects:
        if len(record) != start:
            raise ValueError(f"a record has {len(record)} bytes, and its fields end at {start}")
        return []
    values: list[Any] = unpacked(record[start:])
    if kind == ROW:
        return [ragged_row(value) if isinstance(value, np.ndarray) else value for value in values]
    return values


@dataclass(frozen=True)
class _Dense:
    """A field of one size. start, nbytes: of its bytes in the payload."""

    path: Path
    form: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def value(self, record: bytes, payload: int) -> Any:
        """The field of the record whose payload begins there."""
        if self.form == _ARRAY:
            return array_of(self.dtype, self.shape, record, payload + self.start)
        array = np.frombuffer(record, self.dtype, 1, payload + self.start)
        return array.item() if self.form == _NUMBER else array[0]

    def column(self, rows: np.ndarray) -> np.ndarray:
        """The column of the payloads of records: uint8 (k, n)."""
        if not self.nbytes:
            return np.empty((len(rows), *self.shape), self.dtype)
        column = np.array(rows[:, self.start : self.start + self.nbytes]).view(self.dtype)
        # columns are in native byte order
        return column.reshape(len(rows), *self.shape).astype(self.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class _Layout:
    """Where the fields of a record are. nbytes: of the dense ones. order: the paths of all, in the element's order."""

    dense: list[_Dense]
    nbytes: int
    objects: list[Path]
    order: list[Path]


@functools.lru_cache(2**10)  # a dataset has one, or one for each shape: 10 MB at most of usual elements
def _layout(head: bytes) -> _Layout:
    dense, objects, order, nbytes = list[_Dense](), list[Path](), list[Path](), 0
    for path, form, *kind in unpacked(head):
        order.append(tuple(path))
        if form == _OBJECT:
            objects.append(order[-1])
            continue
        dtype, shape = dtype_of(kind[0]), tuple(kind[1])
        dense.append(_Dense(order[-1], form, dtype, shape, nbytes, math.prod(shape) * dtype.itemsize))
        nbytes += dense[-1].nbytes
    return _Layout(dense, nbytes, objects, order)


def _nested(values: Mapping[Path, Any], order: Sequence[Path]) -> Any:
    """The nested dict of these values, with its fields in this order."""
    found: dict[str, Any] = {}
    for path in order:
        if not path:
            return values[path]
        within = found
        for key in path[:-1]:
            within = within.setdefault(key, {})
        within[path[-1]] = values[path]
    return found


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"this record was not written by materialize, or is damaged: {error}")


KEY = "materialized"
_VERSION = 1


@dataclass(frozen=True)
class Written:
    """The stream that was materialised.

    num_records: of the source.
    num_transforms: how many of the stream's transforms ran.
    files, transforms: their fingerprints.
    """

    num_records: int
    num_transforms: int
    files: Mapping[str, Any]
    transforms: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values: KEY of `made_from` in dataset.json."""
        return {"version": _VERSION, **asdict(self)}

    def check(self, live: Mapping[str, Any], where: str) -> list[str]:
        """Raise DriftError unless these are the files that were written. live: files and transforms of a source.

        Returns the names of the transforms whose code differs.
        """
        mine = {"files": self.files, "transforms": self.transforms}
        try:
            check_drift(mine, live)
        except DriftError as error:
            raise DriftError(
                f"{where} was not written of this source, so it holds other elements. Materialize the source again, to "
                "another folder, or give the source it was written of. The folder, and this source:"
                f"{differences(mine, live)}",
                error.differences,
            ) from None
        return code_changes(mine, live)


def opened(path: str) -> tuple[ArrayRecordReader, Written]:
    """A reader of the records that were materialised to a folder or URL, and the stream they belong to.

    Raises: FileNotFoundError where nothing was written, or not to its end; ValueError for a folder that materialize did
    not write, and for files that changed since.
    """
    dataset = _dataset(path)
    plain = _materialized_in(dataset)
    if plain is None:
        raise ValueError(
            f"{redacted(path)} was not written by materialize; load({redacted(path)!r}) finds a reader for it"
        )
    if plain["version"] != _VERSION:
        raise ValueError(
            f"{redacted(path)} was materialized in version {plain['version']}, and this release reads {_VERSION}. "
            "Materialize the source again, or read the folder with the release that wrote it"
        )
    shards = dataset["shards"]
    if (count := sum(shard["num_records"] for shard in shards)) != dataset["num_records"]:
        raise ValueError(
            f"{redacted(path)}/{FINISHED} is damaged: its shards have {count} of {dataset['num_records']} records"
        )
    reader = ArrayRecordReader.of([f"{path.rstrip('/')}/{shard['name']}" for shard in shards])
    for shard, file in zip(shards, reader.files, strict=True):
        check_shard(file.name, shard, file.nbytes, file.content)
    written = Written(**{name: value for name, value in plain.items() if name != "version"})
    return reader, written


def is_materialized(paths: Any) -> bool:
    """Whether `paths` is one folder, on this machine or behind a URL, that materialize has written."""
    return _found(paths) is not None


def yields_in(paths: Any, num_records: int) -> Yields | None:
    """How many elements the records of a materialised folder hold.

    None for any other folder, and for one where more records are read than materialize wrote.
    """
    dataset = _found(paths)
    if dataset is None or dataset["num_records"] != num_records:
        return None
    statistics = [shard["said"]["statistics"] for shard in dataset["shards"]]
    num_elements, num_empty = (sum(each[name] for each in statistics) for name in ("num_elements", "num_left_out"))
    return Yields(num_elements == num_records and not num_empty, may_repeat=num_elements > num_records - num_empty)


def component_path(path: str, index: int) -> str:
    """The folder of a component of a mixture."""
    return f"{path.rstrip('/')}/component-{index}"


def _found(paths: Any) -> Mapping[str, Any] | None:
    """The dataset.json of a folder that materialize wrote; None for other paths, and for several."""
    path = paths[0] if isinstance(paths, list | tuple) and len(paths) == 1 else paths
    if not isinstance(path, str | os.PathLike):
        return None
    path = os.fspath(path).removeprefix("file://")
    if is_url(path):
        is_folder = path.endswith("/") or not os.path.splitext(path)[1]
    else:  # another program may have a file of the name dataset.json
        is_folder = os.path.isdir(path) and any(map(SHARD.fullmatch, os.listdir(path)))
    if not is_folder:
        return None
    try:
        dataset = _dataset(path)
    except (FileNotFoundError, PermissionError):
        return None
    except ValueError:
        if is_url(path):
            return None
        raise
    return None if _materialized_in(dataset) is None else dataset


def _materialized_in(dataset: Mapping[str, Any]) -> Mapping[str, Any] | None:
    made_from = dataset.get("made_from")
    return made_from.get(KEY) if isinstance(made_from, Mapping) else None


def _dataset(path: str) -> Mapping[str, Any]:
    name = f"{path.rstrip('/')}/{FINISHED}"
    try:
        found = json.loads(read_small(name, MAX_NBYTES))
        if not isinstance(found, Mapping):
            raise ValueError(f"it holds a {type(found).__name__}")
    except FileNotFoundError:
        begun = not is_url(path) and os.path.exists(f"{path.rstrip('/')}/{UNFINISHED}")
        why = "it was not written to its end: call materialize again, which goes on" if begun else "nothing was written"
        raise FileNotFoundError(f"{redacted(path)} has no {FINISHED}: {why}") from None
    except ValueError as error:
        raise ValueError(f"{redacted(name)} is damaged: {error}; copy the folder again, or write it again") from error
    return found
