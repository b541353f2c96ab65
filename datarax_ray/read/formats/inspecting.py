"""Looks at all files of a source before any is read, many at a time; what is wrong with them is told together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

F = TypeVar("F")
T = TypeVar("T")

_MAX_OPENERS = 32  # opening waits for storage, not for a core


def inspect_all(inspect: Callable[[F], T], files: Sequence[F]) -> list[T]:
    """What `inspect` says of each file, in their order.

    Raises: the OSError or ValueError of one file, and a ValueError that lists those of several.
    """

    def outcome(file: F) -> tuple[list[T], list[Exception]]:
        try:
            return [inspect(file)], []
        except (OSError, ValueError) as error:
            return [], [error]

    with ThreadPoolExecutor(min(_MAX_OPENERS, len(files))) as pool:
        outcomes = list(pool.map(outcome, files))
    failed = [error for _, errors in outcomes for error in errors]
    if len(failed) == 1:
        raise failed[0]
    if failed:
        shown = "".join(f"\n  {error}" for error in failed[:10])
        more = f"\n  and {len(failed) - 10} more" if len(failed) > 10 else ""
        raise ValueError(f"{len(failed)} of {len(files)} files cannot be read:{shown}{more}")
    return [said for found, _ in outcomes for said in found]
