"""The image of a file in memory: as long as the file, and empty where nothing was filled in.

It lies in memory that only this process has (memfd_create), so nothing is left behind, however the process ends; pages
are given back by punching holes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from datarax_ray.read.formats.remote.disk_cache import write_at
from datarax_ray.read.formats.remote.pages import PAGE

_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # linux/falloc.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Image:
    """A file of this many bytes in memory, of which those are there that were filled in. path: to open it by."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = os.memfd_create("datarax_ray")
        self.path = f"/proc/self/fd/{self._fd}"
        os.ftruncate(self._fd, nbytes)

    def fill(self, start: int, data: bytes) -> None:
        write_at(self._fd, memoryview(data), start)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._fd, stop - start, start)

    def drop(self, start: int, stop: int) -> None:
        """Give these bytes back; both are multiples of PAGE, or stop is the end."""
        length = -(-(stop - start) // PAGE) * PAGE
        if _LIBC.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_longlong(start), ctypes.c_longlong(length)):
            number = ctypes.get_errno()
            raise OSError(number, f"no memory could be given back: {os.strerror(number)}")

    def close(self, _close: Callable[[int], None] = os.close) -> None:  # at exit, the module's `os` may be gone
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close(fd)

    def __del__(self) -> None:
        self.close()
