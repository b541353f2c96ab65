"""The footers of Parquet files: read once, in parallel, and checked against one another. No row is touched.

Files behind URLs are read by ranges (`formats.remote`), where the storage names the version of a file; other files by
pyarrow's filesystems. Both find the same.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.elements.columns import Path
from datarax_ray.read.file_contents import head_and_content, sampled_spans
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.arrow.types import fixed_nbytes, plain_type, retyped, typed, with_shapes
from datarax_ray.read.formats.filesystems import client_by_ranges, find_on, read_whole
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.paths import kept
from datarax_ray.read.formats.remote.clients import NoRangesError
from datarax_ray.read.formats.remote.index import Index
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, read_tail
from datarax_ray.read.formats.remote.samples import sampled
from datarax_ray.read.formats.written_folders import check_folders

logger = logging.getLogger("datarax_ray")

SUFFIXES = (".parquet", ".parq", ".pq")
_TAIL_NBYTES = 64 * 1024  # what Arrow reads at once to find a footer; most are shorter
_MAGIC = (b"PAR1", b"PARE")  # behind a footer that is open, and one that is encrypted
_NUM_PAGES = 2  # of each file's rows, for its digest: round trips to storage, beside those that opening takes anyway


Choose: TypeAlias = Callable[[Sequence[Path]], tuple[Path, ...]]  # the leaves that are read, of all of a file


@dataclass(frozen=True)
class FileFooter:
    """One file's footer.

    rows: in each row group.
    decoded_nbytes: of each row group, estimated for the columns that are read.
    content: a digest of the footer as it is stored (offsets, sizes and statistics of every column of every row group),
        and of some pages of the file (read.file_contents).
    list_values: for each leaf in a list, the number of values in a row; None where that is not one whole number for
        all row groups on the average, so that lists differ in length.
    url, version, footer: of a file that is read by ranges, the URL that its client is asked for, which may hold a
        secret, the version (an ETag, say), and where the footer begins; "" of others.
    untyped: the types of the fields, where one of them is null, and Footers has the type of other files; "" elsewhere.
    """

    path: str
    nbytes: int
    rows: tuple[int, ...]
    decoded_nbytes: tuple[int, ...] = field(compare=False)
    content: str = ""
    list_values: dict[str, int | None] = field(default_factory=dict, compare=False)
    url: str = field(default="", compare=False, repr=False)
    version: str = field(default="", compare=False)
    footer: int = field(default=0, compare=False)
    untyped: str = field(default="", compare=False, repr=False)

    @property
    def num_rows(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True)
class Footers:
    """All files of a source.

    leaves, others: paths of the leaf columns that are read, and that are not, each where a file has it.
    schema: the fields of these leaves, by name. Where no row of a file has a value, its writer may have written the
        type null: such a field is read as the type of the other files.
    """

    filesystem: Any
    files: tuple[FileFooter, ...]
    leaves: tuple[Path, ...]
    others: tuple[Path, ...]
    schema: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves as pyarrow is asked for them, with dots."""
        return tuple(map(".".join, self.leaves))

    @property
    def types(self) -> dict[str, str]:
        """The type of each field."""
        return _types(self.schema)

    def typed(self, table: Any, file: int) -> Any:
        """A table of rows of this file, with the types of all files. Raises: as with_shapes."""
        try:
            table = with_shapes(table)
        except ValueError as error:
            raise ValueError(f"{self.files[file].path}: {error}") from error
        if not self.files[file].untyped:
            return table
        kinds = [self.schema.field(name).type for name in table.column_names]
        columns = [
            column if plain_type(column.type) == plain_type(kind) else retyped(column, kind)
            for column, kind in zip(table.columns, kinds, strict=True)
        ]
        return table.from_arrays(columns, table.column_names)


class _Seen(NamedTuple):
    """A file, as it would be read alone. others: the leaves that are not read."""

    footer: FileFooter
    leaves: tuple[Path, ...]
    others: tuple[Path, ...]
    schema: Any


