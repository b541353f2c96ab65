"""The footer of one Parquet file: read and checked, without its rows."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from datarax_ray.read.elements.columns import Path
from datarax_ray.read.file_contents import sampled_spans
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import read_whole
from datarax_ray.read.formats.arrow.types import fixed_nbytes, plain_type, with_shapes

TAIL_NBYTES = 64 * 1024  # what Arrow reads at once to find a footer; most are shorter
_MAGIC = (b"PAR1", b"PARE")  # behind a footer that is open, and one that is encrypted
_NUM_PAGES = 2  # of each file's rows, for its digest: round trips to storage, beside those that opening takes anyway

# How every file is opened. INT96, which Spark wrote for years, is read in microseconds, as Spark has them. In
# nanoseconds, as pyarrow would, the year 9999 becomes 1816.
OPENED = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}

Choose: TypeAlias = Callable[[Sequence[Path]], tuple[Path, ...]]  # the leaves to read, among all leaves of a file


@dataclass(frozen=True)
class FileFooter:
    """One file's footer.

    rows: in each row group.
    content: a digest of the footer as it is stored (offsets, sizes and statistics of every column of every row group),
        and of some pages of the file (read.file_contents).
    begin: the offset of the footer.
    decoded_nbytes: of each row group, estimated for the columns that are read.
    leaves, others: paths of the leaf columns that are read, and that are not.
    schema: pyarrow's, of the fields that are read, by name.
    list_values: for each leaf in a list, the number of values in a row; None where that is not one whole number for
        all row groups on the average, so that lists differ in length.
    null_counts: for each leaf that is read, how often it has no value (a null of a struct or list around it and an
        empty list are no value either); None where the writer did not count.
    small: for each leaf of signed 64-bit integers, whether all of them are known to lie within 2**53.
    url, version: of a file that is read by ranges, its URL, which may hold a secret, and its version (an ETag, say).
    """

    path: str
    nbytes: int
    rows: tuple[int, ...]
    content: str
    begin: int = field(compare=False)
    decoded_nbytes: tuple[int, ...] = field(compare=False)
    leaves: tuple[Path, ...] = field(compare=False)
    others: tuple[Path, ...] = field(compare=False)
    schema: Any = field(compare=False, repr=False)
    list_values: dict[str, int | None] = field(compare=False)
    null_counts: dict[str, int | None] = field(compare=False)
    small: dict[str, bool] = field(compare=False)
    url: str = field(default="", compare=False, repr=False)
    version: str = field(default="", compare=False)

    @property
    def num_rows(self) -> int:
        return sum(self.rows)

    @property
    def types(self) -> dict[str, str]:
        """The type of each field that is read, in plain text."""
        return types_of(self.schema)


def types_of(schema: Any) -> dict[str, str]:
    return {each.name: plain_type(each.type) for each in schema}


def opened_in(raw: Any, path: str, choose: Choose) -> tuple[Any, FileFooter]:
    """The ParquetFile and its footer. raw: pyarrow's file, or an image of the bytes of `footer_spans`.

    Raises: OSError; ValueError for an incomplete Parquet file, and for fields that no dict can hold.
    """
    import pyarrow as pa
    from pyarrow import parquet

    nbytes = raw.size()
    stored, content = _footer_and_content(raw, nbytes)
    try:  # from here on no byte is fetched, so what fails is the file's fault
        metadata = parquet.read_metadata(pa.BufferReader(stored))
        assert isinstance(metadata.created_by, str | None)  # raises for what is no text: a footer has no checksum
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
            raise pa.ArrowInvalid(f"its footer says {metadata.num_rows} rows, and {sum(counts)} in its row groups")
        opened = parquet.ParquetFile(raw, metadata=metadata, **OPENED)
        # its schema has the paths with dots alone, as names have, too
        paths = [tuple(leaf) for leaf in opened.reader.column_paths]
        leaves = choose(paths)
        schema = with_shapes(opened.read_row_groups([], columns=list(map(".".join, leaves)))).schema
        wanted = set(leaves)
        facts = _facts(metadata, [leaf in wanted for leaf in paths], schema)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:  # what damaged footers were seen to give
        advice = sniff.advice(raw, path, "Parquet")
        raise sniff.incomplete(path, "Parquet", f"{error} ({nbytes:,} bytes)", advice) from error
    if repeated := _repeated(pa.struct(schema)):
        raise ValueError(
            f"{path} has the fields {repeated} more than once, and an element is a dict; rename one, or leave the "
            "columns out (exclude_columns)"
        )
    for part in schema:
        try:
            plain_type(part.type)
        except ValueError as error:
            raise ValueError(
                f"{path}: field {part.name!r} cannot be read: {error}, or leave it out (exclude_columns)"
            ) from error
    return opened, FileFooter(
        path,
        nbytes,
        tuple(counts),
        content,
        begin=nbytes - len(stored),
        leaves=leaves,
        others=tuple(leaf for leaf in paths if leaf not in wanted),
        schema=pa.schema([(name, schema.field(name).type) for name in sorted(schema.names)]),
        **facts,
    )


def _facts(metadata: Any, is_read: list[bool], schema: Any) -> dict[str, Any]:
    """The fields of FileFooter that column chunks tell. is_read: of each leaf column."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = {index: metadata.schema.column(index) for index, wanted in enumerate(is_read) if wanted}
    check_chunks(metadata, [column.path for column in columns.values()])
    fixed = sum(fixed_nbytes(each.type) or 0 for each in schema)

    def stored_nbytes(group: Any) -> int:
        if all(is_read):
            return int(group.total_byte_size)
        return sum(group.column(i).total_uncompressed_size for i in columns)

    with_rows = [group for group in groups if group.num_rows]
    list_values: dict[str, int | None] = {}
    null_counts: dict[str, int | None] = {}
    small: dict[str, bool] = {}
    for index, column in columns.items():
        if column.max_repetition_level:
            means = {divmod(group.column(index).num_values, group.num_rows) for group in with_rows}
            is_one = len(means) == 1 and all(not odd for _, odd in means)
            list_values[column.path] = means.pop()[0] if is_one else None
        is_long = column.physical_type == "INT64" and column.converted_type != "UINT_64"
        is_needed = column.max_definition_level or is_long
        found = [_statistics(group.column(index), column) for group in with_rows] if is_needed else []
        counts = [None if each is None or not each.has_null_count else int(each.null_count) for each in found]
        is_counted = None not in counts or not column.max_definition_level
        null_counts[column.path] = sum(count or 0 for count in counts) if is_counted else None
        if is_long:
            small[column.path] = all(each is not None and _is_small(each) for each in found)
    return {
        "decoded_nbytes": tuple(max(fixed * group.num_rows, stored_nbytes(group)) for group in groups),
        "list_values": list_values,
        "null_counts": null_counts,
        "small": small,
    }


