"""The footers of Parquet files: read once, in parallel, and checked against one another. No row is touched.

Files behind URLs of storages that tell which version of a file a range is of are read by ranges (`formats.remote`);
others by pyarrow's filesystems. What a file was found to hold is the same by both.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.fingerprint import digest
from datarax_ray.read.elements.columns import Path
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.arrow.columns import fixed_nbytes, plain_type, retyped, typed
from datarax_ray.read.formats.arrow.ray_tensors import with_shapes
from datarax_ray.read.formats.filesystems import client_by_ranges, find_on, read_whole
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.parquet.spans import check_chunks
from datarax_ray.read.formats.paths import kept
from datarax_ray.read.formats.remote.clients import NoRangesError
from datarax_ray.read.formats.remote.index import Index
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, read_tail
from datarax_ray.read.formats.remote.samples import sampled
from datarax_ray.read.formats.written_folders import check_folders
from datarax_ray.read.identity.contents import head_and_content, sampled_spans

logger = logging.getLogger("datarax_ray")

SUFFIXES = (".parquet", ".parq", ".pq")
_TAIL_NBYTES = 64 * 1024  # what Arrow reads at once to find a footer; most are shorter
_MAGIC = (b"PAR1", b"PARE")  # behind a footer that is open, and one that is encrypted
_NUM_PAGES = 2  # of each file's rows, for its digest: round trips to storage, beside those that opening takes anyway


Choose: TypeAlias = Callable[[Sequence[Path]], tuple[Path, ...]]  # the leaves that are read, of all of a file


@dataclass(frozen=True)
class FileFooter:
    """One file's footer. rows: in each row group. decoded_nbytes: estimated for the columns that are read, of each.

    content: a digest of the footer as it is stored (offsets, sizes and statistics of every column of every row group),
    and of some pages of the file (read.identity.contents); a file that is written anew has another.
    list_values: of each leaf that is in a list, the values in a row; None where that is not one whole number for all
    row groups on the average, so that lists differ in length.
    url, version, footer: of one that is read by ranges, what its client is asked for, which may hold a secret, the
    version (an ETag, say), and where the footer begins; "" of others.
    untyped: what the fields are, where that of one is null, and Footers has the type of other files; "" elsewhere.
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

    leaves: paths of the leaf columns that are read, each where a file has it. schema: the fields, by name, that these
    are of. Where no row of a file has a value, its writer may have said null: they are read as the type of the others.
    """

    filesystem: Any
    files: tuple[FileFooter, ...]
    leaves: tuple[Path, ...]
    schema: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves as pyarrow is asked for them, with dots."""
        return tuple(map(".".join, self.leaves))

    @property
    def types(self) -> dict[str, str]:
        """What the fields are."""
        return _types(self.schema)

    def typed(self, table: Any, file: int) -> Any:
        """A table of rows of this file, of the types of all. Raises: as with_shapes."""
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


