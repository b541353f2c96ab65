"""The footers of Parquet files: read once, in parallel, and checked against one another. No row is touched.

Files behind URLs of storages that tell which version of a file a range is of are read by ranges (`formats.remote`);
others by pyarrow's filesystems. What a file was found to hold is the same by both.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.arrow.columns import fixed_nbytes, plain_type
from datarax_ray.read.formats.filesystems import client_by_ranges, find_on, read_whole
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.parquet.spans import check_chunks
from datarax_ray.read.formats.paths import kept
from datarax_ray.read.formats.remote.index import Index
from datarax_ray.read.formats.remote.mirrors import sampled
from datarax_ray.read.formats.remote.ranges import REMOTE, NoRangesError, Remote, read_tail
from datarax_ray.read.formats.written_folders import check_folders
from datarax_ray.read.identity.contents import head_and_content, sampled_spans
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

SUFFIXES = (".parquet", ".parq", ".pq")
_TAIL_NBYTES = 64 * 1024  # what Arrow reads at once to find a footer; most are shorter
_MAGIC = (b"PAR1", b"PARE")  # behind a footer that is open, and one that is encrypted
_NULL = re.compile(r"\bnull\b(?!:)")  # Arrow's type, also in a list or struct; but for a field of that name
_NUM_PAGES = 2  # of each file's rows, for its digest: round trips to storage, beside those that opening takes anyway


Choose: TypeAlias = Callable[[Any], tuple[str, ...]]  # leaves, of a schema


@dataclass(frozen=True)
class FileFooter:
    """One file's footer. rows: in each row group. decoded_nbytes: estimated for the columns that are read, of each.

    content: a digest of the footer as it is stored (offsets, sizes and statistics of every column of every row group),
    and of some pages of the file (read.identity.contents); a file that is written anew has another.
    list_values: of each leaf that is in a list, the values in a row; None where that is not one whole number for all
    row groups on the average, so that lists differ in length.
    url, version, footer: of one that is read by ranges, what its client is asked for, which may hold a secret, the
    version (an ETag, say), and where the footer begins; "" of others.
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

    @property
    def num_rows(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True)
class Footers:
    """All files of a source. leaves: paths of the leaf columns that are read. types: what they are, field by field."""

    filesystem: Any
    files: tuple[FileFooter, ...]
    leaves: tuple[str, ...]
    types: dict[str, str]


def read_footers(
    paths: Any, columns: Iterable[str] | None, exclude: Sequence[str], filesystem: Any, remote: Remote = REMOTE
) -> Footers:
    """The footers of everything that `paths` names (see filesystems.find_on).

    columns: names of the fields to read, "a.b" for one inside a struct; None for all but those in exclude.

    Raises: FileNotFoundError; ValueError for what is no complete Parquet file (all are listed), for files whose fields
    differ, for names that are no field, and where there is no row in all files together.
    """
    found = look_up(paths, columns, exclude, filesystem, remote)
    if not sum(file.num_rows for file in found.files):
        raise ValueError(f"{nothing_in([file.path for file in found.files], 'rows')}; a stream needs at least one.")
    return found


