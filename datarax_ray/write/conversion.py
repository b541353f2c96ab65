"""How the records of a reader become those of another format: what reads them, and what they are written in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.elements.columns import ColumnError, stack
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.write.arrow import schema_of
from datarax_ray.write.encoding import EncodeMsgpack
from datarax_ray.write.formats import (
    ArrayRecordFormat,
    Format,
    ParquetFormat,
    group_size_for,
    row_group_size_for,
)
from datarax_ray.write.reading import NameRecord, ReadRecords, ReadTables
from datarax_ray.write.shards import FIRST, ReadRun, mean_nbytes_of

To = Literal["array_record", "parquet"]


@dataclass(frozen=True)
class Conversion:
    """read, format, made_from: as of write_dataset. mean_nbytes: of a record as it is written, before compression.

    encoding: what one of its records is, where elements were made bytes; None where it is as it was. arrays: the dtypes
    that its decoder is to be told: of numbers that may not fit in int64.
    """

    read: ReadRun
    num_records: int
    format: Format
    made_from: Mapping[str, Any]
    mean_nbytes: float
    encoding: str | None = None
    arrays: Mapping[str, str] = field(default_factory=dict)


def conversion_of(
    reader: Any,
    to: To,
    *,
    group_size: int | None = None,
    on_error: Any = "raise",
    transforms: tuple[Any, ...] = (),
    about: Mapping[str, Any] | None = None,
) -> Conversion:
    """What writes the records of a reader in a format: `array_record` or `parquet`.

    group_size: None for what fits the size of the records.
    transforms: decoders, of records that are bytes.
    about: what else is to stand in `dataset.json`, in plain values: what the numbers of classes mean.

    Raises: ValueError for fields that the format cannot hold, by name; what reading the first records raises.
    """
    stream = IndexedStream(reader, order_of(reader.num_records), 1, transforms, on_error)
    made_from = {
        "reader": type(reader).__name__,
        "files": reader.fingerprint(),
        "transforms": [repr(transform) for transform in transforms],
        "on_error": on_error if isinstance(on_error, str) else "function",
        **(about or {}),
    }
    encoder: EncodeMsgpack | None = None
    read: ReadTables | ReadRecords
    schema: Any = None
    arrays: dict[str, str] = {}
    num_first = min(FIRST, reader.num_records)
    if hasattr(reader, "table") and not transforms:
        schema = _schema_of(reader)
        made_from |= _features(schema)
        encoder = EncodeMsgpack() if to == "array_record" else None
        arrays = {column.name: "uint64" for column in schema if str(column.type) == "uint64"}
        read = ReadTables(reader, schema, on_error, encoder)
        mean = mean_nbytes_of(read(0, num_first))
    else:
        parts = [part[1:] for part in ReadRecords(stream).parts(0, num_first)]
        first = [element for _, elements in parts for element in elements]
        if not first:
            raise ValueError(f"none of the first {FIRST} records can be read; nothing tells what they are")
        is_bytes = isinstance(first[0], bytes)
        if to == "array_record" and not is_bytes:
            encoder = EncodeMsgpack()
            fields = first[0].items() if isinstance(first[0], Mapping) else ()
            arrays = {name: "uint64" for name, value in fields if str(getattr(value, "dtype", "")) == "uint64"}
        elif to == "parquet":
            if is_bytes:
                stream = replace(stream, transforms=(*transforms, name := NameRecord()))
                parts = [(records, list(map(name.map, elements))) for records, elements in parts]
                first = list(map(name.map, first))
            schema = schema_of(_columns(first[:FIRST]))
        read = ReadRecords(stream, schema, encoder)
        mean = mean_nbytes_of(item for part in parts for item in read.made(*part))
    format: Format = ArrayRecordFormat(group_size or group_size_for(mean))
    if to == "parquet":
        format = ParquetFormat(schema, group_size or row_group_size_for(mean))
    encoding = None if encoder is None else "msgpack"
    return Conversion(read, reader.num_records, format, made_from | {"encoding": encoding}, mean, encoding, arrays)


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` says of the columns (the names of classes, say), which a msgpack map has no place for."""
    told = (schema.metadata or {}).get(b"huggingface")
    return {} if told is None else {"features": json.loads(told)["info"]["features"]}


def _schema_of(reader: Any) -> Any:
    """Of the first rows that can be read."""
    broken: Exception | None = None
    for first, _ in reader.runs(0, reader.num_records):
        try:
            return reader.table(first, first + 1).schema
        except reader.broken as error:
            broken = broken or error
    assert broken is not None
    raise broken


def _columns(values: list[Any]) -> Any:
    """Their columns; of each field, of the values that are not None, before the first that differs: that one is told of
    when it is read.
    """
    told = [value for value in values if value is not None] or values
    if isinstance(told[0], Mapping):
        maps = [each for each in told if isinstance(each, Mapping)]
        return {name: _columns([each.get(name) for each in maps]) for name in sorted(told[0])}
    try:
        return stack([{"": value} for value in told])[""]
    except ColumnError as error:
        if not error.index:
            raise
        return _columns(told[: error.index])
