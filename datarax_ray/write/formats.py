"""The formats of shards, and the writer of one file in each. A format is a value: it travels to the hosts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A group is decoded as a whole. A mebibyte is read and decoded in a millisecond or so, and compresses as well as more.
# The block order is fastest with groups of 256 records (docs/how-to/array-record.md).
_GROUP_NBYTES = 2**20
_MAX_GROUP_RECORDS = 256
# Row groups store columns apart: pyarrow's advice is 64 Ki rows and more, and our reader keeps some groups decoded.
_ROW_GROUP_NBYTES = 32 * 2**20
_MAX_ROW_GROUP_RECORDS = 64 * 2**10
_COMPRESSION = "zstd"  # of both formats


def group_size_for(mean_nbytes: float) -> int:
    """How many records of this mean size ArrayRecord stores together: a power of two, at most 256, fewer if large.

    >>> [group_size_for(nbytes) for nbytes in (64, 4096, 150_000, 3_000_000)]
    [256, 256, 4, 1]
    """
    most = max(1, min(_MAX_GROUP_RECORDS, int(_GROUP_NBYTES // max(1, mean_nbytes))))
    return 1 << (most.bit_length() - 1)


def row_group_size_for(mean_nbytes: float) -> int:
    """How many rows of this mean size a row group of Parquet has: 32 MiB of them, at most 65,536.

    >>> [row_group_size_for(nbytes) for nbytes in (64, 4096, 100_000_000)]
    [65536, 8192, 1]
    """
    return max(1, min(_MAX_ROW_GROUP_RECORDS, int(_ROW_GROUP_NBYTES // max(1, mean_nbytes))))


@dataclass(frozen=True)
class ArrayRecordFormat:
    """Records of bytes. group_size: how many are compressed together."""

    group_size: int = 1
    suffix = "array_record"

    def open(self, path: Path) -> _ArrayRecordWriter:
        """A new file. Raises: OSError where it cannot be made."""
        return _ArrayRecordWriter(path, f"group_size:{self.group_size},{_COMPRESSION}")

    def settings(self) -> dict[str, Any]:
        return {"name": "ArrayRecord", "group_size": self.group_size, "compression": _COMPRESSION}


@dataclass(frozen=True)
class ParquetFormat:
    """Tables of pyarrow, all of this schema. group_size: rows of a row group."""

    schema: Any = field(hash=False)
    group_size: int = _MAX_ROW_GROUP_RECORDS
    suffix = "parquet"

    def open(self, path: Path) -> _ParquetWriter:
        """A new file. Raises: OSError where it cannot be made."""
        return _ParquetWriter(path, self)

    def settings(self) -> dict[str, Any]:
        types = {each.name: str(each.type) for each in self.schema}
        return {"name": "Parquet", "group_size": self.group_size, "compression": _COMPRESSION, "columns": types}


Format = ArrayRecordFormat | ParquetFormat


class _ArrayRecordWriter:
    """Writes one file. write gives the number of records of an item; abandon closes a file that will be removed."""

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
        with contextlib.suppress(Exception):  # the error that ended the writing is reported
            self._writer.close()


class _ParquetWriter:
    """The same, in row groups of `group_size` rows, however many rows arrive at a time."""

    def __init__(self, path: Path, format: ParquetFormat) -> None:
        from pyarrow import parquet

        self._group_size = format.group_size
        self._tables: list[Any] = []
        self._num_rows = 0  # in these
        self._file = path.open("xb")
        self._writer = parquet.ParquetWriter(
            self._file, format.schema, compression=_COMPRESSION, write_page_checksum=True
        )

    def write(self, item: Any) -> int:
        self._tables.append(item)
        self._num_rows += item.num_rows
        self._flush(self._num_rows // self._group_size * self._group_size)
        return int(item.num_rows)

    def close(self) -> None:
        self._flush(self._num_rows)
        self._writer.close()
        self._file.flush()
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # the error that ended the writing is reported
            self._writer.close()
        self._writer.is_open = False  # or it would close once more when it is forgotten
        with contextlib.suppress(Exception):
            self._file.close()

    def _flush(self, stop: int) -> None:
        import pyarrow as pa

        if not stop:
            return
        table = pa.concat_tables(self._tables)
        for start in range(0, stop, self._group_size):
            # without chunks, whose ends would be ends of pages too
            group = table.slice(start, min(self._group_size, stop - start)).combine_chunks()
            self._writer.write_table(group, row_group_size=self._group_size)
        self._tables, self._num_rows = [table.slice(stop)], self._num_rows - stop
