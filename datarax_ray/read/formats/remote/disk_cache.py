"""A disk cache of pages of remote files, for later epochs, later starts and other processes of the host.

Each version of a file has two files. NAME.pages is sparse and as long as the file. NAME.held has a header, and a
checksum for each page, 0 for a page that is not there. A page is written before its checksum, and a damaged page is
fetched again: no order of kills, and no full disk, gives wrong data. All changes are made under the lock of the folder,
which ends with its process.

The pages that came first stay: an epoch wants each page once, so it finds no more than the disk holds when it begins
(Belady's optimum). Files that no process has open give way, those used longest ago first. Nothing else in the folder is
touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.remote.clients import redacted
from datarax_ray.read.formats.remote.pages import PAGE, RemoteFile, write_at

logger = logging.getLogger("datarax_ray")

_HEADER_NBYTES = PAGE
_FORMAT = 3
_SUM_NBYTES = 4  # of a page, by half a microsecond: Parquet often has none, and ArrayRecord's is of whole chunks
_LOCK = "datarax_ray.lock"
_BLOCK = 512  # st_blocks counts in these
_PIECE_PAGES = 64
_LOOK_AGAIN_S = 10.0  # in a full cache, for files that nobody has open any more: a millisecond for every 50


def is_lasting(version: str) -> bool:
    """Whether two states of a file never share a version: a time of change counts seconds, and files of different bytes
    may share a weak ETag (RFC 9110, 8.8.1).

    >>> [is_lasting(version) for version in ('"6c8e"', "1762", "etag 0x8D", 'W/"6c8e"', "Wed, 21 Oct 2026", "mtime 5")]
    [True, True, True, False, False, False]
    """
    return version.startswith(('"', "etag ", "ETag ", "generation ", "version ")) or version.isdigit()


class DiskCache:
    """The cache in a folder, for one process; "" for a cache that keeps nothing.

    limit: bytes of all its files on the disk, of all processes.
    is_working: False after a failure of the disk, which is logged once; the cache keeps nothing from then on.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._descriptors: dict[str, int | None] = {}  # of NAME.held, by name; None where there is no room for one
        self._lock_fd: int | None = None
        self._folder = Path(folder).expanduser()
        self._limit = limit
        self._threads = ThreadLock()
        self.is_working = bool(folder)
        self._full_until = 0.0

    def held(self, file: RemoteFile, pages: Indices) -> Indices:
        """The pages that are there. pages: ascending."""
        with self._working():
            if len(pages) and (fd := self._open(file)) is not None:
                first = int(pages[0])
                return pages[_read_sums(fd, first, int(pages[-1]))[pages - first] != 0]
        return pages[:0]

    def takes(self, file: RemoteFile) -> bool:
        """Whether pages of the file are kept now."""
        return self.is_working and is_lasting(file.version) and time.monotonic() >= self._full_until

    def read(self, file: RemoteFile, runs: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of these held runs of pages (first, last). A damaged run is forgotten, and gives b""."""
        found = []
        with self._working(), open(self._pages_of(_name(file)), "rb", buffering=0) as pages:
            for first, last in runs:
                count = min((last + 1) * PAGE, file.nbytes) - first * PAGE
                if len(data := os.pread(pages.fileno(), count, first * PAGE)) < count:
                    raise OSError(f"{pages.name} was cut")
                if (fd := self._open(file)) is None:
                    break
                if not (is_well := bool(np.array_equal(_read_sums(fd, first, last), _sums(data)))):
                    self._forget(fd, file, first, last + 1 - first)
                found.append(data if is_well else b"")
        return found

    def store(self, file: RemoteFile, found: Iterable[tuple[int, int, bytes]]) -> None:
        """Keep these runs (the first page, the last, their bytes) as far as there is room."""
        with self._working():
            if time.monotonic() < self._full_until or (fd := self._open(file)) is None:
                return
            with self._locked() as lock, open(self._pages_of(_name(file)), "r+b", buffering=0) as pages:
                for first, count, data in _pieces(found):
                    new = _read_sums(fd, first, first + count - 1) == 0  # other processes may have written some
                    if self._take_room(lock, int(np.count_nonzero(new)) * PAGE):
                        write_at(pages.fileno(), data, first * PAGE)
                        os.pwrite(fd, _sums(data).tobytes(), _place_of_sum(first))

    def forget(self, file: RemoteFile, pages: Indices) -> None:
        """Forget these pages, which may be damaged."""
        with self._working():
            if (fd := self._open(file)) is not None:
                for page in pages.tolist():
                    self._forget(fd, file, page, 1)

    def shut(self, file: RemoteFile) -> None:
        """This process reads the file no more."""
        with self._threads:
            if (fd := self._descriptors.pop(_name(file), None)) is not None:
                os.close(fd)

    @property
    def num_open(self) -> int:
        return len(self._descriptors)

    def close(self) -> None:
        with self._threads:
            self._close_all()

    def __del__(self) -> None:  # or descriptors would stay open, and the files that they lock in use
        self._close_all()

    def _close_all(self, _close: Callable[[int], None] = os.close) -> None:  # at exit, the module's `os` may be gone
        for fd in [*self._descriptors.values(), self._lock_fd]:
            if fd is not None:
                _close(fd)
        self._descriptors.clear()
        self._lock_fd = None

    def _forget(self, fd: int, file: RemoteFile, first: int, count: int) -> None:
        os.pwrite(fd, bytes(_SUM_NBYTES * count), _place_of_sum(first))

    def _open(self, file: RemoteFile) -> int | None:
        """The descriptor of NAME.held, which marks it as in use; None without room, or after a failure."""
        if not self.is_working or not is_lasting(file.version):
            return None
        name = _name(file)
        if name not in self._descriptors:
            with self._locked() as lock:
                self._descriptors[name] = self._opened(lock, file, name)
        return self._descriptors[name]

    def _opened(self, lock: int, file: RemoteFile, name: str) -> int | None:
        path, header, pages_path = self._folder / f"{name}.held", _header(file), self._pages_of(name)
        nbytes = _place_of_sum(file.num_pages)
        is_whole = _nbytes_of(pages_path) == file.nbytes and _nbytes_of(path) == nbytes
        if is_whole:
            with path.open("rb") as held:
                is_whole = held.read(len(header)) == header
        if not is_whole:
            # the whole file is there from the beginning, so that no checksum finds a full disk
            if not self._take_room(lock, -(-nbytes // PAGE) * PAGE):
                return None
            with open(pages_path, "wb") as pages:
                pages.truncate(file.nbytes)
            temporary = path.with_suffix(".new")
            temporary.write_bytes(header + bytes(nbytes - len(header)))
            os.replace(temporary, path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.utime(fd)
        return fd

    def _take_room(self, lock: int, nbytes: int) -> bool:
        """Whether there is room for so many bytes more; then they count as used."""
        used = os.fstat(lock).st_size * _BLOCK
        if used + nbytes > self._limit:
            if time.monotonic() < self._full_until:
                return False
            used = _remove_unused(self._folder, used + nbytes - self._limit)
            if used + nbytes > self._limit:
                self._full_until = time.monotonic() + _LOOK_AGAIN_S
                return False
        os.ftruncate(lock, (used + nbytes) // _BLOCK)  # first, as the process may end
        return True

    def _pages_of(self, name: str) -> Path:
        return self._folder / f"{name}.pages"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The lock of the folder, held; the length of its file is the bytes in use in blocks, and takes no room."""
        if self._lock_fd is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with _flocked(self._lock_fd):  # whatever became of its users before, and however much they kept
                if (used := _used(self._folder)) > self._limit:
                    used = _remove_unused(self._folder, used - self._limit)
                os.ftruncate(self._lock_fd, 0)
                os.ftruncate(self._lock_fd, used // _BLOCK)
        with _flocked(self._lock_fd):
            yield self._lock_fd

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self._threads:
            try:
                yield
            except OSError as error:
                if self.is_working:
                    message = "%s keeps nothing more of remote files: %s; they are read from where they are"
                    logger.warning(message, self._folder, error)
                self.is_working = False


def _remove_unused(folder: Path, nbytes: int) -> int:
    """Remove files that no process has open, those used longest ago first, until so many bytes are free.

    Returns the bytes that are used then. The lock of the folder is held.
    """
    freed = 0
    unfinished = [path for path in _all_in(folder) if not path.with_suffix(".held").exists()]  # of a killed process
    for path in (*unfinished, *_by_age(folder)):
        if freed < nbytes and (path in unfinished or not _is_in_use(path)):
            for each in {path, path.with_suffix(".pages")}:
                freed += _on_disk(each)
                each.unlink(missing_ok=True)
    return _used(folder)


def _is_in_use(path: Path) -> bool:
    with open(path, "rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _by_age(folder: Path) -> list[Path]:
    found = [path for path in _all_in(folder) if path.suffix == ".held"]
    return sorted(found, key=lambda path: stat.st_mtime_ns if (stat := _stat(path)) else 0)


def _used(folder: Path) -> int:
    return sum(map(_on_disk, _all_in(folder)))


def _all_in(folder: Path) -> list[Path]:
    return [path for suffix in ("held", "pages", "new") for path in folder.glob("[0-9a-f]" * 32 + f".{suffix}")]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # another process removed it meanwhile
        return None


def _on_disk(path: Path) -> int:
    return stat.st_blocks * _BLOCK if (stat := _stat(path)) else 0


def _nbytes_of(path: Path) -> int:
    return stat.st_size if (stat := _stat(path)) else -1


@contextlib.contextmanager
def _flocked(fd: int) -> Iterator[None]:
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _pieces(found: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, memoryview]]:
    """Runs in pieces that a cache with little room may still take: the first page, how many, and their bytes."""
    for first, last, data in found:
        for at in range(0, last + 1 - first, _PIECE_PAGES):
            count = min(_PIECE_PAGES, last + 1 - first - at)
            yield first + at, count, memoryview(data)[at * PAGE : (at + count) * PAGE]


def _header(file: RemoteFile) -> bytes:
    fields = {"format": _FORMAT, "url": redacted(file.path), "version": file.version, "nbytes": file.nbytes}
    return json.dumps(fields).encode()[:_HEADER_NBYTES].ljust(_HEADER_NBYTES, b"\0")


@functools.lru_cache(2**16)
def _name(file: RemoteFile) -> str:
    named = [redacted(file.path), file.version, file.nbytes, PAGE]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]


def _place_of_sum(page: int) -> int:
    return _HEADER_NBYTES + _SUM_NBYTES * page


def _read_sums(fd: int, first: int, last: int) -> Indices:
    """The checksums of the pages from `first` to `last`, uint32 (k,); 0 for a page that is not there."""
    nbytes = _SUM_NBYTES * (last + 1 - first)
    if len(found := os.pread(fd, nbytes, _place_of_sum(first))) < nbytes:
        raise OSError("a list of checksums was cut")
    return np.frombuffer(found, "<u4")


def _sums(data: bytes | memoryview) -> Indices:
    """The checksum of each page of these bytes, uint32 (k,), none of them 0."""
    view = memoryview(data)
    found = (xxh3_64_intdigest(view[at : at + PAGE]) & 0xFFFFFFFF or 1 for at in range(0, len(view), PAGE))
    return np.fromiter(found, "<u4")
