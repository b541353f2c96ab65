"""Reads rows of Parquet files by global index, a row group at a time, as columns.

Source: pyarrow.parquet. What shapes this file: a row group is decoded as a whole or not at all, so decoded ones are
kept until all of their rows were asked for; and a broken page, a lost connection and a file replaced all come as
OSError. What does not decode once its bytes are in memory is broken; everything before that is the storage's.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

from datarax_ray.plan.fingerprint import digest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.arrow.column_types import FIRST_ROWS, ColumnTypes, in_storage
from datarax_ray.read.formats.arrow.columns import Fill, UnlikeError
from datarax_ray.read.formats.decoded_groups import DEFAULT_MAX_NBYTES, BrokenRowGroupError
from datarax_ray.read.formats.filesystems import changed, read_whole, stamp_of
from datarax_ray.read.formats.grouped_rows import GroupedRows
from datarax_ray.read.formats.parquet.footers import Footers, open_file, read_footers
from datarax_ray.read.retry import is_transient, retried

logger = logging.getLogger("datarax_ray")

_MAX_OPEN_FILES = 64


class ParquetReader(GroupedRows):
    """The rows of many Parquet files; see GroupedRows.

    Decodes a row group when one of its rows is first asked for, and keeps it until all were, as far as max_nbytes of
    them go (those touched last); the first keep_nbytes of them for good.
    """

    def __init__(
        self, footers: Footers, *, types: ColumnTypes, max_nbytes: int = DEFAULT_MAX_NBYTES, keep_nbytes: int = 0
    ) -> None:
        files = footers.files
        given = {"footers": footers, "types": types, "max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        super().__init__(given, [file.rows for file in files], [file.decoded_nbytes for file in files], types)
        self.footers = footers
        self._open: OrderedDict[int, tuple[Any, Any]] = OrderedDict()  # the file, and what was said of it when opened

    @classmethod
    def of(
        cls,
        paths: Any,
        *,
        columns: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        filesystem: Any = None,
        fill_nulls: Fill | None = None,
    ) -> ParquetReader:
        """Open everything that `paths` names, read and check the footers in parallel; see footers.read_footers."""
        footers = read_footers(paths, columns, tuple(exclude), filesystem)
        if columns is None:  # else they are chosen
            _warn_of_partitions(footers, {*exclude} | {leaf.partition(".")[0] for leaf in footers.leaves})
        return cls(footers, types=_types(footers, dict(fill_nulls or {})))

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Rows that stand next to one another in one row group are a read-only view of it.

        Raises: BrokenRowGroupError; OSError where a file is gone or its storage fails; ValueError where it is no longer
        the file whose footer was read, or a null has no place.
        """
        with self._lock:
            return self._decoded.read(records, self._decode)

    def locate(self, record: int) -> str:
        """Where a row is, for people: "path[row in the file] (row group 3)"."""
        file, index, row = self._place(record)
        return f"{self.footers.files[file].path}[{row}] (row group {index})"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories, sizes, row counts, fields and their types."""
        files = self.footers.files
        found = {
            "num_files": len(files),
            "num_records": self.num_records,
            "nbytes": sum(file.nbytes for file in files),
            "digest": digest([[os.path.basename(file.path), file.nbytes, *file.rows] for file in files]),
            "content": digest([file.content for file in files]),
            "schema": digest(self.footers.types),
        }
        found |= self._fill_digest()
        if self._types.types:  # not there before lists of one length were dense: a state from then is another stream's
            found["lists"] = digest(sorted([name, str(kind)] for name, kind in self._types.types.items()))
        return found

    def close(self) -> None:
        """Close every open file, and forget what was decoded. Reading again opens them again."""
        with self._lock:
            self._decoded.clear()
            while self._open:
                self._shut(next(iter(self._open)))

    def _decode(self, group: int) -> Columns:
        import pyarrow as pa

        file, index = self._places[group]
        path = self.footers.files[file].path
        table = retried(lambda: self._table(file, index), f"{path}, row group {index}")
        try:
            return self._types.columns(in_storage(table))
        except UnlikeError as error:
            raise ValueError(
                f"{path}, row group {index}: {error}; pass fill_nulls={{{error.field!r}: value}} to put a value in "
                f"place of nulls, {{{error.field!r}: None}} to have the field on the host as Python has it, or leave "
                "it out of columns"
            ) from None
        except ValueError as error:
            if not isinstance(error, UnicodeDecodeError):
                raise ValueError(f"{path}, row group {index}: {error}") from None
            damage: Exception = error
        except pa.ArrowException as error:
            damage = error
        # text that is no UTF-8: the pages carry no checksum, and are damaged
        raise BrokenRowGroupError(f"{path}, row group {index} does not decode: {damage}") from damage

    def _table(self, file: int, index: int) -> Any:
        """The table of a row group. Raises: BrokenRowGroupError; whatever else the storage raises."""
        import pyarrow as pa

        opened, seen = self._file(file)
        try:
            table = opened.read_row_group(index, columns=list(self.footers.leaves))
        except Exception as error:
            self._shut(file)  # a connection that failed may fail for good
            if is_transient(error) or not isinstance(error, pa.ArrowException | OSError):
                raise
            opened, seen = self._file(file)
            table = self._from_memory(file, index, opened)
        path = self.footers.files[file].path
        if (now := stamp_of(self.footers.filesystem, path)) != seen:
            raise changed(path, seen, now)
        if isinstance(table, BrokenRowGroupError):
            raise table
        return table

    def _from_memory(self, file: int, index: int, opened: Any) -> Any:
        """The table of a row group, or what is broken in it, from its bytes, which are all fetched beforehand."""
        import pyarrow as pa
        from pyarrow import parquet

        path, nbytes = self.footers.files[file].path, self.footers.files[file].nbytes
        group = opened.metadata.row_group(index)
        chunks = [group.column(i) for i in range(group.num_columns)]
        begin = min(min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in chunks)
        # an old writer's bug makes Arrow read 100 bytes more
        end = min(nbytes, max(c.data_page_offset + c.total_compressed_size for c in chunks) + 100)
        # as large as the file, but only pages that are written to are there
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
        if 0 <= begin < end:  # else the footer is damaged, which has no checksum, and what it says is no place
            with self.footers.filesystem.open_input_file(path) as raw:
                memory[begin:end] = read_whole(raw, begin, end)
        try:
            held = parquet.ParquetFile(
                pa.BufferReader(memory), metadata=opened.metadata, page_checksum_verification=True
            )
            return held.read_row_group(index, columns=list(self.footers.leaves))
        except (pa.ArrowException, OSError) as error:
            return BrokenRowGroupError(f"{path}, row group {index} does not decode: {error}")

    def _file(self, file: int) -> tuple[Any, Any]:
        """The opened file, and what the filesystem says of it."""
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        while len(self._open) >= _MAX_OPEN_FILES:
            self._shut(next(iter(self._open)))
        expected, filesystem = self.footers.files[file], self.footers.filesystem
        seen = stamp_of(filesystem, expected.path)
        opened, found = open_file(filesystem, expected.path, self.footers.leaves)
        if found != expected:
            opened.close(force=True)
            raise ValueError(
                f"{expected.path} held {expected.num_rows} rows in {len(expected.rows)} row groups and "
                f"{expected.nbytes:,} bytes when the source was made and holds {found.num_rows} in {len(found.rows)} "
                f"and {found.nbytes:,} now, or other data of that size; it was replaced, and reading on would mix two "
                "datasets. Make a new source."
            )
        self._open[file] = opened, seen
        return self._open[file]

    def _shut(self, file: int) -> None:
        self._open.pop(file)[0].close(force=True)


def _types(footers: Footers, fill: Fill) -> ColumnTypes:
    """What columns become, by the first rows that can be read; lists are of one length only if the footers agree."""
    import pyarrow as pa

    files = [file for file in footers.files if file.num_rows]
    means = {leaf: {file.list_values[leaf] for file in files} for leaf in (files[0].list_values if files else ())}
    uneven = [leaf for leaf, found in means.items() if len(found) > 1 or None in found]
    for file in files:
        for index, rows in enumerate(file.rows):
            if not rows:
                continue
            try:
                table = retried(partial(_first_rows, footers, file.path, index), f"{file.path}, row group {index}")
            except StorageError:
                raise  # or other rows would decide, in this process alone
            except (pa.ArrowException, OSError, ValueError):  # it is told when it is read
                continue
            return ColumnTypes.of(in_storage(table), fill=fill, ragged=uneven)
    return ColumnTypes({}, (), (), fill)


def _first_rows(footers: Footers, path: str, index: int) -> Any:
    import pyarrow as pa

    opened, _ = open_file(footers.filesystem, path, footers.leaves)
    try:
        batches = opened.iter_batches(FIRST_ROWS, row_groups=[index], columns=list(footers.leaves))
        return pa.Table.from_batches([next(batches)])
    finally:
        opened.close(force=True)


def _warn_of_partitions(footers: Footers, known: set[str]) -> None:
    """Say which columns stand in the names of directories alone ("year=2020/"), as Hive, Spark and pyarrow write them:
    those that differ between files, and are no field. One that all files share tells no two rows apart.
    """
    values: dict[str, set[str]] = {}
    for file in footers.files:
        for part in os.path.dirname(file.path).split("/"):
            name, equals, value = part.partition("=")
            if equals and name not in known:
                values.setdefault(name, set()).add(value)
    if missing := sorted(name for name, found in values.items() if len(found) > 1):
        logger.warning(
            "the files are partitioned by %s in the names of their directories, and not in themselves: elements have "
            "no such field. Write it into the files where it is wanted; naming the columns to read ends this warning",
            ", ".join(missing),
        )
