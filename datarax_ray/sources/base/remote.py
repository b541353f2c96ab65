"""What sources of files behind URLs share: how much of these is kept in memory, and on a disk."""

from __future__ import annotations

import os
from dataclasses import dataclass

from datarax_ray.plan.arguments import whole
from datarax_ray.read.formats.remote.ranges import Remote
from datarax_ray.sources.base.indexed import IndexedSourceConfig


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
