"""Parquet, text and Lance as NNX sources: rows of files, as columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flax import nnx

from datarax_ray.plan.arguments import mapping, names, ordered, whole
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.paths import for_people, kept
from datarax_ray.read.formats.arrow.joining import Joins
from datarax_ray.read.formats.arrow.types import OnNull
from datarax_ray.read.formats.lance import LanceReader
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.text.blocks import TextReader
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.shards import SUFFIXES_OF_TEXT, TextShards, UnpackedFiles, head_of
from datarax_ray.read.formats.text.syntax import CSV, Lines, Syntax
from datarax_ray.sources.base.files import (
    BlocksConfig,
    ColumnsSource,
    FilesSource,
    RemoteFilesConfig,
    RowGroupsConfig,
    TextConfig,
    in_row_groups,
)
from datarax_ray.sources.base.indexed import IndexedSourceModule
from datarax_ray.sources.base.stream import StreamConfig, StreamSourceModule


@dataclass(frozen=True, kw_only=True)
class ParquetSourceConfig(RowGroupsConfig, RemoteFilesConfig):
    """How Parquet files are read; endless unless num_epochs is given. See RowGroupsConfig for the other fields, and
    RemoteFilesConfig for files behind http(s)://, s3:// and gs://.

    exclude_columns: fields to skip; not together with the source's columns.
    schema: "widen" reads a field of several types as one that holds all values of all files (int32 and int64 as int64,
        timestamps in the finer unit, a field that some files lack with nulls), and says so in the log; types that no
        other type holds exactly are an error. "strict" makes every difference an error.
    column_types: Arrow types, or their names ("float64", "string"), of fields that are to be read as these. Floats may
        round integers; another value that the type does not hold breaks its row.

    >>> ParquetSourceConfig(shuffle=True, num_epochs=3, on_null={"age": -1}).shuffle_window is None
    True
    """

    exclude_columns: tuple[str, ...] = ()
    schema: str = "widen"
    column_types: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column_types is not None:
            mapping("column_types", self.column_types, "field")
        Joins.of(self.schema, None)
        object.__setattr__(self, "exclude_columns", names("exclude_columns", self.exclude_columns))


class ParquetSource(ColumnsSource[ParquetSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of Parquet files, as dicts of their fields, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, or another scheme of pyarrow or fsspec), a pathlib.Path,
        or a list of these, on one filesystem.
    columns: fields to read, None for all. "a.b" is the field of this name, else field b inside struct a.
    filesystem: the pyarrow or fsspec filesystem of the paths; None to choose it by the URL.
    transforms: applied in this order. Without transforms of single elements, rows stay whole columns from the file to
        the batch, and `map_columns(columns)` works on these columns.

    The table of datarax_ray.read.formats.arrow.columns lists the array of each type: numbers and lists of one length
    are dense; other lists of numbers are an array for each row, on the host (PadTo makes them dense). Footers and first
    rows decide. A later row that does not fit is broken, and its error names the setting for such rows.

    Raises: FileNotFoundError, ValueError at construction for paths without files, incomplete Parquet files, files with
    different fields, or unknown columns; RecordError from reading, for a row group that does not decode (page checksums
    are verified where present), a value without a place, or a transform that raises.
    """

    config_type = ParquetSourceConfig

    def _opened(self, config: ParquetSourceConfig) -> tuple[ParquetReader, dict[str, Any]]:
        reader = ParquetReader.of(
            self.paths,
            columns=self.columns,
            exclude=config.exclude_columns,
            filesystem=self.filesystem,
            schema=config.schema,
            column_types=config.column_types,
            on_null=config.on_null,
            remote=config.remote,
        )
        return in_row_groups(config, reader)


@dataclass(frozen=True, kw_only=True)
class _TextConfig(RowGroupsConfig, TextConfig):
    """The fields of all kinds of text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.syntax()

    def syntax(self) -> Syntax:
        """The format of the files. Raises: TypeError, ValueError for contradictory settings."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JSONLinesSourceConfig(_TextConfig):
    """How JSON lines are read; endless unless num_epochs is given. See RowGroupsConfig and TextConfig for the fields.

    Row groups are blocks of up to 4 MiB of text.

    >>> JSONLinesSourceConfig(shuffle=True, column_types={"zip": "string"}).num_epochs
    -1
    """

    def syntax(self) -> Syntax:
        return JSONLines(errors=self.errors)


@dataclass(frozen=True, kw_only=True)
class CSVSourceConfig(_TextConfig):
    """How CSV is read; endless unless num_epochs is given. See RowGroupsConfig and TextConfig for the other fields.

    Row groups are blocks of up to 4 MiB of text.

    delimiter: between values.
    column_names: for files without a header: their first row is data. None if the first row names the columns.
    skip_rows: rows of each file, before its header or the first of its data, that are neither, as comments.

    >>> CSVSourceConfig(delimiter="\\t", column_types={"zip": "string"}).shuffle
    False
    """

    delimiter: str = ","
    column_names: tuple[str, ...] | None = None
    skip_rows: int = 0

    def __post_init__(self) -> None:
        if self.column_names is not None:
            ordered("column_names", self.column_names)
            object.__setattr__(self, "column_names", names("column_names", self.column_names))
        object.__setattr__(self, "skip_rows", whole("skip_rows", self.skip_rows, least=0))
        super().__post_init__()

    def syntax(self) -> Syntax:
        return CSV(self.delimiter, self.column_names, self.skip_rows, errors=self.errors)


