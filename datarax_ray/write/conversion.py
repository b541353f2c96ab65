"""Conversion: reads the records of any reader as they are stored, and gives them as another format writes them.

Nothing is decoded without need: text stays text, a JPEG its bytes, and a null None.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read import decode
from datarax_ray.read.decode import DecodeImage
from datarax_ray.read.elements.columns import ColumnError, stack
from datarax_ray.read.elements.transforms import OnError, skips
from datarax_ray.read.errors import RecordError, is_of_data, message_of
from datarax_ray.read.files.sniff import DECODERS, picture_in, record_format
from datarax_ray.read.formats.arrow.columns import rows_of_table
from datarax_ray.read.formats.image_folder import SUFFIXES
from datarax_ray.read.formats.origins import origins_of
from datarax_ray.read.formats.webdataset.index import KEY
from datarax_ray.read.formats.webdataset.reader import DecodeExtensions, WebDatasetReader
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.write.arrow import UnfitError, schema_of, table_of
from datarax_ray.write.formats import ArrayRecordFormat, Format, ParquetFormat, group_size_for, row_group_size_for
from datarax_ray.write.shards import NUM_FIRST, ReadRun, mean_nbytes_of

To = Literal["array_record", "parquet"]

_READ_NBYTES = 8 * 2**20  # at once: a larger read is no cheaper, and is held several times
_MAX_READ_RECORDS = 4096
_MAX_LISTED = 10  # skipped records in the notes of a shard
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


@dataclass(frozen=True)
class Conversion:
    """A conversion, to be given to write_dataset.

    mean_nbytes: of a record as it is written, before compression.
    encoding: "msgpack" where elements become bytes; None where records are written as they are.
    """

    read: ReadRun
    num_records: int
    format: Format
    made_from: Mapping[str, Any]
    mean_nbytes: float
    encoding: str | None = None


def conversion_of(
    reader: Any,
    to: To,
    *,
    group_size: int | None = None,
    on_error: Any = "raise",
    transforms: tuple[Any, ...] = (),
    check: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion of a reader's records to `array_record` or `parquet`.

    group_size: None to choose by the size of the records.
    transforms: decoders, for records that are bytes.
    check: decode pictures, the members of tar files and records of a known encoding, to find those that do not decode;
        on_error treats these as records that cannot be read.
    about: plain values to add to `made_from` in `dataset.json`, such as the names of classes.

    Raises: ValueError for fields that the format cannot hold, by name, and for a check of records without anything
    to decode; what reading the first records raises.
    """
    made_from = {
        "reader": type(reader).__name__,
        "files": reader.fingerprint(),
        "transforms": [repr(transform) for transform in transforms],
        "on_error": on_error if isinstance(on_error, str) else "function",
        **(about or {}),
    }
    num_first = min(NUM_FIRST, reader.num_records)
    read: ReadTables | ReadRecords
    if hasattr(reader, "table") and not transforms:
        schema = _schema_of(reader)
        features = (schema.metadata or {}).get(b"huggingface")  # names of classes, say, which msgpack cannot hold
        if features is not None:
            made_from["features"] = json.loads(features)["info"]["features"]
        read = ReadTables(reader, schema, on_error, encodes=to == "array_record")
        if check:
            tables = replace(read, on_error="skip", encodes=False)(0, num_first)
            checking = CheckDecoding.of(reader, [row for each in tables for row in rows_of_table(each)])
            read, made_from["check"] = replace(read, check=checking), checking.what
        mean_nbytes = mean_nbytes_of(read(0, num_first))
    else:
        stream = IndexedStream(reader, order_of(reader.num_records), 1, transforms, on_error)
        if check:
            first = replace(stream, on_error="skip").read_at(0, num_first)
            checking = CheckDecoding.of(reader, first)
            stream, made_from["check"] = replace(stream, transforms=(*transforms, checking)), checking.what
        read, mean_nbytes = _of_records(stream, to, num_first)
        schema = read.schema
    format: Format = ArrayRecordFormat(group_size or group_size_for(mean_nbytes))
    if to == "parquet":
        format = ParquetFormat(schema, group_size or row_group_size_for(mean_nbytes))
    encoding = "msgpack" if read.encodes else None
    made_from["encoding"] = encoding
    return Conversion(read, reader.num_records, format, made_from, mean_nbytes, encoding)


