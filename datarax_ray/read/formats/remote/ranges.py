"""Byte ranges of files behind URLs: many at once, retried where that helps, and always of one version."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from datarax_ray.read.errors import ChangedError, StorageError
from datarax_ray.read.formats.remote.clients import (
    Answer,
    NoRangesError,
    empty,
    filesystem_of,
    in_thread,
    is_url,
    redacted,
    scheme_of,
)
from datarax_ray.read.formats.remote.pages import Image
from datarax_ray.read.retry import Tries, is_transient, status_of, words_of

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")
Span: TypeAlias = tuple[str, str, int, int]  # (url, version, start, stop): the bytes [start, stop) of that version

MAX_REQUEST_NBYTES = 8 * 2**20  # longer ranges are asked for in pieces, at once: one connection rarely fills a link
# Where progress is not seen (not Scheme.tells_progress): a stuck request is noticed after 26 s, not after 74.
_BLIND_REQUEST_NBYTES = 2 * 2**20
_WARN_EVERY_S = 60.0  # for one folder: a fault of its server meets many requests at once
_warned_at: dict[str, float] = {}  # by folder


@dataclass(frozen=True)
class Remote:
    """How files behind URLs are read.

    nbytes: memory of one source in one process, for pages that stay, and for the ends of files while they are opened.
        One read may take more, where it wants more.
    most_requests: at once.
    gap_nbytes: the widest gap between two ranges that one request fetches. At 20 ms a request, the gap takes much less.
    timeout_s: after which a request without a new byte fails, where its client shows progress (http and s3 do).
    least_rate: bytes a second. With any client, a request is stuck once it has taken longer than its bytes at this
        rate, and timeout_s more. It is low: most_requests may share a slow link.
    listing_s: after which a listing is stuck; a million names take some 1,000 requests.
    waits_s: before each further try of a request or a listing; see Tries. Half a minute in all. The first is short, as
        one request is often lost alone.
    patience_s: after which there is no further try, but for the second. Two tries of the longest request end well
        within RaySource's request_timeout_s; after that the actor counts as hung, and no error names the URL.
    cache_dir: a folder of the host for the disk cache; "" for none.
    cache_nbytes: of all files of the disk cache.
    """

    nbytes: int = 256 * 2**20
    most_requests: int = 32
    gap_nbytes: int = 64 * 2**10
    timeout_s: float = 5.0
    least_rate: int = 2**17
    listing_s: float = 120.0
    waits_s: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    patience_s: float = 60.0
    cache_dir: str = ""
    cache_nbytes: int = 0


REMOTE = Remote()  # the defaults


def read_tail(url: str, nbytes: int, remote: Remote) -> Answer:
    """The last `nbytes` bytes of a file, or all of a shorter one: by one request where the storage can do that.

    Raises: as read_ranges.
    """
    return Asked(_asked(url, None, nbytes, remote)).result()


def read_small(path: str, most_nbytes: int) -> bytes:
    """All bytes of a small file, on a disk or behind a URL.

    Raises: as opening it; ValueError for a file behind a URL with more than `most_nbytes`.
    """
    if not is_url(path):
        with open(path, "rb") as file:
            return file.read()
    found = read_tail(path, most_nbytes, REMOTE)
    if found.nbytes > most_nbytes:
        raise ValueError(f"{redacted(path)} has {found.nbytes:,} bytes, where at most {most_nbytes:,} were expected")
    return found.data


class Asked(Generic[T]):
    """A request on its way, while this thread does other things."""

    def __init__(self, asked: Coroutine[Any, Any, T]) -> None:
        from fsspec.asyn import get_loop

        self._future = asyncio.run_coroutine_threadsafe(asked, get_loop())

    @property
    def is_answered(self) -> bool:
        """Whether the answer is there, and no error."""
        return self._future.done() and not self._future.cancelled() and self._future.exception() is None

    def result_if_well(self) -> T | None:
        """The answer, once it is there; None where the request failed by itself or was dropped: ask again."""
        try:
            return self.result() if self.is_answered or not self._future.done() else None
        except concurrent.futures.CancelledError:
            return None

    def result(self) -> T:
        """The answer, once it is there. Where the wait is interrupted, the request is dropped."""
        try:
            return self._future.result()
        except RuntimeError as error:  # as of a loop that ends with its process; readers raise that for a broken record
            raise StorageError(f"reading over the network failed: {words_of(error)}") from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Nobody wants the answer any more."""
        self._future.cancel()


def read_ranges(wanted: Sequence[Span], remote: Remote) -> list[bytes]:
    """The bytes of each span.

    Raises: ChangedError where a file is of another version; FileNotFoundError, PermissionError; StorageError where the
    storage failed for longer than was waited, with the URL and the range; ValueError where it gives no ranges.
    """
    return ask_ranges(wanted, remote).result()


