"""ArrayRecord files as NNX sources: as they are, and as TensorFlow Datasets prepared them.

Names and signatures of ArrayRecordSourceModule are those of datarax.sources.array_record_source.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from flax import nnx

from datarax_ray.plan.arguments import flag
from datarax_ray.plan.orders.kinds import WINDOW_BLOCKS, blocks_in_window
from datarax_ray.read.decode.tfds import DecodeTfds, tfds_leaves
from datarax_ray.read.elements.transforms import listed
from datarax_ray.read.files.shards import going_by
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.materialized.records import DecodeMaterialized, yields_in
from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.tfds import find_prepared
from datarax_ray.read.streams.indexed import run_of
from datarax_ray.sources.base.config import check_shuffled
from datarax_ray.sources.base.files import FEW_RECORDS, RemoteFilesConfig
from datarax_ray.sources.base.indexed import IndexedSourceModule

logger = logging.getLogger("datarax_ray")

_SHUFFLES = ("shuffle", "shuffle_files")
_MAX_BLOCKS = 2**20  # an epoch of them has a table of some 50 bytes for each
# In file order. Chunks, and trainers' rows, cut a run of groups too: it is kept until all of it was asked for, up to so
# many stored bytes, as trainers that share actors come as far apart as the window of one reaches. Not where a run has
# more groups than these: little is decoded twice then, and to read runs one by one takes array_record longer than that
# (measured, groups of 16 of 64 bytes: 1.06 us a record by runs of 64 groups, 0.42 by chunks; of 256: 0.26 and 0.29).
_ROOM_NBYTES = 64 * 2**20
_SMALL_GROUPS = 16
# More is said. A true permutation of single records is worth some time; blocks are there to save it.
_MAX_TIMES, _MAX_TIMES_SHUFFLED = 1.25, 16


@dataclass(frozen=True, kw_only=True)
class ArrayRecordSourceConfig(RemoteFilesConfig):
    """How ArrayRecord files are read; endless unless num_epochs is given. See RemoteFilesConfig for the other fields.

    shuffle, shuffle_files: one permutation of all records of all files in every epoch; False by default. The second is
        datarax's name of the same field: give one of the two, read either.
    shuffle_block_size: with shuffle, permute blocks of this many neighbouring records, then records within windows of
        64 blocks; None for single records. "auto" takes the stored groups of the files as blocks, and windows of 64
        groups or 8 MiB, whichever is more: an epoch decodes each group once, and an actor keeps two windows, up to
        512 MiB. For files that store single records, "auto" shuffles single records.
    local_files_only: accepted for datarax's sake: a source always checks its files at construction.

    >>> ArrayRecordSourceConfig(seed=7, num_epochs=3, shuffle=True).seed
    7
    """

    shuffle_files: bool = None  # type: ignore[assignment]  # until it is made: nobody said
    shuffle: bool = None  # type: ignore[assignment]
    local_files_only: bool = False
    shuffle_block_size: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        given = {name: flag(name, getattr(self, name)) for name in _SHUFFLES if getattr(self, name) is not None}
        if len(set(given.values())) > 1:
            raise ValueError(
                f"shuffle={self.shuffle} and shuffle_files={self.shuffle_files} contradict each other: they are two "
                "names of one field. Give one of them; to dataclasses.replace, both"
            )
        for name in _SHUFFLES:
            object.__setattr__(self, name, any(given.values()))
        super().__post_init__()
        check_shuffled(self, "shuffle_block_size", or_auto=True)


def _in_groups(config: ArrayRecordSourceConfig, reader: ArrayRecordReader) -> tuple[ArrayRecordReader, dict[str, Any]]:
    """The reader, with room for two windows of blocks (what is left of one, and the next), and the order that the
    config names, in arguments of IndexedSourceModule.
    """
    chosen = config.shuffle_block_size
    block_size = None if chosen == "auto" else chosen
    groups, window_blocks = None, WINDOW_BLOCKS
    if chosen == "auto" and reader.group_size > 1:
        groups = reader.groups.merged(_MAX_BLOCKS)
        largest = int(np.diff(groups.starts).max())
        window_blocks = blocks_in_window(largest, reader.mean_nbytes)
        reader = reader.with_room_for(2 * window_blocks * largest)
    elif not config.shuffle and reader.group_size > 1:
        # runs of whole groups: of one that two runs share, both of their actors would decode all
        run = max(run_of(reader), reader.num_records // _MAX_BLOCKS)
        is_large = reader.group_size * _SMALL_GROUPS > run
        room = max(1, _ROOM_NBYTES // max(1, reader.mean_nbytes)) if is_large else 0
        reader = reader.with_room_for(room, run)
        groups = reader.groups
    elif config.shuffle and reader.group_size > 1:
        _warn_of_waste(reader, block_size)
        if block_size is not None:
            reader = reader.with_room_for(2 * window_blocks * block_size)
    return reader, {"block_size": block_size, "groups": groups, "window_blocks": window_blocks}


def _warn_of_waste(reader: ArrayRecordReader, block_size: int | None) -> None:
    """Warn where an epoch decodes groups again and again; never for a dataset of a chunk or two."""
    times = reader.groups.times_decoded(block_size or 1)
    if reader.num_records <= FEW_RECORDS or times < (_MAX_TIMES_SHUFFLED if block_size is None else _MAX_TIMES):
        return
    logger.warning(
        "shuffle_block_size=%s decodes up to %.3g x the data in an epoch: the files store records in groups of %d, "
        'which are decoded as a whole. shuffle_block_size="auto" decodes each group once; that is another order, '
        "which no state of this one fits.",
        block_size,
        times,
        reader.group_size,
    )


class ArrayRecordSourceModule(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of ArrayRecord files, in an order that is a pure function of the position.

    paths: a path or URL (s3://, gs://, az://, https://, ...), a glob or directory, "path[start:stop]", pathlib.Path, an
        object with filename, skip, take and examples_in_shard (Grain's FileInstruction), or a list of them.
    transforms: applied in this order to each record's bytes; see datarax_ray.read.elements.transforms. Without
        transforms, elements are the records' bytes.

    Raises: FileNotFoundError or ValueError at construction for paths without files, or a file that is no complete
    ArrayRecord file; RecordError from reading, for a record that cannot be read, decoded or transformed.
    """

    config_type = ArrayRecordSourceConfig

    def __init__(
        self,
        config: ArrayRecordSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        with going_by(config.missing_shards):
            reader, order = _in_groups(config, ArrayRecordReader.of(paths, remote=config.remote))
        is_blocked = order["groups"] is not None or (order["block_size"] or 1) >= reader.group_size > 1
        config.warn_of_requests(reader.files, by_group=is_blocked or not config.shuffle)
        unpacks = isinstance(next(iter(listed(transforms)), None), DecodeMaterialized)
        super().__init__(
            config,
            {"paths": paths},
            reader,
            **order,
            first_yields=yields_in(paths, reader.num_records) if unpacks else None,
            transforms=transforms,
            rngs=rngs,
            name=name,
        )
        self.paths = paths
        self._files = reader.files

    @property
    def grain_source(self) -> Any:
        """A new ArrayRecordDataSource of Grain's: the same records, in the order of the files, as they are stored."""
        from grain.sources import ArrayRecordDataSource

        if far := [file.name for file in self._files if file.version]:
            raise ValueError(f"Grain opens local files only, and {far[0]} is none; read it by this source")
        instructions = [
            SimpleNamespace(filename=file.path, skip=file.skip, take=file.take, examples_in_shard=file.num_records)
            for file in self._files
        ]
        return ArrayRecordDataSource(instructions)


@dataclass(frozen=True, kw_only=True)
class TFDSSourceConfig(RemoteFilesConfig):
    """How a prepared dataset is read; endless unless num_epochs is given. See RemoteFilesConfig for the other fields.

    shuffle: one permutation over all records in every epoch.
    """


class TFDSSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a split, decoded to what its features say, as tfds.data_source gives them.

    name_or_builder: "mnist", "mnist:3.0.1", "name/config", a version's directory or its URL, or a tfds builder.
    split: "train", "train[:80%]", "train[1shard]+test" and the like, with the arithmetic of tfds.
    data_dir: where it was prepared, a folder or a URL (gs://, s3://); None for TFDS_DATA_DIR, else
        ~/tensorflow_datasets.
    skip_decoding: images, by path, that stay encoded bytes.
    transforms: of elements. Images need the extra: pip install 'datarax-ray[tfds]'.

    Numbers of a known shape become arrays, text becomes bytes, and sequences of any length become lists (PadTo makes
    them dense). Without shuffle, the order is the order of the files, which tfds shuffled when it prepared them.

    Raises: FileNotFoundError, ValueError or TypeError at construction for a missing dataset or split, a file format
    other than ArrayRecord, and features that are not supported.
    """

    config_type = TFDSSourceConfig

    def __init__(
        self,
        config: TFDSSourceConfig,
        name_or_builder: Any,
        split: str = "train",
        *,
        data_dir: str | os.PathLike[str] | None = None,
        skip_decoding: Iterable[str] = (),
        transforms: Any = (),
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        skip_decoding = tuple(skip_decoding)
        prepared = find_prepared(name_or_builder, data_dir)
        decode = DecodeTfds(tfds_leaves(prepared.features, skip_decoding))
        files = prepared.files(split)
        if config.missing_shards == "warn" or not is_url(prepared.directory):  # there it takes a request each
            with going_by(config.missing_shards):
                files = prepared.there(files)
        reader = ArrayRecordReader.of(files, remote=config.remote)
        config.warn_of_requests(reader.files, by_group=not config.shuffle)
        super().__init__(
            config,
            {"name_or_builder": prepared.directory, "split": split, "skip_decoding": skip_decoding},
            reader,
            decoders=(decode,),
            transforms=transforms,
            rngs=rngs,
            name=name,
        )
        self.directory, self.split_name, self.version = prepared.directory, split, prepared.version

    def _reads(self) -> str:
        return f"directory={redacted(self.directory)!r}, split={self.split_name!r}"