def read_footers(
    paths: Any, columns: Iterable[str] | None, exclude: Sequence[str], filesystem: Any, remote: Remote = REMOTE
) -> Footers:
    """The footers of everything that `paths` names (see filesystems.find_on).

    The first file with rows decides the fields and their types.

    columns: names of the fields to read, "a.b" for the one of this name, or else for one inside a struct; None for all
    but those in exclude.

    Raises: FileNotFoundError; ValueError for what is no complete Parquet file (all are listed), for files whose fields
    differ, for names that are no field, and where there is no row in all files together.
    """
    paths = kept(paths)  # they are looked at twice
    columns = columns if columns is None or isinstance(columns, str) else tuple(columns)
    if columns is not None and exclude:
        raise ValueError(f"give columns or exclude_columns, not both; got {columns!r} and {exclude!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, got {columns!r}; write [{columns!r}]")
    filesystem, found, is_by_ranges = _found(paths, filesystem)
    choose = functools.partial(_chosen, columns=columns, exclude=exclude)

    def inspect(path: str) -> _Seen:
        with filesystem.open_input_file(path) as raw:
            return opened_in(raw, path, choose)[1]

    if is_by_ranges:
        far = _ByRanges(filesystem.handler, remote, _what(columns, exclude), choose)
        inspect_far = functools.cache(far.inspect)
        try:
            inspect_far(found[0])
            inspect = inspect_far
        except NoRangesError as error:
            logger.warning("%s. Until then nothing is read ahead, nor kept on a disk (cache_dir)", error)
        except (OSError, ValueError):
            inspect = inspect_far  # raises again below, beside the errors of other files
    footers = _as_one(inspect_all(inspect, found, "opened"), columns, exclude, filesystem)
    if is_by_ranges:
        far.save()
    if filesystem.type_name == "local":
        check_folders(found, lambda path: (os.path.getsize(path), head_and_content(path)[1]))
    elif is_by_ranges:
        sizes = {file.url: (file.nbytes, None) for file in footers.files if file.url}
        check_folders(sizes, sizes.__getitem__)
    if not sum(file.num_rows for file in footers.files):
        raise ValueError(f"{nothing_in([file.path for file in footers.files], 'rows')}; a stream needs at least one.")
    return footers


def _found(paths: Any, filesystem: Any) -> tuple[Any, tuple[str, ...], bool]:
    """The filesystem, the files on it, and whether they are read by ranges."""
    client = client_by_ranges(paths) if filesystem is None else None
    filesystem, found = find_on(paths, filesystem if client is None else client, SUFFIXES, unseen=client is not None)
    return filesystem, found, client is not None


def _as_one(found: Sequence[_Seen], columns: Sequence[str] | None, exclude: Sequence[str], filesystem: Any) -> Footers:
    """Raises: ValueError where files have not the same fields."""
    first = next((each for each in found if each.footer.num_rows), found[0])
    _check_names(first, found, columns, exclude)
    types = [str(_types(each.schema)) if each.footer.num_rows else "" for each in found]
    distinct: dict[Any, _Seen] = {}
    for of, each in zip(types, found, strict=True):
        if of:
            distinct.setdefault((of, each.leaves), each)
    ordered = [first, *distinct.values()]
    schema = first.schema
    for number, each in enumerate(ordered):
        if odd := next((other for other in ordered[:number] if _unified(other.schema, each.schema) is None), None):
            raise ValueError(_difference(odd, each))
        schema = _unified(schema, each.schema)
    alike = {"", str(_types(schema))}
    files = [
        each.footer if of in alike else replace(each.footer, untyped=of) for of, each in zip(types, found, strict=True)
    ]
    leaves = dict.fromkeys(leaf for each in ordered for leaf in each.leaves)
    others = dict.fromkeys(leaf for each in found for leaf in each.others)
    return Footers(filesystem, tuple(files), tuple(leaves), tuple(others), schema)


def _unified(schema: Any, other: Any) -> Any:
    """The schema of the files of both; None where there is none. Fields are by name, in order."""
    import pyarrow as pa

    if schema.names != other.names:
        return None
    kinds = [typed(one, another) for one, another in zip(schema.types, other.types, strict=True)]
    return None if None in kinds else pa.schema(zip(schema.names, kinds, strict=True))


def _difference(one: _Seen, other: _Seen) -> str:
    types, others = _types(one.schema), _types(other.schema)
    name = next(name for name in sorted(types | others) if types.get(name) != others.get(name))
    without = "leave the field out (exclude_columns)" if name in types else "name those to read (columns=[...])"
    return (
        f"field {name!r} is {types.get(name, 'missing')} in {one.footer.path} and {others.get(name, 'missing')} in "
        f"{other.footer.path}; every element has the same fields. Rewrite one of them, {without}, or make two sources."
    )


def _what(columns: Sequence[str] | None, exclude: Sequence[str]) -> str:
    """The key of a file in an index, beside its URL."""
    return digest([columns, *exclude])


