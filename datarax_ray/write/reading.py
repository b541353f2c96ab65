"""What reads a run of a source for conversion, as it is stored: bytes, samples of bytes, tables of Arrow.

Nothing is decoded that need not be: text stays text, a JPEG its bytes, and a null is one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import ColumnError, stack
from datarax_ray.read.elements.transforms import OnError, leaves_out
from datarax_ray.read.errors import RecordError, is_of_data, message_of
from datarax_ray.read.formats.arrow.columns import rows_of_table
from datarax_ray.read.formats.image_folder import ImageFolder
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.write.arrow import UnfitError, table_of

_READ_NBYTES = 8 * 2**20  # at once: more make a read no cheaper, and are held several times
_MAX_READ_RECORDS = 4096
_MAX_LISTED = 10  # of the records that were left out, in the notes of a shard


@dataclass(frozen=True)
class ReadRecords:
    """The records of a stream in file order: bytes, or elements that are encoded; tables where there is a schema.

    See shards.ReadRun.
    """

    stream: IndexedStream
    schema: Any = None
    encoder: Any = None

    def __call__(self, start: int, stop: int) -> Generator[Any, None, Any]:
        left_out: list[int] = []
        with closing(self.parts(start, stop)) as parts:
            for wanted, records, elements in parts:
                written = yield from self.made(records, elements)
                left_out += np.setdiff1d(wanted, written).tolist()
        return left_out_of(left_out, self.stream.reader)

    def parts(self, start: int, stop: int) -> Generator[tuple[Indices, list[int], list[Any]], None, None]:
        """Records, some megabytes at a time: which are wanted, and of these each that can be read, with its element."""
        step = max(1, min(_MAX_READ_RECORDS, _READ_NBYTES // max(1, self.stream.reader.mean_nbytes)))
        try:
            for first in range(start, stop, step):
                wanted = np.arange(first, min(first + step, stop))
                yield wanted, *self.stream.elements_at(wanted, wanted)
        finally:
            self.stream.close()  # in a worker nobody else does

    def made(self, records: list[int], elements: list[Any]) -> Generator[Any, None, list[int]]:
        """What is written of the elements of these records; its value is those of which something is."""
        if self.encoder is None:
            if self.schema is None:
                yield from elements
                return records
            records, table = self._table(records, elements)
            if table is not None:
                yield table
            return records
        kept: list[int] = []
        for record, element in zip(records, elements, strict=True):
            encoded = encode(self.encoder, element, self.stream.on_error, self.stream.reader, record)
            if encoded is not None:
                kept.append(record)
                yield encoded
        return kept

    def _table(self, records: list[int], elements: list[Any]) -> tuple[list[int], Any]:
        """The elements as a table, and the records that are in it."""
        import pyarrow as pa

        if not elements:
            return [], None
        try:
            return records, table_of(stack(elements), self.schema)
        except (UnfitError, ColumnError):  # each alone, to find the one that is to blame
            tables = {record: self._alone(record, element) for record, element in zip(records, elements, strict=True)}
        fit = {record: table for record, table in tables.items() if table is not None}
        return list(fit), pa.concat_tables(fit.values()) if fit else None

    def _alone(self, record: int, element: Any) -> Any:
        try:
            return table_of(stack([element]), self.schema)
        except (UnfitError, ColumnError) as error:
            leave_out(self.stream.on_error, self.stream.reader, record, str(error), error)
            return None


@dataclass(frozen=True)
class ReadTables:
    """The rows of a reader that has tables, cast to one schema; encoded, where an encoder is given.

    See shards.ReadRun.
    """

    reader: Any
    schema: Any
    on_error: OnError = "raise"
    encoder: Any = None

    def __call__(self, start: int, stop: int) -> Generator[Any, None, Any]:
        left_out: list[int] = []
        try:
            for first, last in self.reader.runs(start, stop):
                for at, table in self._tables(first, last, left_out):
                    if self.encoder is None:
                        yield table
                    else:
                        yield from self._encoded(at, table, left_out)
        finally:
            self.reader.close()  # in a worker nobody else does
        return left_out_of(left_out, self.reader)

    def _tables(self, first: int, last: int, left_out: list[int]) -> Iterator[tuple[int, Any]]:
        """The rows of one group, all at once; where that fails, by halves if the reader can."""
        import pyarrow as pa

        try:
            yield first, self.reader.table(first, last).cast(self.schema)
            return
        except Exception as error:
            if not is_of_data(error, (self.reader.broken, pa.ArrowException)):  # type: ignore[arg-type]
                raise
            if last - first == 1 or self.reader.breaks_whole:
                leave_out(self.on_error, self.reader, first, f"{type(error).__name__}: {message_of(error)}", error)
                left_out += range(first, last)
                return
        middle = (first + last) // 2
        yield from self._tables(first, middle, left_out)
        yield from self._tables(middle, last, left_out)

    def _encoded(self, first: int, table: Any, left_out: list[int]) -> Iterator[bytes]:
        for start in range(0, table.num_rows, _MAX_READ_RECORDS):  # a row group may be a million objects
            for record, element in enumerate(rows_of_table(table.slice(start, _MAX_READ_RECORDS)), first + start):
                encoded = encode(self.encoder, element, self.on_error, self.reader, record)
                if encoded is None:
                    left_out.append(record)
                else:
                    yield encoded


def encode(encoder: Any, element: Any, on_error: OnError, reader: Any, record: int) -> bytes | None:
    """The element as bytes; None where it cannot be, and is left out for that."""
    try:
        found: bytes = encoder.map(element)
    except ValueError as error:
        leave_out(on_error, reader, record, str(error), error)
        return None
    return found


def leave_out(on_error: OnError, reader: Any, record: int, reason: str, error: BaseException) -> None:
    """Raise the RecordError of a record, unless it is to be left out."""
    failure = RecordError.of(reader.locate(record), record, reason, error)
    if not leaves_out(on_error, failure):
        raise failure


def left_out_of(records: Iterable[int], reader: Any) -> dict[str, Any] | None:
    """What is noted with a shard of the records that it has not; None where it has all."""
    records = list(records)
    if not records:
        return None
    return {"num_skipped": len(records), "skipped": [reader.locate(record) for record in records[:_MAX_LISTED]]}


class EncodedImages:
    """The images of an ImageFolder as their files have them: {"image": bytes, "label": int}."""

    def __init__(self, folder: ImageFolder) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> dict[str, Any]:
        encoded, label = self._folder.encoded(index)
        return {"image": encoded, "label": label}

    def __repr__(self) -> str:
        return repr(self._folder)


class NameRecord:
    """Bytes as an element, for a format that has fields alone."""

    def map(self, record: bytes) -> dict[str, bytes]:
        return {"record": record}
