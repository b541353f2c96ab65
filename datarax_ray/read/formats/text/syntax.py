"""Syntaxes of text: where rows begin and end, and how rows become a table. JSON's are in json_syntax.

Source: pyarrow.csv. Rows are the rows of that parser: an empty line is no row. In CSV a newline in quotes is part of a
value, and quotes open at the beginning of a value.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

BOM = b"\xef\xbb\xbf"
_LONG_INTEGER = re.compile(r"[+-]?\d{16,4000}")  # shorter ones are floats too: 2**53 has 16 digits; int() takes 4300
LONG_DIGITS = re.compile(rb"\d{16}")
_NAME_IN_DIGITS = r"[+-]?0[\dxX].*|\+.*"  # a postcode, an id, a telephone number: no number is written so
_MAY_BE_NAME = re.compile(rb"(?:^|[^\w.])(?:0[\dxX]|\+\d)", re.MULTILINE)


def check_errors(errors: Any) -> None:
    """Raise ValueError unless this is one of two ways to decode."""
    if errors not in ("strict", "replace"):
        raise ValueError(f"errors is 'strict' or 'replace', got {errors!r}")


@dataclass(frozen=True)
class Syntax(ABC):
    """How text is read. Picklable.

    errors: "strict" where a row with text that is no UTF-8 is broken; "replace" for U+FFFD in place of such bytes.
    as_json: fields whose values are any JSON.

    name: for people.
    suffixes: of the files that are read of a directory.
    empty_is_missing: whether a missing value and an empty text look the same.
    closing: the last bytes of a whole file, but for spaces.
    """

    errors: str = field(default="strict", kw_only=True, repr=False)
    as_json: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    empty_is_missing: ClassVar[bool] = False
    closing: ClassVar[bytes] = b""

    @property
    def num_skipped(self) -> int:
        """The first rows of each file, before its header, that are none of data."""
        return 0

    def fitting(self, head: bytes) -> Syntax:
        """The syntax of a file that begins so."""
        return self

    def settings(self) -> list[str]:
        """The settings that its repr lacks, where they are not the defaults, for a fingerprint."""
        return [
            f"{name}={value!r}"
            for name in ("errors", "as_json")
            if (value := getattr(self, name)) not in ("strict", ())
        ]

    def inferring(self, given: Mapping[str, Any]) -> Any:
        """The schema of `parse` by which types are inferred. given: the types that somebody named."""
        return None

    def beside(self, given: Mapping[str, Any]) -> Any:
        """The schema of `parse` by which the columns beside these are inferred; None where `inferring` is that."""
        return None

    def prepared(self, data: bytes) -> bytes:
        """Whole rows as `parse` and `long_integers` take them."""
        if self.errors == "replace" and not data.isascii():
            return data.decode(errors="replace").encode()
        return data

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

    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        """(field, dotted; value) of integers of 16 digits or more that become floats under this schema."""
        return iter(())

    def names_in_digits(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int, str]]:
        """(column, row, text) of the first value in each column of numbers that is written as no number is."""
        return iter(())


@dataclass(frozen=True)
class CSV(Syntax):
    """Values between delimiters, in quotes where need be; quotes in quotes are doubled.

    column_names: of files without a header; None where the first row is the header. An empty value is null in columns
    of numbers, times and bools, and an empty text in columns of text. skip_rows: see num_skipped.
    """

    delimiter: str = ","
    column_names: tuple[str, ...] | None = None
    skip_rows: int = 0
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

    @property
    def num_skipped(self) -> int:
        return self.skip_rows

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
        table = csv.read_csv(
            pa.BufferReader(with_its_bom(data)),
            # one chunk: a block is parsed as a whole, and its rows are found by their number
            read_options=csv.ReadOptions(
                column_names=list(names), use_threads=False, block_size=max(len(data) + 2, 1024)
            ),
            parse_options=self._parse_options(),
            convert_options=csv.ConvertOptions(column_types=types),
        )
        if other := [part.name for part in table.schema if part.name not in types and pa.types.is_binary(part.type)]:
            raise pa.ArrowInvalid(f"column {other[0]!r} has text that is not UTF-8")
        return table

    def inferring(self, given: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        return pa.schema([(name, kind) for name, kind in given.items() if pa.types.is_binary(kind)])

    def long_integers(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int]]:
        import pyarrow as pa

        if not LONG_DIGITS.search(data):
            return
        table = self._as_text(data, names, schema, pa.types.is_floating)
        for name in table.column_names:
            for text in table[name].to_pylist():
                if text is not None and _LONG_INTEGER.fullmatch(text.strip()):
                    yield name, int(text)

    def names_in_digits(self, data: bytes, names: Sequence[str], schema: Any) -> Iterator[tuple[str, int, str]]:
        import pyarrow as pa
        from pyarrow import compute

        if not _MAY_BE_NAME.search(data):
            return
        table = self._as_text(data, names, schema, lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind))
        for name in table.column_names:
            texts = compute.utf8_trim_whitespace(table[name])
            row = compute.index(compute.match_substring_regex(texts, f"^(?:{_NAME_IN_DIGITS})$"), True).as_py()
            if row >= 0:
                yield name, row, texts[row].as_py()

    def _as_text(self, data: bytes, names: Sequence[str], schema: Any, is_kind: Callable[[Any], bool]) -> Any:
        """The table of the columns of these kinds under this schema, as they are written."""
        import pyarrow as pa

        those = [field.name for field in schema if is_kind(field.type)]
        as_text = pa.schema([(f.name, pa.string() if f.name in those else f.type) for f in schema])
        return self.parse(data, names, as_text).select(those)

    def _parse_options(self) -> Any:
        from pyarrow import csv

        return csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)


@dataclass(frozen=True)
class Lines(Syntax):
    """A text on each line, with or without characters. A line ends with \\n or \\r\\n."""

    name = "text"
    suffixes = (".txt", ".text")

    def rows(self, data: bytes, is_last: bool) -> Indices:
        return lines_in(data)[: None if is_last else -1]

    def names(self, header: bytes) -> tuple[str, ...]:
        return ("text",)

    def parse(self, data: bytes, names: Sequence[str], schema: Any) -> Any:
        import pyarrow as pa

        lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
        kind = pa.string() if schema is None else schema.field("text").type
        return pa.table({"text": pa.array(lines, kind)})


def lines_in(data: bytes) -> Indices:
    """The span of each line, without its newline: int64 (k, 2). The last line is open: it has no newline."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return np.stack([np.append(0, ends + 1), np.append(ends, len(data))], 1).astype(np.int64)


def with_its_bom(data: bytes) -> bytes:
    """The data behind a newline, if it begins with a byte order mark: pyarrow would drop the mark."""
    return b"\n" + data if data.startswith(BOM) else data
