"""Row groups of Parquet files: first their bytes, then what these decode to.

To pyarrow a broken page, a lost connection and a replaced file are all an OSError. So the bytes of a row group are in
memory before it is decoded: an error while they are brought is the storage's, an error after that is the file's. Bytes
come from a filesystem of pyarrow's (StoredFiles), or from URLs by byte ranges (Mirrors). pyarrow may read beyond
the bytes that were brought, as of some old writers' files; these are brought then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.files.sniff import incomplete
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.file_spans import FileSpans
from datarax_ray.read.formats.parquet.footer import OPENED, BytesFile, check_chunks, content_of
from datarax_ray.read.formats.parquet.footers import Footers
from datarax_ray.read.formats.remote.mirrors import Mirrors
from datarax_ray.read.formats.remote.pages import RemoteFile
from datarax_ray.read.formats.remote.ranges import Remote
from datarax_ray.read.retry import is_transient, retried

_MAX_OPEN = 64  # files
_MAX_OPEN_MIRRORS = 256  # of 1,024 descriptors that a process often has
_GAP_NBYTES = 64 * 2**10  # between columns: to read so much more costs less than to ask once more


@dataclass(frozen=True)
class RowGroupSpans:
    """Where the row groups of a file lie, of the columns that are read. end: of all, where the footer begins."""

    metadata: Any
    columns: Sequence[int]
    end: int

    @classmethod
    def of_footer(cls, leaves: Sequence[str], stored: bytes, begin: int) -> RowGroupSpans:
        """stored: the bytes of a file from its footer on. begin: their offset. Raises: ValueError for no footer."""
        import pyarrow as pa
        from pyarrow import parquet

        wanted = set(leaves)
        try:
            metadata = parquet.read_metadata(pa.BufferReader(stored))
            check_chunks(metadata, leaves)
            columns = [index for index in range(metadata.num_columns) if metadata.schema.column(index).path in wanted]
            return cls(metadata, columns, begin)
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


class RowGroups:
    """The row groups of all files of a source. For one thread at a time.

    mirrors: of files behind URLs, whose parts are row groups; None for files on a filesystem of pyarrow's.
    """

    def __init__(self, footers: Footers, remote: Remote) -> None:
        self._footers = footers
        self.mirrors: Mirrors | None = None
        self._stored = StoredFiles(footers)
        if footers.files and footers.files[0].version:
            files = [RemoteFile(file.url, file.nbytes, file.version, file.begin) for file in footers.files]
            self.mirrors = Mirrors(files, remote, partial(RowGroupSpans.of_footer, footers.names), is_whole=False)
        self._files: Mirrors | StoredFiles = self.mirrors or self._stored
        self._max_open = _MAX_OPEN if self.mirrors is None else _MAX_OPEN_MIRRORS
        self._open: OrderedDict[int, Any] = OrderedDict()  # ParquetFiles

    def fetch(self, wanted: Mapping[int, Indices]) -> None:
        """Have these row groups of these files in memory. Raises: what their storage raises; ValueError where a file
        is no longer the one whose footer was read.
        """
        self._have_open(wanted)
        self._files.fetch(wanted)

    def table(self, file: int, index: int) -> Any:
        """The table of a row group. Raises: BrokenRowGroupError; as fetch."""
        return retried(lambda: self._table(file, index), f"{self._footers.files[file].path}, row group {index}")

    def first_rows(self, file: int, index: int, count: int) -> Any:
        """As table, of its first rows alone."""
        import pyarrow as pa

        self._have_open([file])
        if self.mirrors is not None:
            self.fetch({file: np.array([index])})
        opened = self._open[file]
        for batch in opened.iter_batches(count, row_groups=[index], columns=_present(opened, self._footers.names)):
            return pa.Table.from_batches([batch])
        raise pa.ArrowInvalid(f"row group {index} has no row, and the footer says that it has")

    def close(self) -> None:
        """Close what is open. Reading opens it again."""
        while self._open:
            self._shut(next(iter(self._open)))
        self._files.close()

    def _have_open(self, wanted: Iterable[int]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        for file in self._open.keys() & set(wanted):
            self._open.move_to_end(file)
        new = [file for file in wanted if file not in self._open]
        while self._open and len(self._open) + len(new) > self._max_open:
            self._shut(next(iter(self._open)))
        for file, layout in self._files.open(new).items():  # the ends of files behind URLs come at once
            assert isinstance(layout, RowGroupSpans)
            nbytes = self._footers.files[file].nbytes
            source = pa.PythonFile(BytesFile(partial(self._files.read, file), nbytes), mode="r")
            self._open[file] = parquet.ParquetFile(source, metadata=layout.metadata, **OPENED)

    def _table(self, file: int, index: int) -> Any:
        import pyarrow as pa

        group = {file: np.array([index])}
        failure: Exception | None = None
        for _ in range(2):  # bytes that were bent on their way are no broken row group
            has_bytes = False
            try:
                self.fetch(group)
                has_bytes = True
                opened = self._open[file]
                table = opened.read_row_group(index, columns=_present(opened, self._footers.names))
                failure = None
            except (pa.ArrowException, OSError) as error:
                failure = error
            self._stored.drop(file)
            if failure is None:
                return table
            # an error of the system has a number; one of fetching is of the storage, whatever it has
            is_unnumbered = isinstance(failure, pa.ArrowException) or (type(failure) is OSError and not failure.errno)
            is_of_decoding = has_bytes and is_unnumbered
            if self.mirrors is not None and file in self._open and is_of_decoding:
                self.mirrors.forget(file, group[file])
            if file in self._open:
                self._shut(file)  # a connection that failed may fail for good
            if is_transient(failure) or not is_of_decoding:
                raise failure
        path = self._footers.files[file].path
        raise BrokenRowGroupError(f"{path}, row group {index} does not decode: {failure}") from failure

    def _shut(self, file: int) -> None:
        self._open.pop(file).close(force=True)
        self._files.shut(file)


class StoredFiles:
    """Parquet files on a filesystem of pyarrow's, as Mirrors has those behind URLs."""

    def __init__(self, footers: Footers) -> None:
        self._footers = footers
        self._spans = FileSpans(footers.filesystem, footers.files, content_of)
        self._layouts: dict[int, RowGroupSpans] = {}  # of open files
        self._held: dict[int, list[tuple[int, Any]]] = {}  # (offset, bytes) of the row group to decode

    def open(self, indices: Iterable[int]) -> dict[int, RowGroupSpans]:
        """The layout of each file. Raises: OSError; ValueError where one is not the file whose footer was read."""
        for index in indices:
            if index not in self._layouts:
                file = self._footers.files[index]
                stored = self._read(index, np.array([[file.begin, file.nbytes]]))[0]
                try:
                    self._layouts[index] = RowGroupSpans.of_footer(self._footers.names, stored, file.begin)
                except ValueError as error:
                    raise incomplete(file.path, "Parquet", error, "") from error
        return {index: self._layouts[index] for index in indices}

    def read(self, index: int, start: int, stop: int) -> Any:
        """The bytes [start, stop) of an open file."""
        for begin, held in self._held.get(index, ()):
            if begin <= start and stop <= begin + held.size:
                return held.slice(start - begin, stop - start)
        return self._read(index, np.array([[start, stop]]))[0] if start < stop else b""

    def fetch(self, wanted: Mapping[int, Indices]) -> None:
        """Have the bytes of these row groups in memory, of the columns that are read."""
        import pyarrow as pa

        for index, groups in wanted.items():
            if len(spans := self._layouts[index].of(groups)):
                cuts = np.flatnonzero(spans[1:, 0] > spans[:-1, 1] + _GAP_NBYTES) + 1
                runs = np.array([(run[0, 0], run[:, 1].max()) for run in np.split(spans, cuts)])
                parts = zip(runs[:, 0].tolist(), self._read(index, runs), strict=True)
                self._held.setdefault(index, []).extend((start, pa.py_buffer(data)) for start, data in parts)

    def drop(self, index: int) -> None:
        """The row group is decoded, or is not to be."""
        self._held.pop(index, None)

    def shut(self, index: int) -> None:
        self.drop(index)
        self._layouts.pop(index, None)
        self._spans.shut(index)

    def close(self) -> None:
        self._spans.close()

    def _read(self, index: int, spans: Indices) -> list[bytes]:
        return self._spans.read(index, spans)


def _present(opened: Any, leaves: Sequence[str]) -> list[str]:
    """Those of the leaf columns that a file has: pyarrow takes the name of a struct for all its fields."""
    names = {opened.schema.column(index).path for index in range(len(opened.schema))}
    return [leaf for leaf in leaves if leaf in names]