def _add(index: Index, what: str, seen: _Seen) -> None:
    file = {name: value for name, value in asdict(seen.footer).items() if name not in ("path", "url", "untyped")}
    schema = base64.b64encode(seen.schema.serialize()).decode()
    fields = {"version": seen.footer.version, "leaves": seen.leaves, "others": seen.others, "schema": schema}
    index.add(seen.footer.url, fields | {"file": file}, what)


class _ByRanges:
    """Files behind URLs, as they are looked at: by what is known of them where they are still that version.

    files: knows their URLs. what: see _what.
    """

    def __init__(self, files: Any, remote: Remote, what: str, choose: Choose) -> None:
        self._files = files
        self._remote = remote
        self._what = what
        self._choose = choose
        self._index = Index()

    def inspect(self, path: str) -> _Seen:
        import pyarrow as pa

        url = self._files.url_of(path)
        known = self._index.find(url, self._what)
        if known is not None and read_tail(url, 1, self._remote).version == known["version"]:
            file = known["file"] | {name: tuple(known["file"][name]) for name in ("rows", "decoded_nbytes")}
            leaves, others = (tuple(map(tuple, known[name])) for name in ("leaves", "others"))
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known["schema"])))
            return _Seen(FileFooter(path, url=url, **file), leaves, others, schema)
        with self._looked_at(path) as (raw, version):
            seen = opened_in(raw, path, self._choose)[1]
        seen = seen._replace(footer=replace(seen.footer, url=url, version=version))
        _add(self._index, self._what, seen)
        return seen

    def save(self) -> None:
        """Keep what was found for later starts."""
        self._index.save()

    @contextlib.contextmanager
    def _looked_at(self, path: str) -> Iterator[tuple[Any, str]]:
        """What opening reads of a file, as pyarrow's file, and its version."""
        import pyarrow as pa

        def spans(tail: bytes, nbytes: int) -> list[tuple[int, int]]:
            count = footer_nbytes(tail, nbytes)
            return [*sampled_spans(nbytes, count, _NUM_PAGES), (nbytes - count, nbytes)]

        with sampled(self._files.url_of(path), self._remote, _TAIL_NBYTES, spans) as (image, version):
            yield pa.OSFile(image.path), version


def opened_in(raw: Any, path: str, choose: Choose) -> tuple[Any, _Seen]:
    """The ParquetFile, and the file as it would be read alone. raw: pyarrow's, in which at least what is looked at here
    is there. Raises: OSError; ValueError for what is no complete Parquet file, and for fields that no dict can hold.
    """
    import pyarrow as pa
    from pyarrow import parquet

    nbytes = raw.size()
    stored = _stored_footer(raw, nbytes)
    content = _content(raw, nbytes, stored)
    try:  # from here on no byte is fetched, so what fails is the file's fault
        metadata = parquet.read_metadata(pa.BufferReader(stored))
        assert isinstance(metadata.created_by, str | None)  # raises for what is no text: a footer has no checksum
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
            raise pa.ArrowInvalid(f"its footer says {metadata.num_rows} rows, and {sum(counts)} in its row groups")
        opened = parquet.ParquetFile(raw, metadata=metadata, page_checksum_verification=True)
        # its schema has the paths with dots alone, as names have, too
        paths = [tuple(leaf) for leaf in opened.reader.column_paths]
        chosen = choose(paths)
        names = list(map(".".join, chosen))
        schema = with_shapes(opened.read_row_groups([], columns=names)).schema
        read = set(chosen)
        footer = _footer(path, nbytes, metadata, [leaf in read for leaf in paths], schema, content)
        footer = replace(footer, footer=nbytes - len(stored))
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
    by_name = pa.schema([(name, schema.field(name).type) for name in sorted(schema.names)])
    return opened, _Seen(footer, chosen, tuple(leaf for leaf in paths if leaf not in read), by_name)


