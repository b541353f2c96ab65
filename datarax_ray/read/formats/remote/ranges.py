"""Byte ranges of files behind URLs: many at once, asked for again where that helps, and always of one version."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.remote.clients import (
    Answer,
    NoRangesError,
    empty,
    filesystem_of,
    in_thread,
    scheme_of,
)
from datarax_ray.read.formats.remote.hedging import Peers, hedged
from datarax_ray.read.formats.remote.urls import is_url, redacted, root_of
from datarax_ray.read.retry import asked_wait_s, is_transient, status_of, words_of
from datarax_ray.read.work_done import repeats

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")
Span: TypeAlias = tuple[str, str, int, int]  # (url, version, start, stop): the bytes [start, stop) of that version

MAX_REQUEST_NBYTES = 8 * 2**20  # longer ranges are asked for in pieces, at once: one connection rarely fills a link
# The same where nobody sees what has come yet (Scheme.tells_progress): a stuck one is seen after 26 s, not after 74.
_BLIND_REQUEST_NBYTES = 2 * 2**20
_WARN_EVERY_S = 60.0  # of one folder; a fault of its server meets many requests at once
_MAX_DOUBTS = 4  # answers in a row without a range, of a file of which the version is known: then there are none
_peers: defaultdict[str, Peers] = defaultdict(Peers)  # of each bucket or host
_warned_at: dict[str, float] = {}  # when a warning was last given for each


@dataclass(frozen=True)
class Remote:
    """How files behind URLs are read.

    nbytes: that one source takes in one process: for pages that stay in memory, and for the ends of files that are
        being opened. One read may take more, where it wants more.
    most_requests: at once.
    gap_nbytes: at most, between two ranges that are asked for as one. At 20 ms a request, these come in much less.
    timeout_s: of a request of which no byte comes, where its client shows that (those of http and s3 do).
    least_rate: bytes a second. With any client, a request is stuck that takes longer than its bytes do at this rate,
        and timeout_s more. It is low: most_requests may share a slow link.
    late_s: after which a request is asked a second time beside the first, until it is known what others of its size
        take (see hedging).
    listing_s: of one listing; a million names take some 1,000 requests.
    waits_s: before a request or a listing is asked for again, and again; each up to half as long again, or as long as
        the server asks for (Retry-After). Half a minute in all. The first is short, as one request is often lost alone.
    patience_s: after so long it is not asked for again, unless it was asked for only once. Two tries of the longest
        request end well within RaySource's request_timeout_s; after that the actor is taken for hung, and no error
        names the URL.
    cache_dir: a folder of the host for the disk cache; "" for none.
    cache_nbytes: of all files of the disk cache.
    """

    nbytes: int = 256 * 2**20
    most_requests: int = 32
    gap_nbytes: int = 64 * 2**10
    timeout_s: float = 10.0
    least_rate: int = 2**17
    late_s: float = 2.5
    listing_s: float = 120.0
    waits_s: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    patience_s: float = 60.0
    cache_dir: str = ""
    cache_nbytes: int = 0


REMOTE = Remote()  # as it is by itself


class ChangedError(ValueError):
    """A file is no longer the one that was counted."""


def read_tail(url: str, nbytes: int, remote: Remote) -> Answer:
    """So many last bytes of a file, or all of a shorter one: by one request where the storage can do that.

    Raises: as read_ranges.
    """
    return Asked(_asked(url, None, nbytes, remote)).result()


def read_small(path: str, most_nbytes: int) -> bytes:
    """All that a small file holds, on a disk or behind a URL.

    Raises: as opening it; ValueError for one behind a URL that has more bytes than expected.
    """
    if not is_url(path):
        with open(path, "rb") as file:
            return file.read()
    found = read_tail(path, most_nbytes, REMOTE)
    if found.nbytes > most_nbytes:
        raise ValueError(f"{redacted(path)} has {found.nbytes:,} bytes, where at most {most_nbytes:,} were expected")
    return found.data


class Asked(Generic[T]):
    """What was asked for, and comes while this thread does other things."""

    def __init__(self, asked: Coroutine[Any, Any, T]) -> None:
        from fsspec.asyn import get_loop

        self._future = asyncio.run_coroutine_threadsafe(asked, get_loop())

    @property
    def has_come(self) -> bool:
        return self._future.done() and not self._has_failed

    @property
    def _has_failed(self) -> bool:
        return self._future.cancelled() or (self._future.done() and self._future.exception() is not None)

    def if_well(self) -> T | None:
        """As result; None where it has failed by now, or is dropped meanwhile: asked for again, it may come."""
        if self._has_failed:
            return None
        try:
            return self.result()
        except concurrent.futures.CancelledError:
            return None

    def result(self) -> T:
        """What came, once it has. Where waiting for it is interrupted, it is dropped."""
        try:
            return self._future.result()
        except RuntimeError as error:  # as of a loop that ends with its process; readers raise that for a broken record
            raise StorageError(f"reading over the network failed: {_words(error)}") from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Nobody wants it any more."""
        self._future.cancel()


