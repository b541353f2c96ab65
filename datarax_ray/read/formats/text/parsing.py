"""Parses rows of text into columns, by the types that were decided for all files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns, HostDict
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.arrow.types import plain_type
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError
from datarax_ray.read.formats.grouped_rows import columns_of
from datarax_ray.read.formats.text.deciding import Decided, changed_integer, named_column


class Rows(NamedTuple):
    """Some rows of a file. path, names: of the file and its columns. where: the place of the rows, for people."""

    data: bytes
    path: str
    names: Sequence[str]
    num_rows: int
    where: str


@dataclass(frozen=True)
class Parser:
    """Parses rows. decided: the type of each column; types: the array that it becomes."""

    decided: Decided
    types: ColumnTypes

    def table(self, rows: Rows) -> Any:
        """The rows as Arrow's table. Raises: BrokenRowGroupError."""
        import pyarrow as pa

        data, path, names, num_rows, where = rows
        syntax, decided = self.decided.syntax, self.decided
        try:
            table = syntax.parse(syntax.prepared(data), names, decided.schema)
            if table.num_rows != num_rows:
                raise BrokenRowGroupError(f"{where} gives {table.num_rows} rows, and has {num_rows} lines")
            if changed := changed_integer(data, table, names, syntax, decided.inferred):
                raise BrokenRowGroupError(f"{where}: {changed}")
            return table.select(decided.schema.names)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            first = decided.first
            of = f" of {first} (leave it out by a glob where it is no data)" if first != path else ""
            raise BrokenRowGroupError(
                f"{where} does not parse: {named_column(names, error)}. Columns are of the types of the first "
                f"rows{of}, unless column_types names others"
            ) from error

    def columns(self, rows: Rows) -> Columns:
        """The rows as columns, read-only. Raises: BrokenRowGroupError."""
        table = self._with_nulls(self.table(rows))
        where = f"{rows.where}: " if rows.num_rows > 1 else ""
        columns = columns_of(lambda: self.types.columns(table), where)
        for name in self.decided.syntax.as_json:
            columns[name] = _values(columns[name], where, name)
        return columns

    def settings(self) -> dict[str, Any]:
        """What of the fingerprint tells other columns from these."""
        decided = self.decided
        schema = sorted([field.name, str(field.type)] for field in decided.schema)
        return {
            "schema": digest([repr(decided.syntax), schema, *decided.syntax.settings()]),
            "columns": digest(self.types.described()),
            **self.types.on_null.identity(),
        }

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

    @cached_property
    def _filled(self) -> list[str]:
        syntax, schema, fill = self.decided.syntax, self.decided.schema, self.types.fill
        texts = [field.name for field in schema if plain_type(field.type) in ("string", "binary")]
        is_missing = [name for name in texts if fill.get(name, "") not in ("", b"") or name in syntax.as_json]
        return is_missing if syntax.empty_is_missing else []


def _values(texts: np.ndarray, where: str, name: str) -> np.ndarray:
    """The values of texts of JSON. Raises: BrokenRowGroupError."""
    try:
        values = (None if text is None else json.loads(text) for text in texts)
        found = np.fromiter((HostDict(each) if type(each) is dict else each for each in values), object, len(texts))
    except (ValueError, RecursionError) as error:
        raise BrokenRowGroupError(f"{where}field {name!r} is no JSON: {error}") from error
    found.setflags(write=False)
    return found