def look_up(
    paths: Any, columns: Iterable[str] | None, exclude: Sequence[str], filesystem: Any, remote: Remote = REMOTE
) -> Footers:
    """As read_footers, where there may be no row. The first file that has some decides the fields and their types, for
    all that have some.
    """
    paths = kept(paths)  # they are looked at twice
    columns = columns if columns is None or isinstance(columns, str) else tuple(columns)
    filesystem, found, is_by_ranges = _found(paths, filesystem)

    first = found[0]

    def choose(schema: Any) -> tuple[str, ...]:
        return select(schema, first, columns, exclude)

    def chosen_in(place: _OnFilesystem | _ByRanges) -> tuple[tuple[str, ...], dict[str, str]]:
        nonlocal first
        for first in found:
            if (said := place.chosen(first, choose)) is not None:
                return said
        first = found[0]
        said = place.chosen(first, choose, with_rows=False)
        assert said is not None
        return said

    place: _OnFilesystem | _ByRanges = _OnFilesystem(filesystem, columns, exclude)
    broken: Exception | None = None
    leaves: tuple[str, ...] | None = None
    types: dict[str, str] = {}
    try:
        if is_by_ranges:
            try:
                far = _ByRanges(filesystem.handler, remote, columns, exclude)
                leaves, types = chosen_in(far)
                place = far
            except NoRangesError as error:
                logger.warning("%s. Until then nothing is read ahead, nor kept on a disk (cache_dir)", error)
        if leaves is None:
            leaves, types = chosen_in(place)
    except (OSError, ValueError) as error:
        broken = error  # it is told below, with the others

    def inspect(path: str) -> FileFooter:
        if broken is not None and path == first:
            raise broken  # not asked once more: now it might open
        footer, other = place.inspect(path, leaves)
        if leaves is not None and footer.num_rows and other != types:
            raise ValueError(_difference(first, types, path, other))
        return footer

    files = tuple(inspect_all(inspect, found))
    place.close()
    if filesystem.type_name == "local":
        check_folders(found, lambda path: (os.path.getsize(path), head_and_content(path)[1]))
    elif is_by_ranges:
        sizes = {file.url: (file.nbytes, None) for file in files if file.url}
        check_folders(sizes, sizes.__getitem__)
    assert leaves is not None
    return Footers(filesystem, files, leaves, types)


def urls_of(paths: Any) -> tuple[str, ...]:
    """The URLs of all files that `paths` names, of a storage that is read by ranges; () for those of others."""
    filesystem, found, is_by_ranges = _found(kept(paths), None)
    return tuple(map(filesystem.handler.url_of, found)) if is_by_ranges else ()


def keep(footers: Footers, columns: Iterable[str] | None, exclude: Sequence[str], index: Index) -> None:
    """Add to an index what was found of files that are read by ranges, for these arguments of look_up."""
    what = _what(None if columns is None else tuple(columns), exclude)
    for file in footers.files:
        if file.version:
            _add(index, what, file, footers.leaves, footers.types)


def _what(columns: Sequence[str] | None, exclude: Sequence[str]) -> str:
    """What an index is asked for: types of before did not say which fields a file has beside those of the first."""
    return digest([columns, *exclude, "and others"])


def _add(index: Index, what: str, file: FileFooter, leaves: Sequence[str], types: dict[str, str]) -> None:
    told = {name: value for name, value in asdict(file).items() if name not in ("path", "url")}
    index.add(file.url, {"version": file.version, "leaves": list(leaves), "types": types, "file": told}, what)


def _found(paths: Any, filesystem: Any) -> tuple[Any, tuple[str, ...], bool]:
    """The filesystem, the files on it, and whether they are read by ranges."""
    client = client_by_ranges(paths) if filesystem is None else None
    filesystem, found = find_on(paths, filesystem if client is None else client, SUFFIXES, unseen=client is not None)
    return filesystem, found, client is not None


class _OnFilesystem:
    """Files on a filesystem of pyarrow's, as they are looked at."""

    def __init__(self, filesystem: Any, columns: Sequence[str] | None, exclude: Sequence[str]) -> None:
        self._filesystem = filesystem
        self._named = columns, exclude

    def chosen(
        self, path: str, choose: Choose, *, with_rows: bool = True
    ) -> tuple[tuple[str, ...], dict[str, str]] | None:
        """The leaves that `choose` names of the schema of a file, and the types of the fields that they are of; None,
        unless with_rows=False, of a file without rows.
        """
        opened, footer = self._open(path, None)
        try:
            if with_rows and not footer.num_rows:
                return None
            leaves = choose(opened.schema)
            return leaves, _types(opened, leaves)
        finally:
            opened.close(force=True)

    def inspect(self, path: str, leaves: Sequence[str] | None) -> tuple[FileFooter, dict[str, str]]:
        """The footer, and the types of the fields that are read: of these leaves, and of more that the file has."""
        opened, footer = self._open(path, leaves)
        try:
            return footer, {} if leaves is None else _types(opened, _with_more(opened.schema, leaves, *self._named))
        finally:
            opened.close(force=True)

    def close(self) -> None:
        """All were looked at."""

    def _open(self, path: str, leaves: Sequence[str] | None) -> tuple[Any, FileFooter]:
        return retried(lambda: open_file(self._filesystem, path, leaves), f"{path} while it was opened")


