"""Text files cut into blocks of whole rows by one scan, and read by global index, a block at a time, as columns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import find_on, read_whole
from datarax_ray.read.formats.arrow.columns import ColumnTypes
from datarax_ray.read.formats.decoded_groups import DEFAULT_MAX_NBYTES, BrokenRowGroupError, GroupedRows, OddGroup
from datarax_ray.read.formats.file_spans import FileSpans, content_of, files_fingerprint
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.text.deciding import (
    CONVERT,
    Decided,
    Parser,
    Rows,
    Sample,
    Samples,
    other_delimiter,
    syntax_for,
)
from datarax_ray.read.formats.text.syntax import BOM, Syntax
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

# A block is parsed for one of its rows: large enough to be worth the call, small enough for 64 in a small file.
_BLOCK_NBYTES = 4 * 2**20
_MIN_BLOCK_NBYTES = 4096
_BLOCKS_PER_FILE = 64
_TYPED_NBYTES = 4 * 2**20  # of the first file, by which types are inferred
# Of each file, the first bytes and one part in so many of all others decide as well, and of a large one the last bytes.
# To parse some takes 1 ms whatever their number, so they are as many at a time.
_FIRST_NBYTES, _SHARE, _LEAST_NBYTES, _LARGE_NBYTES = 16 * 2**10, 64, 32 * 2**10, 2**20
MAX_ROW_NBYTES = 256 * 2**20  # longer is no row, but a quote that is never closed: each read looks through all of it
TOO_LONG = "the row at byte {:,} has more than {:,} bytes; is a quote open?"


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


def look_at(
    paths: Sequence[str],
    syntax: Syntax,
    column_types: Mapping[str, Any],
    opened: Callable[[str], Any],
    inspect: Callable[[str, Syntax, Samples], tuple[Any, list[Sample]]],
    doing: str = "looked at",
) -> tuple[Syntax, tuple[Any, ...], list[Sample]]:
    """The syntax by which files are read, the files, and rows of each kind that they have.

    opened: gives a file of bytes. inspect: gives the file at a path, and those of its rows that are of a new kind.

    Raises: ValueError for files of another format (all are listed), for files whose columns differ, and where all
    files together have no row.
    """

    def head(path: str) -> bytes:
        with opened(path) as file:
            return bytes(file.read(_MIN_BLOCK_NBYTES))

    heads = (retried(partial(head, path), path) for path in paths)
    syntax = syntax_for(syntax, column_types).fitting(next(filter(None, heads), b""))
    samples = Samples(syntax, column_types)
    inspected = inspect_all(lambda path: inspect(path, syntax, samples), paths, doing)
    files = tuple(file for file, _ in inspected)
    _check_names(files, syntax)
    kept = [sample for _, parts in inspected for sample in parts]
    if not kept:
        raise ValueError(f"{nothing_in(paths, 'rows')}; a stream needs at least one.")
    return syntax, files, kept


def _check_names(files: Sequence[Any], syntax: Syntax) -> None:
    """Warn of names of columns that look like no names.

    Raises: ValueError for names that come twice, or differ from file to file.
    """
    path, first = files[0].path, files[0].names
    if twice := [name for name, count in Counter(first).items() if count > 1]:
        raise ValueError(
            f"the columns are {list(first)} in {path}, {twice} more than once; rename them, or, where the "
            "first row is none of names, give them by column_names of the source's config"
        )
    for other in files:
        if sorted(other.names) != sorted(first):
            raise ValueError(
                f"the columns are {list(first)} in {path} and {list(other.names)} in {other.path}; every "
                "element has the same fields. Rewrite one of them, or make two sources"
            )
    if advice := other_delimiter(first):
        logger.warning("%s: its one column is named %r.%s", path, first[0], advice)
    numbers = list(filter(_is_number, first))
    is_odd = len(numbers) == len(first) or any("." in name for name in numbers) or first[0].startswith("#")
    if syntax.has_header and is_odd:
        logger.warning(
            "%s: its first row, %s, is taken for the names of its columns. If it is one of data, give the names by "
            "column_names of the source's config; if it is none, as a comment, skip_rows=1 leaves it out.",
            path,
            list(first),
        )


def _inspect(
    filesystem: Any, path: str, syntax: Syntax, samples: Samples, schema_rows: int | None
) -> tuple[TextFile, list[Sample]]:
    """The file, and samples of its rows: each of a kind that was not seen before."""
    import pyarrow as pa

    with filesystem.open_input_file(path) as raw:
        nbytes = raw.size()
        spans, counts, header = [], [], None if syntax.has_header else b""
        names = () if syntax.has_header else syntax.names(b"")
        kept: list[Sample] = []
        share, num_skipped = Share(schema_rows), syntax.num_skipped
        try:
            for begin, data, rows in _pieces(raw, nbytes, syntax):
                num_skipped, rows = max(0, num_skipped - len(rows)), rows[num_skipped:]
                if header is None and len(rows):
                    header, rows = data[rows[0, 0] : rows[0, 1]], rows[1:]
                    names = syntax.names(header)
                if len(rows):
                    is_last = nbytes > _LARGE_NBYTES and begin + int(rows[-1, 1]) >= nbytes - 1
                    looked = Sample(path, names, share.of(data, rows, is_last))
                    spans.append((begin + int(rows[0, 0]), begin + int(rows[-1, 1])))
                    counts.append(len(rows))
                    kept += [looked] if looked.data and samples.is_new(looked) else []
            if header is None:
                raise ValueError("it is empty, without a row that names its columns")
            names = names or syntax.names(header)  # of a file without rows
        except (ValueError, pa.ArrowException) as error:
            raise unreadable(path, syntax, error, sniff.advice(raw, path, syntax.name)) from error
        content = content_of(raw, nbytes)
    return TextFile(path, nbytes, np.array(spans, np.int64).reshape(-1, 2), tuple(counts), names, content), kept


def unreadable(path: str, syntax: Syntax, error: Exception, advice: str = "") -> ValueError:
    """The error for a file that does not have this syntax. advice: a sentence on its real format."""
    encoding = f"; it is not UTF-8. {CONVERT}" if isinstance(error, UnicodeDecodeError) and not advice else ""
    return ValueError(f"{path} cannot be read as {syntax.name}: {error}{encoding}.{advice}")


@dataclass
class Share:
    """The rows of a file that decide types, of one block after the other: see TextReader.of.

    nbytes: that may still be looked at, once they are as many as `least`. rows: the same.
    """

    rows: int | None
    nbytes: int = _FIRST_NBYTES
    least: int = _FIRST_NBYTES

    def of(self, data: bytes, rows: Indices, is_last: bool) -> bytes:
        """Those of the rows of a block that decide; b"" for none. is_last: whether the last rows do in any case."""
        begin, most = int(rows[0, 0]), len(rows)
        if is_last and self.rows is None:
            return data[rows[np.searchsorted(rows[:-1, 0], rows[-1, 1] - _FIRST_NBYTES), 0] : rows[-1, 1]]
        if self.rows is None:
            self.nbytes += (int(rows[-1, 1]) - begin) // _SHARE
            is_due = self.nbytes >= self.least
            most = 1 + int(np.searchsorted(rows[1:, 1], begin + self.nbytes, side="right")) if is_due else 0
        elif self.rows >= 0:
            most = min(most, self.rows)
            self.rows -= most
        found = data[begin : rows[most - 1, 1]] if most else b""
        if found:
            self.nbytes, self.least = self.nbytes - len(found), _LEAST_NBYTES
        return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pieces(raw: Any, nbytes: int, syntax: Syntax) -> Iterator[tuple[int, bytes, Indices]]:
    """For each block: an offset in the file, the data from there on, and the rows of the block in the data."""
    step = max(_MIN_BLOCK_NBYTES, min(_BLOCK_NBYTES, nbytes // _BLOCKS_PER_FILE))
    begin = at = len(BOM) if read_whole(raw, 0, min(nbytes, len(BOM))) == BOM else 0
    data = b""
    while at < nbytes:
        part = read_whole(raw, at, min(at + step, nbytes))
        at, data = at + len(part), data + part
        rows = rows_of(syntax, data, at == nbytes)
        if len(rows):
            yield begin, data, rows
            used = int(rows[-1, 1])
            used += data.startswith(b"\n", used)
            begin, data = begin + used, data[used:]
        elif len(data) > MAX_ROW_NBYTES:
            raise ValueError(TOO_LONG.format(begin, len(data)))


def rows_of(syntax: Syntax, data: bytes, is_last: bool) -> Indices:
    """Syntax.rows of a part of a file, of which the last newline ends a row and begins none.

    Raises: ValueError for a file that was cut short.
    """
    if is_last and not data.rstrip().endswith(syntax.closing):
        raise ValueError(f"it does not end with {syntax.closing.decode()}, so it was cut short")
    return syntax.rows(data.removesuffix(b"\n") if is_last else data, is_last)


def _first_rows(filesystem: Any, file: TextFile) -> Sample:
    last = max(1, int(np.searchsorted(file.spans[:, 1], file.spans[0, 0] + _TYPED_NBYTES, side="right")))
    begin, end = int(file.spans[0, 0]), int(file.spans[last - 1, 1])

    def read() -> bytes:
        with filesystem.open_input_file(file.path) as raw:
            return read_whole(raw, begin, end)

    return Sample(file.path, file.names, retried(read, file.path))


_LINE_NBYTES = 41  # of an object of bytes, and the place of it in a list, beside what it holds


class TextReader(GroupedRows):
    """The rows of many text files; see GroupedRows, and DecodedGroups for max_nbytes and keep_nbytes.

    In a block that does not parse, or has rows without a place in the columns, only these rows are broken.
    """

    breaks_whole = False

    def __init__(
        self,
        filesystem: Any,
        files: tuple[TextFile, ...],
        parser: Parser,
        *,
        max_nbytes: int = DEFAULT_MAX_NBYTES,
        keep_nbytes: int = 0,
    ) -> None:
        given = {"filesystem": filesystem, "files": files, "parser": parser}
        given |= {"max_nbytes": max_nbytes, "keep_nbytes": keep_nbytes}
        nbytes = [(file.spans[:, 1] - file.spans[:, 0]).tolist() for file in files]
        super().__init__(given, [file.rows for file in files], nbytes, parser.decided.schema, parser.types)
        self.files = files
        self._parser = parser
        self._spans = FileSpans(filesystem, files)
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
        """Scan everything that `paths` names (see filesystems.find_on), in parallel.

        column_types: Arrow's, or their names, of columns whose type is not to be inferred.
        schema_rows: rows of each file that decide; -1 for all. None for the first 4 MiB of the first file, and of all
            files the first 16 KiB, 32 KiB of every 2 MiB, and the last 16 KiB.
        seen_as: gives the filesystem that the files are read on, as UnpackedFiles; None for where they are.

        Raises: FileNotFoundError; ValueError as look_at, and as Decided.of.
        """
        types = dict(column_types or {})
        filesystem, found = find_on(paths, filesystem, syntax.suffixes)
        filesystem = filesystem if seen_as is None else seen_as(filesystem)

        def inspect(path: str, syntax: Syntax, samples: Samples) -> tuple[TextFile, list[Sample]]:
            return _inspect(filesystem, path, syntax, samples, schema_rows)

        syntax, files, kept = look_at(found, syntax, types, filesystem.open_input_file, inspect, "scanned")
        if schema_rows is None:
            kept.insert(0, _first_rows(filesystem, next(file for file in files if file.rows)))
        decided, table = Decided.of(kept, syntax, types, filesystem)
        return cls(filesystem, files, Parser(decided, ColumnTypes.of(table, on_null=on_null)))

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
        """See GroupedRows; where a block does not parse as a whole, the wanted rows are parsed alone."""
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