def _of_records(stream: IndexedStream, to: To, num_first: int) -> tuple[ReadRecords, float]:
    """How to read the records of a stream, and the mean size of a record."""
    parts = [part[1:] for part in ReadRecords(stream).parts(0, num_first)]  # read once: data in memory may be costly
    first = [element for _, elements in parts for element in elements]
    if not first:
        raise ValueError(f"none of the first {NUM_FIRST} records can be read, so their type is unknown")
    is_bytes = isinstance(first[0], bytes)
    if to == "parquet" and is_bytes:
        stream = replace(stream, transforms=(*stream.transforms, _named))
        parts = [(records, list(map(_named, elements))) for records, elements in parts]
        first = list(map(_named, first))
    schema = schema_of(_columns(first[:NUM_FIRST])) if to == "parquet" else None
    read = ReadRecords(stream, schema, encodes=to == "array_record" and not is_bytes)
    tally = _Tally(stream.reader, stream.on_error)
    return read, mean_nbytes_of(item for part in parts for item in read.written(*part, tally))


def _schema_of(reader: Any) -> Any:
    """The schema of the first rows that can be read."""
    broken: Exception | None = None
    for first, _ in reader.runs(0, reader.num_records):
        try:
            return reader.table(first, first + 1).schema
        except reader.traits.broken as error:
            broken = broken or error
    assert broken is not None
    raise broken


def _columns(values: list[Any]) -> Any:
    """The columns of elements, for their types: of the values of a field before the first that differs, without None.

    The different value is reported when its record is read.
    """
    known = [value for value in values if value is not None] or values
    if isinstance(known[0], Mapping):
        maps = [each for each in known if isinstance(each, Mapping)]
        return {name: _columns([each.get(name) for each in maps]) for name in sorted(known[0])}
    try:
        return stack([{"": value} for value in known])[""]
    except ColumnError as error:
        if not error.index:
            raise
        return _columns(known[: error.index])


@dataclass
class _Tally:
    """The records of one shard by their numbers: skipped, and written, in pieces, one number for each written element.

    keys: of the written samples of tar files.
    """

    reader: Any
    on_error: OnError
    skipped: list[int] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def write(self, records: Sequence[int] | Indices, elements: Iterable[Any] = ()) -> None:
        self.written.append(np.asarray(records, np.int64))
        if isinstance(self.reader, WebDatasetReader):
            self.keys += [element[KEY] for element in elements]

    def skip(self, records: Sequence[int], reason: str, error: BaseException) -> None:
        """Skip records that fail together. Raises: RecordError of the first, unless on_error skips it."""
        failure = RecordError.of(self.reader.name(records[0]), records[0], reason, error)
        if not skips(self.on_error, failure):
            raise failure
        self.skipped += records

    def encoded(self, records: Sequence[int], elements: Sequence[Any]) -> Iterator[bytes]:
        """The elements as msgpack. A record whose element does not fit is skipped."""
        kept = []
        for index, element in enumerate(elements):
            try:
                data = msgpack_of(element)
            except ValueError as error:
                self.skip([records[index]], str(error), error)
            else:
                kept.append(index)
                yield data
        self.write([records[index] for index in kept], [elements[index] for index in kept])

    def notes(self) -> dict[str, Any]:
        """The notes of the shard; see shards.ReadRun."""
        records = np.concatenate([np.empty(0, np.int64), *self.written])
        found: dict[str, Any] = {"origins": origins_of(self.reader, records, self.keys)}
        if self.skipped:
            listed = list(map(self.reader.name, self.skipped[:_MAX_LISTED]))
            found |= {"num_skipped": len(self.skipped), "skipped": listed}
        return found


