"""Looks at all files of a source before any is read, many at a time; one error lists all that is wrong with them.

Files beside a `dataset.json`, which `convert` and `materialize` write, are checked against it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.remote.ranges import REMOTE, read_small, read_tail
from datarax_ray.read.retry import retried

F = TypeVar("F")
T = TypeVar("T")

_MAX_OPENERS = 32  # opening waits for storage, not for a core
# Files that take so little each, beside a start, are looked at in this thread: among threads 1,000 files in the page
# cache took 0.90 s of CPU and 0.63 s, alone 0.36 s of both. So are files that mostly take CPU: then it is other
# programs that make them slow, and among threads they took 2.2 s in place of 0.7.
_FAST_S, _START_S, _MOSTLY = 0.001, 0.05, 3
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

    with contextlib.closing(_each(outcome, files, alone=not is_url(str(name(files[0]))))) as coming:
        outcomes: list[tuple[list[T], list[Exception]]] = list(_shown(coming, len(files)))
    failed = [error for _, errors in outcomes for error in errors]
    if len(failed) == 1:
        raise failed[0]
    if failed:
        shown = "".join(f"\n  {error}" for error in failed[:10])
        more = f"\n  and {len(failed) - 10} more" if len(failed) > 10 else ""
        raise ValueError(f"{len(failed)} of {len(files)} files cannot be read:{shown}{more}")
    return [said for found, _ in outcomes for said in found]


def _each(call: Callable[[F], T], files: Sequence[F], *, alone: bool) -> Generator[T, None, None]:
    """The results of calls for each file, in their order: in this thread while they are fast, else in many."""
    began, cpu_s, count = time.monotonic(), 0.0, 0
    while alone and count < len(files):
        if time.monotonic() - began > _START_S + max(count * _FAST_S, _MOSTLY * cpu_s):
            break
        cpu_before = time.thread_time()
        found = call(files[count])
        cpu_s += time.thread_time() - cpu_before
        yield found
        count += 1
    if count < len(files):
        with ThreadPoolExecutor(min(_MAX_OPENERS, len(files) - count)) as pool:
            coming: Any = pool.map(call, files[count:])
            with contextlib.closing(coming):  # an interrupt looks at no more
                yield from coming


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


FINISHED = "dataset.json"
UNFINISHED = "dataset.json.unfinished"
MAX_NBYTES = 2**28  # of it, behind a URL: some KB for each shard
_MAX_ASKED = 8
SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.\w+")


def check_folders(paths: Iterable[str], seen: Callable[[str], tuple[int, str | None]]) -> None:
    """Check files in folders that `convert` or `materialize` wrote, on this machine or behind URLs. Folders without
    files of such names are not looked at.

    seen: gives the size of a file, and the digest of its content (see read.file_contents); None for an unknown one.

    Raises: ValueError for an unfinished folder, for a missing file, and for a file that differs from the written one.
    """
    folders: dict[str, dict[str, str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if SHARD.fullmatch(name):
            folders.setdefault(folder or ".", {})[name] = path
    for folder, mine in folders.items():
        shards = _shards_in(folder)
        if shards is None:
            if is_there(f"{folder}/{UNFINISHED}"):
                raise not_finished(redacted(folder))
            continue
        remedy = f"or, where that is meant, remove {FINISHED} from there and give a list of files"
        others = sorted(shards.keys() - mine.keys())
        others = others[:_MAX_ASKED] if is_url(folder) else others  # a request each, where some are read alone
        if missing := [name for name in others if not is_there(f"{folder}/{name}")]:
            raise ValueError(
                f"{redacted(folder)}: {len(missing)} of the {len(shards)} files that were written there are gone, "
                f"{missing[0]} the first; copy the folder again, {remedy}"
            )
        if strange := sorted(mine.keys() - shards.keys()):
            raise ValueError(
                f"{redacted(mine[strange[0]])} is none of the {len(shards)} files that were written there; take it "
                f"away, {remedy}"
            )
        for name, now in zip(mine, inspect_all(seen, [*mine.values()]), strict=True):
            check_shard(redacted(mine[name]), shards[name], *now)


def check_shard(path: str, shard: Mapping[str, Any], nbytes: int, content: str | None) -> None:
    """Raise ValueError for a file that differs from the written one.

    path: for people. shard: its entry in `dataset.json`. content: None where it is not known.
    """
    if nbytes != shard["nbytes"] or content not in (None, shard["content"]):
        others = "others" if nbytes == shard["nbytes"] else f"{shard['nbytes']:,}"
        raise ValueError(
            f"{path} is not the file that was written: it has {nbytes:,} bytes, and {others} were written. Copy it "
            f"again, write all again, or, where that is meant, remove {FINISHED} from there"
        )


def not_finished(folder: str) -> ValueError:
    return ValueError(
        f"{folder} was not written to its end: run the same command, or call materialize, again, which goes on, or "
        f"remove {UNFINISHED} from there to read what is whole"
    )


def _shards_in(folder: str) -> dict[str, Mapping[str, Any]] | None:
    """The written shards of a folder, by name; None without a `dataset.json` of ours."""
    try:
        shards = json.loads(read_small(f"{folder}/{FINISHED}", MAX_NBYTES))["shards"]
        return {shard["name"]: {key: shard[key] for key in ("nbytes", "content")} for shard in shards} or None
    except (FileNotFoundError, PermissionError, ValueError, KeyError, TypeError, AttributeError):  # none of ours
        return None


def is_there(path: str) -> bool:
    """Whether a file is there, on a disk or behind a URL."""
    if not is_url(path):
        return os.path.exists(path)
    try:
        read_tail(path, 1, REMOTE)
    except (FileNotFoundError, PermissionError):
        return False
    return True
