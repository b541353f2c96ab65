"""What sources of groups of rows share, which are decoded as a whole: how these are shuffled."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.arguments import mapping
from datarax_ray.plan.orders.block_shuffle import WINDOW_BLOCKS
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.elements.transforms import Step
from datarax_ray.read.formats.grouped_rows import GroupedRows
from datarax_ray.sources.base.config import check_shuffled
from datarax_ray.sources.base.indexed import IndexedSourceConfig

logger = logging.getLogger("datarax_ray")

# Decoded rows that are mixed with one another, by default: they are in memory at once, in all actors together.
_WINDOW_NBYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class WindowsConfig(IndexedSourceConfig):
    """What is shuffled of records that are decoded in groups; see RowGroupsConfig. unit: what a group is called."""

    unit: ClassVar[str] = "row groups"
    shuffle_window: int | None = None
    shuffle_block_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shuffled(self, "shuffle_window", "shuffle_block_size")
        if self.shuffle_window is not None and self.shuffle_block_size is not None:
            raise ValueError(
                f"shuffle_window counts {self.unit}, which shuffle_block_size leaves aside; give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class RowGroupsConfig(WindowsConfig):
    """How groups of rows are read; see IndexedSourceConfig for the other fields.

    shuffle: in every epoch, row groups in a new order, and rows mixed within windows of them: each row group is decoded
        once, at the price that a row comes near others of its window. False is the order of the files.
    shuffle_window: row groups in a window (small ones count together as one of 4 MiB); None for as many as 256 MiB of
        decoded rows, at least 1 and at most 64. A window is in memory at once, over all actors.
    shuffle_block_size: shuffle blocks of this many rows instead of row groups, in windows of 64. 1 is one permutation
        of all rows, and slow: a chunk needs rows of nearly every row group, which are decoded again and again unless
        cacheable=True keeps them, the dataset once over all actors.
    fill_nulls: what to put in place of nulls, by field ("a.b" inside a struct); None for a field keeps it on the host,
        as objects, whatever it holds. Without it a number or struct that is null in the first rows is on the host, with
        None; a null that only comes later breaks its row. Where a field inside a struct is named, a
        null of the struct is one of each field in it; {"a": None} has the struct itself, as dicts and None. In CSV a
        text of no characters is null for the fields named here.
    """

    fill_nulls: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fill_nulls is not None:
            mapping("fill_nulls", self.fill_nulls, "field")


def in_row_groups(config: WindowsConfig, reader: Any) -> tuple[Any, dict[str, Any]]:
    """The reader, with room for two windows of its row groups, and the order that the config names.

    reader: of read.formats.parquet, or one like it. The order is in arguments of IndexedSourceModule.
    """
    block_size = config.shuffle_block_size
    groups = reader.groups if block_size is None else None
    window_blocks = WINDOW_BLOCKS
    if groups is not None and config.shuffle:
        largest = int(np.diff(groups.starts).max()) * reader.mean_nbytes
        window_blocks = config.shuffle_window or _window_blocks(groups, reader.mean_nbytes)
        reader = reader.with_room_for(2 * window_blocks * largest)  # the last of one window and the next
    block_size = None if block_size == 1 else block_size
    return reader, {"block_size": block_size, "groups": groups, "window_blocks": window_blocks}


def _window_blocks(groups: RecordGroups, row_nbytes: int) -> int:
    """Row groups whose decoded rows are 256 MiB, by the larger of them.

    >>> _window_blocks(RecordGroups([1000] * 99), 4096), _window_blocks(RecordGroups([10**6]), 4096)
    (64, 1)
    """
    typical = int(np.quantile(np.diff(groups.starts), 0.9)) * max(1, row_nbytes)
    return max(1, min(WINDOW_BLOCKS, _WINDOW_NBYTES // max(1, typical)))


def warn_of_nulls(reader: GroupedRows, steps: Sequence[Step]) -> None:
    """Say which numbers are no array, once of the same files. A transform of single elements has a None to fill in or
    to leave out, which is an error where it stays.
    """
    names = reader.numbers_with_nulls
    if names and all(step.kind == "map_columns" for step in steps):
        _warn_of_nulls(reader.locate(0), tuple(names))


@functools.cache  # each copy of a source looks at the first rows anew
def _warn_of_nulls(first: str, names: tuple[str, ...]) -> None:
    logger.warning(
        "numbers with nulls stay on the host, as objects with None: %s. fill_nulls={%r: 0} in the source's config "
        "makes an array of them, fill_nulls={%r: None} ends this warning",
        ", ".join(names),
        names[0],
        names[0],
    )
