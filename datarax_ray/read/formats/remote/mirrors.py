"""Local images of remote files, with the pages that are wanted alone, for the libraries of formats to read.

An image is as long as its file and empty at first. array_record opens it like any file, decodes it and checks it; what
was not fetched is zeros, and there the checksum is wrong, so no other data comes. Formats without checksums read an
image by `Mirrors.read`, which fetches what is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.remote.chunks import chunks
from datarax_ray.read.formats.remote.disk_cache import DiskCache, VersionedFile
from datarax_ray.read.formats.remote.image import Image
from datarax_ray.read.formats.remote.pages import (
    PAGE,
    Layout,
    Page,
    Run,
    around,
    by_file,
    num_pages,
    pages_in,
    pages_needed,
    pages_of,
    runs_of,
)
from datarax_ray.read.formats.remote.pages_ahead import Ahead, PagesAhead
from datarax_ray.read.formats.remote.ranges import MAX_REQUEST_NBYTES, Remote, Span, read_ranges
from datarax_ray.read.formats.remote.urls import redacted
from datarax_ray.read.laps import lap


class RemoteFile(VersionedFile, Protocol):
    """A file that was counted. footer: the offset at which it begins."""

    @property
    def footer(self) -> int: ...


@dataclass
class _Mirror:
    """end: the bytes from the page on in which the footer begins; b"" once the image was opened."""

    image: Image
    layout: Layout
    end: bytes


class Mirrors:
    """The images of a reader's files that are behind URLs. The bytes of many files are fetched at once.

    A page stays until pages that were wanted later need its room. What one fetch brings stays until the next. Several
    threads may close files; one at a time fetches, and asks ahead.

    layout: gives that of a file, from its bytes from the footer on and the offset of the footer; raises ValueError for
        what is no footer.
    is_whole: whether every part of the files is wanted sooner or later, so that pages around a wanted one may come too.
    ahead: what is asked for before it is wanted.
    """

    def __init__(
        self,
        files: Sequence[RemoteFile],
        remote: Remote,
        layout: Callable[[bytes, int], Layout] = chunks,
        *,
        is_whole: bool = True,
    ) -> None:
        self._files = files
        self._remote = remote
        self._layout = layout
        self._is_whole = is_whole
        self._fits = 2 * sum(file.nbytes for file in files if file.version) <= remote.nbytes  # half is for `ahead`
        self._open: dict[int, _Mirror] = {}
        self._pages: OrderedDict[Page, None] = OrderedDict()  # those wanted last at the end
        self.ahead = PagesAhead(remote)
        self._lock = ThreadLock()
        self._disk = DiskCache(remote.cache_dir, remote.cache_nbytes) if remote.cache_dir else None

    @property
    def nbytes(self) -> int:
        """Bytes of the pages and ends in memory, and of what is asked for ahead."""
        with self._lock:
            ends = sum(len(mirror.end) for mirror in self._open.values())
            return len(self._pages) * PAGE + ends + self.ahead.nbytes

    @property
    def num_open(self) -> int:
        """Descriptors, of images and of their files in the disk cache."""
        return len(self._open) + (self._disk.num_open if self._disk is not None else 0)

    def parts(self, indices: Iterable[int]) -> Iterator[list[int]]:
        """These files in parts whose ends fit into memory at once; a file with an image needs its end no more."""
        part: list[int] = []
        room = most = max(self._remote.nbytes // 4, MAX_REQUEST_NBYTES)
        for index in indices:
            end_nbytes = 0 if index in self._open else self._end_nbytes(index)
            if end_nbytes > room and part:
                yield part
                part, room = [], most
            part.append(index)
            room -= end_nbytes
        if part:
            yield part

    def open(self, indices: Iterable[int]) -> dict[int, Layout]:
        """Have an image of each of these files, and its end in memory: by one request for each file that has no image,
        and whose end is not in the disk cache. Gives the layouts, which hold also once another thread closed an image.
        """
        with self._lock:
            found = {index: self._open[index].layout for index in indices if index in self._open}
        if not (missing := [index for index in indices if index not in found]):
            return found
        self._make_room(-(-sum(map(self._end_nbytes, missing)) // PAGE), keep=0)
        come = self.ahead.take_ends(missing)
        cached = self._cached_ends(index for index in missing if index not in come)
        come |= cached
        asked = [index for index in missing if index not in come]
        with lap("storage"):
            come |= zip(asked, read_ranges([self._span_of_end(index) for index in asked], self._remote), strict=True)
        for index in missing:
            found[index], come[index] = self._parsed(index, come[index])
            if come[index] is not cached.get(index):
                self._store({self._run_of_end(index): come[index]})
            with self._lock:
                self._open[index] = _Mirror(Image(self._files[index].nbytes), found[index], come[index])
        return found

    def _parsed(self, index: int, end: bytes) -> tuple[Layout, bytes]:
        """The layout in the end of a file, and the end, which is fetched once more where it was bent on its way."""
        file = self._files[index]
        with contextlib.suppress(ValueError):
            return self._layout_of(index, end), end
        (end,) = read_ranges([self._span_of_end(index)], self._remote)
        try:
            return self._layout_of(index, end), end
        except ValueError as error:
            raise ValueError(
                f"{redacted(file.path)}: {error}, asked for twice, though it did when the source was made, and its "
                "version is the same: what comes are not the bytes of the file. Look at what stands between (a proxy, "
                "a cache), and go on from the last state."
            ) from error

    @contextlib.contextmanager
    def opening(self, index: int) -> Iterator[str]:
        """The path by which to open the image of a file; its end is there within, and given back afterwards."""
        mirror, file = self._open[index], self._files[index]
        _, first, _ = self._run_of_end(index)
        mirror.image.fill(first * PAGE, mirror.end)
        yield mirror.image.path
        with self._lock:
            mirror.end = b""
            first += (index, first) in self._pages  # it begins in the last page of the records
            mirror.image.drop(first * PAGE, file.nbytes)

    def ask_ahead(self, ahead: Ahead) -> bool:
        """Ask for all that is wanted ahead, as far as its place is known: of a file without an image, only the end, and
        when that came this is to be called again. Returns whether there was room for it.
        """
        if ahead.asked is not None:
            return True
        opened, unknown = ahead.layouts, [index for index in ahead.wanted if index not in ahead.layouts]
        opened |= {index: self._open[index].layout for index in unknown if index in self._open}
        asked = self.ahead.ends
        cached = self._cached_ends(index for index in unknown if index not in opened and index not in asked)
        opened |= {index: self._layout_of(index, end) for index, end in cached.items()}
        missing = [index for index in unknown if index not in opened]
        if not self.ahead.ask_ends(ahead, {index: self._span_of_end(index) for index in missing}):
            return False
        for index in missing:
            if not asked[index].is_answered:
                return True
            opened[index] = self._layout_of(index, asked[index].result()[0])
        missing_pages = self._missing(pages_needed(ahead.wanted, opened)) - self.ahead.pages
        runs = self._to_ask(missing_pages.difference(pages_in(self._cached_runs(missing_pages))))
        if not self.ahead.has_room(PAGE * num_pages(runs)):
            return False
        self._make_room(num_pages(runs), keep=0)
        self.ahead.ask(ahead, {run: self._span(run) for run in runs})
        return True

    def fetch(self, wanted: Mapping[int, Indices]) -> None:
        """Have everything in memory that these parts of these files are decoded from.

        wanted: for each file ascending indices within it. Raises: as ranges.read_ranges.
        """
        self._fetch(pages_needed(wanted, self.open(wanted)))

    def read(self, index: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file with an image; fetched now, unless they are there. Raises: as fetch."""
        self._fetch([(index, page) for page in range(start // PAGE, -(-stop // PAGE))])
        return self._open[index].image.read(start, stop)

    def _fetch(self, needed: list[Page]) -> None:
        """Have these pages in memory, of files that have an image."""
        missing = self._missing(needed)
        if missing:
            files = {index for index, _ in needed}
            for ahead in self.ahead.all:
                if not missing.isdisjoint(pages_in(ahead.runs)) and (come := self.ahead.take(ahead, files)):
                    self._make_room(num_pages(come), keep=len(needed) - len(missing))
                    self._fill(come)
                    self._store(come)
                    missing = self._missing(needed)
        if cached := self._read_cached(missing):
            self._make_room(num_pages(cached), keep=len(needed) - len(missing))
            self._fill(cached)
            missing = self._missing(needed)
        if runs := self._to_ask(missing):
            self._make_room(num_pages(runs), keep=len(needed) - len(missing))
            with lap("storage"):
                fetched = dict(zip(runs, read_ranges([self._span(run) for run in runs], self._remote), strict=True))
            self._fill(fetched)
            self._store(fetched)

    def is_cached(self, index: int, wanted: Indices) -> bool:
        """Whether the disk cache has all bytes that these parts of a file need; False of a file without an image."""
        mirror = self._open.get(index)
        if self._disk is None or mirror is None:
            return False
        if self._disk.has_all(self._files[index]):
            return True
        pages = pages_of(mirror.layout.of(wanted))
        return len(self._disk.held(self._files[index], pages)) == len(pages)

    def cached_path(self, index: int) -> str:
        """The path of what the disk cache has of a file, at the offsets of the file; "" where its end is not there."""
        _, first, last = self._run_of_end(index)
        pages, file = np.arange(first, last + 1), self._files[index]
        if self._disk is None or len(self._disk.held(file, pages)) < len(pages):
            return ""
        return self._disk.path_of(file)

    def cached_nbytes(self, index: int) -> int:
        """How long the file at cached_path is; -1 for none."""
        assert self._disk is not None
        try:
            return os.path.getsize(self._disk.path_of(self._files[index]))
        except OSError:
            return -1

    def forget(self, index: int, wanted: Indices) -> None:
        """Have everything of a file fetched again; of what the disk cache has, what these parts are decoded from."""
        if self._disk is not None:
            pages = np.array([page for _, page in pages_needed({index: wanted}, self.open([index]))], np.int64)
            self._disk.forget(self._files[index], pages)
        with self._lock:
            self._give_back([page for page in self._pages if page[0] == index])

    def shut(self, index: int) -> None:
        """Close the image of a file."""
        with self._lock:
            mirror = self._open.pop(index, None)
            for page in [page for page in self._pages if page[0] == index]:
                del self._pages[page]
        if mirror is not None:
            mirror.image.close()
        if self._disk is not None:
            self._disk.shut(self._files[index])

    def close(self) -> None:
        self.ahead.drop_all()
        for index in list(self._open):
            self.shut(index)
        if self._disk is not None:
            self._disk.close()

    def _to_ask(self, missing: set[Page]) -> list[Run]:
        """The runs to ask for, to have these pages.

        Of a file whose pages stay, they hold the pages around each as well, but none that is here. Of others they go
        over gaps that are cheaper than another request, whether the pages between are here or not.
        """
        gap, runs = self._remote.gap_nbytes // PAGE, list[Run]()
        room = self._remote.nbytes // 4 // PAGE
        for index, pages in by_file(missing):
            if not self._stays(index):
                runs += runs_of(pages, gap)
                continue
            near = around(np.array([number for _, number in pages]), gap, room, self._run_of_end(index)[1])
            room -= len(near)
            with self._lock:
                more = [page for number in near.tolist() if (page := (index, number)) not in self._pages]
            others = set(more).difference(self.ahead.pages, missing)
            others.difference_update(pages_in(self._cached_runs(others)))
            runs += runs_of([*others, *pages], 0)
        return runs

    def _stays(self, index: int) -> bool:
        """Whether a page of a file that comes now is still here when its neighbours are wanted."""
        return self._is_whole and (self._fits or (self._disk is not None and self._disk.takes(self._files[index])))

    def _cached_runs(self, pages: Iterable[Page]) -> list[Run]:
        """Those of these pages that the disk cache has."""
        if self._disk is None:
            return []
        runs: list[Run] = []
        for index, some in by_file(pages):
            held = self._disk.held(self._files[index], np.array([number for _, number in some]))
            runs += runs_of(((index, number) for number in held.tolist()), 0)
        return runs

    def _read_cached(self, missing: Iterable[Page]) -> dict[Run, bytes]:
        found: dict[Run, bytes] = {}
        with lap("storage"):
            for index, runs in by_file(self._cached_runs(missing)):
                assert self._disk is not None
                data = self._disk.read(self._files[index], [(first, last) for _, first, last in runs])
                # fewer where the disk fails
                found |= {run: each for run, each in zip(runs, data, strict=False) if each}
        return found

    def _store(self, found: Mapping[Run, bytes]) -> None:
        """Have these runs in the disk cache from now on."""
        if self._disk is None:
            return
        for index, runs in by_file(found):
            self._disk.store(self._files[index], [(first, last, found[index, first, last]) for _, first, last in runs])

    def _missing(self, needed: Iterable[Page]) -> set[Page]:
        """Those of these pages that are not in memory. The others are given back last."""
        with self._lock:
            missing = {page for page in needed if page not in self._pages}  # `difference` would look at all of these
            for page in needed:
                if page not in missing:
                    self._pages.move_to_end(page)
        return missing

    def _fill(self, found: Mapping[Run, bytes]) -> None:
        with self._lock:
            for (index, first, last), data in found.items():
                if index in self._open:  # else another thread closed it
                    self._open[index].image.fill(first * PAGE, data)
                    self._pages.update(dict.fromkeys((index, page) for page in range(first, last + 1)))

    def _span(self, run: Run) -> Span:
        index, first, last = run
        return self._files[index].path, self._files[index].version, first * PAGE, self._end(index, last)

    def _run_of_end(self, index: int) -> Run:
        """The pages of a file from the one on in which its footer begins."""
        file = self._files[index]
        return index, file.footer // PAGE, (file.nbytes - 1) // PAGE

    def _end_nbytes(self, index: int) -> int:
        return self._files[index].nbytes - PAGE * self._run_of_end(index)[1]

    def _span_of_end(self, index: int) -> Span:
        return self._span(self._run_of_end(index))

    def _layout_of(self, index: int, end: bytes) -> Layout:
        footer = self._files[index].footer
        return self._layout(end[footer % PAGE :], footer)

    def _cached_ends(self, indices: Iterable[int]) -> dict[int, bytes]:
        """The ends of these files, as far as the disk cache has them whole."""
        if self._disk is None:
            return {}
        runs = {self._run_of_end(index) for index in indices}
        return {run[0]: data for run, data in self._read_cached(pages_in(runs)).items() if run in runs}

    def _end(self, index: int, last: int) -> int:
        return min((last + 1) * PAGE, self._files[index].nbytes)

    def _make_room(self, num_pages: int, keep: int) -> None:
        """Give back the pages that were wanted longest ago, until so many more fit; but none of the `keep` last."""
        with self._lock:
            surplus = len(self._pages) + num_pages - (self._remote.nbytes - self.ahead.nbytes) // PAGE
            self._give_back(list(itertools.islice(self._pages, max(0, min(surplus, len(self._pages) - keep)))))

    def _give_back(self, pages: list[Page]) -> None:
        for page in pages:
            del self._pages[page]
        for index, first, last in runs_of(pages, 0):
            self._open[index].image.drop(first * PAGE, self._end(index, last))
