"""CSV and JSON lines as NNX sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from datarax_ray.plan.arguments import mapping, names, ordered
from datarax_ray.read.formats.text.reader import TextReader
from datarax_ray.read.formats.text.syntax import CSV, JSONLines, Syntax
from datarax_ray.sources.base.files import FilesSource
from datarax_ray.sources.base.row_groups import RowGroupsConfig, in_row_groups

# Of a row of text all is parsed: there is nothing to spare by reading less.
_ALL_FIELDS = "All fields are read; keep some in a transform: transforms=[lambda element: {'x': element['x']}]"
_INSTEAD_OF = {"columns": _ALL_FIELDS, "exclude_columns": _ALL_FIELDS}


@dataclass(frozen=True, kw_only=True)
class _TextConfig(RowGroupsConfig):
    """What both kinds of text share."""

    instead_of: ClassVar[Mapping[str, str]] = _INSTEAD_OF
    column_types: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column_types is not None:
            mapping("column_types", self.column_types, "field")
        self.syntax()

    def syntax(self) -> Syntax:
        """The format of the files. Raises: TypeError, ValueError for what is none."""
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
    "01234" would be the number 1234. delimiter: between values. column_names: of files without a header, whose
    first row is then read as data; None where it names the columns.

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
    """The rows of text files; see CSVSource and JSONLinesSource, which differ in their configs."""

    instead_of: ClassVar[Mapping[str, str]] = _INSTEAD_OF

    def _opened(self, config: _TextKind) -> tuple[TextReader, dict[str, Any]]:
        types, fill = config.column_types, config.fill_nulls
        syntax = config.syntax()
        reader = TextReader.of(self.paths, syntax, filesystem=self.filesystem, column_types=types, fill_nulls=fill)
        return in_row_groups(config, reader)


class CSVSource(_TextSource[CSVSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of CSV files, as dicts of their columns, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
    list of these, on one filesystem. filesystem: a pyarrow or fsspec filesystem that paths are on. transforms: applied
    in this order; without those that take single elements, rows stay whole columns from the file to the batch.

    The first row of each file names the columns; of files without such a header it is taken for one all the same: give
    column_names in the config, and it is a row as the others are.

    pyarrow parses them. The first 4 MiB of the first file decide the types of all columns, and a row that does not fit
    is broken: name the types that they do not show in column_types, and "string" for texts that are to stay what they
    are: zip codes with zeros in front are numbers to pyarrow, and dates are times. What a column becomes then stands in
    the table of datarax_ray.read.formats.arrow.column_types.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, files whose columns differ, or
    of whose first rows most do not parse; RecordError from reading, for a row that does not parse, a value that has no
    place, or a transform that raises; ValueError for a file that was replaced or is changed while it is read.
    """

    config_type = CSVSourceConfig


class JSONLinesSource(_TextSource[JSONLinesSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The objects of JSON lines, as dicts of their fields, in an order that is a pure function of the position.

    paths, filesystem, transforms, types and what is raised: as of CSVSource. A field that an object lacks is null; one
    that the first 4 MiB of the first file do not have breaks its row, unless column_types names it.
    """

    config_type = JSONLinesSourceConfig
