"""Two syntaxes of text: where rows begin and end, and how pyarrow parses them.

Source: pyarrow.csv and pyarrow.json. Rows are the rows of these parsers: an empty line is no row. In CSV a newline in
quotes is part of a value, and quotes open at the beginning of a value.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.arrow.types import retyped

BOM = b"\xef\xbb\xbf"
_LONG_INTEGER = re.compile(r"[+-]?\d{16,4000}")  # shorter ones are floats too: 2**53 has 16 digits; int() takes 4300
_LONG_DIGITS = re.compile(rb"\d{16}")
_ROW_OF_JSON = re.compile(rb"[^\n]*[^\n\r\t ][^\n]*")


class Syntax(ABC):
    """How text is read. Picklable.

    name: for people.
    suffixes: of the files that are read of a directory.
    empty_is_missing: whether a missing value and an empty text look the same.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    empty_is_missing: ClassVar[bool] = False

    @property
    def has_header(self) -> bool:
        """Whether the first row of a file names its columns."""
        return False

    @abstractmethod
    def rows(self, data: bytes, is_last: bool) -> Indices:
        """Where each row of the data is, without the end of its line: int64 (k, 2).

        is_last: whether the data reaches the end of the file. Otherwise a last row without a newline does not count.
        Raises: ValueError for a last row that does not end.
        """

    @abstractmethod
    def names(self, header: bytes) -> tuple[str, ...]:
        """The names of the columns, by the first row of a file, b"" where it has no header; () where rows name them."""

    @abstractmethod
    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        """The table of whole rows. names: of the file's columns. schema: pyarrow's, None to infer it.

        Raises: pyarrow.ArrowInvalid for rows that do not parse, or do not fit the schema.
        """

    @abstractmethod
    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        """(field, dotted; value) of integers of 16 digits or more that become floats under this schema."""


@dataclass(frozen=True)
class CSV(Syntax):
    """Values between delimiters, in quotes where need be; quotes in quotes are doubled.

    column_names: of files without a header; None where the first row is the header. An empty value is null in columns
    of numbers, times and bools, and an empty text in columns of text.
    """

    delimiter: str = ","
    column_names: tuple[str, ...] | None = None
    name = "CSV"
    suffixes = (".csv", ".tsv")
    empty_is_missing = True

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter is one ASCII character, and no quote or newline; got {self.delimiter!r}")
        if isinstance(self.column_names, str):
            raise TypeError(f"column_names is a tuple of names, got {self.column_names!r}")

    @property
    def has_header(self) -> bool:
        return self.column_names is None

    def rows(self, data: bytes, is_last: bool) -> Indices:
        if b'"' in data:
            return self._quoted_rows(data, is_last)
        held = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero((held == ord("\n")) | (held == ord("\r")))
        if is_last:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        found: Indices = np.stack([starts, ends], 1)
        return found[starts < ends].astype(np.int64)

    def _quoted_rows(self, data: bytes, is_last: bool) -> Indices:
        # There is one way to match, so no quantifier is possessive: Python before 3.11.5 gets these wrong.
        other = b"[^\r\n" + re.escape(self.delimiter.encode()) + b"]*"
        value = b'(?:"[^"]*(?:""[^"]*)*"(?!")' + other + b'|(?!")' + other + b")"
        row = re.compile(value + b"(?:" + re.escape(self.delimiter.encode()) + value + b")*")
        found, at = [], 0
        while at < len(data):
            match = row.match(data, at)
            end = match.end() if match else at
            if match is None or data[end : end + 1] not in (b"\n", b"\r", b""):  # a quote that is open
                if is_last:
                    raise ValueError(f"a quote at or behind byte {at} of it is never closed")
                break
            if end == len(data) and not is_last:
                break
            if end > at:
                found.append((at, end))
            at = end + 1
        return np.array(found, np.int64).reshape(-1, 2)

    def names(self, header: bytes) -> tuple[str, ...]:
        import pyarrow as pa
        from pyarrow import csv

        if self.column_names is not None:
            return self.column_names
        return tuple(csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=self._parse_options()).column_names)

    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        types = {} if schema is None else {field.name: field.type for field in schema}
        return csv.read_csv(
            pa.BufferReader(_with_its_bom(data)),
            # one chunk: a block is parsed as a whole, and its rows are found by their number
            read_options=csv.ReadOptions(
                column_names=list(names), use_threads=False, block_size=max(len(data) + 2, 1024)
            ),
            parse_options=self._parse_options(),
            convert_options=csv.ConvertOptions(column_types=types),
        )

    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        import pyarrow as pa

        if not _LONG_DIGITS.search(data):
            return
        floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        as_text = pa.schema([(f.name, pa.string() if f.name in floats else f.type) for f in schema])
        table = self.parse(data, names, as_text)
        for name in floats:
            for text in table[name].to_pylist():
                if text is not None and _LONG_INTEGER.fullmatch(text.strip()):
                    yield name, int(text)

    def _parse_options(self) -> Any:
        from pyarrow import csv

        return csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)


