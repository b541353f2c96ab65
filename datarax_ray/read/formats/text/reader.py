"""Reads rows of text files by global index, a block at a time, as columns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from datarax_ray.plan.fingerprint import digest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.formats.arrow.column_types import ColumnTypes
from datarax_ray.read.formats.arrow.columns import Fill, plain_type
from datarax_ray.read.formats.decoded_groups import DEFAULT_MAX_NBYTES, BrokenRowGroupError
from datarax_ray.read.formats.file_spans import FileSpans, files_fingerprint
from datarax_ray.read.formats.grouped_rows import GroupedRows
from datarax_ray.read.formats.text.blocks import TextFile, bent_integer, find_text, may_be_bent
from datarax_ray.read.formats.text.syntax import Syntax

_MAX_IN_ROWS = 16  # blocks of 4 MiB, of which a shuffle asks for rows in turns


class TextReader(GroupedRows):
    """The rows of many text files; see GroupedRows.

    Parses a block when one of its rows is first asked for, and keeps it as DecodedGroups does. In a block that does not
    parse, or with rows that have no place in the columns, each is parsed alone, so that only these are broken.
    """

    breaks_whole = False

    def __init__(
        self,
        syntax: Syntax,
        filesystem: Any,
        files: tuple[TextFile, ...],
        schema: Any,
        inferred: Any,
        types: ColumnTypes,
        *,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
    ) -> None:
        given = {"syntax": syntax, "filesystem": filesystem, "files": files}
        given |= {"schema": schema, "inferred": inferred, "types": types}
        nbytes = [(file.spans[:, 1] - file.spans[:, 0]).tolist() for file in files]
        given |= {"max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        super().__init__(given, [file.rows for file in files], nbytes, types)
        self.files = files
        self.schema = schema
        self._inferred = inferred
        self._syntax = syntax
        self._spans = FileSpans(filesystem, files)
        texts = [field.name for field in schema if plain_type(field.type) in ("string", "binary")]
        # "" in place of "" changes nothing, and states of such a source stay what they were
        self._filled = [name for name in texts if syntax.empty_is_missing and types.fill.get(name, "") not in ("", b"")]
        self._rows: OrderedDict[int, list[bytes]] = OrderedDict()  # of blocks that do not parse as a whole, row by row

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
        return cls(syntax, found.filesystem, found.files, found.schema, found.inferred, types)

    def read(self, records: Indices) -> Columns:
        """The columns of these rows, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRowGroupError, also of a null that has no place; OSError where a file is gone or its storage
        fails; ValueError where it is no longer the file that was scanned.
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
        file, _, row = self._place(record)
        return f"{self.files[file].path}[{row}]"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories, sizes, row counts, columns and their types."""
        on_host = list(self._types.on_host)
        found = files_fingerprint(self.files, self.num_records, lambda file: (sum(file.rows),)) | {
            "schema": digest([repr(self._syntax), sorted([field.name, str(field.type)] for field in self.schema)]),
            "columns": digest([sorted([name, str(kind)] for name, kind in self._types.types.items()), on_host]),
        }
        return found | self._fill_digest()

    def _fill_digest(self) -> dict[str, str]:
        found = super()._fill_digest()
        return {"fill_nulls": digest([found["fill_nulls"], "empty texts of", self._filled])} if self._filled else found

    def clear(self) -> None:
        with self._lock:
            self._decoded.clear()
            self._rows.clear()

    def close(self) -> None:
        """Close every open file, and forget what was parsed. Reading again opens them again."""
        self.clear()
        self._spans.close()

    def _stored(self, group: int) -> bytes:
        file, index = self._places[group]
        return self._spans.read(file, self.files[file].spans[index : index + 1])[0]

    def table(self, start: int, stop: int) -> Any:
        """See GroupedRows; a single row also of a block that does not parse as a whole."""
        try:
            return super().table(start, stop)
        except BrokenRowGroupError:
            if stop - start > 1:
                raise
            with self._lock:
                return self._parsed(*self._row_at(start))

    def _table_of(self, group: int) -> Any:
        return self._parsed(*self._block_at(group))

    def _decode(self, group: int) -> Columns:
        return self._columns(*self._block_at(group))

    def _block_at(self, group: int) -> tuple[bytes, TextFile, int, str]:
        file, index = self._places[group]
        found = self.files[file]
        return self._stored(group), found, found.rows[index], f"{found.path}, block {index} of its rows"

    def _row(self, record: int) -> Columns:
        """The columns of one row, of a block that does not parse as a whole."""
        return self._columns(*self._row_at(record))

    def _row_at(self, record: int) -> tuple[bytes, TextFile, int, str]:
        group = self._group_of(record)
        if group not in self._rows:
            stored = self._stored(group)
            self._rows[group] = [stored[start:stop] for start, stop in self._syntax.rows(stored, True).tolist()]
            if len(self._rows) > _MAX_IN_ROWS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(group)
        row = self._rows[group][record - int(self._groups.starts[group])]
        return row, self.files[self._places[group][0]], 1, self.locate(record)

    def _columns(self, data: bytes, file: TextFile, num_rows: int, where: str) -> Columns:
        table = self._with_nulls(self._parsed(data, file, num_rows, where))
        return self._columns_of(table, f"{where}: " if num_rows > 1 else "")

    def _with_nulls(self, table: Any) -> Any:
        """The table, with nulls in place of the empty texts for which fill_nulls has another value.

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

    def _parsed(self, data: bytes, file: TextFile, num_rows: int, where: str) -> Any:
        import pyarrow as pa

        try:
            table = self._syntax.parse(data, file.names, self.schema)
            if table.num_rows != num_rows:
                raise BrokenRowGroupError(f"{where} gives {table.num_rows} rows, and has {num_rows} lines")
            if any(may_be_bent(table[name]) for name in self._inferred.names) and (
                bent := bent_integer(data, file.names, self._syntax, self._inferred)
            ):
                raise BrokenRowGroupError(f"{where}: {bent}")
            return table.select(self.schema.names)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise BrokenRowGroupError(
                f"{where} does not parse: {error}. Columns are of the types of the first rows, unless column_types "
                "names others"
            ) from error
