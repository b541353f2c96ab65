"""Reads rows of text files by global index, a block at a time, as columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import digest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.arrow.column_types import ColumnTypes
from datarax_ray.read.formats.arrow.columns import Fill, UnlikeError
from datarax_ray.read.formats.decoded_groups import (
    DEFAULT_MAX_NBYTES,
    BrokenRowGroupError,
    DecodedGroups,
    read_together,
)
from datarax_ray.read.formats.file_spans import FileSpans
from datarax_ray.read.formats.text.blocks import TextFile, find_text
from datarax_ray.read.formats.text.syntax import Syntax


class TextReader:
    """The rows of many text files under one index, [0, num_records), in the order of the files.

    Parses a block when one of its rows is first asked for, and keeps it as DecodedGroups does. In a block that does not
    parse, each row is parsed alone, so that only those that do not are broken. Pickles: the index travels, so that only
    the first reader scans the files. Several threads may read, and close.
    """

    broken: type[Exception] = BrokenRowGroupError

    def __init__(
        self,
        syntax: Syntax,
        filesystem: Any,
        files: tuple[TextFile, ...],
        schema: Any,
        types: ColumnTypes,
        *,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep: bool = False,
    ) -> None:
        self.files = files
        self.schema = schema
        self._given = {"syntax": syntax, "filesystem": filesystem, "files": files, "schema": schema, "types": types}
        self._given |= {"max_nbytes": max_nbytes, "keep": keep}
        self._syntax, self._types = syntax, types
        self._places = [(file, index) for file, found in enumerate(files) for index in range(len(found.rows))]
        self._blocks = RecordGroups(count for file in files for count in file.rows)
        self._decoded = DecodedGroups(self._blocks, max_nbytes, keep)
        self._spans = FileSpans(filesystem, files)
        self._rows: tuple[int, list[bytes]] = (-1, [])  # of a block that does not parse as a whole, row by row
        self._lock = ThreadLock()  # pipelines over one source read in threads of their own

    @classmethod
    def of(
        cls,
        paths: Any,
        syntax: Syntax,
        *,
        filesystem: Any = None,
        column_types: Mapping[str, Any] | None = None,
        fill_nulls: Fill | None = None,
    ) -> TextReader:
        """Scan everything that `paths` names, in parallel; see blocks.find_text."""
        found = find_text(paths, syntax, filesystem, dict(column_types or {}))
        types = ColumnTypes.of(found.first, fill=dict(fill_nulls or {}))
        return cls(syntax, found.filesystem, found.files, found.schema, types)

    @property
    def num_records(self) -> int:
        return self._blocks.num_records

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a row, on average; in arrays it is about as large."""
        return sum(self._block_nbytes()) // self.num_records

    @property
    def groups(self) -> RecordGroups:
        """Rows that are best read together: blocks, small ones with those that follow them."""
        return read_together(self._blocks, self._block_nbytes())

    def cached(self) -> TextReader:
        """A reader of the same rows that keeps every block it has parsed."""
        return TextReader(**self._given | {"keep": True})

    def with_room_for(self, nbytes: int) -> TextReader:
        """A reader of the same rows that keeps at least so many bytes of parsed blocks."""
        return TextReader(**self._given | {"max_nbytes": max(self._given["max_nbytes"], nbytes)})

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRowGroupError; OSError where a file is gone or its storage fails; ValueError where it is no longer
        the file that was scanned, or a null has no place.
        """
        with self._lock:
            try:
                return self._decoded.read(records, self._decode)
            except BrokenRowGroupError:
                if len(records) > 1:
                    raise  # who asks for them asks for each alone
                return self._row(int(records[0]))

    def locate(self, record: int) -> str:
        """Where a row is, for people: "path[row in the file]"."""
        return f"{self._file(record).path}[{self._number(record)}]"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories, sizes, row counts, columns and their types."""
        on_host = list(self._types.on_host)
        found = {
            "num_files": len(self.files),
            "num_records": self.num_records,
            "nbytes": sum(file.nbytes for file in self.files),
            "digest": digest([[os.path.basename(file.path), file.nbytes, sum(file.rows)] for file in self.files]),
            "content": digest([file.content for file in self.files]),
            "schema": digest([repr(self._syntax), sorted([field.name, str(field.type)] for field in self.schema)]),
            "columns": digest([sorted([name, str(kind)] for name, kind in self._types.types.items()), on_host]),
        }
        if self._types.fill:
            found["fill_nulls"] = digest(sorted([name, repr(value)] for name, value in self._types.fill.items()))
        return found

    def clear(self) -> None:
        """Forget every parsed block."""
        with self._lock:
            self._decoded.clear()
            self._rows = (-1, [])

    def close(self) -> None:
        """Close every open file, and forget what was parsed. Reading again opens them again."""
        self.clear()
        self._spans.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _block_nbytes(self) -> list[int]:
        return [int(stop - start) for file in self.files for start, stop in file.spans.tolist()]

    def _file(self, record: int) -> TextFile:
        return self.files[self._places[int(self._blocks.of(np.array([record]))[0])][0]]

    def _number(self, record: int) -> int:
        """The row's number in its file."""
        group = int(self._blocks.of(np.array([record]))[0])
        file, index = self._places[group]
        return record - int(self._blocks.starts[group]) + sum(self.files[file].rows[:index])

    def _stored(self, group: int) -> bytes:
        file, index = self._places[group]
        return self._spans.read(file, self.files[file].spans[index : index + 1])[0]

    def _decode(self, group: int) -> Columns:
        file, index = self._places[group]
        found = self.files[file]
        return self._columns(self._stored(group), found, found.rows[index], f"{found.path}, block {index} of its rows")

    def _row(self, record: int) -> Columns:
        """The columns of one row, of a block that does not parse as a whole."""
        group = int(self._blocks.of(np.array([record]))[0])
        if self._rows[0] != group:
            stored = self._stored(group)
            self._rows = group, [stored[start:stop] for start, stop in self._syntax.rows(stored, True).tolist()]
        row = self._rows[1][record - int(self._blocks.starts[group])]
        return self._columns(row, self._file(record), 1, self.locate(record))

    def _columns(self, data: bytes, file: TextFile, num_rows: int, where: str) -> Columns:
        import pyarrow as pa

        try:
            table = self._syntax.parse(data, file.names, self.schema)
            if table.num_rows != num_rows:
                raise BrokenRowGroupError(f"{where} gives {table.num_rows} rows, and has {num_rows} lines")
            return self._types.columns(table.select(self.schema.names))
        except UnlikeError as error:
            raise ValueError(
                f"{where}: {error}; pass fill_nulls={{{error.field!r}: value}} to put a value in place of nulls, or "
                f"{{{error.field!r}: None}} to have the field on the host as Python has it"
            ) from None
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise BrokenRowGroupError(
                f"{where} does not parse: {error}. Columns are of the types of the first rows, unless column_types "
                "names others"
            ) from error
