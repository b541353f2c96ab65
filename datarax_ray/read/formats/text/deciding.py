"""The types of the columns of text, decided once for all files by rows of each, and the rows parsed by these types."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns, HostDict
from datarax_ray.read.files import sniff
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.arrow.joining import joined
from datarax_ray.read.formats.arrow.types import named_type, plain_type
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError, columns_of
from datarax_ray.read.formats.text.syntax import Syntax

logger = logging.getLogger("datarax_ray")

CONVERT = "Convert the file, as by `iconv -f latin1 -t utf-8`"
_NUMBER = r"^\s*[+-]?(?:0|[1-9]\d*|\d*\.\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?\s*$"
_FEW = 4  # rows, of which all but one may be broken
_MAX_BROKEN = 100  # among the first rows; to look for each costs some parsing
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")
_KINDS = re.compile(r"Column\(/([^)/]+)[^)]*\) changed from \w+ to \w+")


class Sample(NamedTuple):
    """Some rows of a file. names: of its columns."""

    path: str
    names: tuple[str, ...]
    data: bytes


class Samples:
    """The kinds of rows seen so far: their fields, with types, nulls and lengths. Several threads may add."""

    def __init__(self, syntax: Syntax, column_types: Mapping[str, Any]) -> None:
        self._syntax = syntax
        self._schema = syntax.inferring(types_of(column_types))
        self._seen: set[Any] = set()

    def is_new(self, sample: Sample) -> bool:
        """Whether no rows of this kind were seen. Rows that do not parse together count as new."""
        import pyarrow as pa

        try:
            table = self._syntax.parse(self._syntax.prepared(sample.data), sample.names, self._schema)
            kind = table.schema.to_string(), str(ColumnTypes.of(table).described())
        except (ValueError, KeyError, pa.ArrowException):  # names that come twice are said elsewhere
            return True
        is_new = kind not in self._seen
        self._seen.add(kind)
        return is_new


@dataclass(frozen=True)
class Decided:
    """How all rows are parsed.

    syntax: of all files. first: the file whose first rows decide, others beside them.
    schema: pyarrow's, of all columns. inferred: of the columns whose type nobody named.
    """

    syntax: Syntax
    first: str
    schema: Any
    inferred: Any

    @classmethod
    def of(
        cls, samples: Sequence[Sample], syntax: Syntax, column_types: Mapping[str, Any], filesystem: Any
    ) -> tuple[Decided, Any]:
        """The types, and the table of the rows that decided.

        samples: the first is of the first rows; others add fields and types.
        column_types: Arrow's types, or their names, of columns whose type is not to be inferred; "json" for any value.
        filesystem: where the files may be looked at for advice; None for nowhere.

        Raises: ValueError for types of unknown columns, where most of the first rows do not parse, and for values that
        no inferred type holds (integers beyond int64).
        """
        import pyarrow as pa

        given = types_of(column_types)
        table = _first_table(samples[0], syntax, given, column_types, filesystem)
        schema, tables = table.schema, [table]
        parts = [(sample, _rows_that_parse(sample, syntax, syntax.inferring(given))) for sample in samples[1:]]
        for sample, part in parts:
            if part is not None:
                schema = _with_fields(schema, part[1].schema, given, samples[0].path, sample.path, syntax)
        inferred = pa.schema([each for each in schema if each.name not in given])
        digits: dict[str, tuple[str, ...]] = {}
        for sample, part in [(samples[0], (samples[0].data, table)), *parts]:
            is_done = part is not None and part[1].schema == schema
            found = part if is_done else _rows_that_parse(sample, syntax, schema)
            if found is None:
                logger.warning(
                    "%s: of rows that were looked at hardly any are %s of the types of %s; those are broken",
                    sample.path,
                    syntax.name,
                    samples[0].path,
                )
            else:
                if changed := changed_integer(found[0], found[1], sample.names, syntax, inferred):
                    logger.warning("%s, and rows as this one are broken: %s", sample.path, changed)
                for name, row, text in syntax.names_in_digits(syntax.prepared(found[0]), sample.names, inferred):
                    kind = inferred.field(name).type.to_pandas_dtype().__name__  # as column_types takes it
                    digits.setdefault(name, (sample.path, name, kind, text, str(found[1][name][row])))
                tables.append(found[1].select(schema.names))
        for each in digits.values():
            _warn_of_digits(*each)
        whole = pa.concat_tables(tables[1:])
        for name, odd in _texts_for_few(whole, inferred) if syntax.empty_is_missing else ():
            _warn_of_texts(samples[0].path, name, odd)
        return cls(syntax, samples[0].path, schema, inferred), whole


@cache  # each copy of a source looks at the rows anew
def _warn_of_digits(path: str, name: str, kind: str, text: str, value: str) -> None:
    logger.warning(
        "%s: column %r is read as %s, so %s is %s. column_types={%r: 'string'} keeps it as it is written, and {%r: %r} "
        "ends this warning",
        *(path, name, kind, text, value, name, name, kind),
    )


def _texts_for_few(table: Any, inferred: Any) -> Iterator[tuple[str, str]]:
    """(column, text) of columns of text of which nine in ten values are numbers; the text is none."""
    import pyarrow as pa
    from pyarrow import compute

    for name in inferred.names:
        if pa.types.is_string(inferred.field(name).type):
            filled = table[name].filter(compute.not_equal(table[name], ""))
            odd = filled.filter(compute.invert(compute.match_substring_regex(filled, _NUMBER)))
            if 0 < 10 * len(odd) <= len(filled):
                yield name, odd[0].as_py()


@cache
def _warn_of_texts(path: str, name: str, odd: str) -> None:
    logger.warning(
        "%s: column %r is read as text, since %r is no number, as nearly all values are. column_types={%r: 'float64'} "
        "reads the numbers, and makes broken records of other rows; {%r: 'string'} ends this warning",
        *(path, name, odd, name, name),
    )


def syntax_for(syntax: Syntax, column_types: Mapping[str, Any]) -> Syntax:
    """The syntax by which columns of any JSON are texts."""
    names = tuple(sorted(name for name, kind in column_types.items() if kind == "json"))
    return replace(syntax, as_json=names) if names else syntax


def named_column(names: Sequence[str], error: Exception) -> str:
    """An error message of Arrow, with the name of a CSV column in place of its number, and what reads mixed kinds.

    >>> named_column(["x", "on"], ValueError("In CSV column #1: Row #1: conversion error to bool: invalid value 'no'"))
    "column 'on': conversion error to bool: invalid value 'no'"
    """
    said = _COLUMN.sub(lambda found: f"column {names[int(found[1])]!r}: ", str(error)).rstrip(".")
    kinds = _KINDS.search(said)
    return (
        f"{said}; column_types={{{kinds[1]!r}: 'json'}} keeps values of any kind as Python has them, and a type in "
        "place of 'json' makes broken records of rows with others"
        if kinds
        else said
    )


def other_delimiter(names: Sequence[str]) -> str:
    """A question about the delimiter, with a space before it; "" where the only name holds no other delimiter.

    >>> other_delimiter(["name;label"])
    " Is it split by ';'? Say delimiter=';'."
    """
    found = max(",\t;|", key=names[0].count) if len(names) == 1 else ""
    return f" Is it split by {found!r}? Say delimiter={found!r}." if found and found in names[0] else ""


def _parsed(data: bytes, names: tuple[str, ...], syntax: Syntax, schema: Any) -> tuple[bytes, Any]:
    """The rows that parse, and their table. Other rows decide no type, and are broken when they are read.

    Raises: pyarrow.ArrowInvalid where half of them, but a few, or more than 100 do not; or where they do not together,
    as those that give a field of JSON other types than others do.
    """
    import pyarrow as pa

    try:
        return data, syntax.parse(syntax.prepared(data), names, schema)
    except pa.ArrowException:
        rows = [data[start:stop] for start, stop in syntax.rows(data, True).tolist()]
    kept: list[bytes] = []
    waiting, num_broken = [(0, len(rows))], 0
    most = min(_MAX_BROKEN, max((len(rows) - 1) // 2, min(len(rows) - 1, _FEW)))
    num_parses = 2 * most * (len(rows).bit_length() + 1)  # enough to find so many; rows of several types need all
    while waiting and num_broken <= most and num_parses >= 0:
        num_parses -= 1
        begin, end = waiting.pop()
        part = b"\n".join(rows[begin:end])
        try:
            syntax.parse(syntax.prepared(part), names, schema)
            kept.append(part)
        except pa.ArrowException:
            num_broken += end - begin == 1
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)] if begin < middle else []
    data = data if waiting or num_broken > most else b"\n".join(kept)
    return data, syntax.parse(syntax.prepared(data), names, schema)


def _inferred(sample: Sample, syntax: Syntax, given: Mapping[str, Any]) -> tuple[bytes, Any]:
    """As _parsed, with inferred types; where rows have several, with those that are given, which tell the odd rows."""
    import pyarrow as pa

    try:
        return _parsed(sample.data, sample.names, syntax, syntax.inferring(given))
    except pa.ArrowException:
        if (schema := syntax.beside(given)) is None:
            raise
        return _parsed(sample.data, sample.names, syntax, schema)


def types_of(column_types: Mapping[str, Any]) -> dict[str, Any]:
    """Arrow's types. Raises: ValueError for what is none."""
    return {name: named_type(name, "string" if kind == "json" else kind) for name, kind in column_types.items()}