def ask_ranges(wanted: Sequence[Span], remote: Remote, slots: asyncio.Semaphore | None = None) -> Asked[list[bytes]]:
    """As read_ranges, without waiting for the bytes; the result raises as read_ranges.

    slots: bounds the requests at once of all calls that share it, which take turns; None for remote.most_requests.
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


@contextlib.contextmanager
def sampled(
    url: str, remote: Remote, tail_nbytes: int, spans: Callable[[bytes, int], Sequence[tuple[int, int]]]
) -> Iterator[tuple[Image, str]]:
    """An image with the last bytes of a file and some others, and the version of the file.

    tail_nbytes: of the last bytes, which come by one request.
    spans: gives the spans of the others from the last bytes and the size of the file.

    Raises: as read_ranges.
    """
    tail = read_tail(url, tail_nbytes, remote)
    begin = tail.nbytes - len(tail.data)
    image = Image(tail.nbytes)
    try:
        image.fill(begin, tail.data)
        others = [(start, min(stop, begin)) for start, stop in spans(tail.data, tail.nbytes) if start < begin]
        found = read_ranges([(url, tail.version, start, stop) for start, stop in others], remote)
        for (start, _), data in zip(others, found, strict=True):
            image.fill(start, data)
        yield image, tail.version
    finally:
        image.close()


async def _asked(url: str, start: int | None, stop: int, remote: Remote, version: str = "") -> Answer:
    """Bytes [start, stop) of a file; its last `stop` bytes where start is None.

    version: the version that the bytes must be of, "" for any.
    """
    client, scheme, count = filesystem_of(url), scheme_of(url), stop - (start or 0)
    num_doubtful = 0

    async def once() -> Answer:
        nonlocal num_doubtful
        try:
            answer = await scheme.get(client, url, start, stop, remote.timeout_s)
            if version and answer.version != version:  # first: a shorter file would look cut
                raise _changed(url, version, f"is of {answer.version}")
        except (NoRangesError, ChangedError) as error:
            raise doubted(error) from None
        except Exception as error:
            if 416 not in (status_of(error), error.__cause__ and status_of(error.__cause__)):  # not satisfiable
                raise
            raise (doubted(_changed(url, version, "ends before that")) if version else empty(url)) from None
        if len(answer.data) != (count if start is not None else min(count, answer.nbytes)):
            raise ConnectionError(f"{len(answer.data):,} bytes came of {count:,}")
        return answer

    def doubted(error: ValueError) -> Exception:
        """The error once two answers say so: one of many servers or proxies behind a name may be wrong."""
        nonlocal num_doubtful
        num_doubtful += 1
        return ConnectionError(str(error)) if version and num_doubtful == 1 and remote.waits_s else error

    part = f"its last {stop:,} bytes" if start is None else f"bytes [{start:,}, {stop:,})"
    most_s = remote.timeout_s + count / remote.least_rate
    return await _patiently(once, url, f"{redacted(url)}, {part}: reading", remote, most_s)


def by_client(url: str, doing: str, ask: Callable[[], T], remote: Remote = REMOTE) -> T:
    """The result of ask(), which calls a client of fsspec; retried where that may help. doing: for people.

    Raises: as read_ranges.
    """
    call = partial(in_thread, ask)
    return Asked(_patiently(call, url, f"{redacted(url)}: {doing}", remote, remote.listing_s)).result()


async def _patiently(ask: Callable[[], Awaitable[T]], url: str, what: str, remote: Remote, most_s: float) -> T:
    """The result of a request, retried where that may help, with a warning where it takes long.

    what: is done, for people. most_s: that one request may take.
    Raises: StorageError where it failed for too long; ValueError at once, which is ours; see refusal.
    """
    tries = Tries(what, remote.waits_s, remote.patience_s, is_secret=redacted(url) != url)
    last, bound_s = "it has not answered", most_s + max(most_s, remote.patience_s)

    def warn() -> None:
        root, now = redacted(url).rpartition("/")[0], time.monotonic()
        if now >= _warned_at.get(root, -math.inf) + _WARN_EVERY_S:
            _warned_at[root] = now
            message = "%s takes more than %g s, and is given up after %.0f at the latest: %s"
            logger.warning(message, what, remote.timeout_s, bound_s, last)

    timer = asyncio.get_running_loop().call_later(remote.timeout_s, warn)
    try:
        while True:
            try:
                async with asyncio.timeout(most_s):
                    return await ask()
            except (ValueError, StorageError):
                raise
            except Exception as error:
                if not is_transient(error):
                    raise refusal(url, what, error) from cause(url, error)
                wait_s, last = tries.wait_s_after(error), words_of(error)
            await asyncio.sleep(wait_s)
    finally:
        timer.cancel()


def _changed(url: str, version: str, now: str) -> ChangedError:
    return ChangedError(
        f"{redacted(url)} changed while it was read: its version was {version} when the source was made, and it {now} "
        "now. It may give bytes of two files, so nothing of this read is taken. Put the original back and go on from "
        "the last state, or make a new source."
    )


def refusal(url: str, what: str, error: Exception) -> Exception:
    """The error where asking again cannot help. No RuntimeError: readers raise that for a broken record."""
    status = status_of(error)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(f"{redacted(url)}: no such file, or no such bucket ({words_of(error)})")
    if isinstance(error, PermissionError) or status in (401, 403) or "credentials" in str(error).lower():
        return PermissionError(
            f"{redacted(url)}: access is refused ({words_of(error)}). Give credentials the way that the client of "
            f"{url.partition('://')[0]}:// takes them, on every host that reads"
        )
    return StorageError(
        f"{what} failed: {words_of(error)}. That does not pass, so it was not asked again. Look at the URL and at the "
        "options of its service and client (region, versions), and go on from the last state."
    )


def cause(url: str, error: Exception) -> Exception | None:
    """The error as a cause; None where its words could hold a secret of the URL."""
    return error if redacted(url) == url else None
