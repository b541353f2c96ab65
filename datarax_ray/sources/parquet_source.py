"""Parquet files as an NNX source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import names
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.sources.base.files import FilesSource
from datarax_ray.sources.base.remote import RemoteFilesConfig
from datarax_ray.sources.base.row_groups import RowGroupsConfig, in_row_groups


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


class ParquetSource(FilesSource[ParquetSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The rows of Parquet files, as dicts of their fields, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
        list of these, on one filesystem.
    columns: fields to read, "a.b" for that of this name, or else for one inside a struct; None for all.
    filesystem: a pyarrow or fsspec filesystem that paths are on.
    transforms: applied in this order; without those that take single elements, rows stay whole columns from the file to
        the batch, and `map_columns(columns)` works on these.

    What a field becomes stands in the table of datarax_ray.read.formats.arrow.column_types: numbers and lists of one
    length are dense arrays, other lists of numbers an array for each row, on the host (PadTo makes them dense). The
    footers and the first rows decide; a row that does not fit is broken, and its error says how to decide otherwise.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, what is no whole Parquet file,
    files whose fields differ, or unknown columns; RecordError from reading, for a row group that does not decode (its
    page checksums are verified where it has them), a value that has no place, or a transform that raises.
    """

    config_type = ParquetSourceConfig
    beside = ("columns",)

    def __init__(
        self,
        config: ParquetSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        columns: Iterable[str] | None = None,
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.columns = columns if columns is None or isinstance(columns, str) else tuple(columns)
        super().__init__(config, paths, transforms=transforms, filesystem=filesystem, rngs=rngs, name=name)

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