@dataclass(frozen=True)
class JSONLines(Syntax):
    """A JSON object on each line."""

    name = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")

    def rows(self, data: bytes, is_last: bool) -> Indices:
        stop = len(data) if is_last else data.rfind(b"\n") + 1
        found = [match.span() for match in _ROW_OF_JSON.finditer(data, 0, stop)]
        return np.array(found, np.int64).reshape(-1, 2)

    def names(self, header: bytes) -> tuple[str, ...]:
        return ()

    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        import pyarrow as pa

        if not _are_objects(data):
            raise pa.ArrowInvalid("JSON parse error: a line is one object, from { to }")
        try:
            table = _table_of_json(data, schema)
            if schema is not None and not data.isascii():
                table.validate(full=True)  # text that is no UTF-8, which it takes for text
            return table
        except pa.ArrowInvalid as error:
            if schema is None or "unexpected field" not in str(error):
                raise
            more = list(_fields_beside(schema, self.parse(data, names, None).schema))
            if not more:  # in a type that is given, and that is never inferred
                raise
        raise pa.ArrowInvalid(
            f"it has fields that the first rows have not: {', '.join(map(repr, more))}. Name the whole type of each "
            "column in column_types ('int64', or pa.list_(pa.struct({'name': pa.string()})) for [{'name': 'a'}]) to "
            "read them; where they are missing they are None, or what on_null says"
        )

    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        import pyarrow as pa

        if not _LONG_DIGITS.search(data):
            return
        kind = pa.struct(schema)
        for start, stop in self.rows(data, True).tolist():
            if _LONG_DIGITS.search(data, start, stop):
                try:
                    value = json.loads(data[start:stop])
                except (ValueError, RecursionError):  # no object alone, which reading says, or one of great depth
                    continue
                yield from _long_integers_in(value, kind, "")


def _table_of_json(data: bytes, schema: Any) -> Any:
    """The table of objects, as pyarrow reads them, with all of their nulls.

    Its parser (26.0) counts the first null of a list one too few until it knows what the lists hold: what follows moves
    up, and the array is too short. Told the types, it does so in lists that hold nothing else.
    """
    import pyarrow as pa
    from pyarrow import json

    table = json.read_json(
        pa.BufferReader(_with_its_bom(data)),
        read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 2),
        parse_options=json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
        ),
    )
    try:
        table.validate()
        return table
    except pa.ArrowInvalid:
        if schema is None:
            return _table_of_json(data, table.schema)
    return pa.table([retyped(column, column.type, repair=True) for column in table.columns], schema=table.schema)


def _are_objects(data: bytes) -> bool:
    """Whether these may be lines of one object each.

    pyarrow does not check: it takes an object on two lines beside two on one for as many rows, and of a first line
    `null` its process dies (26.0).
    """
    held = np.frombuffer(data, np.uint8)
    ends = np.append(np.flatnonzero(held == ord("\n")), len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    ends -= held[np.maximum(ends - 1, 0)] == ord("\r") if len(data) else 0
    lines = starts < ends
    starts, ends = starts[lines], ends[lines]
    unsure = np.flatnonzero((held[starts] != ord("{")) | (held[ends - 1] != ord("}")))
    for start, stop in zip(starts[unsure].tolist(), ends[unsure].tolist(), strict=True):
        line = data[start:stop].strip(b" \t\r")
        if line and not (line.startswith(b"{") and line.endswith(b"}")):
            return False
    return True


def _fields_beside(schema: Any, other: Any) -> Iterator[str]:
    """The dotted names of fields of another schema, or type of a struct, that are not in this one."""
    import pyarrow as pa

    for field in other:
        index = schema.get_field_index(field.name)
        if index < 0:
            yield field.name
            continue
        mine, its = schema.field(index).type, field.type
        while pa.types.is_list(its) and hasattr(mine, "value_type"):
            mine, its = mine.value_type, its.value_type
        if pa.types.is_struct(mine) and pa.types.is_struct(its):
            yield from (f"{field.name}.{name}" for name in _fields_beside(mine, its))


def _long_integers_in(value: Any, kind: Any, path: str) -> Iterator[tuple[str, int]]:
    """value: as Python's json reads it; kind: the type of Arrow that it is read as."""
    from pyarrow import types as t

    if isinstance(value, dict) and t.is_struct(kind):
        for name, part in value.items():
            index = kind.get_field_index(name)
            if index >= 0:
                yield from _long_integers_in(part, kind.field(index).type, f"{path}.{name}")
    elif isinstance(value, list) and t.is_list(kind):
        for part in value:
            yield from _long_integers_in(part, kind.value_type, path)
    elif isinstance(value, int) and t.is_floating(kind) and abs(value) >= 10**15:
        yield path.removeprefix("."), value


def _with_its_bom(data: bytes) -> bytes:
    """The data, such that a mark of its byte order, which is taken off the beginning of files, stays where it is."""
    return b"\n" + data if data.startswith(BOM) else data