@dataclass(frozen=True)
class ReadRecords:
    """The records of a stream in file order, as bytes or, where there is a schema, as tables. See shards.ReadRun.

    encodes: whether elements become msgpack.
    """

    stream: IndexedStream
    schema: Any = None
    encodes: bool = False

    def __call__(self, start: int, stop: int) -> Generator[Any, None, Any]:
        tally = _Tally(self.stream.reader, self.stream.on_error)
        with closing(self.parts(start, stop)) as parts:
            for wanted, records, elements in parts:
                tally.skipped += np.setdiff1d(wanted, records).tolist()
                yield from self.written(records, elements, tally)
        return tally.notes()

    def parts(self, start: int, stop: int) -> Generator[tuple[Indices, list[int], list[Any]], None, None]:
        """Some megabytes of records at a time: the wanted ones, those that can be read, and the element of each."""
        step = max(1, min(_MAX_READ_RECORDS, _READ_NBYTES // max(1, self.stream.reader.mean_nbytes)))
        try:
            for first in range(start, stop, step):
                wanted = np.arange(first, min(first + step, stop))
                yield wanted, *self.stream.elements_at(wanted, wanted)
        finally:
            self.stream.close()  # in a worker nobody else does

    def written(self, records: list[int], elements: list[Any], tally: _Tally) -> Iterator[Any]:
        """The items that are written for the elements of these records."""
        if self.schema is not None:
            return self._tables(records, elements, tally)
        if self.encodes:
            return tally.encoded(records, elements)
        tally.write(records)
        return iter(elements)

    def _tables(self, records: list[int], elements: list[Any], tally: _Tally) -> Iterator[Any]:
        """One table of the elements. Where they do not fit together, each is tried alone."""
        if not elements:
            return
        try:
            as_objects = [path for before, path in self.stream.as_objects if before is None]
            table = table_of(stack(elements, as_objects=as_objects), self.schema)
        except (UnfitError, ColumnError) as error:
            if len(elements) == 1:
                tally.skip(records, str(error), error)
                return
        else:
            tally.write(records, elements)
            yield table
            return
        for record, element in zip(records, elements, strict=True):
            yield from self._tables([record], [element], tally)


@dataclass(frozen=True)
class ReadTables:
    """The rows of a reader of tables, as tables of one schema. See shards.ReadRun.

    encodes: whether each row becomes msgpack.
    check: of what decodes; None without.
    """

    reader: Any
    schema: Any
    on_error: OnError = "raise"
    encodes: bool = False
    check: CheckDecoding | None = None

    def __call__(self, start: int, stop: int) -> Generator[Any, None, Any]:
        tally = _Tally(self.reader, self.on_error)
        try:
            for first, last in self.reader.runs(start, stop):
                for at, table in self._tables(first, last, tally):
                    records, table = self._checked(at, table, tally)
                    if not self.encodes:
                        tally.write(records)
                        yield table
                        continue
                    for row in range(0, table.num_rows, _MAX_READ_RECORDS):  # a row group may be a million objects
                        rows = rows_of_table(table.slice(row, _MAX_READ_RECORDS))
                        yield from tally.encoded(records[row : row + len(rows)], rows)
        finally:
            self.reader.close()  # in a worker nobody else does
        return tally.notes()

    def _checked(self, at: int, table: Any, tally: _Tally) -> tuple[Sequence[int], Any]:
        """The records from `at` on whose pictures decode, and their rows."""
        records = range(at, at + table.num_rows)
        if self.check is None or not self.check.pictures:
            return records, table
        kept = []
        pictures = table.select(self.check.pictures)
        for row, record in enumerate(records):
            try:
                self.check.map(pictures.slice(row, 1).to_pylist()[0])
                kept.append(row)
            except ValueError as error:
                tally.skip([record], str(error), error)
        return [records[row] for row in kept], table if len(kept) == len(records) else table.take(
            np.array(kept, np.int64)
        )

    def _tables(self, first: int, last: int, tally: _Tally) -> Iterator[tuple[int, Any]]:
        """The rows of one group at once; where that fails, by halves if the reader can read a part."""
        import pyarrow as pa

        try:
            yield first, self.reader.table(first, last).cast(self.schema)
            return
        except Exception as error:
            if not is_of_data(error, (self.reader.traits.broken, pa.ArrowException)):  # type: ignore[arg-type]
                raise
            if last - first == 1 or self.reader.breaks_whole:
                tally.skip(range(first, last), f"{type(error).__name__}: {message_of(error)}", error)
                return
        middle = (first + last) // 2
        yield from self._tables(first, middle, tally)
        yield from self._tables(middle, last, tally)


@dataclass(frozen=True)
class CheckDecoding:
    """A transform that gives every element as it is, once its parts decode: what is written stays encoded.

    decoders: of whole elements. pictures: fields with encoded pictures.
    """

    decoders: tuple[Any, ...] = ()
    pictures: tuple[str, ...] = ()

    @classmethod
    def of(cls, reader: Any, first: Sequence[Any]) -> Self:
        """The check of these records, by their first elements, some of which may be broken themselves.

        Raises: ValueError where nothing is to be decoded.
        """
        records = [each for each in first if isinstance(each, bytes)]
        names = Counter(DECODERS.get(record_format(record) or "") for record in records).most_common(1)
        decoders = [getattr(decode, name)() for name, _ in names if name is not None]
        decoders += [DecodeExtensions()] if isinstance(reader, WebDatasetReader) else []
        fields = [field for each in first if isinstance(each, Mapping) for field in each.items()]
        pictures = dict.fromkeys(
            name
            for name, value in fields
            if picture_in(value) is not None or (isinstance(value, bytes) and f".{name.lower()}".endswith(SUFFIXES))
        )
        found = cls(tuple(decoders), tuple(pictures))
        if not found.what:
            raise ValueError(
                "check decodes pictures, members of tar files and records of a known encoding, and the first records "
                "have none of these, so nothing would be checked; leave check out"
            )
        return found

    @property
    def what(self) -> str:
        """The parts that are decoded, for people."""
        parts = [type(decoder).__name__ for decoder in self.decoders]
        return ", ".join([*parts, *(f"pictures in {name!r}" for name in self.pictures)])

    def map(self, element: Any) -> Any:
        """Raises: ValueError for a part that does not decode, by the name of its field."""
        for decoder in self.decoders:
            decoder.map(element)
        for name in self.pictures:
            value = element.get(name)
            if value is not None and not (isinstance(value, Mapping) and value.get("bytes") is None):  # a null
                try:
                    DecodeImage(field=name).map({name: value})
                except ValueError as error:
                    raise ValueError(f"field {name!r}: {error}") from None
        return element


def msgpack_of(element: Any) -> bytes:
    """An element, a dict of values by name, as a msgpack map, which `DecodeMsgpack` and any language read.

    None, numbers, text, bytes, lists and dicts come back as they were, and NumPy's arrays and numbers as numbers in
    lists: `DecodeMsgpack(arrays={"x": "float32"})` makes arrays again.

    Raises: ValueError for a value that msgpack has no place for, by the name of its field.

    >>> msgpack_of({"x": np.array([1, 2], np.int8)})
    b'\\x81\\xa1x\\x92\\x01\\x02'
    """
    import msgpack

    if not isinstance(element, Mapping):
        raise ValueError(f"an element is a dict of fields, got {type(element).__name__}")
    try:
        found: bytes = msgpack.packb({name: _plain(value, name) for name, value in element.items()})
    except OverflowError as error:  # an int of more than 64 bits
        raise ValueError(f"one of {sorted(element)} does not fit in msgpack: {error}") from error
    return found


def _plain(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return value.tolist()
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [_plain(each, name) for each in value]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"field {name!r} has the key {odd[0]!r}; a msgpack map that is read here has text")
        return {key: _plain(each, f"{name}.{key}") for key, each in value.items()}
    kind = f"{value.dtype} array" if isinstance(value, np.ndarray | np.generic) else type(value).__name__
    raise ValueError(
        f"field {name!r} is a {kind}, which msgpack has no place for: write Parquet, or make it a number or text"
    )


def _named(record: bytes) -> dict[str, bytes]:
    """An element of a record of bytes, for a format that has fields."""
    return {"record": record}
