"""The footers of all Parquet files of a source: read once, in parallel, and joined into one schema.

Files behind URLs are read by ranges (`formats.remote`), where the storage names the version of a file; other files by
pyarrow's filesystems. Both find the same.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.elements.columns import Path
from datarax_ray.read.file_contents import head_and_content
from datarax_ray.read.files.filesystems import client_by_ranges, find_on
from datarax_ray.read.files.paths import kept
from datarax_ray.read.formats.arrow.columns import Field, Known, UnlikeError
from datarax_ray.read.formats.arrow.joining import JOINS, Joins
from datarax_ray.read.formats.arrow.types import is_number, plain_type, retyped, with_shapes
from datarax_ray.read.formats.inspecting import check_folders, inspect_all, nothing_in
from datarax_ray.read.formats.parquet.footer import TAIL_NBYTES, FileFooter, by_name, footer_spans, opened_in, types_of
from datarax_ray.read.formats.remote.clients import NoRangesError
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, sampled

logger = logging.getLogger("datarax_ray")

SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True)
class Footers:
    """All files of a source.

    leaves: paths of the leaf columns that are read, each where a file has it.
    schema: the fields of these leaves, by name, of types that hold the values of all files. A file of these very types
        has this very schema.
    chosen: fields whose type somebody chose.
    """

    filesystem: Any
    files: tuple[FileFooter, ...]
    leaves: tuple[Path, ...]
    schema: Any
    chosen: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves as pyarrow is asked for them, with dots."""
        return tuple(map(".".join, self.leaves))

    @property
    def types(self) -> dict[str, str]:
        """The type of each field, in plain text."""
        return types_of(self.schema)

    def typed(self, table: Any, file: int) -> Any:
        """A table of rows of this file, with the types of all files, and nulls in fields that the file lacks.

        Raises: as with_shapes; UnlikeError for values that a type does not hold.
        """
        import pyarrow as pa

        table = with_shapes(table)
        if self.files[file].schema is self.schema:
            return table
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            kind = self.schema.field(name).type
            try:
                same = plain_type(column.type) == plain_type(kind)
                columns[name] = column if same else retyped(column, kind, rounds=name in self.chosen)
            except (ValueError, NotImplementedError) as error:  # Arrow's own are among these
                message = f"field {name!r} is {plain_type(column.type)} here and read as {plain_type(kind)}: {error}"
                raise UnlikeError(name, message, chosen="string") from error
        rest = [part for part in self.schema if part.name not in columns]
        columns |= {part.name: pa.nulls(table.num_rows, part.type) for part in rest}
        return table.from_pydict(columns)


def read_footers(
    paths: Any,
    columns: Iterable[str] | None,
    exclude: Sequence[str],
    filesystem: Any,
    remote: Remote = REMOTE,
    joins: Joins = JOINS,
) -> Footers:
    """The footers of everything that `paths` names (see filesystems.find_on).

    columns: names of the fields to read, "a.b" for the one of this name, or else for one inside a struct; None for all
    but those in exclude. joins: how fields that differ between files become one.

    Raises: FileNotFoundError; ValueError for incomplete Parquet files (all are listed), for files whose fields are not
    to be joined, for names that are no field, and where all files together have no row.
    """
    import pyarrow as pa

    paths = kept(paths)  # they are looked at twice
    columns = columns if columns is None or isinstance(columns, str) else tuple(columns)
    if columns is not None and exclude:
        raise ValueError(f"give columns or exclude_columns, not both; got {columns!r} and {exclude!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, got {columns!r}; write [{columns!r}]")
    client = client_by_ranges(paths) if filesystem is None else None
    is_by_ranges = client is not None
    filesystem, found = find_on(paths, client if is_by_ranges else filesystem, SUFFIXES, unseen=is_by_ranges)

    def choose(leaves: Sequence[Path]) -> tuple[Path, ...]:
        names, under = exclude if columns is None else columns, by_name(leaves)
        named = {leaf for name in names for leaf in under.get(name, ())}
        return tuple(leaf for leaf in leaves if (leaf in named) == (columns is not None))

    def inspect(path: str) -> FileFooter:
        with filesystem.open_input_file(path) as raw:
            return opened_in(raw, path, choose)[1]

    if is_by_ranges:

        @functools.cache
        def inspect_far(path: str) -> FileFooter:
            url = filesystem.handler.url_of(path)
            with sampled(url, remote, TAIL_NBYTES, footer_spans) as (image, version):
                return replace(opened_in(pa.OSFile(image.path), path, choose)[1], url=url, version=version)

        try:
            inspect_far(found[0])
            inspect = inspect_far
        except NoRangesError as error:
            logger.warning("%s. Until then nothing is read ahead, nor kept on a disk (cache_dir)", error)
        except (OSError, ValueError):
            inspect = inspect_far  # raises again below, beside the errors of other files
    footers = _joined(inspect_all(inspect, found, "opened"), columns, exclude, filesystem, joins)
    if filesystem.type_name == "local":
        check_folders(found, lambda path: (os.path.getsize(path), head_and_content(path)[1]))
    elif is_by_ranges:
        sizes = {file.url: (file.nbytes, None) for file in footers.files if file.url}
        check_folders(sizes, sizes.__getitem__)
    if not any(file.num_rows for file in footers.files):
        raise ValueError(f"{nothing_in([file.path for file in footers.files], 'rows')}; a stream needs at least one.")
    return footers


# Joining.


