"""Local images of remote files, with the wanted pages alone, for the libraries of formats to read.

An image is as long as its file and empty at first. array_record opens, decodes and checks it like any file: pages that
were not fetched are zeros, which fail the checksum. Formats without checksums read by `Mirrors.read`, which fetches
missing pages. A page comes from memory, from a request ahead, from the disk cache, or from the storage, in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.remote.chunks import chunks
from datarax_ray.read.formats.remote.clients import redacted
from datarax_ray.read.formats.remote.disk_cache import DiskCache
from datarax_ray.read.formats.remote.pages import (
    PAGE,
    Image,
    Layout,
    Page,
    RemoteFile,
    Run,
    around,
    by_file,
    num_pages,
    pages_in,
    pages_needed,
    runs_of,
)
from datarax_ray.read.formats.remote.ranges import MAX_REQUEST_NBYTES, Asked, Remote, Span, ask_ranges, read_ranges
from datarax_ray.read.laps import lap

_ASKS_AHEAD = 4  # times the requests of one fetch: 8 MiB of the smallest requests, where pages stay


@dataclass(eq=False)
class Ahead:
    """The pages that one expected read wants of some files.

    wanted: the parts of each file, as `Mirrors.fetch` takes them.
    layouts: of the files, as far as they are known by now.
    runs: requested for this read.
    is_complete: whether all pages were requested, or are here.
    """

    wanted: Mapping[int, Indices]
    layouts: dict[int, Layout] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    is_complete: bool = False


class RunsAhead:
    """Runs of pages that are requested before they are wanted, in half of the memory at most.

    They only save a wait: a run that fails, or is dropped, is requested again when it is wanted.
    pages: the run of each page.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        # Each with its place in the answer: a call to the loop for each run would cost as much as a short request.
        self._asked: dict[Run, tuple[Asked[list[bytes]], int]] = {}
        self.pages: dict[Page, Run] = {}
        # All runs share one: what is wanted first comes first. A fetch has its own, and waits for none of these.
        self._slots = asyncio.Semaphore(_ASKS_AHEAD * remote.most_requests)

    @property
    def nbytes(self) -> int:
        return PAGE * len(self.pages)

    def ask(self, spans: Mapping[Run, Span]) -> None:
        asked = ask_ranges(list(spans.values()), self._remote, self._slots)
        for place, run in enumerate(spans):
            self._asked[run] = asked, place
            self.pages |= dict.fromkeys(pages_in([run]), run)

    def __contains__(self, run: Run) -> bool:
        return run in self._asked

    def answer(self, run: Run) -> bytes | None:
        """The bytes of a run that stays here; None where they have not come yet."""
        asked, place = self._asked.get(run, (None, 0))
        return asked.result()[place] if asked is not None and asked.is_answered else None

    def take(self, pages: Iterable[Page]) -> dict[Run, bytes]:
        """The runs that have these pages, once they came; they are held here no more."""
        taken: dict[Run, bytes] = {}
        for run in sorted({run for page in pages if (run := self.pages.get(page)) is not None}):
            if (removed := self._removed(run)) is not None:
                asked, place = removed
                with lap("storage"):
                    data = asked.result_if_well()
                if data is not None:
                    taken[run] = data[place]
        return taken

    def drop(self, runs: Iterable[Run] | None = None) -> None:
        """Nobody wants these runs any more, or, for None, any run."""
        for run in list(self._asked) if runs is None else runs:
            if (removed := self._removed(run)) is not None:
                removed[0].drop()

    def _removed(self, run: Run) -> tuple[Asked[list[bytes]], int] | None:
        for page in pages_in([run]):
            if self.pages.get(page) == run:  # runs may overlap
                self.pages.pop(page, None)
        return self._asked.pop(run, None)


