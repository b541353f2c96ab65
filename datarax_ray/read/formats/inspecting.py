"""Looks at all files of a source before any is read, many at a time; one error lists all that is wrong with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from datarax_ray.read.retry import retried

F = TypeVar("F")
T = TypeVar("T")

_MAX_OPENERS = 32  # opening waits for storage, not for a core
_QUIET_S = 2.0  # what takes longer shows how far it is


def inspect_all(
    inspect: Callable[[F], T], files: Sequence[F], doing: str = "looked at", name: Callable[[F], Any] = str
) -> list[T]:
    """The results of `inspect`, in the order of the files; retried where the storage fails. Slow progress is shown on
    stderr.

    doing, name: what is done to a file, and its name, for people.

    Raises: the OSError or ValueError of one file, and a ValueError that lists those of several.
    """

    def outcome(file: F) -> tuple[list[T], list[Exception]]:
        try:
            return [retried(lambda: inspect(file), f"{name(file)} while it was {doing}")], []
        except (OSError, ValueError) as error:
            return [], [error]

    with ThreadPoolExecutor(min(_MAX_OPENERS, len(files))) as pool:
        coming: Any = pool.map(outcome, files)
        with contextlib.closing(coming):  # an interrupt looks at no more
            outcomes: list[tuple[list[T], list[Exception]]] = list(_shown(coming, len(files)))
    failed = [error for _, errors in outcomes for error in errors]
    if len(failed) == 1:
        raise failed[0]
    if failed:
        shown = "".join(f"\n  {error}" for error in failed[:10])
        more = f"\n  and {len(failed) - 10} more" if len(failed) > 10 else ""
        raise ValueError(f"{len(failed)} of {len(files)} files cannot be read:{shown}{more}")
    return [said for found, _ in outcomes for said in found]


def nothing_in(files: Sequence[str], what: str = "records") -> str:
    """A clause for people that these files are empty.

    >>> nothing_in(["a", "b", "c"])
    'there are 0 records in a and 2 more files'
    """
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return f"there are 0 {what} in {files[0]}{more}"


def _shown(coming: Iterator[T], num_files: int) -> Iterator[T]:
    """The items, with a progress bar once they have taken a while."""
    began = time.monotonic()
    count = 0
    for each in coming:
        yield each
        count += 1
        if time.monotonic() - began > _QUIET_S:
            break
    if count == num_files:
        return
    from rich.console import Console  # in here: it takes longer to load than a few files take to look at

    from datarax_ray.record_progress import RecordProgress

    with RecordProgress(Console(stderr=True, highlight=False), "files looked at", num_files, unit="files") as progress:
        progress.advance(count)
        for each in coming:
            progress.advance(1)
            yield each