def _statistics(chunk: Any, column: Any) -> Any:
    """A column chunk's. Raises: OSError where it is of another type than the column: pyarrow would end the process."""
    if chunk.physical_type != column.physical_type:
        raise OSError(f"{column.path} is {column.physical_type}, and {chunk.physical_type} in a row group")
    return chunk.statistics


def _is_small(statistics: Any) -> bool:
    """Whether a column chunk's 64-bit integers lie within 2**53."""
    if not statistics.has_min_max:
        return not statistics.num_values
    return bool(-(2**53) <= statistics.min_raw <= statistics.max_raw <= 2**53)


def check_chunks(metadata: Any, leaves: Sequence[str]) -> None:
    """Raise OSError unless the footer describes these columns of each row group in a way that pyarrow can read.

    A footer has no checksum. Where it is damaged, pyarrow's `metadata.row_group(i).column(j)` may throw where nothing
    catches, which ends the process. pyarrow's read-ahead looks up the same and raises. No row is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    asked: list[int] = []

    def no_row(start: int, stop: int) -> bytes:
        asked.append(start)  # an error would be kept, with all that its frames hold, by what pyarrow keeps of the file
        return b""

    if leaves:
        opened = parquet.ParquetFile(BytesFile(no_row, sys.maxsize), metadata=metadata, pre_buffer=True)
        try:
            opened.read_row_groups(list(range(metadata.num_row_groups)), list(leaves), use_threads=False)
        except (pa.ArrowException, OSError):
            if not asked:  # before rows, which are not there
                raise


def by_name(leaves: Sequence[Path]) -> dict[str, list[Path]]:
    """The leaves that a dotted name stands for: those of the column of this name, else of the field inside a struct.

    >>> by_name([("a.b",), ("a", "b"), ("a", "c")])
    {'a.b': [('a.b',)], 'a': [('a', 'b'), ('a', 'c')], 'a.c': [('a', 'c')]}
    """
    columns: dict[str, list[Path]] = {}
    inner: dict[str, list[Path]] = {}
    for leaf in leaves:
        columns.setdefault(leaf[0], []).append(leaf)
        for name in itertools.accumulate(leaf, "{}.{}".format):
            inner.setdefault(name, []).append(leaf)
    return inner | columns


def footer_spans(tail: bytes, nbytes: int) -> list[tuple[int, int]]:
    """The byte ranges of a file that `opened_in` reads. tail: the last TAIL_NBYTES of the file, or all of it."""
    count = _footer_nbytes(tail, nbytes)
    return [*sampled_spans(nbytes, count, _NUM_PAGES), (nbytes - count, nbytes)]


def content_of(raw: Any, nbytes: int) -> str:
    """See FileFooter.content. raw: a file of this size, opened by pyarrow."""
    return _footer_and_content(raw, nbytes)[1]


def _footer_and_content(raw: Any, nbytes: int) -> tuple[bytes, str]:
    """The footer's bytes, with its length and the magic number behind it (the file's tail where no footer is), and
    the digest of these and of some pages.
    """
    found = read_whole(raw, max(0, nbytes - TAIL_NBYTES), nbytes)
    wanted = _footer_nbytes(found, nbytes)
    stored = found[-wanted:] if wanted <= len(found) else read_whole(raw, nbytes - wanted, nbytes)
    content = hashlib.sha256(stored)
    for start, stop in sampled_spans(nbytes, len(stored), _NUM_PAGES):
        if (end := min(stop, nbytes - len(stored))) > start:
            content.update(read_whole(raw, start, end))
    return stored, content.hexdigest()[:16]


def _footer_nbytes(tail: bytes, nbytes: int) -> int:
    """The size of the footer with its length and the magic number; the size of the tail where there is no footer."""
    wanted = int.from_bytes(tail[-8:-4], "little") + 8
    # where a file was cut, any number: up to 4 GiB of rows to read
    return wanted if tail[-4:] in _MAGIC and wanted <= nbytes else len(tail)


def _repeated(kind: Any, path: Path = ()) -> list[str]:
    """The fields, dotted, that a struct has more than once, at any depth in this type."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    counts = Counter(each.name for each in fields)
    here = [".".join([*path, name]) for name, count in counts.items() if count > 1]
    return here + [found for each in fields for found in _repeated(each.type, (*path, each.name))]


class BytesFile:
    """A file as Python's files are, as far as pyarrow uses them.

    read: gives the bytes [start, stop), as bytes or pyarrow's buffer; called in pyarrow's threads as well.
    """

    closed = False

    def __init__(self, read: Callable[[int, int], Any], nbytes: int) -> None:
        self._read = read
        self._nbytes = nbytes
        self._at = 0

    def read(self, count: int = -1) -> Any:
        stop = self._nbytes if count < 0 else min(self._at + count, self._nbytes)
        found = self._read(self._at, stop)
        self._at = stop
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True