def read_footers(
    paths: Any, columns: Iterable[str] | None, exclude: Sequence[str], filesystem: Any, remote: Remote = REMOTE
) -> Footers:
    """The footers of everything that `paths` names (see filesystems.find_on).

    columns: names of the fields to read, "a.b" for the one of this name, or else for one inside a struct; None for all
    but those in exclude.

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
    if columns is not None and exclude:
        raise ValueError(f"give columns or exclude_columns, not both; got {columns!r} and {exclude!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, got {columns!r}; write [{columns!r}]")
    filesystem, found, is_by_ranges = _found(paths, filesystem)
    choose = partial(_chosen, columns=columns, exclude=exclude)
    place: _OnFilesystem | _ByRanges = _OnFilesystem(filesystem, choose)
    first: _Seen | Exception | None = None
    if is_by_ranges:
        far = _ByRanges(filesystem.handler, remote, _what(columns, exclude), choose)
        try:
            first, place = far.inspect(found[0]), far
        except NoRangesError as error:
            logger.warning("%s. Until then nothing is read ahead, nor kept on a disk (cache_dir)", error)
        except (OSError, ValueError) as error:
            first, place = error, far  # it is told below, with the others

    def inspect(path: str) -> _Seen:
        if path != found[0] or first is None:
            return place.inspect(path)
        if isinstance(first, Exception):
            raise first
        return first

    leaves, schema, files = _as_one(inspect_all(inspect, found, "opened"), columns, exclude)
    place.close()
    if filesystem.type_name == "local":
        check_folders(found, lambda path: (os.path.getsize(path), head_and_content(path)[1]))
    elif is_by_ranges:
        sizes = {file.url: (file.nbytes, None) for file in files if file.url}
        check_folders(sizes, sizes.__getitem__)
    return Footers(filesystem, files, leaves, schema)


def urls_of(paths: Any) -> tuple[str, ...]:
    """The URLs of all files that `paths` names, of a storage that is read by ranges; () for those of others."""
    filesystem, found, is_by_ranges = _found(kept(paths), None)
    return tuple(map(filesystem.handler.url_of, found)) if is_by_ranges else ()


def keep(footers: Footers, columns: Iterable[str] | None, exclude: Sequence[str], index: Index) -> None:
    """Add to an index what was found of files that are read by ranges, for these arguments of look_up."""
    what = _what(None if columns is None else tuple(columns), exclude)
    for file in footers.files:
        if file.version and not file.untyped:  # these are looked at anew
            _add(index, what, _Seen(file, footers.leaves, None, footers.schema))


class _Seen(NamedTuple):
    """A file, as it would be read alone. left_out: the leaves that are not read; None where an index does not say."""

    footer: FileFooter
    leaves: tuple[Path, ...]
    left_out: tuple[Path, ...] | None
    schema: Any

    @property
    def path(self) -> str:
        return self.footer.path


def _as_one(
    found: Sequence[_Seen], columns: Sequence[str] | None, exclude: Sequence[str]
) -> tuple[tuple[Path, ...], Any, tuple[FileFooter, ...]]:
    """The leaves, the schema and the files of Footers. Raises: ValueError where files have not the same fields."""
    first = next((each for each in found if each.footer.num_rows), found[0])
    _check_names(first, found, columns, exclude)

    def check(each: _Seen, like: Sequence[_Seen] = (first,)) -> None:
        for other in like:
            if each.footer.num_rows and _unified(other.schema, each.schema) is None:
                raise ValueError(_difference(other.path, _types(other.schema), each.path, _types(each.schema)))

    inspect_all(check, found, name=lambda each: each.path)
    types = [str(_types(each.schema)) if each.footer.num_rows else "" for each in found]
    distinct = {(str(_types(first.schema)), first.leaves): first}
    for told, each in zip(types, found, strict=True):
        if told:
            distinct.setdefault((told, each.leaves), each)
    schema = first.schema
    for number, each in enumerate(distinct.values()):
        check(each, [*distinct.values()][:number])
        schema = _unified(schema, each.schema)
    wanted = {"", str(_types(schema))}
    files = [
        each.footer if told in wanted else replace(each.footer, untyped=told)
        for told, each in zip(types, found, strict=True)
    ]
    leaves = dict.fromkeys(leaf for each in distinct.values() for leaf in each.leaves)
    return tuple(leaves), schema, tuple(files)


def _unified(schema: Any, other: Any) -> Any:
    """The schema of the files of both; None where there is none. Fields are by name, in order."""
    import pyarrow as pa

    if schema.names != other.names:
        return None
    kinds = [typed(one, another) for one, another in zip(schema.types, other.types, strict=True)]
    return None if None in kinds else pa.schema(zip(schema.names, kinds, strict=True))


def _what(columns: Sequence[str] | None, exclude: Sequence[str]) -> str:
    """What an index is asked for. Earlier ones took a name for that of any column with it and a dot before its own, and
    knew no shape of a tensor of Ray Data's.
    """
    return digest([columns, *exclude, "shapes"])


def _add(index: Index, what: str, seen: _Seen) -> None:
    file = {name: value for name, value in asdict(seen.footer).items() if name not in ("path", "url", "untyped")}
    told = {"version": seen.footer.version, "leaves": seen.leaves, "schema": _told(seen.schema), "file": file}
    index.add(seen.footer.url, told, what)


def _told(schema: Any) -> str:
    """A schema as text: as Arrow's streams have it, in base64."""
    return base64.b64encode(schema.serialize()).decode()


def _read(told: str) -> Any:
    """The schema that _told gave as text."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told)))


def _found(paths: Any, filesystem: Any) -> tuple[Any, tuple[str, ...], bool]:
    """The filesystem, the files on it, and whether they are read by ranges."""
    client = client_by_ranges(paths) if filesystem is None else None
    filesystem, found = find_on(paths, filesystem if client is None else client, SUFFIXES, unseen=client is not None)
    return filesystem, found, client is not None


class _OnFilesystem:
    """Files on a filesystem of pyarrow's, as they are looked at."""

    def __init__(self, filesystem: Any, choose: Choose) -> None:
        self._filesystem = filesystem
        self._choose = choose

    def inspect(self, path: str) -> _Seen:
        with self._filesystem.open_input_file(path) as raw:
            return _seen(*opened_in(raw, path, self._choose), self._choose)

    def close(self) -> None:
        """All were looked at."""


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
        url = self._files.url_of(path)
        if (known := self._known(url)) is not None:
            told = known["file"]
            told |= {"rows": tuple(told["rows"]), "decoded_nbytes": tuple(told["decoded_nbytes"])}
            leaves = tuple(map(tuple, known["leaves"]))
            return _Seen(FileFooter(path, url=url, **told), leaves, None, _read(known["schema"]))
        with self._looked_at(path) as (raw, version):
            opened, footer = opened_in(raw, path, self._choose)
            found = _seen(opened, replace(footer, url=url, version=version), self._choose)
        _add(self._index, self._what, found)
        return found

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