def _joined(
    files: Sequence[FileFooter], columns: Sequence[str] | None, exclude: Sequence[str], filesystem: Any, joins: Joins
) -> Footers:
    """The files under one schema. Raises: ValueError where files with rows have fields that are not to be joined."""
    first = next((file for file in files if file.num_rows), files[0])
    _check_names(first, files, columns, exclude, joins.widens)
    kinds = [(str(file.types), file.leaves) for file in files]
    distinct: dict[Any, FileFooter] = {}  # of the files with rows, the first of each kind
    for kind, file in zip(kinds, files, strict=True):
        if file.num_rows or file is first:
            distinct.setdefault(kind, file)
    small: dict[str, bool] = {}
    for leaf, is_small in (each for file in files for each in file.small.items()):
        small[leaf] = is_small and small.get(leaf, True)
    ordered = list(distinct.values())
    schema = joins.schema([(file.path, file.schema) for file in ordered], {leaf for leaf in small if small[leaf]})
    types = str(types_of(schema))
    # files of one kind share its values, so that those of thousands take no more memory, and travel once
    shared = []
    others: dict[tuple[Path, ...], tuple[Path, ...]] = {}
    for kind, file in zip(kinds, files, strict=True):
        like, rest = distinct.setdefault(kind, file), others.setdefault(file.others, file.others)
        its = schema if kind[0] == types else like.schema
        shared.append(replace(file, schema=its, leaves=like.leaves, others=rest))
    leaves = dict.fromkeys(leaf for file in ordered for leaf in file.leaves)
    return Footers(filesystem, tuple(shared), tuple(leaves), schema, frozenset(joins.chosen))


def _check_names(
    first: FileFooter, files: Sequence[FileFooter], columns: Sequence[str] | None, exclude: Sequence[str], widens: bool
) -> None:
    """Raise ValueError unless some file, or where nothing is widened the first file, has all columns; some file has
    each field in exclude; and a field is left.
    """
    anywhere = [*{leaf: None for file in files for leaf in (*file.leaves, *file.others)}]
    leaves = anywhere if widens else [*first.leaves, *first.others]
    under = by_name(leaves)
    if columns is None:
        everywhere = by_name(anywhere)
        unknown = [name for name in exclude if name not in everywhere]
    else:
        unknown = [name for name in columns if name not in under]
    if unknown:
        known = sorted({leaf[0] for leaf in leaves})
        raise ValueError(
            f"{first.path} has no columns {unknown}; its fields are {known}.{nearest(unknown, [*known, *under])}"
        )
    if not any(file.leaves for file in files):
        raise ValueError(
            f"{first.path}: no column of {[*map('.'.join, leaves)]} is left; an element needs at least one field"
        )


def known_of(files: Sequence[FileFooter], schema: Any, *, unknown_are_null: bool = False) -> Known:
    """What these footers tell of the fields of the schema.

    A footer counts, for a leaf, the places without a value: its own nulls, nulls of the structs and lists around it,
    and empty lists. So a null of a field in a struct is sure only where another field of the struct has fewer. Lists
    with places without a value are ragged; where all have one length of more than 1, the nulls are inside.
    unknown_are_null: take a field of numbers that a writer did not count for one with nulls.
    """
    fields = [leaf for part in schema for leaf in _leaves(Field.of_type(part.name, part.type, {}), ())]
    nulls: Counter[str] = Counter()
    others: Counter[str] = Counter()
    unsure: set[str] = set()
    lengths: dict[str, set[int | None]] = {}
    inside: set[str] = set()
    unders: dict[int, dict[str, list[Path]]] = {}  # by id of the leaves, which files of one kind share
    files = [file for file in files if file.num_rows]
    for file in files:
        under = unders.setdefault(id(file.leaves), by_name(file.leaves))
        least: dict[str, int] = {}  # nulls that a struct has at most
        lacking: set[str] = set()
        for field, around in fields:
            if (missing := next((path for path in (*around, field.path) if path not in under), None)) is not None:
                lacking.add(missing)
                lengths.setdefault(missing, set()).add(None)
                continue
            leaf = ".".join(under[field.path][0])
            count = file.null_counts.get(leaf)
            if leaf in file.list_values:
                length = file.list_values[leaf]
                lengths.setdefault(field.path, set()).add(length if not count or (length or 0) > 1 else None)
                if count and (length or 0) > 1:
                    inside.add(field.path)
            elif count is None and unknown_are_null and is_number(field.type):
                nulls[field.path] += 0
            elif count:
                if around and around[-1] not in least:
                    found = [file.null_counts.get(".".join(each)) for each in under[around[-1]]]
                    least[around[-1]] = min(each for each in found if each is not None)
                own = count - (least[around[-1]] if around else 0)
                if not is_number(field.type):
                    others[field.path] += own
                elif own:
                    nulls[field.path] += own
                else:
                    unsure.add(field.path)
        nulls.update(dict.fromkeys(lacking, file.num_rows))
    ragged = {path for path, found in lengths.items() if len(found) > 1 or None in found}
    return Known(
        {path: nulls[path] for path in [*nulls, *inside]},
        unsure - nulls.keys(),
        ragged,
        inside - ragged,
        sum(file.num_rows for file in files),
        +others,
    )


def _leaves(field: Field, around: tuple[str, ...]) -> Iterator[tuple[Field, tuple[str, ...]]]:
    """The fields that become an array, each with the paths of the structs around it."""
    if not field.parts:
        yield field, around
    for part in field.parts:
        yield from _leaves(part, (*around, field.path))
