"""What sources of files behind URLs share: how much of these is kept in memory, and on a disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from datarax_ray.plan.arguments import whole
from datarax_ray.read.formats.array_record.files import RecordFile
from datarax_ray.read.formats.remote.ranges import Remote
from datarax_ray.sources.base.indexed import IndexedSourceConfig

logger = logging.getLogger("datarax_ray")

FEW_RECORDS = 2**16  # two parts of a chunk: of what is read at once each group is decoded once


@dataclass(frozen=True, kw_only=True)
class RemoteFilesConfig(IndexedSourceConfig):
    """How files behind URLs are read; see IndexedSourceConfig for the other fields.

    remote_nbytes: of these files, what is kept in memory in each process; one block's where that is more.
    cache_dir, cache_nbytes: a folder of each host that reads, absolute or from ~, in which what was read of files
    behind URLs is kept for later epochs and starts, and how many bytes it may hold, of all processes; both or neither.
    """

    remote_nbytes: int = Remote.nbytes
    cache_dir: str | os.PathLike[str] | None = None
    cache_nbytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "remote_nbytes", whole("remote_nbytes", self.remote_nbytes))
        if self.remote_nbytes < 0:
            raise ValueError(f"remote_nbytes must be at least 0, got {self.remote_nbytes}")
        self._check_cache()
        super().__post_init__()

    def _check_cache(self) -> None:
        if (self.cache_dir is None) != (self.cache_nbytes is None):
            raise ValueError(
                f"cache_dir={self.cache_dir!r} and cache_nbytes={self.cache_nbytes!r} go together: the folder, and how "
                "many bytes it may hold. Give both, or neither for no cache on disk"
            )
        if self.cache_dir is None or self.cache_nbytes is None:
            return
        folder, nbytes = os.fspath(self.cache_dir), whole("cache_nbytes", self.cache_nbytes)
        if not os.path.isabs(os.path.expanduser(folder)):
            raise ValueError(f"cache_dir={folder!r} is relative to nothing on other hosts; give an absolute path")
        if nbytes < 0:
            raise ValueError(f"cache_nbytes must be at least 0, got {nbytes}")
        object.__setattr__(self, "cache_dir", folder)
        object.__setattr__(self, "cache_nbytes", nbytes)

    @property
    def remote(self) -> Remote:
        """How files behind URLs are read."""
        folder, nbytes = os.fspath(self.cache_dir or ""), self.cache_nbytes or 0
        return Remote(self.remote_nbytes, cache_dir=folder, cache_nbytes=nbytes)

    def tell_requests(self, files: Sequence[RecordFile], *, by_group: bool, has_blocks: bool = True) -> None:
        """Log what of these is behind URLs, and how many requests an epoch takes; see requests_of."""
        kept_nbytes = self.remote_nbytes + (self.cache_nbytes or 0)
        told = requests_of(files, kept_nbytes, by_group=by_group, is_shuffled=self.shuffle, has_blocks=has_blocks)
        if told is not None:
            logger.log(logging.WARNING if told[0] else logging.INFO, told[1])


def requests_of(
    files: Sequence[RecordFile], kept_nbytes: int, *, by_group: bool, is_shuffled: bool, has_blocks: bool = True
) -> tuple[bool, str] | None:
    """What files behind URLs are asked for in an epoch, and whether that is a warning; None where none are there.

    kept_nbytes: of memory and disk of a host.
    by_group: whether the order reads each group at once.
    has_blocks: whether the source has an order by blocks.
    """
    far = [file for file in files if file.version]
    if not far:
        return None
    nbytes, num_records = sum(file.nbytes for file in far), sum(file.take for file in far)
    num_groups = sum(-(-file.take // file.group_size) for file in far)
    where = f"{len(far):,} files behind URLs ({far[0].name} the first), {nbytes / 1e9:,.1f} GB"
    kept = f"{kept_nbytes / 1e9:,.1f} GB of them are kept on each host"
    each = f"{nbytes / max(1, num_groups) / 1e3:,.1f} KB"
    if by_group or kept_nbytes >= nbytes or num_records <= FEW_RECORDS:
        order = "in block order" if is_shuffled and by_group else "shuffled" if is_shuffled else "in file order"
        return False, f"{where}, {order}: up to {num_groups:,} groups of some {each} in an epoch; {kept}"
    blocks = (
        'shuffle_block_size="auto" asks for whole groups, of files that were written with group_size=256, say (another '
        "order, which no state of this one fits); "
        if has_blocks
        else ""
    )
    return True, (
        f"{where}, in an order of single records: up to {num_records:,} requests of some {each} in every epoch, since "
        f"{kept}. At 20 ms a request, 32 at once, an actor gets 1,600 of them a second. {blocks}cache_dir= with "
        "cache_nbytes= keeps them on a disk of each host; more actors ask for more at once."
    )
