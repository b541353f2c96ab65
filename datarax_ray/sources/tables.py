"""Parquet, CSV and JSON lines as NNX sources: rows of files, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from datarax_ray.plan.arguments import mapping, names, ordered
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.text.reader import TextReader
from datarax_ray.read.formats.text.syntax import CSV, JSONLines, Syntax
from datarax_ray.sources.base.files import ColumnsSource, FilesSource, RemoteFilesConfig, RowGroupsConfig, in_row_groups


@dataclass(frozen=True, kw_only=True)
class ParquetSourceConfig(RowGroupsConfig, RemoteFilesConfig):
    """How Parquet files are read; endless unless num_epochs is given. See RowGroupsConfig for the other fields, and
    RemoteFilesConfig for those of files behind http(s)://, s3:// and gs://.

    exclude_columns: fields not to read; not together with the source's columns.

    >>> ParquetSourceConfig(shuffle=True, num_epochs=3, fill_nulls={"age": -1}).shuffle_window is None
    True
    """

    exclude_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exclude_columns", names("exclude_columns", self.exclude_columns))


class ParquetSource(ColumnsSource[ParquetSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of Parquet files, as dicts of their fields, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
        list of these, on one filesystem.
    columns: fields to read, "a.b" for that of this name, or else for one inside a struct; None for all.
    filesystem: a pyarrow or fsspec filesystem that paths are on.
    transforms: applied in this order; without those that take single elements, rows stay whole columns from the file to
        the batch, and `map_columns(columns)` works on these.

    datarax_ray.read.formats.arrow.columns says what a field becomes: numbers and lists of one length are dense arrays,
    other lists of numbers an array for each row, on the host (PadTo makes them dense). The footers and the first rows
    decide; a row that does not fit is broken, and its error says how to decide otherwise.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, incomplete Parquet files, files
    whose fields differ, or unknown columns; RecordError from reading, for a row group that does not decode (its page
    checksums are verified where it has them), a value that has no place, or a transform that raises.
    """

    config_type = ParquetSourceConfig

    def _opened(self, config: ParquetSourceConfig) -> tuple[ParquetReader, dict[str, Any]]:
        reader = ParquetReader.of(
            self.paths,
            columns=self.columns,
            exclude=config.exclude_columns,
            filesystem=self.filesystem,
            fill_nulls=config.fill_nulls,
            remote=config.remote,
        )
        return in_row_groups(config, reader)


@dataclass(frozen=True, kw_only=True)
class _TextConfig(RowGroupsConfig):
    """The fields of both kinds of text."""

    column_types: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column_types is not None:
            mapping("column_types", self.column_types, "field")
        self.syntax()

    def syntax(self) -> Syntax:
        """The format of the files. Raises: TypeError, ValueError for settings that make none."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JSONLinesSourceConfig(_TextConfig):
    """How JSON lines are read; endless unless num_epochs is given. See RowGroupsConfig for the other fields.

    Row groups are blocks of up to 4 MiB of text.

    column_types: Arrow types, or their names ("float32", "string"), of columns whose type is not to be inferred.

    >>> JSONLinesSourceConfig(shuffle=True, column_types={"zip": "string"}).num_epochs
    -1
    """

    def syntax(self) -> Syntax:
        """The format of the files."""
        return JSONLines()


@dataclass(frozen=True, kw_only=True)
class CSVSourceConfig(_TextConfig):
    """How CSV is read; endless unless num_epochs is given. See RowGroupsConfig for the other fields.

    Row groups are blocks of up to 4 MiB of text.

    column_types: Arrow types, or their names ("float32", "string"), of columns whose type is not to be inferred:
        "01234" would be the number 1234.
    delimiter: between values.
    column_names: of files without a header, whose first row is then read as data; None where it names the columns.

    >>> CSVSourceConfig(delimiter="\\t", column_types={"zip": "string"}).shuffle
    False
    """

    delimiter: str = ","
    column_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.column_names is not None:
            ordered("column_names", self.column_names)
            object.__setattr__(self, "column_names", names("column_names", self.column_names))
        super().__post_init__()

    def syntax(self) -> Syntax:
        """The format of the files."""
        return CSV(self.delimiter, self.column_names)


_TextKind = TypeVar("_TextKind", bound=_TextConfig)


class _TextSource(FilesSource[_TextKind], pytree=False):  # type: ignore[call-arg]
    """The rows of text files; CSVSource and JSONLinesSource differ in their configs."""

    def _opened(self, config: _TextKind) -> tuple[TextReader, dict[str, Any]]:
        reader = TextReader.of(
            self.paths,
            config.syntax(),
            filesystem=self.filesystem,
            column_types=config.column_types,
            fill_nulls=config.fill_nulls,
        )
        return in_row_groups(config, reader)


class CSVSource(_TextSource[CSVSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of CSV files, as dicts of their columns, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
        list of these, on one filesystem.
    filesystem: a pyarrow or fsspec filesystem that paths are on.
    transforms: applied in this order; without those that take single elements, rows stay whole columns from the file to
        the batch.

    The first row of each file names the columns. For files without such a header, give column_names in the config.

    pyarrow parses the rows. The first 4 MiB of the first file decide the types of all columns, and a row that does not
    fit is broken. Name in column_types the types that these rows do not show, and "string" for texts that are to stay
    as they are: zip codes with zeros in front are numbers to pyarrow, and dates are times.
    datarax_ray.read.formats.arrow.columns says what a column becomes.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, files whose columns differ, or
    first rows of which most do not parse; RecordError from reading, for a row that does not parse, a value that has no
    place, or a transform that raises; ValueError for a file that was replaced or is changed while it is read.
    """

    config_type = CSVSourceConfig


class JSONLinesSource(_TextSource[JSONLinesSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The objects of JSON lines, as dicts of their fields, in an order that is a pure function of the position.

    paths, filesystem, transforms, types and errors: as of CSVSource. A field that an object lacks is null. A field that
    the first 4 MiB of the first file do not have breaks its row, unless column_types names it.
    """

    config_type = JSONLinesSourceConfig