def read_ranges(wanted: Sequence[Span], remote: Remote) -> list[bytes]:
    """The bytes of each span.

    Raises: ChangedError where a file is of another version; FileNotFoundError, PermissionError; StorageError where the
    storage failed for longer than was waited, with the URL and the range; ValueError where it gives no ranges.
    """
    return ask_ranges(wanted, remote).result()


def ask_ranges(wanted: Sequence[Span], remote: Remote, slots: asyncio.Semaphore | None = None) -> Asked[list[bytes]]:
    """As read_ranges, without waiting for the bytes; the result raises what that raises.

    slots: how many requests run at once, for calls that share them and get them in turn; None for slots of its own.
    """
    pieces = [
        (index, begin, min(begin + most, stop))
        for index, (url, _, start, stop) in enumerate(wanted)
        for most in [MAX_REQUEST_NBYTES if scheme_of(url).tells_progress else _BLIND_REQUEST_NBYTES]
        for begin in range(start, stop, most)
    ]

    async def all_of_them() -> list[bytes]:
        own = slots or asyncio.Semaphore(remote.most_requests)
        found: list[list[bytes]] = [[] for _ in wanted]

        async def one(index: int, start: int, stop: int) -> bytes:
            url, version = wanted[index][:2]
            async with own:
                return (await _asked(url, start, stop, remote, version)).data

        tasks = [asyncio.ensure_future(one(*piece)) for piece in pieces]
        try:
            for (index, _, _), data in zip(pieces, await asyncio.gather(*tasks), strict=True):
                found[index].append(data)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [b"".join(parts) for parts in found]

    return Asked(all_of_them())


async def _asked(url: str, start: int | None, stop: int, remote: Remote, version: str = "") -> Answer:
    """Bytes [start, stop) of a file; its last `stop` bytes where start is None. Asked for again where that may help.

    version: that they are to be of, "" for any.
    """
    client = filesystem_of(url)
    get = scheme_of(url).get
    count = stop - (start or 0)
    doubts = 0

    def other(now: str) -> Exception:
        """The file is another one where two answers say so: one of many servers behind a name may be wrong."""
        nonlocal doubts
        doubts += 1
        error = _changed(url, version, now)
        return error if doubts > 1 or not remote.waits_s else ConnectionError(str(error))

    async def once() -> Answer:
        nonlocal doubts
        try:
            answer = await hedged(
                lambda: get(client, url, start, stop, remote.timeout_s), _peers[root_of(url)], count, remote.late_s
            )
        except NoRangesError as error:
            doubts += 1
            if version and doubts < _MAX_DOUBTS:  # one of many servers behind a name, or a proxy, may give none
                raise ConnectionError(str(error)) from None
            raise
        except Exception as error:
            if 416 in (status_of(error), error.__cause__ and status_of(error.__cause__)):  # not satisfiable
                raise other("ends before that") if version else empty(url) from None
            raise
        if version and answer.version != version:  # first: a shorter one would look cut
            raise other(f"is of {answer.version}")
        if len(answer.data) != (count if start is not None else min(count, answer.nbytes)):
            raise ConnectionError(f"{len(answer.data):,} bytes came of {count:,}")
        return answer

    what = (
        f"{redacted(url)}, its last {stop:,} bytes"
        if start is None
        else f"{redacted(url)}, bytes [{start:,}, {stop:,})"
    )
    return await _patiently(once, url, f"{what}: reading", remote, remote.timeout_s + count / remote.least_rate)


