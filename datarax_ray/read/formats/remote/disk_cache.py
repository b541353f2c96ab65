"""Pages of remote files, kept on a disk of the host for later epochs, later starts and the other processes there.

Of each version of a file two files: NAME.pages, as long as it and sparse, and NAME.held, which says in a header what it
is of, in a byte for each page whether that is there, and behind these each one's checksum. A page is written before it
is said to be there, and one that is damaged all the same, as by a host that lost its power, is forgotten and asked for
anew: no order of kills, and no full disk, gives other data. Whatever changes is changed under the lock of the folder,
which ends with its process. What was kept first stays: an epoch wants each page once, or a few times at one place, so
that in any order it can find no more than what the disk holds when it begins (which is what Belady's optimum finds).
What gives way is what no process has open, of another version or another dataset, oldest first; of a smaller limit
than before, whole files until it holds. Nothing else in the folder is touched.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from xxhash import xxh3_64_intdigest

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.remote.index import is_lasting
from datarax_ray.read.formats.remote.pages import PAGE
from datarax_ray.read.formats.remote.urls import redacted

logger = logging.getLogger("datarax_ray")

_HEADER_NBYTES = PAGE
_FORMAT = 2
_SUM_NBYTES = 4  # of a page, by half a microsecond: Parquet often has none, and ArrayRecord's is of whole chunks
_LOCK = "datarax_ray.lock"
_BLOCK = 512  # st_blocks counts in these
_PIECE_PAGES = 64
_LOOK_AGAIN_S = 10.0  # in a cache that is full, for files that nobody has open any more: a millisecond for every 50


class VersionedFile(Protocol):
    """A file behind a URL, as its storage names this state of it."""

    @property
    def path(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def version(self) -> str: ...


@dataclass(frozen=True)
class Kept:
    """What a cache has of one version of a file. held_nbytes: of its pages. nbytes: on the disk, in all."""

    url: str
    version: str
    held_nbytes: int
    nbytes: int
    is_in_use: bool


class DiskCache:
    """The cache in a folder, for one process. limit: bytes of all its files on the disk, whoever wrote them.

    Where the disk fails it, it is as if it were empty, and that is logged once.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._descriptors: dict[str, int | None] = {}  # of NAME.held, by name; None where there is no room for one
        self._whole: set[str] = set()  # of these names, of whose files every page was there
        self._lock_fd: int | None = None
        self._folder = Path(folder).expanduser()
        self._limit = limit
        self._threads = ThreadLock()
        self._has_failed = False
        self._full_until = 0.0

    def held(self, file: VersionedFile, pages: Indices) -> Indices:
        """Those of these pages that are there. pages: ascending."""
        with self._working():
            if len(pages) and (fd := self._open(file)) is not None:
                first = int(pages[0])
                marks = os.pread(fd, int(pages[-1]) + 1 - first, _HEADER_NBYTES + first)
                if len(marks) <= int(pages[-1]) - first:
                    raise OSError(f"{_name(file)}.held was cut")
                return pages[np.frombuffer(marks, np.uint8)[pages - first] != 0]
        return pages[:0]

    def has_all(self, file: VersionedFile) -> bool:
        """Whether every page of the file is there: once that is so, nobody needs to look page by page."""
        name = _name(file)
        with self._working():
            if (fd := self._open(file)) is not None:
                if name not in self._whole:
                    marks = os.pread(fd, _num_pages(file), _HEADER_NBYTES)
                    if len(marks) == _num_pages(file) and not marks.count(0):
                        self._whole.add(name)
                return name in self._whole
        return False

    def path_of(self, file: VersionedFile) -> str:
        """Where its pages are, each at its place. They are not checked there: for formats that do that themselves."""
        return str(self._pages_of(_name(file)))

    def takes(self, file: VersionedFile) -> bool:
        """Whether there was room of late for what is read of it."""
        return not self._has_failed and is_lasting(file.version) and time.monotonic() >= self._full_until

    def read(self, file: VersionedFile, runs: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of these runs of pages (the first, the last), which are there; b"" of one that is damaged, which
        is not there from now on.
        """
        found = []
        with self._working(), open(self._pages_of(_name(file)), "rb", buffering=0) as pages:
            for first, last in runs:
                count = min((last + 1) * PAGE, file.nbytes) - first * PAGE
                if len(data := os.pread(pages.fileno(), count, first * PAGE)) < count:
                    raise OSError(f"{pages.name} was cut")
                if (fd := self._open(file)) is None:
                    break
                sums = os.pread(fd, _SUM_NBYTES * (last + 1 - first), _place_of_sum(file, first))
                is_well = sums == _sums(data)
                if not is_well:
                    self._whole.discard(_name(file))
                    os.pwrite(fd, bytes(last + 1 - first), _HEADER_NBYTES + first)
                found.append(data if is_well else b"")
        return found

    def store(self, file: VersionedFile, found: Iterable[tuple[int, int, bytes]]) -> None:
        """Keep what there is room for of these runs: the first page, the last, and their bytes."""
        with self._working():
            if time.monotonic() < self._full_until or (fd := self._open(file)) is None:
                return
            with self._locked() as lock, open(self._pages_of(_name(file)), "r+b", buffering=0) as pages:
                for first, count, data in _pieces(found):
                    num_new = os.pread(fd, count, _HEADER_NBYTES + first).count(0)  # others may have written some
                    if self._take_room(lock, num_new * PAGE):
                        write_at(pages.fileno(), data, first * PAGE)
                        os.pwrite(fd, _sums(data), _place_of_sum(file, first))
                        os.pwrite(fd, bytes([1]) * count, _HEADER_NBYTES + first)

    def forget(self, file: VersionedFile, pages: Indices) -> None:
        """Have these no more: what is kept of them may be damaged. pages: ascending."""
        with self._working():
            self._whole.discard(_name(file))
            if len(pages) and (fd := self._open(file)) is not None:
                for page in pages.tolist():
                    os.pwrite(fd, bytes(1), _HEADER_NBYTES + page)

    def shut(self, file: VersionedFile) -> None:
        """This process reads the file no more."""
        with self._threads:
            self._whole.discard(_name(file))
            if (fd := self._descriptors.pop(_name(file), None)) is not None:
                os.close(fd)

    @property
    def num_open(self) -> int:
        """Descriptors."""
        return len(self._descriptors)

    def close(self) -> None:
        with self._threads:
            self._close_all()

    def __del__(self) -> None:  # or descriptors would stay open, and what they lock in use
        self._close_all()

    def _close_all(self, _close: Callable[[int], None] = os.close) -> None:  # at exit, the module's `os` may be gone
        for fd in [*self._descriptors.values(), self._lock_fd]:
            if fd is not None:
                _close(fd)
        self._descriptors.clear()
        self._whole.clear()
        self._lock_fd = None

    def _open(self, file: VersionedFile) -> int | None:
        """The descriptor of what says which pages are there; it is in use for as long. None where none can be kept."""
        if self._has_failed or not is_lasting(file.version):
            return None
        name = _name(file)
        if name not in self._descriptors:
            with self._locked() as lock:
                self._descriptors[name] = self._opened(lock, file, name)
        return self._descriptors[name]

    def _opened(self, lock: int, file: VersionedFile, name: str) -> int | None:
        path, header, pages_path = self._folder / f"{name}.held", _header(file), self._pages_of(name)
        nbytes = _place_of_sum(file, _num_pages(file))
        are_whole = pages_path.exists() and pages_path.stat().st_size == file.nbytes
        if not (are_whole and _begins_with(path, header) and path.stat().st_size == nbytes):
            # all of it is there from the beginning, so that no mark finds a full disk
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
        """Whether there is room for so many bytes more, which then count."""
        used = os.fstat(lock).st_size * _BLOCK
        if used + nbytes > self._limit:
            if time.monotonic() < self._full_until:
                return False
            _remove_unused(self._folder, used + nbytes - self._limit)
            used = _used(self._folder)
            if used + nbytes > self._limit:
                self._full_until = time.monotonic() + _LOOK_AGAIN_S
                return False
        _say_used(lock, used + nbytes)  # before it is so, as the process may end
        return True

    def _pages_of(self, name: str) -> Path:
        return self._folder / f"{name}.pages"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The lock of the folder, held; its file says how many bytes are used, by its length, and takes none."""
        if self._lock_fd is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with _flocked(self._lock_fd):  # whatever became of those who used it before, and however much they kept
                if (used := _used(self._folder)) > self._limit:
                    _remove_unused(self._folder, used - self._limit)
                    used = _used(self._folder)
                os.ftruncate(self._lock_fd, 0)  # of one that held something
                _say_used(self._lock_fd, used)
        with _flocked(self._lock_fd):
            yield self._lock_fd

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self._threads:
            try:
                yield
            except OSError as error:
                if not self._has_failed:
                    logger.warning(
                        "%s keeps nothing more of remote files: %s; they are read from where they are",
                        self._folder,
                        error,
                    )
                self._has_failed = True


def kept_in(folder: Path) -> list[Kept]:
    """What the cache in a folder has, those used longest ago first. Raises: FileNotFoundError for what is no cache."""
    if not (folder / _LOCK).is_file():
        raise FileNotFoundError(f"{folder} is no cache of remote files: nothing was ever kept in it")
    found = []
    for path in _by_age(folder):
        # damaged: its next user makes it anew; or another process has removed it meanwhile
        with contextlib.suppress(ValueError, LookupError, FileNotFoundError):
            content = path.read_bytes()
            told = json.loads(content[:_HEADER_NBYTES].rstrip(b"\0"))
            marks = np.frombuffer(content[_HEADER_NBYTES:][: -(-told["nbytes"] // told["page"])], np.uint8)
            nbytes = sum(_on_disk(each) for each in (path, path.with_suffix(".pages")))
            held_nbytes = min(int(np.count_nonzero(marks)) * PAGE, told["nbytes"])
            found.append(Kept(told["url"], told["version"], held_nbytes, nbytes, _is_in_use(path)))
    return found


def clear(folder: Path) -> tuple[int, int]:
    """Remove what no process reads now. Returns the bytes that are free now, and how many files are in use."""
    kept_in(folder)
    with open(folder / _LOCK, "r+b", buffering=0) as lock, _flocked(lock.fileno()):
        freed = _remove_unused(folder, None)
        _say_used(lock.fileno(), _used(folder))
        return freed, len(_by_age(folder))


def _remove_unused(folder: Path, nbytes: int | None) -> int:
    """Remove files that no process has open, those used longest ago first, until so many bytes are free; None for all.

    Returns how many are. The lock of the folder is held.
    """
    freed = 0
    for path in _all_in(folder):
        if not path.with_suffix(".held").exists():  # its process ended in the middle
            freed += _on_disk(path)
            path.unlink(missing_ok=True)
    for path in _by_age(folder):
        if nbytes is not None and freed >= nbytes:
            break
        if not _is_in_use(path):
            for each in (path, path.with_suffix(".pages")):
                freed += _on_disk(each)
                each.unlink(missing_ok=True)
    return freed


def _is_in_use(path: Path) -> bool:
    with open(path, "rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _by_age(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9a-f]" * 32 + ".held"), key=_used_last)


def _used_last(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # removed meanwhile
        return 0


def _begins_with(path: Path, header: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(header)) == header
    except FileNotFoundError:
        return False


def _used(folder: Path) -> int:
    """Bytes on the disk of all that is the cache's."""
    return sum(map(_on_disk, _all_in(folder)))


def _say_used(lock: int, nbytes: int) -> None:
    os.ftruncate(lock, nbytes // _BLOCK)


def _all_in(folder: Path) -> list[Path]:
    return [path for suffix in ("held", "pages", "new") for path in folder.glob("[0-9a-f]" * 32 + f".{suffix}")]


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK
    except FileNotFoundError:
        return 0


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


def write_at(fd: int, data: memoryview, start: int) -> None:
    """Write all of it, from this offset on."""
    while len(data):
        done = os.pwrite(fd, data, start)
        start, data = start + done, data[done:]


def _header(file: VersionedFile) -> bytes:
    told: dict[str, object] = {"format": _FORMAT, "url": redacted(file.path), "version": file.version}
    told |= {"nbytes": file.nbytes, "page": PAGE}
    return json.dumps(told).encode()[:_HEADER_NBYTES].ljust(_HEADER_NBYTES, b"\0")


def _name(file: VersionedFile) -> str:
    return _named(file.path, file.version, file.nbytes)


@functools.lru_cache(2**16)
def _named(path: str, version: str, nbytes: int) -> str:
    return hashlib.sha256(json.dumps([redacted(path), version, nbytes, PAGE]).encode()).hexdigest()[:32]


def _num_pages(file: VersionedFile) -> int:
    return -(-file.nbytes // PAGE)


def _place_of_sum(file: VersionedFile, page: int) -> int:
    return _HEADER_NBYTES + _num_pages(file) + _SUM_NBYTES * page


def _sums(data: bytes | memoryview) -> bytes:
    """The checksum of each page of these."""
    view = memoryview(data)
    found = (xxh3_64_intdigest(view[at : at + PAGE]) & 0xFFFFFFFF for at in range(0, len(view), PAGE))
    return np.fromiter(found, "<u4").tobytes()
