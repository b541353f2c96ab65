"""Parquet files as an NNX source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from flax import nnx

from datarax_ray.plan.orders.order import WINDOW_BLOCKS
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.formats.paths import check_ordered
from datarax_ray.sources.config import check_kind
from datarax_ray.sources.indexed import IndexedSourceConfig, IndexedSourceModule

# Decoded rows that are mixed with one another, by default: they are in memory at once, in all actors together.
_WINDOW_NBYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class ParquetSourceConfig(IndexedSourceConfig):
    """How Parquet files are read; see IndexedSourceConfig for the other fields.

    shuffle: in every epoch, row groups in a new order, and rows mixed within windows of them: each row group is decoded
        once, at the price that a row comes near others of its window. False is the order of the files.
    shuffle_window: row groups in a window (small ones count together as one of 4 MiB); None for as many as 256 MiB of
        decoded rows, at least 1 and at most 64. A window is in memory at once, over all actors.
    shuffle_block_size: shuffle blocks of this many rows instead of row groups, in windows of 64. 1 is one permutation
        of all rows, and slow: a chunk needs rows of nearly every row group, which are decoded again and again unless
        cacheable=True keeps them, the dataset once over all actors.
    exclude_columns: fields not to read; not together with the source's columns.
    fill_nulls: what to put in place of nulls, by field ("a.b" inside a struct); None for a field keeps it on the host,
        as objects, whatever it holds. Without it a number that is null in the first rows is on the host, with None; a
        null that only comes later is an error.

    >>> ParquetSourceConfig(shuffle=True, num_epochs=3, fill_nulls={"age": -1}).shuffle_window is None
    True
    """

    shuffle: bool = False
    shuffle_window: int | None = None
    shuffle_block_size: int | None = None
    exclude_columns: tuple[str, ...] = ()
    fill_nulls: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.exclude_columns, str):
            raise TypeError(f"exclude_columns is a tuple of names, got {self.exclude_columns!r}")
        for name in ("shuffle_window", "shuffle_block_size"):
            value = getattr(self, name)
            if value is not None and (value < 1 or not self.shuffle):
                raise ValueError(
                    f"{name} must be at least 1 and needs shuffle=True, got {value} and shuffle={self.shuffle}"
                )
        if self.shuffle_window is not None and self.shuffle_block_size is not None:
            raise ValueError(
                "shuffle_window counts row groups, which shuffle_block_size leaves aside; give one of them"
            )


class ParquetSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The rows of Parquet files, as dicts of their fields, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
    list of these, on one filesystem. columns: fields to read, "a.b" for one inside a struct; None for all. filesystem:
    a pyarrow or fsspec filesystem that paths are on. transforms: applied in this order; without those that take single
    elements, rows stay whole columns from the file to the batch, and `map_columns(columns)` works on these.

    What a field becomes stands in the table of datarax_ray.read.formats.arrow.column_types: numbers and lists of one
    length are dense arrays, other lists of numbers an array for each row, on the host (PadTo makes them dense). The
    footers and the first rows decide; a row group that does not fit is an error that says how to decide otherwise.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, what is no whole Parquet file,
    files whose fields differ, or unknown columns; RecordError from reading, for a row group that does not decode (its
    page checksums are verified where it has them) or a transform that raises; ValueError for a value that does not fit.
    """

    def __init__(
        self,
        config: ParquetSourceConfig,
        paths: Any,
        *,
        transforms: Iterable[Any] = (),
        columns: Iterable[str] | None = None,
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        check_kind(config, ParquetSourceConfig)
        check_ordered(paths)
        paths = paths if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else tuple(paths)
        self.paths = paths
        self.columns = columns if columns is None or isinstance(columns, str) else tuple(columns)
        self.filesystem = filesystem
        reader = ParquetReader.of(
            paths,
            columns=self.columns,
            exclude=config.exclude_columns,
            filesystem=filesystem,
            fill_nulls=config.fill_nulls,
        )
        block_size = config.shuffle_block_size
        groups = reader.groups if block_size is None else None
        window_blocks = WINDOW_BLOCKS
        if groups is not None and config.shuffle:
            largest = int(np.diff(groups.starts).max()) * reader.mean_nbytes
            window_blocks = config.shuffle_window or _window_blocks(groups, reader.mean_nbytes)
            reader = reader.with_room_for(2 * window_blocks * largest)  # the last of one window and the next
        super().__init__(
            config,
            paths,
            reader,
            shuffle=config.shuffle,
            block_size=None if block_size == 1 else block_size,
            groups=groups,
            window_blocks=window_blocks,
            transforms=transforms,
            rngs=rngs,
            name=name,
        )

    def _made_again(self, config: Any, **common: Any) -> Self:
        return type(self)(
            config,
            self.paths,
            transforms=self.describe().transforms,
            columns=self.columns,
            filesystem=self.filesystem,
            **common,
        )

    def __repr__(self) -> str:
        return (
            f"ParquetSource(paths={self.paths!r}, num_records={len(self)}, shuffle={self.config.shuffle}, "
            f"seed={self.config.seed}, num_epochs={self.config.num_epochs})"
        )


def _window_blocks(groups: RecordGroups, row_nbytes: int) -> int:
    """Row groups whose decoded rows are 256 MiB, by the larger of them.

    >>> _window_blocks(RecordGroups([1000] * 99), 4096), _window_blocks(RecordGroups([10**6]), 4096)
    (64, 1)
    """
    typical = int(np.quantile(np.diff(groups.starts), 0.9)) * max(1, row_nbytes)
    return max(1, min(WINDOW_BLOCKS, _WINDOW_NBYTES // max(1, typical)))
