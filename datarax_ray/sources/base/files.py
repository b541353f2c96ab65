"""The base of all sources of files: configs of the order, of remote files and of text, and the opening of paths."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from flax import nnx

from datarax_ray.plan.arguments import mapping, names, whole
from datarax_ray.plan.orders.kinds import WINDOW_BLOCKS
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.files.paths import kept
from datarax_ray.read.files.shards import MissingShards, check_policy, going_by
from datarax_ray.read.formats.array_record.files import RecordFile
from datarax_ray.read.formats.arrow.types import OnNull
from datarax_ray.read.formats.remote.ranges import Remote
from datarax_ray.read.formats.text.syntax import check_errors
from datarax_ray.sources.base.config import SourceConfig, check_shuffled
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule

logger = logging.getLogger("datarax_ray")

FEW_RECORDS = 2**16  # two parts of a chunk: of what is read at once each group is decoded once
# Decoded rows that are mixed with one another, by default: they are in memory at once, in all actors together.
_WINDOW_NBYTES = 256 * 2**20

Config = TypeVar("Config", bound="FilesConfig")


@dataclass(frozen=True, kw_only=True)
class FilesConfig(IndexedSourceConfig):
    """How files are found; see IndexedSourceConfig for the other fields.

    missing_shards: "error" for a directory, glob or index with shards that their names or the index promise and that
        are not there; "warn" to go on without them, with a line in the log.
    """

    missing_shards: MissingShards = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_policy(self.missing_shards)


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(FilesConfig):
    """How files of single records are read; see IndexedSourceConfig for the other fields.

    shuffle: one permutation over all records of all files in every epoch.
    shuffle_block_size: with shuffle, permute blocks of this many consecutive records, then records within windows of 64
        blocks. Each block is one read. None for single records.
    """

    shuffle_block_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shuffled(self, "shuffle_block_size")


@dataclass(frozen=True, kw_only=True)
class WindowsConfig(FilesConfig):
    """The shuffle of records that are decoded in groups; see RowGroupsConfig, with `unit` for their name."""

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
    """How groups of rows are read; endless unless num_epochs is given. The base of the configs of tables.

    shuffle: in every epoch, read row groups in a new order, and mix rows within windows of row groups. An epoch decodes
        each row group once; rows of one window stay near one another. False is the order of the files.
    shuffle_window: row groups in a window (small ones count together as one of 4 MiB); None for as many as 256 MiB of
        decoded rows, at least 1 and at most 64. All actors together hold one window in memory.
    shuffle_block_size: shuffle blocks of this many rows instead of row groups, in windows of 64. 1 is one permutation
        of all rows, and slow: a chunk needs rows of nearly every row group, so actors decode row groups again and
        again. cacheable=True avoids this: all actors together then keep the dataset once.
    on_null: what becomes of nulls, in one word for all fields, or by field ("a.b" inside a struct). A value stands in
        their place, where the field's type holds it exactly; "host" has a number or struct with nulls on the host, with
        None; "error" refuses numbers, lists of them and structs that have nulls. None is as "host", with a warning.
        Footers tell of nulls of Parquet; else the first rows tell, and a later null breaks its row. If a field inside a
        struct has a value, a null struct is a null of every field inside; {"a": "host"} keeps the struct as dicts and
        None. In CSV, empty text is null for the fields that have a value here.
    """

    on_null: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        OnNull.of(self.on_null)


@dataclass(frozen=True, kw_only=True)
class RemoteFilesConfig(FilesConfig):
    """How files behind URLs are read; see IndexedSourceConfig for the other fields.

    remote_nbytes: bytes of these files that each process keeps in memory, at least those of one block.
    cache_dir, cache_nbytes: a folder on each reading host, absolute or from ~, and its limit in bytes for all processes
        together. It keeps bytes of files behind URLs for later epochs and starts. Without a limit it is a fifth of the
        disk that is free, or held by the cache, where the config is made.
    """

    remote_nbytes: int = Remote.nbytes
    cache_dir: str | os.PathLike[str] | None = None
    cache_nbytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "remote_nbytes", whole("remote_nbytes", self.remote_nbytes, least=0))
        if self.cache_dir is None and self.cache_nbytes is not None:
            raise ValueError(f"cache_nbytes={self.cache_nbytes!r} limits a folder: give it too, as cache_dir")
        if self.cache_dir is not None:
            folder = os.fspath(self.cache_dir)
            if not os.path.isabs(os.path.expanduser(folder)):
                raise ValueError(f"cache_dir={folder!r} is relative to nothing on other hosts; give an absolute path")
            given = _fifth_of_disk(folder) if self.cache_nbytes is None else self.cache_nbytes
            object.__setattr__(self, "cache_dir", folder)
            object.__setattr__(self, "cache_nbytes", whole("cache_nbytes", given, least=0))
        super().__post_init__()

    @property
    def remote(self) -> Remote:
        """How files behind URLs are read."""
        folder, nbytes = os.fspath(self.cache_dir or ""), self.cache_nbytes or 0
        return Remote(self.remote_nbytes, cache_dir=folder, cache_nbytes=nbytes)

    def warn_of_requests(self, files: Sequence[RecordFile], *, by_group: bool) -> None:
        """Warn where an epoch of files behind URLs takes a request for each record. by_group: of the order."""
        far = [file for file in files if file.version]
        nbytes, num_records = sum(file.nbytes for file in far), sum(file.take for file in far)
        kept_nbytes = self.remote_nbytes + (self.cache_nbytes or 0)
        if by_group or kept_nbytes >= nbytes or num_records <= FEW_RECORDS:
            return
        has_blocks = hasattr(self, "shuffle_block_size")
        logger.warning(
            "%d files behind URLs (%s the first), %.1f GB, are read record by record: %d requests in an epoch, "
            "and an actor gets 1,600 or so answered a second. %scache_dir= with cache_nbytes= keeps them on each host",
            len(far),
            far[0].name,
            nbytes / 1e9,
            num_records,
            'shuffle_block_size="auto" reads whole groups, in another order; ' if has_blocks else "",
        )


@functools.cache  # of a folder one answer, and one line
def _fifth_of_disk(folder: str) -> int:
    path = Path(folder).expanduser()
    held = sum(file.stat().st_blocks * 512 for file in path.glob("*") if file.is_file())
    nbytes = (shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free + held) // 5
    logger.info(
        "cache_dir=%s holds up to %.1f GB, a fifth of the free disk; cache_nbytes= sets it", folder, nbytes / 1e9
    )
    return nbytes


class FilesSource(IndexedSourceModule, Generic[Config], pytree=False):  # type: ignore[call-arg]
    """The records of files; each kind of file has its own reader.

    beside: the arguments that a kind of file has beside these; it sets the attributes before it calls this __init__.
    """

    beside: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        config: Config,
        paths: Any,
        *,
        transforms: Any = (),
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.paths = kept(paths)
        self.filesystem = filesystem
        with going_by(config.missing_shards):
            reader, order = self._opened(config)
        given = {part: getattr(self, part) for part in ("paths", "filesystem", *self.beside)}
        super().__init__(config, given, reader, **order, transforms=transforms, rngs=rngs, name=name)

    def _opened(self, config: Config) -> tuple[Any, dict[str, Any]]:
        """The reader of paths, on filesystem; and the order, in arguments of IndexedSourceModule."""
        raise NotImplementedError


class ColumnsSource(FilesSource[Config], pytree=False):  # type: ignore[call-arg]
    """The records of files that are read by column. columns: to read, None for all."""

    beside = ("columns",)

    def __init__(
        self,
        config: Config,
        paths: Any,
        *,
        transforms: Any = (),
        columns: Iterable[str] | None = None,
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.columns = None if columns is None else names("columns", columns)
        super().__init__(config, paths, transforms=transforms, filesystem=filesystem, rngs=rngs, name=name)


def in_row_groups(config: WindowsConfig, reader: Any) -> tuple[Any, dict[str, Any]]:
    """The reader with room for two windows of its row groups; and the config's order, as arguments of
    IndexedSourceModule. By default a window has as many row groups as 256 MiB of decoded rows.
    """
    block_size, window_blocks = config.shuffle_block_size, WINDOW_BLOCKS
    groups = reader.groups if block_size is None else None
    if groups is not None and config.shuffle:
        largest = int(np.diff(groups.starts).max()) * reader.mean_nbytes
        window_blocks = config.shuffle_window or _window_blocks(groups, reader.mean_nbytes)
        reader = reader.with_room_for(2 * window_blocks * largest)  # the last of one window and the next
    return reader, {
        "block_size": None if block_size == 1 else block_size,
        "groups": groups,
        "window_blocks": window_blocks,
    }


def _window_blocks(groups: RecordGroups, row_nbytes: int) -> int:
    """Row groups whose decoded rows are 256 MiB, by the larger of them."""
    typical = int(np.quantile(np.diff(groups.starts), 0.9)) * max(1, row_nbytes)
    return max(1, min(WINDOW_BLOCKS, _WINDOW_NBYTES // max(1, typical)))


@dataclass(frozen=True, kw_only=True)
class TextConfig(SourceConfig):
    """How text is decoded, and its columns typed; see SourceConfig for the other fields.

    column_types: Arrow types, or their names ("float32", "string"), of columns that pyarrow should not infer:
        in CSV, "01234" would be the number 1234. "json" for values of any kind, as Python's json has them, on the host.
    errors: "strict" if a row with text that is not UTF-8, or half a surrogate pair, is broken; "replace" to read it,
        with U+FFFD in place of such text.
    schema_rows: rows of each file that decide the types of columns; None for a share of all blocks, -1 for all rows.
    """

    column_types: Mapping[str, Any] | None = None
    errors: str = "strict"
    schema_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column_types is not None:
            mapping("column_types", self.column_types, "field")
        check_errors(self.errors)
        if self.schema_rows is not None:
            object.__setattr__(self, "schema_rows", whole("schema_rows", self.schema_rows, least=-1))
            if not self.schema_rows:
                raise ValueError("schema_rows=0 leaves no row to decide the types of columns; -1 is all rows")
