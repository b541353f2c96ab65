"""Reads rows of Parquet files by global index, a row group at a time, as columns.

Source: pyarrow.parquet. A row group is decoded as a whole or not at all, so decoded ones are kept until all of their
rows were asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.errors import ChangedError, StorageError
from datarax_ray.read.formats.arrow.columns import FIRST_ROWS, ColumnTypes, rows_of
from datarax_ray.read.formats.arrow.joining import Joins
from datarax_ray.read.formats.arrow.types import HOST, OnNull, retyped
from datarax_ray.read.formats.decoded_groups import (
    DEFAULT_MAX_NBYTES,
    BrokenRowGroupError,
    GroupedRows,
    OddGroup,
    UnlikeRowsError,
    columns_of,
)
from datarax_ray.read.formats.file_spans import files_fingerprint
from datarax_ray.read.formats.origins import origin_in
from datarax_ray.read.formats.parquet.footers import Footers, known_of, read_footers
from datarax_ray.read.formats.parquet.row_groups import RowGroups
from datarax_ray.read.formats.remote.clients import NoRangesError
from datarax_ray.read.formats.remote.ranges import MAX_REQUEST_NBYTES, REMOTE, Remote
from datarax_ray.read.formats.remote.read_ahead import ReadAhead
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import ReaderTraits

logger = logging.getLogger("datarax_ray")

_MAX_FETCHED_FILES = 128  # at once: two descriptors each


class ParquetReader(GroupedRows):
    """The rows of many Parquet files; see GroupedRows, and DecodedGroups for max_nbytes and keep_nbytes.

    Rows that have no place in the columns are broken, and no others. remote: how files behind URLs are read.
    """

    def __init__(
        self,
        footers: Footers,
        *,
        types: ColumnTypes,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
        remote: Remote = REMOTE,
    ) -> None:
        files = footers.files
        given = {"footers": footers, "types": types, "max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        given |= {"remote": remote}
        nbytes = [file.decoded_nbytes for file in files]
        super().__init__(given, [file.rows for file in files], nbytes, footers.schema, types)
        self.footers = footers
        self._remote = remote
        self._row_groups = RowGroups(footers, remote)
        mirrors = self._row_groups.mirrors
        self._ahead: ReadAhead | None = None
        if mirrors is not None:
            self._ahead = ReadAhead(mirrors, lambda r: map(self._by_file, self._in_parts(r, MAX_REQUEST_NBYTES)))
        self._parts: list[list[int]] = []  # of groups, that the read that runs is to fetch together

    @classmethod
    def of(
        cls,
        paths: Any,
        *,
        columns: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        filesystem: Any = None,
        schema: str = "widen",
        column_types: Mapping[str, Any] | None = None,
        on_null: Any = None,
        remote: Remote = REMOTE,
    ) -> ParquetReader:
        """Open everything that `paths` names, read and check the footers in parallel; see footers.read_footers."""
        joins = Joins.of(schema, column_types)
        footers = read_footers(paths, columns, tuple(exclude), filesystem, remote, joins)
        if columns is None:  # else they are chosen
            _warn_of_partitions(footers, {*exclude, *footers.schema.names})
        return cls(footers, types=_types(footers, on_null, remote), remote=remote)

    @property
    def traits(self) -> ReaderTraits:
        return replace(super().traits, reads_ahead=self._ahead is not None and self._remote.nbytes > 0)

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the given order. records: int64 (k,), in [0, num_records), repeats allowed.

        Neighbouring rows of one row group are a read-only view of it.

        Raises: BrokenRowGroupError, also of a null that has no place; OSError where a file is gone or its storage
        fails; ValueError where it is no longer the file whose footer was read.
        """
        with self._lock, contextlib.nullcontext() if self._ahead is None else self._ahead.reading(records):
            if self._ahead is not None:
                self._parts = self._in_parts(records, max(self._remote.nbytes // 4, MAX_REQUEST_NBYTES))
            return self._decoded.read(records, self._decode)

    def expect(self, records: Indices) -> None:
        if self._ahead is not None and self.traits.reads_ahead and len(records):
            with self._lock:
                self._ahead.expect(records)

    def locate(self, record: int) -> str:
        file, index, row = self._place(record)
        return f"{self.footers.files[file].path}[{row}] (row group {index})"

    def origin(self, record: int) -> str:
        file, _, row = self._place(record)
        footer = self.footers.files[file]
        return origin_in(footer.url or footer.path, row, footer.nbytes)

    def fingerprint(self) -> dict[str, Any]:
        """The identity of the data: names without directories, sizes, row counts, fields and their types."""
        found = files_fingerprint(self.footers.files, self.num_records, lambda file: file.rows)
        types = {"schema": digest(self.footers.types), "columns": digest(self._types.described())}
        return found | types | self._types.on_null.identity()

    def close(self) -> None:
        self.clear()
        with self._lock:
            if self._ahead is not None:
                self._ahead.forget()
            self._row_groups.close()

    def _in_parts(self, records: Indices, nbytes: int) -> list[list[int]]:
        """The row groups to decode for these rows, in parts of at most nbytes once decoded, or of one group."""
        parts: list[list[int]] = []
        room = first_file = 0
        for group in self._decoded.missing(records).tolist():
            file = self._places[group][0]
            if not parts or self._group_nbytes[group] > room or file >= first_file + _MAX_FETCHED_FILES:
                parts.append([])
                room, first_file = nbytes, file
            parts[-1].append(group)
            room -= self._group_nbytes[group]
        return parts

    def _by_file(self, groups: Iterable[int]) -> dict[int, Indices]:
        found: dict[int, list[int]] = {}
        for file, index in (self._places[group] for group in groups):
            found.setdefault(file, []).append(index)
        return {file: np.array(indices) for file, indices in found.items()}

    def _table_of(self, group: int) -> Any:
        file, index = self._places[group]
        return self.footers.typed(self._row_groups.table(file, index), file)

    def _columns_in(self, file: int, table: Any, where: str) -> Columns:
        typed = self.footers.typed
        return columns_of(lambda: self._types.columns(typed(table, file)), where, ", or leave it out of columns")

    def _decode(self, group: int) -> Columns | OddGroup:
        import pyarrow as pa

        file, index = self._places[group]
        path = self.footers.files[file].path
        if (part := next((part for part in self._parts if group in part), None)) is not None:
            self._parts.remove(part)
            self._row_groups.fetch(self._by_file(part))
        table, where = self._row_groups.table(file, index), f"{path}, row group {index}: "
        if table.num_rows != (count := self.footers.files[file].rows[index]):
            raise BrokenRowGroupError(f"{where}it decodes to {table.num_rows} rows, and the footer says {count}")
        try:
            return self._columns_in(file, table, where)
        except UnlikeRowsError:
            return OddGroup(
                lambda rows: self._columns_in(file, rows_of(table, rows), where if len(rows) > 1 else ""), table.nbytes
            )
        except ValueError as error:
            if not isinstance(error, UnicodeDecodeError):
                raise ValueError(f"{path}, row group {index}: {error}") from None
            damage: Exception = error
        except pa.ArrowException as error:
            damage = error
        # text that is no UTF-8: the pages carry no checksum, and are damaged
        raise BrokenRowGroupError(f"{path}, row group {index} does not decode: {damage}") from damage


def _types(footers: Footers, on_null: Any, remote: Remote) -> ColumnTypes:
    """What columns become, by the footers, and by the first rows that can be read of each kind of file."""
    known = known_of(footers.files, footers.schema, unknown_are_null=OnNull.of(on_null).says("", HOST))
    with contextlib.closing(RowGroups(footers, remote)) as groups:
        table = _first_table(footers, groups.first_rows)
    if table is None:
        table = footers.schema.empty_table()
    return ColumnTypes.of(table, on_null=on_null, known=known)


def _first_table(footers: Footers, first_rows: Callable[[int, int, int], Any]) -> Any:
    """first_rows(file, row group, how many) of the first row group that can be read, and of the first of each other
    schema; None where there is none.
    """
    import pyarrow as pa

    tables: dict[int, Any] = {}  # by schema
    for number, file in enumerate(footers.files):
        for index, rows in enumerate(file.rows):
            if not rows or id(file.schema) in tables:
                continue
            try:
                table = retried(partial(first_rows, number, index, FIRST_ROWS), f"{file.path}, row group {index}")
                tables[id(file.schema)] = footers.typed(table, number)
            except (StorageError, ChangedError, NoRangesError):
                raise  # or other rows would decide, in this process alone
            except (pa.ArrowException, OSError, ValueError):  # reading it raises again
                continue
    if not tables:
        return None
    first, *others = tables.values()
    alike = ([retyped(other.column(field.name), field.type) for field in first.schema] for other in others)
    return pa.concat_tables([first, *(pa.table(columns, first.schema) for columns in alike)])


def _warn_of_partitions(footers: Footers, known: set[str]) -> None:
    """Warn of columns that only directory names hold ("year=2020/"), as Hive, Spark and pyarrow write them: columns
    that differ between files, and are no field of the files.
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
