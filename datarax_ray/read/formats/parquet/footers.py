"""The footers of Parquet files: read once, in parallel, and checked against one another. No row is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.arrow.columns import fixed_nbytes, plain_type
from datarax_ray.read.formats.filesystems import find_on, read_whole
from datarax_ray.read.formats.inspecting import inspect_all
from datarax_ray.read.formats.paths import for_people
from datarax_ray.read.identity.contents import sampled_spans
from datarax_ray.read.retry import retried

_SUFFIXES = (".parquet", ".parq", ".pq")
_TAIL_NBYTES = 64 * 1024  # what Arrow reads at once to find a footer; most are shorter
_MAGIC = (b"PAR1", b"PARE")  # behind a footer that is open, and one that is encrypted
_NUM_PAGES = 2  # of each file's rows, for its digest: round trips to storage, beside those that opening takes anyway


@dataclass(frozen=True)
class FileFooter:
    """One file's footer. rows: in each row group. decoded_nbytes: estimated for the columns that are read, of each.

    content: a digest of the footer as it is stored (offsets, sizes and statistics of every column of every row group),
    and of some pages of the file (read.identity.contents); a file that is written anew has another.
    list_values: of each leaf that is in a list, the values in a row; None where that is not one whole number for all
    row groups on the average, so that lists differ in length.
    """

    path: str
    nbytes: int
    rows: tuple[int, ...]
    decoded_nbytes: tuple[int, ...] = field(compare=False)
    content: str = ""
    list_values: dict[str, int | None] = field(default_factory=dict, compare=False)

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


def read_footers(paths: Any, columns: Iterable[str] | None, exclude: Sequence[str], filesystem: Any) -> Footers:
    """The footers of everything that `paths` names (see filesystems.find_on).

    columns: names of the fields to read, "a.b" for one inside a struct; None for all but those in exclude.

    Raises: FileNotFoundError; ValueError for what is no complete Parquet file (all are listed), for files whose fields
    differ, for names that are no field, and where there is no row in all files together.
    """
    filesystem, found = retried(
        lambda: find_on(paths, filesystem, _SUFFIXES), f"{for_people(paths)} while it was looked up"
    )
    broken: Exception | None = None
    leaves: tuple[str, ...] | None = None
    try:
        first, _ = _open(filesystem, found[0], None)
    except (OSError, ValueError) as error:
        broken = error  # it is told below, with the others
    else:
        leaves = select(first.schema, found[0], columns, exclude)
        types = _types(first, leaves)
        first.close(force=True)

    def inspect(path: str) -> FileFooter:
        if broken is not None and path == found[0]:
            raise broken  # not asked once more: now it might open
        opened, footer = _open(filesystem, path, leaves)
        try:
            if leaves is not None and (other := _types(opened, leaves)) != types:
                raise ValueError(_difference(found[0], types, path, other))
            return footer
        finally:
            opened.close(force=True)

    files = tuple(inspect_all(inspect, found))
    if not sum(file.num_rows for file in files):
        raise ValueError(
            f"there are 0 rows in {found[0]}"
            + (f" and {len(found) - 1} more files" if len(found) > 1 else "")
            + "; a stream needs at least one."
        )
    assert leaves is not None
    return Footers(filesystem, files, leaves, types)


def open_file(filesystem: Any, path: str, leaves: Sequence[str] | None) -> tuple[Any, FileFooter]:
    """The opened ParquetFile, and its footer. leaves: as of Footers, None for all.

    Raises: OSError where there is none; ValueError for what is no complete Parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    raw = filesystem.open_input_file(path)
    try:
        nbytes = raw.size()
        stored = _stored_footer(raw, nbytes)
        content = _content(raw, nbytes, stored)
        try:  # from here on no byte is fetched, so what fails is the file's fault
            metadata = parquet.read_metadata(pa.BufferReader(stored))
            assert isinstance(metadata.created_by, str | None)  # raises for what is no text: a footer has no checksum
            opened = parquet.ParquetFile(raw, metadata=metadata, page_checksum_verification=True)
            return opened, _footer(path, nbytes, opened, leaves, content)
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:  # what damaged footers were seen to give
            advice = sniff.advice(raw, path, "Parquet")
            raise ValueError(
                f"{path} is not a complete Parquet file: {error} ({nbytes:,} bytes)."
                + (advice or " It was cut short, or its writer was never closed; write or copy it again.")
            ) from error
    except BaseException:
        raw.close()
        raise


def select(schema: Any, path: str, columns: Iterable[str] | None, exclude: Sequence[str]) -> tuple[str, ...]:
    """Paths of the leaf columns under the names in columns, or under none of those in exclude."""
    leaves = [schema.column(index).path for index in range(len(schema))]
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


def _is_under(leaf: str, name: str) -> bool:
    return leaf == name or leaf.startswith(name + ".")


def _open(filesystem: Any, path: str, leaves: Sequence[str] | None) -> tuple[Any, FileFooter]:
    return retried(lambda: open_file(filesystem, path, leaves), f"{path} while it was opened")


def _stored_footer(raw: Any, nbytes: int) -> bytes:
    """The footer's bytes, with its length and the magic number behind it; the file's tail where no footer is."""
    found = read_whole(raw, max(0, nbytes - _TAIL_NBYTES), nbytes)
    wanted = int.from_bytes(found[-8:-4], "little") + 8
    if found[-4:] not in _MAGIC or wanted > nbytes:  # where a file was cut, any number: up to 4 GiB of rows to read
        return found
    return found[-wanted:] if wanted <= len(found) else read_whole(raw, nbytes - wanted, nbytes)


def _content(raw: Any, nbytes: int, stored: bytes) -> str:
    """See FileFooter.content. stored: the footer, which ends the file."""
    content = hashlib.sha256(stored)
    for start, stop in sampled_spans(nbytes, len(stored), _NUM_PAGES):
        if (end := min(stop, nbytes - len(stored))) > start:
            content.update(read_whole(raw, start, end))
    return content.hexdigest()[:16]


def _footer(path: str, nbytes: int, opened: Any, leaves: Sequence[str] | None, content: str) -> FileFooter:
    metadata = opened.metadata
    wanted = None if leaves is None or len(leaves) == metadata.num_columns else set(leaves)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chosen = [i for i in range(metadata.num_columns) if wanted is not None and metadata.schema.column(i).path in wanted]
    selected = opened.schema_arrow if leaves is None else _selected(opened, leaves)
    fixed = sum(fixed_nbytes(field.type) or 0 for field in selected)
    return FileFooter(
        path,
        nbytes,
        tuple(group.num_rows for group in groups),
        tuple(max(fixed * group.num_rows, _stored_nbytes(group, chosen)) for group in groups),
        content,
        _list_values(metadata, groups, wanted),
    )


def _list_values(metadata: Any, groups: Sequence[Any], wanted: set[str] | None) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if column.max_repetition_level and (wanted is None or column.path in wanted):
            means = {divmod(group.column(index).num_values, group.num_rows) for group in groups if group.num_rows}
            found[column.path] = means.pop()[0] if len(means) == 1 and all(not odd for _, odd in means) else None
    return found


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
    return (
        f"field {name!r} is {types.get(name, 'missing')} in {path} and {other.get(name, 'missing')} in {other_path}; "
        "every element has the same fields. Rewrite one of them, leave the field out (exclude_columns), or make two "
        "sources."
    )