def changed_integer(data: bytes, table: Any, names: Sequence[str], syntax: Syntax, inferred: Any) -> str | None:
    """An error message for the first integer that the table of these rows holds as another number; None without one.

    inferred: the schema of columns whose types nobody named.
    """
    if not any(_has_large_floats(table[name]) for name in inferred.names):
        return None
    for name, value in syntax.long_integers(syntax.prepared(data), names, inferred):
        near = float(str(value))  # of an int, it would raise where that is beyond all floats
        held = int(near) if math.isfinite(near) else near
        # the shortest digits of a float, as JavaScript writes them without an exponent, are that float
        digits = repr(near).lstrip("-").partition("e")[0].replace(".", "").rstrip("0")
        if held != value and digits != str(abs(value)).rstrip("0"):
            top = name if name in inferred.names else name.partition(".")[0]
            return (
                f"field {name!r} has the integer {value:,}, and as float64 it would be {held:,}. Name its "
                f"type: column_types={{{top!r}: 'uint64'}}, if that holds all of them, or {{{top!r}: 'float64'}} for "
                "what is nearest; numbers that are names are best written as strings"
            )
    return None


def _has_large_floats(column: Any) -> bool:
    """Whether a column of Arrow has floats of 2**53 or more: beyond, not every integer is a float."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_floating(column.type):
        return bool(compute.any(compute.greater_equal(compute.abs(column), 2.0**53)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(_has_large_floats, column.flatten()))
    return pa.types.is_list(column.type) and _has_large_floats(compute.list_flatten(column))


def _first_table(
    sample: Sample, syntax: Syntax, given: Mapping[str, Any], column_types: Mapping[str, Any], filesystem: Any
) -> Any:
    """The first rows, with given types for the named columns and inferred types for the others."""
    import pyarrow as pa

    path, names, _ = sample
    num_rows = len(syntax.rows(sample.data, True))
    try:
        data, table = _inferred(sample, syntax, given)
        if not table.column_names:
            raise ValueError(f"{path}: its first {num_rows} objects have no field, so there is nothing to read")
        columns = table.schema.names
        new = [name for name in given if name not in columns]  # first objects may lack a field
        if unknown := sorted(name for name in new if names or name.partition(".")[0] in columns):
            raise ValueError(
                f"column_types names {unknown}, and the columns are {sorted(columns)}; it gives the types of whole "
                f"columns, pa.struct([...]) for objects.{nearest(unknown, columns)}"
            )
        inferred = pa.schema([each for each in table.schema if each.name not in given])
        if changed := changed_integer(data, table, names, syntax, inferred):
            raise ValueError(f"{path}: {changed}")
        schema = pa.schema([(each.name, given.get(each.name, each.type)) for each in table.schema])
        for name in new:
            schema = schema.append(pa.field(name, given[name]))
        if schema == table.schema:
            return table
        try:
            return _parsed(data, names, syntax, schema)[1]
        except pa.ArrowException as error:
            raise ValueError(
                f"{path}: column_types={dict(column_types)!r} do not fit: {named_column(names, error)}. Name "
                "another type, or none to have it inferred"
            ) from error
    except UnicodeDecodeError as error:  # of Arrow's names, which it does not look at
        raise ValueError(f"{path}: the name of a field cannot be read: {error}; it is not UTF-8. {CONVERT}") from error
    except pa.ArrowException as error:
        advice = other_delimiter(names)
        if filesystem is not None:
            with filesystem.open_input_file(path) as raw:
                advice = sniff.advice(raw, path, syntax.name) + advice
        advice += f" {CONVERT}, or take errors='replace'." if "not UTF-8" in str(error) else ""
        raise ValueError(
            f"{path}: its first {num_rows} rows do not parse as {syntax.name}, so the types of their columns are "
            f"unknown: {named_column(names, error)}.{advice}"
        ) from error


def _rows_that_parse(sample: Sample, syntax: Syntax, schema: Any) -> tuple[bytes, Any] | None:
    """The rows of a sample that parse, and their table; None where hardly any do, which reading says."""
    import pyarrow as pa

    try:
        return _parsed(sample.data, sample.names, syntax, schema)
    except (ValueError, pa.ArrowException):
        return None


def _with_fields(schema: Any, other: Any, given: Iterable[str], first: str, path: str, syntax: Syntax) -> Any:
    """The schema with what the rows of another file add: fields, and types that hold the values of both."""
    import pyarrow as pa

    for part in other:
        index = schema.get_field_index(part.name)
        if part.name in given:
            continue
        if index < 0:
            logger.info("%s: the rows before it lack the field %r, and have None there.", path, part.name)
            schema = schema.append(part)
            continue
        mine = schema.field(index).type
        kind = joined(mine, part.type, small=None)  # integers that a float changes are found as values
        if kind is None and not (syntax.empty_is_missing and pa.types.is_string(mine)):  # any value of CSV is a text
            logger.warning(
                "%s: field %r is %s there, and %s in %s, so rows of the one do not fit the other: they are "
                "broken. column_types={%r: %r} reads both",
                *(path, part.name, part.type, mine, first, part.name, "string" if syntax.empty_is_missing else "json"),
            )
        elif kind not in (None, mine):
            schema = schema.set(index, pa.field(part.name, kind))
    return schema


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