class _ByRanges:
    """Files behind URLs, as they are looked at: by what is known of them where they are still that version.

    files: knows their URLs.
    """

    def __init__(self, files: Any, remote: Remote, columns: Sequence[str] | None, exclude: Sequence[str]) -> None:
        self._files = files
        self._remote = remote
        self._named = columns, exclude
        self._what = _what(columns, exclude)
        self._index = Index()

    def chosen(
        self, path: str, choose: Choose, *, with_rows: bool = True
    ) -> tuple[tuple[str, ...], dict[str, str]] | None:
        """As _OnFilesystem's."""
        if (known := self._known(self._files.url_of(path))) is not None:
            is_empty = not sum(known["file"]["rows"])
            return None if with_rows and is_empty else (tuple(known["leaves"]), known["types"])
        with self._looked_at(path) as (raw, _):
            opened, footer = opened_in(raw, path, None)
            if with_rows and not footer.num_rows:
                return None
            leaves = choose(opened.schema)
            return leaves, _types(opened, leaves)

    def inspect(self, path: str, leaves: Sequence[str] | None) -> tuple[FileFooter, dict[str, str]]:
        """As _OnFilesystem's."""
        url = self._files.url_of(path)
        known = self._known(url)
        if known is not None and leaves is not None and known["leaves"] == list(leaves):
            told = known["file"]
            told |= {"rows": tuple(told["rows"]), "decoded_nbytes": tuple(told["decoded_nbytes"])}
            return FileFooter(path, url=url, **told), known["types"]
        with self._looked_at(path) as (raw, version):
            opened, footer = opened_in(raw, path, leaves)
            found = replace(footer, url=url, version=version)
            if leaves is None:
                return found, {}
            types = _types(opened, _with_more(opened.schema, leaves, *self._named))
        _add(self._index, self._what, found, leaves, types)
        return found, types

    def close(self) -> None:
        """All were looked at: keep what was found for later starts."""
        self._index.save()

    def _known(self, url: str) -> Mapping[str, Any] | None:
        known = self._index.find(url, self._what)
        is_same = known is not None and read_tail(url, 1, self._remote).version == known["version"]
        return known if is_same else None

    @contextlib.contextmanager
    def _looked_at(self, path: str) -> Iterator[tuple[Any, str]]:
        """What opening reads of a file, as pyarrow's file, and its version."""
        import pyarrow as pa

        def spans(tail: bytes, nbytes: int) -> list[tuple[int, int]]:
            count = footer_nbytes(tail, nbytes)
            return [*sampled_spans(nbytes, count, _NUM_PAGES), (nbytes - count, nbytes)]

        with sampled(self._files.url_of(path), self._remote, _TAIL_NBYTES, spans) as (image, version):
            yield pa.OSFile(image.path), version


def open_file(filesystem: Any, path: str, leaves: Sequence[str] | None) -> tuple[Any, FileFooter]:
    """The opened ParquetFile, and its footer. leaves: as of Footers, None for all.

    Raises: OSError where there is none; ValueError for what is no complete Parquet file.
    """
    raw = filesystem.open_input_file(path)
    try:
        return opened_in(raw, path, leaves)
    except BaseException:
        raw.close()
        raise


def opened_in(raw: Any, path: str, leaves: Sequence[str] | None) -> tuple[Any, FileFooter]:
    """As open_file, of a file that pyarrow opened, in which at least what is looked at here is there."""
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
        return opened, _footer(path, nbytes, opened, leaves, content, nbytes - len(stored))
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:  # what damaged footers were seen to give
        advice = sniff.advice(raw, path, "Parquet")
        raise sniff.incomplete(path, "Parquet", f"{error} ({nbytes:,} bytes)", advice) from error


def select(schema: Any, path: str, columns: Iterable[str] | None, exclude: Sequence[str]) -> tuple[str, ...]:
    """Paths of the leaf columns under the names in columns, or under none of those in exclude."""
    leaves = _leaves(schema)
    if columns is not None and exclude:
        raise ValueError(f"give columns or exclude_columns, not both; got {columns!r} and {exclude!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, got {columns!r}; write [{columns!r}]")
    names = list(exclude if columns is None else columns)
    unknown = [name for name in names if not any(_is_under(leaf, name) for leaf in leaves)]
    if unknown:
        fields = sorted({leaf.partition(".")[0] for leaf in leaves})
        raise ValueError(
            f"{path} has no columns {unknown}; its fields are {fields}.{nearest(unknown, [*fields, *leaves])}"
        )
    wanted = columns is not None
    found = tuple(leaf for leaf in leaves if any(_is_under(leaf, name) for name in names) == wanted)
    if not found:
        raise ValueError(f"{path}: no column of {leaves} is left; an element needs at least one field")
    return found


