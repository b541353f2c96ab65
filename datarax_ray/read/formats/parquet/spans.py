"""Where the row groups of a Parquet file lie, and how pyarrow reads bytes that others bring."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices


@dataclass(frozen=True)
class RowGroupSpans:
    """Where the row groups of a file lie, of the columns that are read. end: of all, where the footer begins."""

    metadata: Any
    columns: Sequence[int]
    end: int

    @classmethod
    def of_metadata(cls, metadata: Any, leaves: Sequence[str], end: int) -> RowGroupSpans:
        """Raises: as check_chunks."""
        check_chunks(metadata, leaves)
        wanted = set(leaves)
        columns = [index for index in range(metadata.num_columns) if metadata.schema.column(index).path in wanted]
        return cls(metadata, columns, end)

    @classmethod
    def of_footer(cls, leaves: Sequence[str], stored: bytes, begin: int) -> RowGroupSpans:
        """stored: a file's bytes from its footer on, which begins there. Raises: ValueError for what is none."""
        import pyarrow as pa
        from pyarrow import parquet

        try:
            return cls.of_metadata(parquet.read_metadata(pa.BufferReader(stored)), leaves, begin)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"its footer does not parse ({error})") from error

    def of(self, wanted: Indices) -> Indices:
        """The byte ranges of these row groups; see pages.Layout."""
        spans = []
        for index in wanted.tolist():
            group = self.metadata.row_group(index)
            for column in map(group.column, self.columns):
                first = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
                last = min(first + column.total_compressed_size, self.end)
                if 0 <= first < last:  # else the footer is damaged, and pyarrow will say how
                    spans.append((first, last))
        return np.array(sorted(spans), np.int64).reshape(-1, 2)


def check_chunks(metadata: Any, leaves: Sequence[str]) -> None:
    """Raise OSError unless the footer describes these columns of each row group in a way that pyarrow can read.

    A footer has no checksum. Where it is damaged, pyarrow's `metadata.row_group(i).column(j)` may throw where nothing
    catches, which ends the process. pyarrow's read-ahead looks up the same and raises. No row is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    asked: list[int] = []

    def no_row(start: int, stop: int) -> bytes:
        asked.append(start)  # an error would be kept, with all that its frames hold, by what pyarrow keeps of the file
        return b""

    if leaves:
        opened = parquet.ParquetFile(BytesFile(no_row, sys.maxsize), metadata=metadata, pre_buffer=True)
        try:
            opened.read_row_groups(list(range(metadata.num_row_groups)), list(leaves), use_threads=False)
        except (pa.ArrowException, OSError):
            if not asked:  # before rows, which are not there
                raise


class BytesFile:
    """A file as Python's files are, as far as pyarrow uses them.

    read: gives the bytes [start, stop), as bytes or pyarrow's buffer; called in pyarrow's threads as well.
    """

    closed = False

    def __init__(self, read: Callable[[int, int], Any], nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes
        self._at = 0

    def read(self, count: int = -1) -> Any:
        stop = self._nbytes if count < 0 else min(self._at + count, self._nbytes)
        found = self._read(self._at, stop)
        self._at = stop
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True
