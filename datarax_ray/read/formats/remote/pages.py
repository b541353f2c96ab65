"""Files in pages: from byte ranges to pages, from pages to the runs of one request, and images of files in memory.

    page  (file, number): the bytes [number * PAGE, (number + 1) * PAGE) of a file, as far as it has them
    run   (file, first, last): the pages from `first` to `last`, both of them, of one file
    span  int64 (2,): the bytes [start, stop) of one file

A file is its index among those of one reader. Nothing here reads from a storage.
"""

from __future__ import annotations

import itertools
import mmap
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

PAGE = mmap.PAGESIZE
Page: TypeAlias = tuple[int, int]
Run: TypeAlias = tuple[int, int, int]
T = TypeVar("T", Page, Run)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    version: as its storage names this state of it; "" for a file of this machine, of which no page is asked for.
    footer: the offset from which on its bytes tell its layout.
    """

    path: str
    nbytes: int
    version: str
    footer: int

    @property
    def num_pages(self) -> int:
        return -(-self.nbytes // PAGE)


class Layout(Protocol):
    """Where the parts of a file lie that are fetched as a whole."""

    def of(self, wanted: Indices) -> Indices:
        """The byte ranges, int64 (k, 2), of these parts. wanted: int64, ascending; a format says of what."""


def pages_of(spans: Indices) -> Indices:
    """The pages of these byte ranges, ascending, each once. spans: int64 (k, 2), ascending.

    >>> pages_of(np.array([[0, 10], [20, PAGE + 1], [5 * PAGE, 6 * PAGE]])).tolist()
    [0, 1, 5]
    """
    first, last = spans[:, 0] // PAGE, (spans[:, 1] - 1) // PAGE
    counts = last - first + 1
    behind = np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.repeat(first, counts) + np.arange(len(behind)) - behind)


def pages_needed(wanted: Mapping[int, Indices], layouts: Mapping[int, Layout]) -> list[Page]:
    return [(file, number) for file, parts in wanted.items() for number in pages_of(layouts[file].of(parts)).tolist()]


def num_pages(runs: Iterable[Run]) -> int:
    return sum(last - first + 1 for _, first, last in runs)


def pages_in(runs: Iterable[Run]) -> Iterator[Page]:
    return ((file, number) for file, first, last in runs for number in range(first, last + 1))


def around(pages: Indices, count: int, most: int, stop: int) -> Indices:
    """The blocks of `count` pages in which these pages of a file lie, cut at `stop`, and no more than `most` pages.

    Block b is the pages from b * count to (b + 1) * count - 1. Runs of `count` pages or more are skipped: they get a
    request of their own. pages: ascending.

    >>> around(np.array([1, 9, 10, 23]), 4, 100, 22).tolist(), around(np.array([1, 9]), 4, 4, 22).tolist()
    ([0, 1, 2, 3, 8, 9, 10, 11, 20, 21], [0, 1, 2, 3])
    >>> around(np.array([1, 9, 10, 11, 12]), 4, 100, 22).tolist()
    [0, 1, 2, 3]
    """
    if count < 1:
        return pages[:0]
    row = np.append(0, np.cumsum(np.diff(pages) > 1))
    pages = pages[np.bincount(row)[row] < count]
    firsts = np.unique(pages // count)[: most // count] * count
    found: Indices = (firsts[:, None] + np.arange(count)).reshape(-1)
    return found[found < stop]


def runs_of(pages: Iterable[Page], gap: int) -> Iterator[Run]:
    """The runs that these pages make, in any order; two of them at most `gap` pages apart are one run.

    >>> list(runs_of([(0, 1), (0, 2), (0, 4), (1, 5)], 1))
    [(0, 1, 4), (1, 5, 5)]
    """
    run: Run | None = None
    for file, number in sorted(pages):
        if run is not None and file == run[0] and number - run[2] - 1 <= gap:
            run = (file, run[1], number)
            continue
        if run is not None:
            yield run
        run = (file, number, number)
    if run is not None:
        yield run


def by_file(items: Iterable[T]) -> Iterator[tuple[int, list[T]]]:
    """Pages or runs of each file, both ascending.

    >>> list(by_file([(1, 5), (0, 7), (0, 2)]))
    [(0, [(0, 2), (0, 7)]), (1, [(1, 5)])]
    """
    for file, some in itertools.groupby(sorted(items), key=operator.itemgetter(0)):
        yield file, list(some)


class Image:
    """A file of `nbytes` bytes in memory: holes, but for the bytes that were filled in. path: to open it by.

    Only this process has the memory (memfd_create), so nothing is left behind, however the process ends.
    """

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
        """Give the memory of these bytes back; both are multiples of PAGE, or stop is the end."""
        with mmap.mmap(self._fd, stop - start, offset=start) as part:
            part.madvise(mmap.MADV_REMOVE)

    def close(self, _close: Callable[[int], None] = os.close) -> None:  # at exit, the module's `os` may be gone
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close(fd)

    def __del__(self) -> None:
        self.close()


def write_at(fd: int, data: memoryview, start: int) -> None:
    """Write all of it, from this offset on."""
    while len(data):
        done = os.pwrite(fd, data, start)
        start, data = start + done, data[done:]
