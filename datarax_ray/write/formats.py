"""The formats that shards are written in, and one file of each. A format is a value: it travels to the hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from datarax_ray.read.elements.columns import ColumnError, stack
from datarax_ray.write.arrow import UnfitError, table_of

# A group or row group is decoded as a whole: so many bytes of one are read and decoded in a millisecond or so, and
# compress as well as more. 256 records are what the block order is fastest at (docs/how-to/array-record.md).
_GROUP_NBYTES = 2**20
_MAX_GROUP_RECORDS = 256
# Of a row group, whose columns are stored apart: pyarrow's advice is 64 Ki rows and more, and a reader of ours keeps
# some of them decoded.
_ROW_GROUP_NBYTES = 32 * 2**20
_MAX_ROW_GROUP_RECORDS = 64 * 2**10


class Writer(Protocol):
    """One file that is being written."""

    def write(self, item: Any) -> int:
        """Add what reading gave, and say how many records that are."""
        ...

    def close(self) -> None:
        """Write what is left. Raises: OSError where that cannot be."""
        ...

    def abandon(self) -> None:
        """Close the file as it is; it will be removed."""
        ...


class Format(Protocol):
    """How files are written; picklable."""

    suffix: str

    def open(self, path: Path) -> Writer:
        """A new file. Raises: OSError where there can be none."""
        ...

    def settings(self) -> dict[str, Any]:
        """What the bytes depend on, in plain values."""
        ...


def group_size_for(mean_nbytes: float) -> int:
    """How many records of this mean size to store together in ArrayRecord: 256, fewer of large ones; a power of two.

    >>> [group_size_for(nbytes) for nbytes in (64, 4096, 150_000, 3_000_000)]
    [256, 256, 4, 1]
    """
    most = max(1, min(_MAX_GROUP_RECORDS, int(_GROUP_NBYTES // max(1, mean_nbytes))))
    return 1 << (most.bit_length() - 1)


def row_group_size_for(mean_nbytes: float) -> int:
    """How many rows of this mean size to store in a row group of Parquet: 32 MiB of them, at most 65,536.

    >>> [row_group_size_for(nbytes) for nbytes in (64, 4096, 100_000_000)]
    [65536, 8192, 1]
    """
    return max(1, min(_MAX_ROW_GROUP_RECORDS, int(_ROW_GROUP_NBYTES // max(1, mean_nbytes))))


@dataclass(frozen=True)
class ArrayRecordFormat:
    """Records of bytes. group_size: that are compressed together. compression: as array_record's writer takes it."""

    group_size: int = 1
    compression: str = "zstd"
    suffix = "array_record"

    def open(self, path: Path) -> Writer:
        """See Format."""
        return _ArrayRecordWriter(path, f"group_size:{self.group_size},{self.compression}")

    def settings(self) -> dict[str, Any]:
        """See Format."""
        return {"name": "ArrayRecord", "group_size": self.group_size, "compression": self.compression}


@dataclass(frozen=True)
class ParquetFormat:
    """Rows: tables of pyarrow, or elements, dicts of values, all of this schema. group_size: rows of a row group."""

    schema: Any = field(hash=False)
    group_size: int = _MAX_ROW_GROUP_RECORDS
    compression: str = "zstd"
    suffix = "parquet"

    def open(self, path: Path) -> Writer:
        """See Format."""
        return _ParquetWriter(path, self)

    def settings(self) -> dict[str, Any]:
        """See Format."""
        types = {each.name: str(each.type) for each in self.schema}
        return {"name": "Parquet", "group_size": self.group_size, "compression": self.compression, "columns": types}


class _ArrayRecordWriter:
    def __init__(self, path: Path, options: str) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        path.touch(exist_ok=False)  # array_record says less of what is wrong
        self._path = path
        self._count = 0
        self._writer = ArrayRecordWriter(str(path), options)

    def write(self, item: Any) -> int:
        if not isinstance(item, bytes):
            raise TypeError(f"an ArrayRecord record is bytes, got {type(item).__name__}; encode it first")
        try:
            self._writer.write(item)
        except RuntimeError as error:
            raise OSError(f"{self._path}: {error}") from error
        self._count += 1
        return 1

    def close(self) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            self._writer.close()
        except RuntimeError as error:
            raise OSError(f"{self._path}: {error}") from error
        # the writer has raised no error for a full disk in every release: what was written is opened
        reader = ArrayRecordReader(str(self._path), "readahead_buffer_size:0")
        found = reader.num_records() if reader.ok() else 0
        reader.close()
        if found != self._count:
            raise OSError(f"{self._path} holds {found} records and {self._count} were written; is its disk full?")

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # what failed is told already
            self._writer.close()


class _ParquetWriter:
    """Row groups of so many rows, however many come at a time: the bytes do not depend on that."""

    def __init__(self, path: Path, format: ParquetFormat) -> None:
        from pyarrow import parquet

        self._format = format
        self._elements: list[Any] = []
        self._tables: list[Any] = []
        self._num_rows = 0  # in these
        self._file = path.open("xb")
        self._writer = parquet.ParquetWriter(
            self._file, format.schema, compression=format.compression, write_page_checksum=True
        )

    def write(self, item: Any) -> int:
        if isinstance(item, Mapping):
            self._elements.append(item)
            if len(self._elements) >= self._format.group_size:
                self._settle()
            return 1
        self._settle()
        self._add(item)
        return int(item.num_rows)

    def close(self) -> None:
        self._settle()
        self._flush(1)
        self._writer.close()
        self._file.flush()
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # what failed is told already
            self._writer.close()
        self._writer.is_open = False  # or it would close once more when it is forgotten
        with contextlib.suppress(Exception):
            self._file.close()

    def _settle(self) -> None:
        """What came as elements becomes a table."""
        elements, self._elements = self._elements, []
        if not elements:
            return
        try:
            self._add(table_of(stack(elements), self._format.schema))
        except ColumnError as error:
            raise UnfitError(error.message, error.index) from None

    def _add(self, table: Any) -> None:
        self._tables.append(table)
        self._num_rows += table.num_rows
        self._flush(self._format.group_size)

    def _flush(self, least: int) -> None:
        """Write full row groups, while there are at least so many rows."""
        import pyarrow as pa

        if self._num_rows < least:
            return
        table, size = pa.concat_tables(self._tables), self._format.group_size
        stop = self._num_rows if least < size else self._num_rows // size * size
        for start in range(0, stop, size):
            group = table.slice(start, min(size, stop - start)).combine_chunks()  # pages would follow the chunks
            self._writer.write_table(group, row_group_size=size)
        self._tables, self._num_rows = [table.slice(stop)], self._num_rows - stop
