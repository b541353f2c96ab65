"""The ledger of skipped records: a cap on their number, a list, and one line of JSON for each.

A record is entered when the batch without it is delivered, or before where many wait for one. It is struck out when the
stream goes back to before it. After any number of resumes the file lists each record that is missing from the delivered
batches, once a pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datarax_ray.read.errors import Skipped, SkippedError
from datarax_ray.read.formats.remote.urls import is_url
from datarax_ray.read.lines import Lines, check_writable, lines_at

_PLACE = re.compile(
    r"(?P<components>(component \d+: )*)(?P<file>.+)\[(?P<record>\d+)\]( \(row group \d+\))?", re.DOTALL
)
_BEGIN = '{"position": '  # of each line
# The count and the file go on; the list and the log are for people.
MAX_LISTED = 1000


@dataclass(frozen=True)
class SkipOptions:
    """What a consumer does about the records that `on_error` skips; no part of the stream itself.

    max_skipped: more are an error, None for no limit. path: a JSON-lines file with position, file, record and reason,
    of a mixture the numbers of components, too, the outermost first; or a URL below which such files are (read.lines),
    None for none; what is in it of a former run, from where this one begins, is dropped. A relative one is made
    absolute here.

    Raises: TypeError for a max_skipped that is no whole number; ValueError for a negative one, for a path at which no
    file can be, and for one with a file that is no such list; ImportError for a URL whose client is not installed.
    """

    max_skipped: int | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_skipped, bool) or not hasattr(self.max_skipped or 0, "__index__"):
            raise TypeError(f"max_skipped is a whole number, or None for no limit, got {self.max_skipped!r}")
        if self.max_skipped is not None and self.max_skipped < 0:
            raise ValueError(f"max_skipped must be at least 0, or None for no limit, got {self.max_skipped}")
        if self.path is not None:
            object.__setattr__(self, "path", _checked_path(os.fspath(self.path)))

    def __or__(self, other: SkipOptions) -> SkipOptions:
        """Of a stream that mixes two: the smaller limit holds for both together, and there is one file.

        Raises: ValueError where they name two.
        """
        if None not in (self.path, other.path) and self.path != other.path:
            paths = sorted(map(str, (self.path, other.path)))
            raise ValueError(f"the components list their skipped records in {paths}; give them one skipped_path")
        limits = [limit for limit in (self.max_skipped, other.max_skipped) if limit is not None]
        return SkipOptions(min(limits, default=None), self.path if other.path is None else other.path)


COUNT_ALONE = SkipOptions()


class SkippedRecords:
    """Lists the records that `on_error` skipped; the consumer of the stream counts them. skipped: the first MAX_LISTED.

    is_listing: False for all trainers but the first, as all skip the same records; then no file is written.
    """

    def __init__(self, options: SkipOptions = COUNT_ALONE, *, is_listing: bool = True) -> None:
        self.restart()
        self._max_skipped = options.max_skipped
        self._path = options.path if is_listing else None
        self._lines = None if self._path is None else lines_at(self._path)
        self._is_ours = self._lines is None  # what is there already, as far as was looked

    def restart(self) -> None:
        """The stream goes on from elsewhere."""
        self.skipped: list[Skipped] = []

    @property
    def is_full(self) -> bool:
        """Whether those that come are counted, and no longer listed."""
        return len(self.skipped) >= MAX_LISTED

    def check(self, skipped: Sequence[Skipped], before: int) -> None:
        """As check_skipped."""
        check_skipped(skipped, before, self._max_skipped)

    def enter(self, skipped: Sequence[Skipped]) -> Sequence[Skipped]:
        """These are skipped in the next delivery. Returns those that were listed.

        Raises: OSError where the file cannot be written; then nothing is entered, but perhaps lines that the next
        rewind strikes out.
        """
        if self._lines is not None and skipped:
            with _writing(self._path):
                self._look(self._lines)
                self._lines.append([json.dumps(_entry(skip)) + "\n" for skip in skipped])
        listed = skipped[: MAX_LISTED - len(self.skipped)]
        self.skipped += listed
        return listed

    def rewind(self, position: int) -> None:
        """The stream goes on from this position: what is listed from there on comes again. The count is not changed."""
        if self._lines is not None:
            with _writing(self._path):
                self._look(self._lines)
                self._lines.keep(lambda line: _is_before(line, position))
        self.skipped = [skip for skip in self.skipped if skip.position < position]

    def _look(self, lines: Lines) -> None:
        if not self._is_ours:
            _refuse_others(self._path, lines)
            self._is_ours = True


def check_skipped(skipped: Sequence[Skipped], before: int, max_skipped: int | None) -> None:
    """Raise SkippedError where these, after `before` others, are too many; the stream stays before them."""
    total = before + len(skipped)
    if max_skipped is None or total <= max_skipped or not skipped:
        return
    first = skipped[max(0, max_skipped - before)]  # a state may have more already
    raise SkippedError(
        f"{total} records could not be read, more than max_skipped={max_skipped} allows. The first beyond it is "
        f"{first.where} (position {first.position}): {first.reason}. Mend the data, or allow more."
    )


@contextlib.contextmanager
def _writing(path: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.add_note(f"skipped_path={path!r} cannot be written, so no batch is handed out; once it can, it comes")
        raise


def _checked_path(named: str) -> str:
    """The same, absolute. Who may write there is known only where it is written, and so is what is behind a URL.

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
    place = _PLACE.fullmatch(skip.where)
    components = list(map(int, re.findall(r"\d+", place["components"]))) if place else []
    entry = {
        "position": skip.position,
        "file": place["file"] if place else skip.where,
        "record": int(place["record"]) if place else None,
        "reason": skip.reason,
    }
    return entry | ({"components": components} if components else {})


def _is_before(line: str, position: int) -> bool:
    try:
        return line.endswith("\n") and int(json.loads(line)["position"]) < position
    except (ValueError, KeyError, TypeError):
        return False  # cut off when its writer was killed; what it said comes again