def by_client(url: str, doing: str, ask: Callable[[], T], remote: Remote = REMOTE) -> T:
    """What ask() gives, which asks a client of fsspec; asked again where that may help. doing: what, for people.

    Raises: as read_ranges.
    """
    asked = _patiently(lambda: in_thread(ask), url, f"{redacted(url)}: {doing}", remote, remote.listing_s)
    return Asked(asked).result()


async def _patiently(ask: Callable[[], Awaitable[T]], url: str, what: str, remote: Remote, most_s: float) -> T:
    """What a request gives: asked again where that may help, given up where not, with a warning where it takes long.

    what: is done, for people. most_s: that one request may take.
    Raises: StorageError where it failed for too long; ValueError at once, which is ours; see refusal.
    """
    begin, last = time.monotonic(), "it has not answered"
    bound_s = most_s + max(most_s, remote.patience_s)

    def warn() -> None:
        message = "%s takes more than %g s, and is given up after %.0f at the latest: %s"
        _warn(url, message, what, remote.timeout_s, bound_s, last)

    timer = asyncio.get_running_loop().call_later(remote.timeout_s, warn)
    try:
        for tries, wait_s in enumerate((*remote.waits_s, None), start=1):
            try:
                async with asyncio.timeout(most_s):
                    return await ask()
            except Exception as error:
                if isinstance(error, ValueError | StorageError):
                    raise
                if not is_transient(error):
                    raise refusal(url, what, error) from cause(url, error)
                last, took_s = _words(error), time.monotonic() - begin
                if wait_s is None or (tries > 1 and took_s + wait_s > remote.patience_s):
                    raise StorageError(
                        f"{what} failed {tries} times in {took_s:.0f} s, at last with {last}. That is the storage or "
                        "the way to it, no broken data, so nothing is left out for it. Look at the service and the "
                        "network, and go on from the last state."
                    ) from cause(url, error)
                wait_s = max(wait_s, min(asked_wait_s(error), remote.patience_s - took_s))
            repeats["requests"] += 1
            await asyncio.sleep(wait_s * (1 + random.random() / 2))  # or all that were refused would come back at once
    finally:
        timer.cancel()
    raise AssertionError("the last try returns or raises")


def _warn(url: str, message: str, *args: Any) -> None:
    """Log a warning, but at most one in _WARN_EVERY_S for each folder."""
    root, now = redacted(url).rpartition("/")[0], time.monotonic()
    if now >= _warned_at.get(root, -math.inf) + _WARN_EVERY_S:
        _warned_at[root] = now
        logger.warning(message, *args)


def _changed(url: str, version: str, now: str) -> ChangedError:
    return ChangedError(
        f"{redacted(url)} changed while it was read: its version was {version} when the source was made, and it {now} "
        "now. It may give bytes of two files, so nothing of this read is taken. Put the original back and go on from "
        "the last state, or make a new source."
    )


def refusal(url: str, what: str, error: Exception) -> Exception:
    """What to raise where asking again cannot help. No RuntimeError: readers raise that for a broken record."""
    status = status_of(error)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(f"{redacted(url)}: no such file, or no such bucket ({_words(error)})")
    if isinstance(error, PermissionError) or status in (401, 403) or "credentials" in str(error).lower():
        return PermissionError(
            f"{redacted(url)}: access is refused ({_words(error)}). Give credentials the way that the client of "
            f"{url.partition('://')[0]}:// takes them, on every host that reads"
        )
    return StorageError(
        f"{what} failed: {_words(error)}. That does not pass, so it was not asked again. Look at the URL, and at what "
        "its service and client want (region, options, versions), and go on from the last state."
    )


def cause(url: str, error: Exception) -> Exception | None:
    """The error as a cause; None where its words could hold a secret of the URL."""
    return error if redacted(url) == url else None


def _words(error: BaseException) -> str:
    """An error in words, without the queries of URLs in it."""
    return re.sub(r"\?[^\s'\")]+", "", f"{type(error).__name__}: {words_of(error)}")[:500]
