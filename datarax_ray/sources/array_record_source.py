"""ArrayRecord files as an NNX source, with the names and signatures of datarax.sources.array_record_source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import flag
from datarax_ray.plan.orders.block_shuffle import WINDOW_BLOCKS
from datarax_ray.read.formats.array_record import ArrayRecordReader, RecordFile
from datarax_ray.sources.base.config import BASE_FIELDS, check_shuffled, documented_order
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule

_SHUFFLES = ("shuffle", "shuffle_files")


@documented_order(*BASE_FIELDS, "seed", "num_epochs", "shuffle_files", "local_files_only")
@dataclass(frozen=True, kw_only=True)
class ArrayRecordSourceConfig(IndexedSourceConfig):
    """How ArrayRecord files are read; see IndexedSourceConfig for the other fields.

    shuffle: one permutation over all records of all files in every epoch; False unless given. shuffle_files is
    datarax's name of the same field: give one of them, both can be read. shuffle_block_size: shuffle blocks of this
    many consecutive records, then records within windows of 64 blocks, where shuffle is on; None for single records.
    With the files' group_size each group is decoded once in an epoch; two windows, up to 512 MiB, are kept in an actor.
    local_files_only: accepted for datarax's sake: files are always local, and always checked at construction.

    >>> ArrayRecordSourceConfig(seed=7, num_epochs=3, shuffle=True).seed
    7
    """

    shuffle_files: bool = None  # type: ignore[assignment]  # until it is made: nobody said
    shuffle: bool = None  # type: ignore[assignment]
    local_files_only: bool = False
    shuffle_block_size: int | None = None

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
        check_shuffled(self, "shuffle_block_size")


class _Instruction:
    """A file as Grain's FileInstruction."""

    def __init__(self, file: RecordFile) -> None:
        self.filename = file.path
        self.skip, self.take = file.skip, file.take
        self.examples_in_shard = file.num_records


class ArrayRecordSourceModule(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of ArrayRecord files, in an order that is a pure function of the position.

    paths: a path, glob or directory, "path[start:stop]", pathlib.Path, an object with filename, skip, take and
    examples_in_shard (Grain's FileInstruction), or a list of these. transforms: applied in this order to each record's
    bytes; see datarax_ray.read.elements.transforms. Without any, elements are the records' bytes.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing or what is no whole ArrayRecord
    file; RecordError from reading, for a record that cannot be read, decoded or transformed.
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
        reader = ArrayRecordReader.of(paths)
        if config.shuffle_block_size is not None:
            reader = reader.with_room_for(
                2 * WINDOW_BLOCKS * config.shuffle_block_size
            )  # the last of one, and the next
        super().__init__(
            config,
            {"paths": paths},
            reader,
            shuffle=config.shuffle,
            block_size=config.shuffle_block_size,
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

        return ArrayRecordDataSource([_Instruction(file) for file in self._files])