def _with_more(
    schema: Any, leaves: Sequence[str], columns: Sequence[str] | None, exclude: Sequence[str]
) -> Sequence[str]:
    """These leaves, and the others of a file that would be read if it were the first: of what it has more."""
    found = _leaves(schema)
    if columns is not None or not {*leaves} <= {*found}:  # what is missing is told first
        return leaves
    return [leaf for leaf in found if not any(_is_under(leaf, name) for name in exclude)]


def _leaves(schema: Any) -> list[str]:
    """The paths of the leaf columns of a file."""
    return [schema.column(index).path for index in range(len(schema))]


def _is_under(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(name + ".")


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


def _footer(path: str, nbytes: int, opened: Any, leaves: Sequence[str] | None, content: str, begin: int) -> FileFooter:
    """begin: of the footer."""
    metadata = opened.metadata
    wanted = None if leaves is None or len(leaves) == metadata.num_columns else set(leaves)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    read = [index for index, column in enumerate(columns) if wanted is None or column.path in wanted]
    lists = [index for index in read if columns[index].max_repetition_level]
    chosen = [] if wanted is None else read
    check_chunks(metadata, [columns[index].path for index in chosen or lists])
    selected = opened.schema_arrow if leaves is None else _selected(opened, leaves)
    fixed = sum(fixed_nbytes(field.type) or 0 for field in selected)
    return FileFooter(
        path,
        nbytes,
        tuple(group.num_rows for group in groups),
        tuple(max(fixed * group.num_rows, _stored_nbytes(group, chosen)) for group in groups),
        content,
        {columns[index].path: _list_values(groups, index) for index in lists},
        footer=begin,
    )


def _list_values(groups: Sequence[Any], index: int) -> int | None:
    """See FileFooter.list_values."""
    means = {divmod(group.column(index).num_values, group.num_rows) for group in groups if group.num_rows}
    return means.pop()[0] if len(means) == 1 and all(not odd for _, odd in means) else None


def _stored_nbytes(group: Any, chosen: Sequence[int]) -> int:
    """Bytes before compression of these columns of a row group, () for all of them."""
    if not chosen:
        return int(group.total_byte_size)
    return sum(group.column(i).total_uncompressed_size for i in chosen)


def _selected(opened: Any, leaves: Sequence[str]) -> Any:
    return opened.read_row_groups([], columns=list(leaves)).schema


def _types(opened: Any, leaves: Sequence[str]) -> dict[str, str]:
    schema = _selected(opened, leaves)
    if len(set(schema.names)) < len(schema.names):
        raise ValueError(f"the fields {sorted(schema.names)} are not distinct; an element is a dict")
    return {field.name: plain_type(field.type) for field in sorted(schema, key=lambda field: field.name)}


def _difference(path: str, types: dict[str, str], other_path: str, other: dict[str, str]) -> str:
    name = next(name for name in sorted(types | other) if types.get(name) != other.get(name))
    kinds = {path: types.get(name, "missing"), other_path: other.get(name, "missing")}
    untyped = [each for each, kind in kinds.items() if _NULL.search(kind)]
    rewrite = "Rewrite one of them"
    if len(untyped) == 1 and "missing" not in kinds.values():
        (no_value,), (typed,) = untyped, kinds.keys() - untyped
        rewrite = (
            "A type is null where no row has a value. Give it the other's, pq.write_table(pq.ParquetFile("
            f"{no_value!r}).read().cast(pq.ParquetFile({typed!r}).schema_arrow), {no_value!r})"
        )
    without = "leave the field out (exclude_columns)" if name in types else "name those to read (columns=[...])"
    return (
        f"field {name!r} is {kinds[path]} in {path} and {kinds[other_path]} in {other_path}; "
        f"every element has the same fields. {rewrite}, {without}, or make two sources."
    )