def _seen(opened: Any, footer: FileFooter, choose: Choose) -> _Seen:
    import pyarrow as pa

    paths = _leaves(opened)
    leaves = choose(paths)
    chosen = {*leaves}
    left_out = tuple(leaf for leaf in paths if leaf not in chosen)
    if twice := {*map(".".join, leaves)} & {*map(".".join, left_out)}:
        columns = sorted({leaf[0] for leaf in paths if ".".join(leaf) in twice})
        raise ValueError(
            f"{footer.path} has {sorted(twice)} more than once, in the columns {columns}, and pyarrow reads these "
            "together; choose all of them or none, or rename one"
        )
    schema = _selected(opened, leaves)
    if repeated := _repeated(pa.struct(schema)):
        raise ValueError(
            f"{footer.path} has the fields {repeated} more than once, and an element is a dict; rename one, or leave "
            "the columns out (exclude_columns)"
        )
    for part in schema:
        try:
            plain_type(part.type)
        except ValueError as error:
            raise ValueError(
                f"{footer.path}: field {part.name!r} cannot be read: {error}, or leave it out (exclude_columns)"
            ) from error
    by_name = pa.schema([(name, schema.field(name).type) for name in sorted(schema.names)])
    return _Seen(footer, leaves, left_out, by_name)


def opened_in(raw: Any, path: str, choose: Choose) -> tuple[Any, FileFooter]:
    """The ParquetFile, and its footer, of the leaves that are read. raw: pyarrow's, in which at least what is looked at
    here is there. Raises: OSError; ValueError for what is no complete Parquet file.
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
        return opened, _footer(path, nbytes, opened, choose(_leaves(opened)), content, nbytes - len(stored))
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:  # what damaged footers were seen to give
        advice = sniff.advice(raw, path, "Parquet")
        raise sniff.incomplete(path, "Parquet", f"{error} ({nbytes:,} bytes)", advice) from error


def _chosen(leaves: Sequence[Path], columns: Sequence[str] | None, exclude: Sequence[str]) -> tuple[Path, ...]:
    """The leaf columns under the names in columns, or under none of those in exclude."""
    names, under = exclude if columns is None else columns, _by_name(leaves)
    named = {leaf for name in names for leaf in under.get(name, ())}
    return tuple(leaf for leaf in leaves if (leaf in named) == (columns is not None))


def _check_names(first: _Seen, found: Sequence[_Seen], columns: Sequence[str] | None, exclude: Sequence[str]) -> None:
    """That the first file has what is named, one of all what is left out, and something is left."""
    if columns is None and first.left_out is None:
        return  # they were looked at when it was
    leaves = [*first.leaves, *(first.left_out or ())]
    names, under = exclude if columns is None else columns, _by_name(leaves)
    unknown = [name for name in names if name not in under]
    if unknown and columns is None:
        anywhere = _by_name([*{leaf: None for each in found for leaf in (*each.leaves, *(each.left_out or ()))}])
        unknown = [name for name in unknown if name not in anywhere]
    if unknown:
        fields = sorted({leaf[0] for leaf in leaves})
        raise ValueError(
            f"{first.path} has no columns {unknown}; its fields are {fields}.{nearest(unknown, [*fields, *under])}"
        )
    if not first.leaves:
        raise ValueError(
            f"{first.path}: no column of {[*map('.'.join, leaves)]} is left; an element needs at least one field"
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


def _leaves(opened: Any) -> list[Path]:
    """The paths of the leaf columns of a file; its schema has them with dots alone, as names have, too."""
    return [tuple(path) for path in opened.reader.column_paths]


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


def _footer(path: str, nbytes: int, opened: Any, leaves: Sequence[Path], content: str, begin: int) -> FileFooter:
    """begin: of the footer."""
    metadata = opened.metadata
    wanted = None if len(leaves) == metadata.num_columns else set(leaves)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    read = [index for index, leaf in enumerate(_leaves(opened)) if wanted is None or leaf in wanted]
    lists = [index for index in read if columns[index].max_repetition_level]
    chosen = [] if wanted is None else read
    check_chunks(metadata, [columns[index].path for index in chosen or lists])
    fixed = sum(fixed_nbytes(field.type) or 0 for field in _selected(opened, leaves))
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


def _selected(opened: Any, leaves: Sequence[Path]) -> Any:
    return with_shapes(opened.read_row_groups([], columns=list(map(".".join, leaves)))).schema


def _repeated(kind: Any, path: Path = ()) -> list[str]:
    """The fields, dotted, that a struct has more than once, at any depth in this type."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    counts = Counter(field.name for field in fields)
    here = [".".join([*path, name]) for name, count in counts.items() if count > 1]
    return here + [found for field in fields for found in _repeated(field.type, (*path, field.name))]


def _types(schema: Any) -> dict[str, str]:
    return {field.name: plain_type(field.type) for field in schema}


def _difference(path: str, types: dict[str, str], other_path: str, other: dict[str, str]) -> str:
    name = next(name for name in sorted(types | other) if types.get(name) != other.get(name))
    kinds = {path: types.get(name, "missing"), other_path: other.get(name, "missing")}
    without = "leave the field out (exclude_columns)" if name in types else "name those to read (columns=[...])"
    return (
        f"field {name!r} is {kinds[path]} in {path} and {kinds[other_path]} in {other_path}; "
        f"every element has the same fields. Rewrite one of them, {without}, or make two sources."
    )
