"""The open files of one reader: each is opened, and checked, when it is first read.

A file on this machine is compared with its counts when it is opened, and with its stamp after every read. Behind a URL
every answer names the version of the file.
"""

from __future__ import annotations

import functools
import resource
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from datarax_ray.read.file_contents import Stamp, difference, head_and_content, lasting_stamp, stamp
from datarax_ray.read.files.filesystems import changed
from datarax_ray.read.formats.array_record.files import RecordFile, open_file
from datarax_ray.read.formats.remote.mirrors import Mirrors

_MAX_DESCRIPTORS = 2**16
_ROOM = 1024  # descriptors that are left to all else; a quarter of fewer than 4 times as many
# An open file holds a descriptor, 2 KB, and 8 bytes of index for each group. To open it again costs 50 us, and 60 ns
# for each group, where a read costs 4 us. So files stay open while there are descriptors, and while the indices of one
# reader take no more than this, or no more of its files are open than these.
_INDEX_NBYTES = 512 * 2**20
_ALWAYS_OPEN = 256


class OpenFiles:
    """The open readers of these files, by index. The least recently used are closed first.

    One thread at a time may call it. mirrors: of files behind URLs; None without such files.
    """

    def __init__(self, files: Sequence[RecordFile], mirrors: Mirrors | None) -> None:
        self._files = files
        self._mirrors = mirrors
        self._open: OrderedDict[int, Any] = OrderedDict()
        # of files that were opened, and were those that were counted; every read checks that they still are
        self._stamps: dict[int, Stamp] = {}
        self._index_nbytes = 0
        _ALL[id(self)] = self

    @property
    def num_descriptors(self) -> int:
        return len(self._open) + (0 if self._mirrors is None else self._mirrors.num_open)

    def reader_of(self, index: int) -> Any:
        """The reader of a file, opened if need be. While too many files are open, closes those read longest ago.

        Raises: as files.open_file; ValueError where it is not the file that was counted.
        """
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        while self._open and self._is_full():
            self.close(next(iter(self._open)))
        reader = self._opened(index)
        try:
            self._check_replaced(index, reader)
        except Exception:
            reader.close()
            raise
        self._open[index] = reader
        self._index_nbytes += self._files[index].index_nbytes
        return reader

    def _opened(self, index: int) -> Any:
        if self._mirrors is None or not self._files[index].version:
            return open_file(self._files[index].path)
        self._mirrors.open([index])
        with self._mirrors.opening(index) as path:
            return open_file(path)

    def close(self, index: int) -> None:
        self._open.pop(index).close()
        if self._mirrors is not None:
            self._mirrors.shut(index)
        self._index_nbytes -= self._files[index].index_nbytes

    def close_all(self) -> None:
        """Close every file; each is checked again when it is opened again."""
        self._stamps.clear()
        while self._open:
            self.close(next(iter(self._open)))

    def _is_full(self) -> bool:
        """Whether one more file is to be opened only when another was closed."""
        every = (files for reference in _ALL.valuerefs() if (files := reference()) is not None)
        return sum(files.num_descriptors for files in every) >= max_open_files() or (
            len(self._open) >= _ALWAYS_OPEN and self._index_nbytes >= _INDEX_NBYTES
        )

    def _check_replaced(self, index: int, reader: Any) -> None:
        """Raise ValueError for a file that was replaced since it was counted. Asked once for each opened file."""
        if index in self._stamps or self._files[index].version:
            return
        file = self._files[index]
        now = stamp(file.path)
        num_records, nbytes = reader.num_records(), now[1]
        is_same = file.stamp and file.stamp == lasting_stamp(file.path)
        content = file.content if is_same else head_and_content(file.path)[1] if file.content else ""
        if (num_records, nbytes, content) != (file.num_records, file.nbytes, file.content):
            raise ValueError(
                f"{file.path} held {file.num_records} records in {file.nbytes:,} bytes when the source was made and "
                f"holds {num_records}{' others' if num_records == file.num_records else ''} in {nbytes:,} now; it was "
                "replaced, and reading on would mix two datasets. Put the original back and go on from the last "
                "state, or make a new source."
            )
        self._stamps[index] = now

    def check_unchanged(self, index: int) -> None:
        """Raise ValueError where a file changed since it was opened; the caller drops what was read."""
        file = self._files[index]
        if not file.version and (now := stamp(file.path)) != (before := self._stamps[index]):
            raise changed(file.path, difference(before, now))


# Of all readers of this process, which share its descriptors: the components of a mixture have one each. By id, as a
# dict gives a list of what is in it at once; a WeakSet that grew in another thread meanwhile would raise RuntimeError,
# which is array_record's word for a broken record.
_ALL: weakref.WeakValueDictionary[int, OpenFiles] = weakref.WeakValueDictionary()


@functools.cache
def max_open_files() -> int:
    """How many files may be open; of the limit on descriptors, which is raised as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # a sandbox that forbids it: the limit stays as it was
            pass
    limit = _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, _MAX_DESCRIPTORS)
    return limit - min(_ROOM, limit // 4)
