"""Reads rows of text files by global index, a block at a time, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.decoded_groups import DEFAULT_MAX_NBYTES, BrokenRowGroupError, GroupedRows, OddGroup
from datarax_ray.read.formats.file_spans import FileSpans, files_fingerprint
from datarax_ray.read.formats.text.blocks import TextFiles, find_text
from datarax_ray.read.formats.text.deciding import Parser, Rows
from datarax_ray.read.formats.text.syntax import Syntax

_LINE_NBYTES = 41  # of an object of bytes, and the place of it in a list, beside what it holds


class TextReader(GroupedRows):
    """The rows of many text files; see GroupedRows, and DecodedGroups for max_nbytes and keep_nbytes.

    In a block that does not parse, or has rows without a place in the columns, only these rows are broken.
    """

    breaks_whole = False

    def __init__(
        self,
        found: TextFiles,
        parser: Parser,
        *,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
    ) -> None:
        given = {"found": found, "parser": parser, "max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        nbytes = [(file.spans[:, 1] - file.spans[:, 0]).tolist() for file in found.files]
        super().__init__(given, [file.rows for file in found.files], nbytes, parser.decided.schema, parser.types)
        self.files = found.files
        self._parser = parser
        self._spans = FileSpans(found.filesystem, found.files)
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
        schema_rows: int | None = None,
        seen_as: Callable[[Any], Any] | None = None,
    ) -> TextReader:
        """Scan everything that `paths` names, in parallel; see blocks.find_text."""
        found, decided, rows = find_text(paths, syntax, filesystem, dict(column_types or {}), schema_rows, seen_as)
        return cls(found, Parser(decided, ColumnTypes.of(rows, on_null=on_null)))

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the given order. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRowGroupError, also of a null that has no place; OSError where a file is gone or its storage
        fails; ValueError where it is no longer the file that was scanned.
        """
        with self._lock:
            return self._decoded.read(records, self._decode)

    def locate(self, record: int) -> str:
        file, _, row = self._place(record)
        return f"{self.files[file].path}[{row}]"

    def fingerprint(self) -> dict[str, Any]:
        """The identity of the data: names without directories, sizes, row counts, columns and their types."""
        found = files_fingerprint(self.files, self.num_records, lambda file: (sum(file.rows),))
        return found | self._parser.settings()

    def clear(self) -> None:
        with self._lock:
            self._decoded.clear()
            self._lines = (-1, [])

    def close(self) -> None:
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
            rows = np.arange(start, stop) - self._groups.starts[group]
            return self._parser.table(self._part(group, self._lines[1], rows))

    def _table_of(self, group: int) -> Any:
        return self._parser.table(self._block(group))

    def _decode(self, group: int) -> Columns | OddGroup:
        block = self._block(group)
        try:
            return self._parser.columns(block)
        except BrokenRowGroupError:
            lines = self._split(block)
        nbytes = len(block.data) + _LINE_NBYTES * len(lines)
        return OddGroup(lambda rows: self._parser.columns(self._part(group, lines, rows)), nbytes)

    def _block(self, group: int) -> Rows:
        number, index = self._places[group]
        file = self.files[number]
        data = self._spans.read(number, file.spans[index : index + 1])[0]
        return Rows(data, file.path, file.names, file.rows[index], f"{file.path}, block {index} of its rows")

    def _split(self, block: Rows) -> list[bytes]:
        return [block.data[start:stop] for start, stop in self._parser.decided.syntax.rows(block.data, True).tolist()]

    def _part(self, group: int, lines: list[bytes], rows: Indices) -> Rows:
        """Some rows of a block, as a block."""
        number, index = self._places[group]
        file = self.files[number]
        where = f"{file.path}, block {index} of its rows"
        if len(rows) == 1:
            where = self.locate(int(self._groups.starts[group] + rows[0]))
        data = b"\n".join([lines[row] for row in rows.tolist()])
        return Rows(data, file.path, file.names, len(rows), where)
