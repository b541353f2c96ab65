"""Skipped records: how many may be, their counts by kind, and the ledger: a list, and one line of JSON for each.

A record is entered when the batch without it is delivered, or before where many wait for one. It is struck out when the
stream goes back to before it. After any number of resumes the file lists each record that is missing from the delivered
batches, once a pass.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from datarax_ray.read.errors import Place, Skipped, SkippedError
from datarax_ray.read.formats.remote.clients import is_url
from datarax_ray.read.lines import Lines, check_writable, lines_at

_BEGIN = '{"position": '  # of each line
# The counts and the file go on; the list is for people.
MAX_LISTED = 1000


# The share of broken records that ends a run by default, and the positions that it is of: a rotten file among hundreds
# stays below, a transform that fails for a kind of record does not.
MAX_SHARE, POSITIONS = 0.01, 10_000
_NUM_RECENT = 100  # whose kinds an error tells, where no share asks for more
_MAX_KINDS = _MAX_FILES = 100  # that are counted apart: some messages begin with what each record has for itself
_OTHERS = "others"
_KIND = re.compile(r"(?:element \d+ of the record: )?([^:;]{1,100})")


def kind_of(skip: Skipped) -> tuple[str, str, str]:
    """The component of a mixture, "" for none, the kind of fault, with its transform, and the file.

    >>> kind_of(Skipped("component 1: a.tar[7]", 9, "transform crop raised ValueError: 3 > 2"))
    ('component 1', 'transform crop raised ValueError', 'a.tar')
    """
    place, kind = Place.of(skip.where), _KIND.match(skip.reason)
    component, file = (place.components[:-2], place.path) if place else ("", skip.where)
    return component, kind[1] if kind else skip.reason[:100], file


@dataclass(frozen=True)
class SkipLimit:
    """How many records may be skipped, and how many were: a value, and `plus` gives the next one.

    most: records of the whole run, None for any number. share: of any 10,000 consecutive positions, 1 for all.
    count: skipped so far. recent: the last ones, one of a position: as many as the share allows.
    """

    most: int | None = None
    share: float = 1.0
    count: int = 0
    recent: tuple[Skipped, ...] = ()

    @property
    def is_bound(self) -> bool:
        return self.most is not None or self.share < 1

    def plus(self, skipped: Sequence[Skipped]) -> SkipLimit:
        """With these, by position. Raises: SkippedError for the first that is one too many."""
        if not skipped:
            return self
        allowed, recent = round(self.share * POSITIONS), list(self.recent)
        for number, skip in enumerate(skipped, self.count + 1):
            if recent and recent[-1].position == skip.position:  # of one record, behind a flat_map
                recent.pop()
            recent.append(skip)
            if self.most is not None and number > self.most:
                raise SkippedError(
                    self._said(f"{number} records could not be read, more than max_skipped={self.most}", recent)
                )
            if len(recent) > allowed and skip.position - recent[-1 - allowed].position < POSITIONS:
                some = f"{allowed + 1} of {POSITIONS:,} positions in a row could not be read, more than max_skipped="
                raise SkippedError(self._said(f"{some}{self.share:g}", recent[-1 - allowed :]))
        kept = min(allowed, POSITIONS - 1) if self.share < 1 else _NUM_RECENT
        return replace(self, count=self.count + len(skipped), recent=tuple(recent[-kept:] if kept else ()))

    def after(self, pending: Sequence[Skipped]) -> None:
        """As plus, of what no batch has reported; of many the last count."""
        if pending and self.is_bound:
            looked = pending[-2 * POSITIONS :]
            replace(self, count=self.count + len(pending) - len(looked)).plus(looked)

    @staticmethod
    def _said(said: str, recent: Sequence[Skipped]) -> str:
        last, kinds = recent[-1], Counter(" in ".join(filter(None, kind_of(skip)[1::-1])) for skip in recent)
        told = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(3))
        return (
            f"{said} allows. The first beyond it is {last.where} (position {last.position}): {last.reason}. Of the "
            f"last ones: {told}. Mend the data, or allow more: max_skipped is a number of records, a share of "
            "positions (0.05), or None for any number."
        )


NO_LIMIT = SkipLimit()


@dataclass(frozen=True)
class SkipOptions:
    """What a consumer does about the records that `on_error` skips; no part of the stream itself.

    max_skipped, max_share: see SkipLimit. path: a JSON-lines file with position, file, record and reason, of a mixture
    the numbers of components, too, the outermost first; or a URL below which such files are (read.lines), None for
    none; what is in it of a former run, from where this one begins, is dropped. A relative one is made absolute here.

    Raises: ValueError for a path at which no file can be, and for one with a file that is no such list; ImportError for
    a URL whose client is not installed.
    """

    max_skipped: int | None = None
    path: str | None = None
    max_share: float = 1.0

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", _checked_path(os.fspath(self.path)))

    @classmethod
    def of(cls, max_skipped: Any, path: str | None = None) -> Self:
        """max_skipped: a number of records, a share of positions, None for no limit.

        Raises: TypeError for another type; ValueError for a number out of range; as SkipOptions.
        """
        if isinstance(max_skipped, float) and not isinstance(max_skipped, bool):
            if not 0 <= max_skipped <= 1:
                raise ValueError(
                    f"max_skipped={max_skipped} is no share of positions, from 0 to 1; a whole number counts records"
                )
            return cls(None, path, float(max_skipped))
        if isinstance(max_skipped, bool) or not hasattr(max_skipped or 0, "__index__"):
            raise TypeError(
                f"max_skipped is a whole number, a share as 0.01, or None for no limit, got {max_skipped!r}"
            )
        if max_skipped is not None and max_skipped < 0:
            raise ValueError(f"max_skipped must be at least 0, or None for no limit, got {max_skipped}")
        return cls(max_skipped, path)

    @property
    def limit(self) -> SkipLimit:
        return SkipLimit(self.max_skipped, self.max_share)

    def __or__(self, other: SkipOptions) -> SkipOptions:
        """Of a stream that mixes two: the smaller number and the larger share hold for both together, in one file.

        Raises: ValueError where they name two.
        """
        if None not in (self.path, other.path) and self.path != other.path:
            paths = sorted(map(str, (self.path, other.path)))
            raise ValueError(f"the components list their skipped records in {paths}; give them one skipped_path")
        limits = [limit for limit in (self.max_skipped, other.max_skipped) if limit is not None]
        path, share = self.path if other.path is None else other.path, max(self.max_share, other.max_share)
        return SkipOptions(min(limits, default=None), path, share)


COUNT_ALONE = SkipOptions()


class SkipCounts:
    """Counts of skipped records. of: by component, kind and file; what goes on beyond 100 of them is of "others"."""

    def __init__(self) -> None:
        self.of: Counter[tuple[str, str, str]] = Counter()
        self._kinds: Counter[tuple[str, str]] = Counter()

    def add(self, skip: Skipped) -> str | None:
        """Count it. Returns a line for the log for the first of a kind, the 10th, the 100th, and so on."""
        component, kind, file = kind_of(skip)
        if (component, kind) not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            kind = _OTHERS
        if (component, kind, file) not in self.of and len(self.of) >= _MAX_FILES:
            file = _OTHERS
        self.of[component, kind, file] += 1
        self._kinds[component, kind] += 1
        count = self._kinds[component, kind]
        if 10 ** round(math.log10(count)) != count:
            return None
        many = f"{count:,} such records by now; " if count > 1 else ""
        return f"{many}skipped {skip.where} (position {skip.position}): {skip.reason}"


class SkippedRecords:
    """Lists the records that `on_error` skipped; the consumer of the stream counts them. skipped: the first MAX_LISTED.

    counts: of all since this was made. is_listing: False for all trainers but the first, as all skip the same records;
    then no file is written.
    """

    def __init__(self, options: SkipOptions = COUNT_ALONE, *, is_listing: bool = True) -> None:
        self._limit = options.limit
        self.restart()
        self.counts = SkipCounts()
        self._path = options.path if is_listing else None
        self._lines = None if self._path is None else lines_at(self._path)
        self._is_ours = self._lines is None  # what is there already, as far as was looked

    def restart(self) -> None:
        """The stream goes on from elsewhere, and a share is counted anew."""
        self.skipped: list[Skipped] = []
        self._limit = replace(self._limit, recent=())

    def check(self, skipped: Sequence[Skipped], before: int) -> SkipLimit:
        """The limit with these, after `before` others. Raises: as SkipLimit.plus; the stream stays before them."""
        return replace(self._limit, count=before).plus(skipped)

    def enter(self, skipped: Sequence[Skipped], before: int = 0) -> list[str]:
        """These are skipped in the next delivery, after `before` others. Returns lines for the log.

        Raises: as check; OSError where the file cannot be written; then nothing is entered, but perhaps lines that the
        next rewind strikes out.
        """
        limit = self.check(skipped, before)
        if self._lines is not None and skipped:
            with _writing(self._path):
                self._look(self._lines)
                self._lines.append([json.dumps(_entry(skip)) + "\n" for skip in skipped])
        self._limit = limit
        self.skipped += skipped[: MAX_LISTED - len(self.skipped)]
        return [line for skip in skipped if (line := self.counts.add(skip)) is not None]

    def rewind(self, position: int) -> None:
        """The stream goes on from this position: what is listed from there on comes again. The count is not changed."""
        if self._lines is not None:
            with _writing(self._path):
                self._look(self._lines)
                self._lines.keep(lambda line: _is_before(line, position))
        self.skipped = [skip for skip in self.skipped if skip.position < position]
        recent = tuple(skip for skip in self._limit.recent if skip.position < position)
        self._limit = replace(self._limit, recent=recent)

    def _look(self, lines: Lines) -> None:
        if not self._is_ours:
            _refuse_others(self._path, lines)
            self._is_ours = True


@contextlib.contextmanager
def _writing(path: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.add_note(f"skipped_path={path!r} cannot be written, so no batch is handed out; once it can, it comes")
        raise


def _checked_path(named: str) -> str:
    """The path, absolute. Permissions, and files behind a URL, are looked at when lines are written.

    Raises: ValueError where no file can ever be, and where there is one that is no list of skipped records.
    """
    if is_url(named):
        check_writable(named)
        return named
    path = Path(named.removeprefix("file://")).absolute()
    if path.is_dir():
        raise ValueError(f"skipped_path={str(path)!r} is a directory; name a file in it")
    there = next(parent for parent in path.parents if parent.exists())
    if not there.is_dir():
        raise ValueError(f"skipped_path={str(path)!r}: {there} is no directory; name a file in one")
    with contextlib.suppress(OSError):  # a file that cannot be read is an error when it is written
        _refuse_others(str(path), lines_at(str(path)))
    return str(path)


def _refuse_others(path: str | None, lines: Lines) -> None:
    """Raise ValueError where what is there already begins with no line of ours: it would be struck out as cut off."""
    if (first := lines.first()) and not _is_ours(first):
        raise ValueError(
            f"skipped_path={path!r} has a file that is no list of skipped records (its first line is {first[:80]!r}), "
            "and going on would overwrite it; name another file, or move that one away"
        )


def _is_ours(line: str) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # cut off when its writer was killed
        return line.startswith(_BEGIN[: len(line)])
    return isinstance(entry, dict) and entry.keys() >= {"position", "file", "record", "reason"}


def _entry(skip: Skipped) -> dict[str, Any]:
    entry = {"position": skip.position, "file": skip.where, "record": None, "reason": skip.reason}
    if (place := Place.of(skip.where)) is not None:
        entry |= {"file": place.path, "record": place.start}
        entry |= {"components": list(map(int, re.findall(r"\d+", place.components)))} if place.components else {}
        entry |= {"origin": place.origin} if place.origin else {}
    return entry


def _is_before(line: str, position: int) -> bool:
    try:
        return line.endswith("\n") and int(json.loads(line)["position"]) < position
    except (ValueError, KeyError, TypeError):
        return False  # cut off when its writer was killed; what it said comes again
