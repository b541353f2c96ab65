"""Pages and ends of files that are asked for before they are wanted: what was asked for, what came, what was taken.

They stand beside the images until they are fetched, take half of the room at most, and only ever save a wait: what they
do not bring is asked for when it is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.remote.pages import PAGE, Layout, Page, Run, num_pages, pages_in
from datarax_ray.read.formats.remote.ranges import Asked, Remote, Span, ask_ranges
from datarax_ray.read.laps import lap

_ASKS_AHEAD = 4  # times the requests of one fetch: 8 MiB of the smallest of a file whose pages stay


@dataclass(eq=False)
class Ahead:
    """What is asked for before it is wanted, of some parts of some files.

    wanted: of each file the parts, as `Mirrors.fetch` will be asked for them.
    ends: the files whose ends were asked for with it.
    layouts: of the files, as far as they are known by now.
    runs: of pages that are asked for, or came and that nobody took yet.
    asked: the bytes of these runs on their way; None before they are asked for, and after some of them were taken.
    come: the bytes of these runs; None until some of them were taken.
    nbytes: of the ends and the runs.
    """

    wanted: Mapping[int, Indices]
    ends: list[int] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    asked: Asked[list[bytes]] | None = None
    come: dict[Run, bytes] | None = None
    nbytes: int = 0


class PagesAhead:
    """What is asked for ahead, of all reads of one reader that are expected.

    ends: of files that had no image when their end was asked for. pages: of all runs that are asked for, or came.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._all: dict[int, Ahead] = {}  # by id
        self.ends: dict[int, Asked[list[bytes]]] = {}
        self.pages: set[Page] = set()
        # They share one: what is wanted first comes first. A fetch has its own, and waits for none of these.
        self._slots = asyncio.Semaphore(_ASKS_AHEAD * remote.most_requests)

    @property
    def all(self) -> list[Ahead]:
        """Those of which something was asked for, and that were not dropped."""
        return list(self._all.values())

    @property
    def nbytes(self) -> int:
        return sum(ahead.nbytes for ahead in self.all)

    def has_room(self, nbytes: int) -> bool:
        return self.nbytes + nbytes <= self._remote.nbytes // 2

    def ask_ends(self, ahead: Ahead, spans: Mapping[int, Span]) -> bool:
        """Ask for the ends of these files that nobody has asked for yet. Returns whether there was room for them."""
        new = {index: span for index, span in spans.items() if index not in self.ends}
        nbytes = sum(stop - start for _, _, start, stop in new.values())
        if not self.has_room(nbytes):
            return False
        self._all[id(ahead)] = ahead
        ahead.ends += new
        ahead.nbytes += nbytes
        for index, span in new.items():
            self.ends[index] = ask_ranges([span], self._remote)
        return True

    def take_ends(self, indices: Iterable[int]) -> dict[int, bytes]:
        """The ends of these files that were asked for and come; none of them is held here any more."""
        taken: dict[int, bytes] = {}
        with lap("storage"):
            for index in indices:
                if (end := self.ends.pop(index, None)) is not None and (data := end.result_if_well()) is not None:
                    (taken[index],) = data
        return taken

    def ask(self, ahead: Ahead, spans: Mapping[Run, Span]) -> None:
        """Ask for the bytes of these runs."""
        ahead.nbytes += PAGE * num_pages(spans)
        self._replace_runs(ahead, list(spans))
        ahead.asked = ask_ranges(list(spans.values()), self._remote, self._slots)

    def take(self, ahead: Ahead, indices: set[int]) -> dict[Run, bytes]:
        """What came of these files; it is held here no more."""
        if ahead.asked is not None:
            with lap("storage"):
                data = ahead.asked.result_if_well()
            ahead.asked, ahead.come = None, {} if data is None else dict(zip(ahead.runs, data, strict=True))
        come = ahead.come or {}
        taken = {run: come.pop(run) for run in list(come) if run[0] in indices}
        ahead.nbytes -= PAGE * num_pages(taken)
        self._replace_runs(ahead, list(come))
        return taken

    def drop(self, ahead: Ahead) -> None:
        """What is left of it is not wanted any more."""
        for index in ahead.ends:
            if (end := self.ends.pop(index, None)) is not None:
                end.drop()
        if ahead.asked is not None:
            ahead.asked.drop()
        self._replace_runs(ahead, [])
        self._all.pop(id(ahead), None)

    def drop_all(self) -> None:
        for ahead in self.all:
            self.drop(ahead)

    def _replace_runs(self, ahead: Ahead, runs: list[Run]) -> None:
        self.pages.difference_update(pages_in(ahead.runs))
        ahead.runs = runs
        self.pages.update(pages_in(runs))