class Mirrors:
    """The images of a reader's files behind URLs. The bytes of many files are fetched at once.

    Pages that were wanted longest ago make room for others; the pages of a fetch stay until the next. Several threads
    may close files; one at a time fetches, and requests ahead.

    layout: makes the layout of a file of its bytes from the footer on and the offset of the footer; raises ValueError
        for bytes that are no footer.
    is_whole: whether every part of the files is wanted sooner or later, so that pages around a wanted one may come too.
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
        self._images: dict[int, Image] = {}
        self._layouts: dict[int, Layout] = {}  # of files that have an image
        self._pages: OrderedDict[Page, None] = OrderedDict()  # those wanted last at the end
        self.ahead = RunsAhead(remote)
        self._lock = ThreadLock()
        self._disk = DiskCache(remote.cache_dir, remote.cache_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in memory, and of those that are asked for ahead."""
        return len(self._pages) * PAGE + self.ahead.nbytes

    @property
    def num_open(self) -> int:
        """Descriptors, of images and of their files in the disk cache."""
        return len(self._images) + self._disk.num_open

    def parts(self, indices: Iterable[int]) -> Iterator[list[int]]:
        """These files in parts whose ends fit into memory at once; the end of an open file is needed no more."""
        part: list[int] = []
        room = most = max(self._remote.nbytes // 4, MAX_REQUEST_NBYTES)
        for index in indices:
            end_nbytes = 0 if index in self._layouts else PAGE * num_pages([self._end_of(index)])
            if end_nbytes > room and part:
                yield part
                part, room = [], most
            part.append(index)
            room -= end_nbytes
        if part:
            yield part

    def open(self, indices: Iterable[int]) -> dict[int, Layout]:
        """Have an image and the layout of each of these files; the ends of all come at once.

        Returns the layouts, which hold also where another thread closes a file meanwhile.
        Raises: as ranges.read_ranges; ValueError where the end of a file is damaged twice.
        """
        with self._lock:
            found = {index: self._layouts[index] for index in indices if index in self._layouts}
        damaged: set[int] = set()
        while missing := [index for index in indices if index not in found]:
            with self._lock:
                self._images |= {i: Image(self._files[i].nbytes) for i in missing if i not in self._images}
            self._fetch(list(pages_in(map(self._end_of, missing))))
            for index in missing:
                file = self._files[index]
                with self._lock:
                    if (image := self._images.get(index)) is None:
                        continue  # another thread closed it
                    end = image.read(file.footer, file.nbytes)
                try:
                    found[index] = self._layout(end, file.footer)
                except ValueError as error:
                    if index in damaged:
                        raise ValueError(
                            f"{redacted(file.path)}: {error}, asked for twice, though it did when the source was made, "
                            "and its version is the same: these are not the bytes of the file. Look at proxies and "
                            "caches on the way, and go on from the last state."
                        ) from error
                    damaged.add(index)
                    self._forget(index, pages_in([self._end_of(index)]))
                    continue
                with self._lock:
                    if index in self._images:
                        self._layouts[index] = found[index]
        return found

    @contextlib.contextmanager
    def opening(self, index: int) -> Iterator[str]:
        """The path of the image of an open file, for a library to open it: the end of the file is there meanwhile."""
        end = list(pages_in([self._end_of(index)]))
        self._fetch(end)
        yield self._images[index].path
        with self._lock:
            self._give_back([page for page in end if page in self._pages])

    def ask_ahead(self, ahead: Ahead) -> bool:
        """Ask for the pages of an expected read, as far as they are known: of a file that is not open, for its end.

        Once the end came, call this again. Returns whether there was room.
        """
        if ahead.is_complete:
            return True
        with self._lock:
            ahead.layouts |= {index: self._layouts[index] for index in ahead.wanted if index in self._layouts}
        ends = {index: self._end_of(index) for index in ahead.wanted if index not in ahead.layouts}
        cached = self._read_cached(pages_in(run for run in ends.values() if run not in self.ahead))
        for index, run in ends.items():
            end = cached.get(run) or self.ahead.answer(run)
            if end is not None:
                footer = self._files[index].footer
                ahead.layouts[index] = self._layout(end[footer % PAGE :], footer)
        runs = [run for index, run in ends.items() if index not in ahead.layouts]
        is_complete = not runs
        if is_complete:
            missing = self._missing(pages_needed(ahead.wanted, ahead.layouts)).difference(self.ahead.pages)
            runs = self._to_ask(missing.difference(pages_in(self._cached_runs(missing))))
        runs = [run for run in runs if run not in self.ahead]
        if self.ahead.nbytes + PAGE * num_pages(runs) > self._remote.nbytes // 2:
            return False
        ahead.is_complete = is_complete
        self._make_room(num_pages(runs), keep=0)
        if runs:
            ahead.runs += runs
            self.ahead.ask({run: self._span(run) for run in runs})
        return True

    def fetch(self, wanted: Mapping[int, Indices]) -> None:
        """Bring all pages of these parts of files into memory.

        wanted: for each file ascending indices within it. Raises: as ranges.read_ranges.
        """
        self._fetch(pages_needed(wanted, self.open(wanted)))

    def read(self, index: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of an open file; fetched now, unless they are there. Raises: as fetch."""
        self._fetch([(index, page) for page in range(start // PAGE, -(-stop // PAGE))])
        return self._images[index].read(start, stop)

    def forget(self, index: int, wanted: Indices) -> None:
        """Have the pages of these parts of a file fetched again, from the storage."""
        self._forget(index, pages_needed({index: wanted}, self.open([index])))

    def shut(self, index: int) -> None:
        """Close the image of a file."""
        with self._lock:
            self._layouts.pop(index, None)
            image = self._images.pop(index, None)
            for page in [page for page in self._pages if page[0] == index]:
                del self._pages[page]
        if image is not None:
            image.close()
        self._disk.shut(self._files[index])

    def close(self) -> None:
        self.ahead.drop()
        for index in list(self._images):
            self.shut(index)
        self._disk.close()

    def _fetch(self, needed: list[Page]) -> None:
        """Have these pages of files that have an image in memory: from the requests ahead, the disk cache, or the
        storage, in that order.
        """
        if (missing := self._missing(needed)) and (taken := self.ahead.take(missing)):
            self._make_room(num_pages(taken), len(needed) - len(missing))
            self._fill(taken)
            self._store(taken)
            missing = self._missing(needed)
        if missing and (cached := self._read_cached(missing)):
            self._make_room(num_pages(cached), len(needed) - len(missing))
            self._fill(cached)
            missing = self._missing(needed)
        if missing:
            runs = self._to_ask(missing)
            self._make_room(num_pages(runs), len(needed) - len(missing))
            with lap("storage"):
                found = dict(zip(runs, read_ranges([self._span(run) for run in runs], self._remote), strict=True))
            self._fill(found)
            self._store(found)

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
            near = around(np.array([number for _, number in pages]), gap, room, self._end_of(index)[1])
            room -= len(near)
            with self._lock:
                more = [page for number in near.tolist() if (page := (index, number)) not in self._pages]
            others = set(more).difference(self.ahead.pages, missing)
            others.difference_update(pages_in(self._cached_runs(others)))
            runs += runs_of([*others, *pages], 0)
        return runs

    def _stays(self, index: int) -> bool:
        """Whether a page of a file that comes now is still here when its neighbours are wanted."""
        return self._is_whole and (self._fits or self._disk.takes(self._files[index]))

    def _cached_runs(self, pages: Iterable[Page]) -> list[Run]:
        runs: list[Run] = []
        for index, some in by_file(pages) if self._disk.is_working else ():
            held = self._disk.held(self._files[index], np.array([number for _, number in some]))
            runs += runs_of(((index, number) for number in held.tolist()), 0)
        return runs

    def _read_cached(self, pages: Iterable[Page]) -> dict[Run, bytes]:
        """The bytes of the pages that the disk cache has, and that are undamaged."""
        found: dict[Run, bytes] = {}
        for index, runs in by_file(self._cached_runs(pages)):
            with lap("storage"):
                data = self._disk.read(self._files[index], [(first, last) for _, first, last in runs])
            found |= {run: each for run, each in zip(runs, data, strict=False) if each}  # fewer where the disk fails
        return found

    def _store(self, found: Mapping[Run, bytes]) -> None:
        for index, runs in by_file(found):
            self._disk.store(self._files[index], [(first, last, found[index, first, last]) for _, first, last in runs])

    def _missing(self, needed: Iterable[Page]) -> set[Page]:
        """The pages that are not in memory. All others are given back last."""
        with self._lock:
            missing = {page for page in needed if page not in self._pages}  # `difference` would look at all of these
            for page in needed:
                if page not in missing:
                    self._pages.move_to_end(page)
        return missing

    def _fill(self, found: Mapping[Run, bytes]) -> None:
        with self._lock:
            for run, data in found.items():
                if (image := self._images.get(run[0])) is not None:  # else another thread closed it
                    image.fill(run[1] * PAGE, data)
                    self._pages.update(dict.fromkeys(pages_in([run])))

    def _end_of(self, index: int) -> Run:
        """The pages of a file from the one on in which its footer begins."""
        file = self._files[index]
        return index, file.footer // PAGE, file.num_pages - 1

    def _span(self, run: Run) -> Span:
        file = self._files[run[0]]
        return file.path, file.version, run[1] * PAGE, min((run[2] + 1) * PAGE, file.nbytes)

    def _make_room(self, num_pages: int, keep: int) -> None:
        """Give back the pages that were wanted longest ago, until so many more fit; but none of the `keep` last."""
        with self._lock:
            surplus = len(self._pages) + num_pages - (self._remote.nbytes - self.ahead.nbytes) // PAGE
            self._give_back(list(itertools.islice(self._pages, max(0, min(surplus, len(self._pages) - keep)))))

    def _give_back(self, pages: list[Page]) -> None:
        for page in pages:
            del self._pages[page]
        for run in runs_of(pages, 0):
            _, _, start, stop = self._span(run)
            self._images[run[0]].drop(start, stop)

    def _forget(self, index: int, pages: Iterable[Page]) -> None:
        """Have no page of a file in memory, and none of these in the disk cache."""
        self._disk.forget(self._files[index], np.array([number for _, number in pages], np.int64))
        with self._lock:
            self._give_back([page for page in self._pages if page[0] == index])
