"""What sources of files share: how a config says what is shuffled, and how paths are opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from flax import nnx

from datarax_ray.read.formats.grouped_rows import GroupedRows
from datarax_ray.read.formats.paths import kept
from datarax_ray.sources.base.config import check_shuffled
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule
from datarax_ray.sources.base.row_groups import warn_of_nulls

Config = TypeVar("Config", bound=IndexedSourceConfig)


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(IndexedSourceConfig):
    """How files are read whose records are read one by one; see IndexedSourceConfig for the other fields.

    shuffle: one permutation over all records of all files in every epoch. shuffle_block_size: shuffle blocks of this
    many consecutive records, then records within windows of 64 blocks, where shuffle is on; each block is one read.
    None for single records.
    """

    shuffle_block_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shuffled(self, "shuffle_block_size")


class FilesSource(IndexedSourceModule, Generic[Config], pytree=False):  # type: ignore[call-arg]
    """The records of files; a kind of file says how they are opened.

    beside: names of what its constructor takes beside these arguments, and keeps before it calls this one.
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
        reader, order = self._opened(config)
        given = {part: getattr(self, part) for part in ("paths", "filesystem", *self.beside)}
        super().__init__(config, given, reader, **order, transforms=transforms, rngs=rngs, name=name)
        if isinstance(reader, GroupedRows):
            warn_of_nulls(reader, self._description.steps)

    def _opened(self, config: Config) -> tuple[Any, dict[str, Any]]:
        """The reader of paths, on filesystem; and the order, in arguments of IndexedSourceModule."""
        raise NotImplementedError