def _footer(path: str, nbytes: int, metadata: Any, is_read: list[bool], schema: Any, content: str) -> FileFooter:
    """is_read: of each leaf column."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = {index: metadata.schema.column(index) for index, wanted in enumerate(is_read) if wanted}
    lists = [index for index, column in columns.items() if column.max_repetition_level]
    is_all = all(is_read)
    check_chunks(metadata, [columns[index].path for index in (lists if is_all else columns)])
    fixed = sum(fixed_nbytes(each.type) or 0 for each in schema)

    def stored_nbytes(group: Any) -> int:
        return int(group.total_byte_size) if is_all else sum(group.column(i).total_uncompressed_size for i in columns)

    def list_values(index: int) -> int | None:
        means = {divmod(group.column(index).num_values, group.num_rows) for group in groups if group.num_rows}
        return means.pop()[0] if len(means) == 1 and all(not odd for _, odd in means) else None

    return FileFooter(
        path,
        nbytes,
        tuple(group.num_rows for group in groups),
        tuple(max(fixed * group.num_rows, stored_nbytes(group)) for group in groups),
        content,
        {columns[index].path: list_values(index) for index in lists},
    )


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


def _chosen(leaves: Sequence[Path], columns: Sequence[str] | None, exclude: Sequence[str]) -> tuple[Path, ...]:
    """The leaf columns under the names in columns, or under none of those in exclude."""
    names, under = exclude if columns is None else columns, _by_name(leaves)
    named = {leaf for name in names for leaf in under.get(name, ())}
    return tuple(leaf for leaf in leaves if (leaf in named) == (columns is not None))


def _check_names(first: _Seen, found: Sequence[_Seen], columns: Sequence[str] | None, exclude: Sequence[str]) -> None:
    """Raise ValueError unless the first file has all columns, some file each field in exclude, and a field is left."""
    leaves = [*first.leaves, *first.others]
    under = _by_name(leaves)
    if columns is None:
        anywhere = _by_name([*{leaf: None for each in found for leaf in (*each.leaves, *each.others)}])
        unknown = [name for name in exclude if name not in anywhere]
    else:
        unknown = [name for name in columns if name not in under]
    if unknown:
        fields = sorted({leaf[0] for leaf in leaves})
        raise ValueError(
            f"{first.footer.path} has no columns {unknown}; its fields are {fields}."
            f"{nearest(unknown, [*fields, *under])}"
        )
    if not first.leaves:
        raise ValueError(
            f"{first.footer.path}: no column of {[*map('.'.join, leaves)]} is left; an element needs at least one field"
        )


def _by_name(leaves: Sequence[Path]) -> dict[str, list[Path]]:
    """The leaves that a dotted name stands for: those of the column of this name, else of the field inside a struct.

    >>> _by_name([("a.b",), ("a", "b"), ("a", "c")])
    {'a.b': [('a.b',)], 'a': [('a', 'b'), ('a', 'c')], 'a.c': [('a', 'c')]}
    """
    columns: dict[str, list[Path]] = {}
    inner: dict[str, list[Path]] = {}
    for leaf in leaves:
        columns.setdefault(leaf[0], []).append(leaf)
        for name in itertools.accumulate(leaf, "{}.{}".format):
            inner.setdefault(name, []).append(leaf)
    return inner | columns


def _stored_footer(raw: Any, nbytes: int) -> bytes:
    """The footer's bytes, with its length and the magic number behind it; the file's tail where no footer is."""
    found = read_whole(raw, max(0, nbytes - _TAIL_NBYTES), nbytes)
    wanted = footer_nbytes(found, nbytes)
    return found[-wanted:] if wanted <= len(found) else read_whole(raw, nbytes - wanted, nbytes)


def footer_nbytes(tail: bytes, nbytes: int) -> int:
    """How many of the last bytes of a file are its footer, its length and the magic number; all of these where none is.

    tail: the last bytes, 64 KiB or all of nbytes.
    """
    wanted = int.from_bytes(tail[-8:-4], "little") + 8
    # where a file was cut, any number: up to 4 GiB of rows to read
    return wanted if tail[-4:] in _MAGIC and wanted <= nbytes else len(tail)


def _content(raw: Any, nbytes: int, stored: bytes) -> str:
    """See FileFooter.content. stored: the footer, which ends the file."""
    content = hashlib.sha256(stored)
    for start, stop in sampled_spans(nbytes, len(stored), _NUM_PAGES):
        if (end := min(stop, nbytes - len(stored))) > start:
            content.update(read_whole(raw, start, end))
    return content.hexdigest()[:16]


def _repeated(kind: Any, path: Path = ()) -> list[str]:
    """The fields, dotted, that a struct has more than once, at any depth in this type."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    counts = Counter(each.name for each in fields)
    here = [".".join([*path, name]) for name, count in counts.items() if count > 1]
    return here + [found for each in fields for found in _repeated(each.type, (*path, each.name))]


def _types(schema: Any) -> dict[str, str]:
    return {each.name: plain_type(each.type) for each in schema}


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
