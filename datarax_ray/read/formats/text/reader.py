"""Reads rows of text files by global index, a block at a time, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.arrow.types import plain_type
from datarax_ray.read.formats.decoded_groups import DEFAULT_MAX_NBYTES, BrokenRowGroupError, OddGroup
from datarax_ray.read.formats.file_spans import FileSpans, files_fingerprint
from datarax_ray.read.formats.grouped_rows import GroupedRows
from datarax_ray.read.formats.text.blocks import TextFile, TextFiles, changed_integer, find_text, named_column
from datarax_ray.read.formats.text.syntax import Syntax

_LINE_NBYTES = 41  # of an object of bytes, and the place of it in a list, beside what it holds


class _Block(NamedTuple):
    """Some rows of a file. where: their place, for people."""

    data: bytes
    file: TextFile
    num_rows: int
    where: str


class TextReader(GroupedRows):
    """The rows of many text files; see GroupedRows, and DecodedGroups for max_nbytes and keep_nbytes.

    In a block that does not parse, or has rows without a place in the columns, only these rows are broken.
    """

    breaks_whole = False

    def __init__(
        self,
        syntax: Syntax,
        found: TextFiles,
        types: ColumnTypes,
        *,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
    ) -> None:
        given = {"syntax": syntax, "found": found, "types": types, "max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        nbytes = [(file.spans[:, 1] - file.spans[:, 0]).tolist() for file in found.files]
        super().__init__(given, [file.rows for file in found.files], nbytes, found.schema, types)
        self.files = found.files
        self._inferred = found.inferred
        self._syntax = syntax
        self._spans = FileSpans(found.filesystem, found.files)
        texts = [field.name for field in found.schema if plain_type(field.type) in ("string", "binary")]
        self._filled = [name for name in texts if syntax.empty_is_missing and types.fill.get(name, "") not in ("", b"")]
        self._lines: tuple[int, list[bytes]] = (-1, [])  # of the last block for `table` that does not parse as a whole

    @classmethod
    def of(
        cls,
        paths: Any,
        syntax: Syntax,
        *,
        filesystem: Any = None,
        column_types: Mapping[str, Any] | None = None,
        on_null: Any = None,
    ) -> TextReader:
        """Scan everything that `paths` names, in parallel; see blocks.find_text."""
        found, first = find_text(paths, syntax, filesystem, dict(column_types or {}))
        return cls(syntax, found, ColumnTypes.of(first, on_null=on_null))

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the given order. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRowGroupError, also of a null that has no place; OSError where a file is gone or its storage
        fails; ValueError where it is no longer the file that was scanned.
        """
        with self._lock:
            return self._decoded.read(records, self._decode)

    def locate(self, record: int) -> str:
        """The place of a row, for people: "path[row in the file]"."""
        file, _, row = self._place(record)
        return f"{self.files[file].path}[{row}]"

    def fingerprint(self) -> dict[str, Any]:
        """The identity of the data: names without directories, sizes, row counts, columns and their types."""
        found = files_fingerprint(self.files, self.num_records, lambda file: (sum(file.rows),)) | {
            "schema": digest([repr(self._syntax), sorted([field.name, str(field.type)] for field in self.schema)]),
            "columns": digest(self._types.described()),
        }
        return found | self._on_null()

    def clear(self) -> None:
        with self._lock:
            self._decoded.clear()
            self._lines = (-1, [])

    def close(self) -> None:
        """Close every open file, and forget every parsed block. Reading opens files again."""
        self.clear()
        self._spans.close()

    def table(self, start: int, stop: int) -> Any:
        """See GroupedRows; of a block that does not parse as a whole, those of its rows that do."""
        group = self._group_of(start)
        with self._lock:
            if self._lines[0] != group:
                try:
                    return super().table(start, stop)
                except BrokenRowGroupError:
                    self._lines = group, self._split(self._block(group))
            return self._parsed(self._part(group, self._lines[1], np.arange(start, stop) - self._groups.starts[group]))

    def _table_of(self, group: int) -> Any:
        return self._parsed(self._block(group))

    def _decode(self, group: int) -> Columns | OddGroup:
        block = self._block(group)
        try:
            return self._columns(block)
        except BrokenRowGroupError:
            lines = self._split(block)
        nbytes = len(block.data) + _LINE_NBYTES * len(lines)
        return OddGroup(lambda rows: self._columns(self._part(group, lines, rows)), nbytes)

    def _block(self, group: int) -> _Block:
        number, index = self._places[group]
        file = self.files[number]
        data = self._spans.read(number, file.spans[index : index + 1])[0]
        return _Block(data, file, file.rows[index], f"{file.path}, block {index} of its rows")

    def _split(self, block: _Block) -> list[bytes]:
        return [block.data[start:stop] for start, stop in self._syntax.rows(block.data, True).tolist()]

    def _part(self, group: int, lines: list[bytes], rows: Indices) -> _Block:
        """Some rows of a block, as a block."""
        number, index = self._places[group]
        file = self.files[number]
        where = f"{file.path}, block {index} of its rows"
        if len(rows) == 1:
            where = self.locate(int(self._groups.starts[group] + rows[0]))
        return _Block(b"\n".join([lines[row] for row in rows.tolist()]), file, len(rows), where)

    def _columns(self, block: _Block) -> Columns:
        table = self._with_nulls(self._parsed(block))
        return self._columns_of(table, f"{block.where}: " if block.num_rows > 1 else "")

    def _with_nulls(self, table: Any) -> Any:
        """The table, with nulls in place of the empty texts for which on_null has another value.

        Not pyarrow's strings_can_be_null, which holds for all columns, and takes "NA" and "null" for missing too.
        """
        from pyarrow import compute, types

        for name in self._filled:
            column = table[name]
            if types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            column = compute.if_else(compute.equal(compute.binary_length(column), 0), None, column)
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def _parsed(self, block: _Block) -> Any:
        import pyarrow as pa

        data, file, num_rows, where = block
        try:
            table = self._syntax.parse(data, file.names, self.schema)
            if table.num_rows != num_rows:
                raise BrokenRowGroupError(f"{where} gives {table.num_rows} rows, and has {num_rows} lines")
            if changed := changed_integer(data, table, file.names, self._syntax, self._inferred):
                raise BrokenRowGroupError(f"{where}: {changed}")
            return table.select(self.schema.names)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            first = next(each.path for each in self.files if each.rows)  # find_text takes the types of it
            of = f" of {first} (leave it out by a glob where it is no data)" if first != file.path else ""
            raise BrokenRowGroupError(
                f"{where} does not parse: {named_column(file.names, error)}. Columns are of the types of the first "
                f"rows{of}, unless column_types names others"
            ) from error