@dataclass(frozen=True, kw_only=True)
class TextLinesSourceConfig(_TextConfig):
    """How lines of text are read; endless unless num_epochs is given. See RowGroupsConfig for the other fields.

    Row groups are blocks of up to 4 MiB of text.

    >>> TextLinesSourceConfig(shuffle=True, errors="replace").num_epochs
    -1
    """

    def syntax(self) -> Syntax:
        return Lines(errors=self.errors)


_TextKind = TypeVar("_TextKind", bound=_TextConfig)


class _TextSource(FilesSource[_TextKind], pytree=False):  # type: ignore[call-arg]
    """The rows of text files; the sources differ in their configs."""

    def _opened(self, config: _TextKind) -> tuple[TextReader, dict[str, Any]]:
        reader = TextReader.of(
            self.paths,
            config.syntax(),
            filesystem=self.filesystem,
            column_types=config.column_types,
            on_null=config.on_null,
            schema_rows=config.schema_rows,
        )
        return in_row_groups(config, reader)


class CSVSource(_TextSource[CSVSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of CSV files, as dicts of their columns, in an order that is a pure function of the position.

    paths, filesystem: as of ParquetSource.
    transforms: applied in this order. Without transforms of single elements, rows stay whole columns from the file to
        the batch.

    The first row of each file names the columns. For files without such a header, give column_names in the config.

    pyarrow parses the rows. The first 4 MiB of the first file, and a share of every block of all files, decide the
    types of all columns (config.schema_rows sets the share), and a row that does not fit is broken. Set column_types
    for types that these rows do not show, and "string" for text that should stay text: pyarrow reads zip codes with
    leading zeros as numbers, and dates as times.
    The table of datarax_ray.read.formats.arrow.columns lists the array of each type.

    Raises: FileNotFoundError, ValueError at construction for paths without files, files with different columns, or
    first rows that mostly do not parse; RecordError from reading, for a row that does not parse, a value without a
    place, or a transform that raises; ValueError for a file that was replaced, or changes while it is read.
    """

    config_type = CSVSourceConfig


class JSONLinesSource(_TextSource[JSONLinesSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The objects of JSON lines, as dicts of their fields, in an order that is a pure function of the position.

    paths, filesystem, transforms, types and errors: as of CSVSource. A file may also be one array of objects. A missing
    field is null. A field that no row has by which types are decided breaks its row, unless column_types names the
    field. Times are text.
    """

    config_type = JSONLinesSourceConfig


class TextLinesSource(_TextSource[TextLinesSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The lines of text files, each as {"text": line}, in an order that is a pure function of the position.

    paths, filesystem, transforms and errors: as of CSVSource. Lines end with \\n or \\r\\n, which are no part of them,
    and a line without characters is "".
    """

    config_type = TextLinesSourceConfig


@dataclass(frozen=True, kw_only=True)
class LanceSourceConfig(BlocksConfig):
    """How a Lance dataset is read; endless unless num_epochs is given. See BlocksConfig for the other fields.

    version: of the dataset; None for the latest when the source is made, which its states then name.
    columns: to read, None for all.
    on_null: what becomes of nulls; see RowGroupsConfig. All rows tell of nulls and of the lengths of lists where they
        take up to 256 MiB; else the first 4,096 rows tell.

    >>> LanceSourceConfig(shuffle=True, version=3, columns=["x"]).columns
    ('x',)
    """

    version: int | None = None
    columns: tuple[str, ...] | None = None
    on_null: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version is not None:
            object.__setattr__(self, "version", whole("version", self.version, ", or None for the latest"))
        if self.columns is not None:
            object.__setattr__(self, "columns", names("columns", self.columns))
        OnNull.of(self.on_null)


class LanceSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The rows of one version of a Lance dataset, as dicts of their columns, in an order by position.

    paths: the folder of the dataset, or its URL. storage_options: for the URL, as `lance.dataset` takes them.
    transforms: applied in this order; without those that take single elements, rows stay whole columns from the file
    to the batch. Needs the extra: pip install 'datarax-ray[lance]'.

    A state names the version: rows that are appended later, deleted or compacted change nothing in a stream that goes
    on. A new source reads the latest version; a state of an older one is refused there, and
    LanceSourceConfig(version=...) resumes it, as long as the version is not cleaned up.

    Raises: ImportError without pylance; ValueError at construction for what is no dataset, and for a version or column
    that is not there; RecordError from reading, for a null without a place or a transform that raises.
    """

    config_type = LanceSourceConfig

    def __init__(
        self,
        config: LanceSourceConfig,
        paths: str | os.PathLike[str],
        *,
        transforms: Any = (),
        storage_options: Mapping[str, str] | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(paths, str | os.PathLike):
            raise TypeError(f"paths is one Lance dataset, a path or URL, got {type(paths).__name__}; mix several")
        reader = LanceReader.of(paths, config.version, config.columns, config.on_null, storage_options)
        super().__init__(
            replace(config, version=reader.version),  # a copy reads the same version
            {"paths": paths, "storage_options": storage_options},
            reader,
            block_size=config.shuffle_block_size,
            transforms=transforms,
            rngs=rngs,
            name=name,
        )


FORMATS = ("jsonl", "csv", "text")


@dataclass(frozen=True, kw_only=True)
class TextStreamSourceConfig(StreamConfig, TextConfig):
    """How compressed text is read; endless unless num_epochs is given. See StreamConfig and TextConfig for the
    other fields.

    format: "jsonl" (or one array of objects), "csv" or "text", a text on each line; None to tell by the first file.
    delimiter: of CSV; None to tell by the first file.
    column_names: of CSV without a header: the first row is data. None if the first row names the columns.
    skip_rows: of CSV, rows of each file, before its header or the first of its data, that are neither, as comments.
    on_null: what becomes of nulls; see RowGroupsConfig.
    schema_rows: rows of each file that decide the types of columns; None for its first 256 KiB, -1 for all rows.

    >>> TextStreamSourceConfig(shuffle=True, column_types={"zip": "string"}).turn_size
    16
    """

    format: str | None = None
    delimiter: str | None = None
    column_names: tuple[str, ...] | None = None
    skip_rows: int = 0
    on_null: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        OnNull.of(self.on_null)
        if self.column_names is not None:
            ordered("column_names", self.column_names)
            object.__setattr__(self, "column_names", names("column_names", self.column_names))
        object.__setattr__(self, "skip_rows", whole("skip_rows", self.skip_rows, least=0))
        if self.format not in (None, *FORMATS):
            raise ValueError(f"format is one of {FORMATS}, or None to tell by the first file; got {self.format!r}")
        self.syntax("CSV", b"")

    def syntax(self, found: str | None, head: bytes) -> Syntax:
        """The syntax of files that look like this format, and begin so. Raises: ValueError for no format of text."""
        of_kinds = {"CSV": "csv", "JSON lines": "jsonl", "JSON array": "jsonl", "text": "text"}
        kind = self.format or of_kinds.get(found or "")
        if kind == "jsonl":
            return JSONLines(errors=self.errors)
        if kind == "csv":
            delimiter = self.delimiter or (sniff.delimiter(head) if head else ",")
            return CSV(delimiter, self.column_names, self.skip_rows, errors=self.errors)
        if kind == "text":
            return Lines(errors=self.errors)
        raise ValueError(f"in it is {found or 'no text'}, and format= of the source's config is one of {FORMATS}")


class TextStreamSource(StreamSourceModule[TextStreamSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of text files, compressed (gzip, zstd, bzip2, xz) or not; each file is a shard that is read forwards.

    Files take turns, and the stream is the same in one process and under RaySource. A state holds for each file the
    bytes of text before its next row; resuming unpacks the file up to there. For a shuffle of all rows, and any row by
    its number, write the files as Parquet or ArrayRecord once: `datarax-ray convert`.

    paths, filesystem: as of ParquetSource. transforms: of single elements or whole columns.

    Rows, types and broken rows are those of JSONLinesSource and CSVSource; a line of text is {"text": line}. The first
    256 KiB of every file decide the types of columns. A later row that does not fit is broken.

    Raises: FileNotFoundError, ValueError at construction for paths without files, files with different columns, or
    first rows that mostly do not parse; RecordError from reading, for a row that does not parse, and, whatever on_error
    says, for a file that was cut short.
    """

    config_type = TextStreamSourceConfig
    instead_of_stream = "write it as Parquet or ArrayRecord by `datarax-ray convert`"

    def __init__(
        self,
        config: TextStreamSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.paths = kept(paths)
        self.filesystem = filesystem
        client, found = find_on(self.paths, filesystem, SUFFIXES_OF_TEXT)
        self._found = found, config.syntax(*head_of(client, found))
        self._options = {
            "filesystem": client,
            "column_types": config.column_types,
            "on_null": config.on_null,
            "schema_rows": config.schema_rows,
        }
        self._reader = TextShards.of(*self._found, **self._options)
        given = {"paths": self.paths, "filesystem": filesystem}
        super().__init__(config, self._reader, given, transforms, rngs=rngs, name=name)

    def indexed(self) -> TextReader:
        """A reader of the rows by number, in the order of the files. Each jump back unpacks a file again."""
        return TextReader.of(*self._found, **self._options, seen_as=UnpackedFiles)

    def __repr__(self) -> str:
        paths, syntax = shown(for_people(self.paths)), self._reader.parser.decided.syntax
        return (
            f"TextStreamSource(paths={paths}, {syntax.name}, {self.describe()}, seed={self.config.seed}, "
            f"{self.config.shown_epochs})"
        )
