"""Text files cut into blocks of whole rows by one scan, with the types of their columns."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import find_on, read_whole
from datarax_ray.read.formats.arrow.types import named_type
from datarax_ray.read.formats.file_spans import content_of
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.text.syntax import BOM, Syntax
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

# A block is parsed for one of its rows: large enough to be worth the call, small enough for 64 in a small file.
_BLOCK_NBYTES = 4 * 2**20
_MIN_BLOCK_NBYTES = 4096
_BLOCKS_PER_FILE = 64
_TYPED_NBYTES = 4 * 2**20  # of the first file, by which types are inferred
_MAX_BROKEN = 100  # among these; to look for each costs some parsing
_MAX_ROW_NBYTES = 256 * 2**20  # longer is no row, but a quote that is never closed: each read looks through all of it
_CONVERT = "Convert the file, as by `iconv -f latin1 -t utf-8`"
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")


@dataclass(frozen=True)
class TextFile:
    """One file.

    spans: int64 (blocks, 2), the bytes of each block of rows.
    rows: in each block.
    names: of its columns.
    content: of some of its bytes (content_of).
    """

    path: str
    nbytes: int
    spans: Indices = field(compare=False)
    rows: tuple[int, ...]
    names: tuple[str, ...]
    content: str


@dataclass(frozen=True)
class TextFiles:
    """All files of a source.

    schema: pyarrow's, of all columns.
    inferred: of the columns whose type nobody named.
    """

    filesystem: Any
    files: tuple[TextFile, ...]
    schema: Any
    inferred: Any


def find_text(paths: Any, syntax: Syntax, filesystem: Any, column_types: Mapping[str, Any]) -> tuple[TextFiles, Any]:
    """Everything that `paths` names (see filesystems.find_on), cut into blocks, and the table of the first rows.

    column_types: Arrow's, or their names, of columns whose type is not to be inferred.

    Raises: FileNotFoundError; ValueError for files of another format (all are listed), for files whose columns differ,
    for types of unknown columns, where most of the first rows do not parse, for values that no inferred type holds
    (text that is not UTF-8, integers beyond int64), and where all files together have no row.
    """
    import pyarrow as pa

    filesystem, found = find_on(paths, filesystem, syntax.suffixes)
    files = tuple(inspect_all(lambda path: _inspect(filesystem, path, syntax), found, "scanned"))
    first = files[0]
    if twice := [name for name, count in Counter(first.names).items() if count > 1]:
        raise ValueError(
            f"the columns are {list(first.names)} in {first.path}, {twice} more than once; rename them, or, where the "
            "first row is none of names, give them by column_names of the source's config"
        )
    for file in files:
        if sorted(file.names) != sorted(first.names):
            raise ValueError(
                f"the columns are {list(first.names)} in {first.path} and {list(file.names)} in {file.path}; every "
                "element has the same fields. Rewrite one of them, or make two sources"
            )
    if advice := _other_delimiter(first.names):
        logger.warning("%s: its one column is named %r.%s", first.path, first.names[0], advice)
    if syntax.has_header and all(map(_is_number, first.names)):
        logger.warning(
            "%s: its first row, %s, is taken for the names of its columns. If it is one of data, give the names by "
            "column_names of the source's config.",
            first.path,
            list(first.names),
        )
    with_rows = next((file for file in files if file.rows), None)
    if with_rows is None:
        raise ValueError(f"{nothing_in(found, 'rows')}; a stream needs at least one.")
    table = _first_table(filesystem, with_rows, syntax, column_types)
    inferred = pa.schema([each for each in table.schema if each.name not in column_types])
    return TextFiles(filesystem, files, table.schema, inferred), table


def _inspect(filesystem: Any, path: str, syntax: Syntax) -> TextFile:
    import pyarrow as pa

    with filesystem.open_input_file(path) as raw:
        nbytes = raw.size()
        spans, counts, header = [], [], None if syntax.has_header else b""
        try:
            for begin, data, rows in _pieces(raw, nbytes, syntax):
                if header is None:
                    header, rows = data[rows[0, 0] : rows[0, 1]], rows[1:]
                if len(rows):
                    spans.append((begin + int(rows[0, 0]), begin + int(rows[-1, 1])))
                    counts.append(len(rows))
            if header is None:
                raise ValueError("it is empty, without a row that names its columns")
            names = syntax.names(header)
        except (ValueError, pa.ArrowException) as error:
            advice = sniff.advice(raw, path, syntax.name)
            encoding = f"; it is not UTF-8. {_CONVERT}" if isinstance(error, UnicodeDecodeError) and not advice else ""
            raise ValueError(f"{path} cannot be read as {syntax.name}: {error}{encoding}.{advice}") from error
        content = content_of(raw, nbytes)
    return TextFile(path, nbytes, np.array(spans, np.int64).reshape(-1, 2), tuple(counts), names, content)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pieces(raw: Any, nbytes: int, syntax: Syntax) -> Iterator[tuple[int, bytes, Indices]]:
    """For each block: the offset of its data, the data, which may begin before the block, and its rows."""
    step = max(_MIN_BLOCK_NBYTES, min(_BLOCK_NBYTES, nbytes // _BLOCKS_PER_FILE))
    begin = at = len(BOM) if read_whole(raw, 0, min(nbytes, len(BOM))) == BOM else 0
    data = b""
    while at < nbytes:
        part = read_whole(raw, at, min(at + step, nbytes))
        at, data = at + len(part), data + part
        rows = syntax.rows(data, at == nbytes)
        if len(rows):
            yield begin, data, rows
            used = int(rows[-1, 1])
            begin, data = begin + used, data[used:]
        elif len(data) > _MAX_ROW_NBYTES:
            raise ValueError(f"the row at byte {begin:,} has more than {len(data):,} bytes; is a quote open?")


def _first_table(filesystem: Any, file: TextFile, syntax: Syntax, column_types: Mapping[str, Any]) -> Any:
    """The first rows, with column_types for the named columns and inferred types for the others."""
    import pyarrow as pa

    last = max(1, int(np.searchsorted(file.spans[:, 1], file.spans[0, 0] + _TYPED_NBYTES, side="right")))
    begin, end = int(file.spans[0, 0]), int(file.spans[last - 1, 1])

    def read() -> bytes:
        with filesystem.open_input_file(file.path) as raw:
            return read_whole(raw, begin, end)

    data = retried(read, file.path)
    given = {name: named_type(name, kind) for name, kind in column_types.items()}
    try:
        data, table = _parsed(data, file.names, syntax, None)
        _refuse_other_values(file.path, data, table, file.names, syntax, given)
        columns = table.schema.names
        new = [name for name in given if name not in columns]  # first objects may lack a field
        if unknown := sorted(name for name in new if file.names or name.partition(".")[0] in columns):
            raise ValueError(
                f"column_types names {unknown}, and the columns are {sorted(columns)}; it gives the types of whole "
                f"columns, pa.struct([...]) for objects.{nearest(unknown, columns)}"
            )
        schema = pa.schema([(each.name, given.get(each.name, each.type)) for each in table.schema])
        for name in new:
            schema = schema.append(pa.field(name, given[name]))
        if schema == table.schema:
            return table
        try:
            return _parsed(data, file.names, syntax, schema)[1]
        except pa.ArrowException as error:
            raise ValueError(
                f"{file.path}: column_types={dict(column_types)!r} do not fit: {named_column(file.names, error)}. Name "
                "another type, or none to have it inferred"
            ) from error
    except UnicodeDecodeError as error:  # of Arrow's names, which it does not look at
        raise ValueError(
            f"{file.path}: the name of a field cannot be read: {error}; it is not UTF-8. {_CONVERT}"
        ) from error
    except pa.ArrowException as error:
        with filesystem.open_input_file(file.path) as raw:
            advice = sniff.advice(raw, file.path, syntax.name) + _other_delimiter(file.names)
        raise ValueError(
            f"{file.path}: its first {sum(file.rows[:last])} rows do not parse as {syntax.name}, so the types of "
            f"their columns are unknown: {error}.{advice}"
        ) from error


def named_column(names: Sequence[str], error: Exception) -> str:
    """An error message of Arrow, with the name of a CSV column in place of its number.

    >>> named_column(["x", "on"], ValueError("In CSV column #1: Row #1: conversion error to bool: invalid value 'no'"))
    "column 'on': conversion error to bool: invalid value 'no'"
    """
    return _COLUMN.sub(lambda found: f"column {names[int(found[1])]!r}: ", str(error)).rstrip(".")


def _other_delimiter(names: Sequence[str]) -> str:
    """A question about the delimiter, with a space before it; "" where the only name holds no other delimiter.

    >>> _other_delimiter(["name;label"])
    " Is it split by ';'? Say delimiter=';'."
    """
    found = max(",\t;|", key=names[0].count) if len(names) == 1 else ""
    return f" Is it split by {found!r}? Say delimiter={found!r}." if found and found in names[0] else ""


def _parsed(data: bytes, names: tuple[str, ...], syntax: Syntax, schema: Any) -> tuple[bytes, Any]:
    """The rows that parse, and their table. Other rows decide no type, and are broken when they are read.

    Raises: pyarrow.ArrowInvalid where half of them, or more than 100, do not; or where they do not together, as those
    that give a field of JSON other types than others do.
    """
    import pyarrow as pa

    try:
        return data, syntax.parse(data, names, schema)
    except pa.ArrowException:
        rows = [data[start:stop] for start, stop in syntax.rows(data, True).tolist()]
    kept: list[bytes] = []
    waiting, num_broken, most = [(0, len(rows))], 0, min(_MAX_BROKEN, (len(rows) - 1) // 2)
    num_parses = 2 * most * (len(rows).bit_length() + 1)  # enough to find so many; rows of several types need all
    while waiting and num_broken <= most and num_parses >= 0:
        num_parses -= 1
        begin, end = waiting.pop()
        part = b"\n".join(rows[begin:end])
        try:
            syntax.parse(part, names, schema)
            kept.append(part)
        except pa.ArrowException:
            num_broken += end - begin == 1
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)] if begin < middle else []
    data = data if waiting or num_broken > most else b"\n".join(kept)
    return data, syntax.parse(data, names, schema)


def _refuse_other_values(
    path: str, data: bytes, table: Any, names: tuple[str, ...], syntax: Syntax, given: Mapping[str, Any]
) -> None:
    """Raise ValueError for values that the inferred types do not hold as they are. given: types that somebody named."""
    import pyarrow as pa

    if not table.column_names:
        raise ValueError(
            f"{path}: its first {len(syntax.rows(data, True))} objects have no field, so there is nothing to read"
        )
    inferred = pa.schema([each for each in table.schema if each.name not in given])
    for column in inferred:
        if pa.types.is_binary(column.type):
            raise ValueError(
                f"{path}: field {column.name!r} has text that is not UTF-8. {_CONVERT}, or pass "
                f"column_types={{{column.name!r}: 'binary'}} to have bytes"
            )
    if changed := changed_integer(data, table, names, syntax, inferred):
        raise ValueError(f"{path}: {changed}")


def changed_integer(data: bytes, table: Any, names: Sequence[str], syntax: Syntax, inferred: Any) -> str | None:
    """An error message for the first integer that the table of these rows holds as another number; None without one.

    inferred: the schema of columns whose types nobody named.
    """
    if not any(_has_large_floats(table[name]) for name in inferred.names):
        return None
    for name, value in syntax.long_integers(data, names, inferred):
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
    """Whether floats of a column of Arrow are so large that not every integer is one."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_floating(column.type):
        return bool(compute.any(compute.greater_equal(compute.abs(column), 2.0**53)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(_has_large_floats, column.flatten()))
    return pa.types.is_list(column.type) and _has_large_floats(compute.list_flatten(column))
