"""Byte ranges of files behind URLs: many at once, asked for again where that helps, and always of one version.

The clients are fsspec's: one registry for every scheme, listings and globs alike, credentials by each client's own
ways, and one event loop for all requests. Its `cat_ranges` does not tell of which version of a file a range is, and a
look at that beside every read is one more request that still leaves a gap. So the version (an ETag, a generation) is
taken from the very answer where a client shows it, and elsewhere asked for after the bytes. obstore, which does that in
Rust, has no presigned URLs, no `hf://` and no profiles of ~/.aws; pyarrow's filesystems tell no versions, and ask for
each file's size when it is opened.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import math
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from datarax_ray.read.errors import StorageError
from datarax_ray.read.formats.remote.hedging import Peers, hedged
from datarax_ray.read.formats.remote.urls import is_url, redacted, root_of
from datarax_ray.read.retry import asked_wait_s, is_transient, status_of, words_of
from datarax_ray.read.work_done import repeats

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
MAX_REQUEST_NBYTES = 8 * 2**20  # longer ranges are asked for in pieces, at once: one connection rarely fills a link
# The same of a client that tells nothing of what has come yet, so that a stuck one is seen after 26 s and not after 74.
_BLIND_REQUEST_NBYTES = 2 * 2**20
_TELL_EVERY_S = 60.0  # of one bucket or host; a fault of it meets many requests at once
_MAX_DOUBTS = 4  # answers in a row without a range, of a file of which the version is known: then there are none
_peers: defaultdict[str, Peers] = defaultdict(Peers)  # of each bucket or host
_told: dict[str, float] = {}  # when each was last told of
_READ_NBYTES = 2**20  # of a body at a time, or what is there of it
_CONTENT_RANGE = re.compile(r"\s*bytes\s+(\d+)-(\d+)/(\d+|\*)\s*", re.IGNORECASE)
_PROXY = (
    "A proxy or cache on the way may do that: read past it, serve the files by a server of byte ranges, or copy them"
)


@dataclass(frozen=True)
class Remote:
    """How files behind URLs are read.

    nbytes: of their pages that are kept in memory, and of the ends of files that are being opened, of one source in one
        process; or one read's, where that is more.
    most_requests: at once.
    gap_nbytes: between two ranges that are asked for as one: at 20 ms a request, what passes in a small part of that.
    timeout_s: of one request that brings nothing, where its client tells that (those of http and s3 do).
    least_rate: bytes a second. What comes slower than this and timeout_s allow is stuck, with any client: most_requests
        may share a slow link.
    late_s: after which a request is asked a second time beside the first, until it is known what others of its size
        take (see hedging).
    listing_s: of one listing; a million names take some 1,000 requests.
    waits_s: before either is asked for again, and again; each up to half as long again, or as long as the server asks
        for (Retry-After). Half a minute in all, with a quick one first, since one of many requests is often lost alone.
    patience_s: after so long it is not asked for again, unless it was asked for only once. Two tries of the longest
        request end well within RaySource's request_timeout_s, by which the actor would be taken for hung, and nobody
        told the URL.
    cache_dir: a folder of the host in which what was read is kept; "" for none.
    cache_nbytes: how many bytes in all are kept there.
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


@dataclass(frozen=True)
class Answer:
    """Some bytes of a file. nbytes: of all of it. version: that they are of; an ETag, say, as its storage tells it."""

    data: bytes
    nbytes: int
    version: str


class ChangedError(ValueError):
    """A file is no longer the one that was counted."""


class NoRangesError(ValueError):
    """A server gives no byte ranges, or does not tell of which version of a file they are."""


def _scheme(url: str) -> str:
    return url.partition("://")[0]


@functools.cache
def filesystem(root: str) -> Any:
    """The client for what begins so ("s3://bucket"). One for all threads: fsspec has one, with connections, for each.

    Raises: ImportError that names the extra, where the client is not installed; ValueError for a scheme that has none.
    """
    from fsspec.core import url_to_fs

    scheme = _scheme(root)
    try:
        return url_to_fs(root)[0]
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        how = f"pip install 'datarax-ray[{extra}]'" if extra else "install it"
        raise ImportError(f"{root}: the client for {scheme}:// is not installed ({error}); {how}") from error


def filesystem_of(url: str) -> Any:
    """The client for a URL; see filesystem."""
    return filesystem(root_of(url))


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
    """What was asked for, and comes while the thread does other things."""

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
        """As result; None where it had failed before, or is dropped meanwhile: asked for again, it may come."""
        if self._has_failed:
            return None
        try:
            return self.result()
        except concurrent.futures.CancelledError:
            return None

    def result(self) -> T:
        """What came, once it has; nobody asks for it any more where waiting for it is interrupted."""
        try:
            return self._future.result()
        except RuntimeError as error:  # as of a loop that ends with its process; readers raise that for a broken record
            raise StorageError(f"reading over the network failed: {_said(error)}") from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Nobody wants it any more."""
        self._future.cancel()


def read_ranges(wanted: Sequence[tuple[str, str, int, int]], remote: Remote) -> list[bytes]:
    """The bytes [start, stop) of each (url, version, start, stop).

    Raises: ChangedError where a file is of another version; FileNotFoundError, PermissionError; StorageError where the
    storage failed for longer than was waited, with the URL and the range; ValueError where it gives no ranges.
    """
    return ask_ranges(wanted, remote).result()


def ask_ranges(
    wanted: Sequence[tuple[str, str, int, int]], remote: Remote, slots: asyncio.Semaphore | None = None
) -> Asked[list[bytes]]:
    """As read_ranges, without waiting for the bytes; the result raises what that raises.

    slots: of requests at once, for those that share them one after the other; of its own without it.
    """
    pieces = [
        (index, begin, min(begin + most, stop))
        for index, (url, _, start, stop) in enumerate(wanted)
        for most in [MAX_REQUEST_NBYTES if _scheme(url) in _TELLING_PROGRESS else _BLIND_REQUEST_NBYTES]
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
    get = _GETTERS.get(_scheme(url), _get_any)
    count = stop - (start or 0)
    doubts = 0

    def other(now: str) -> Exception:
        """Of one of many servers behind a name it may be untrue: the file is another one when that is said again."""
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
                raise other("ends before that") if version else _empty(url) from None
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
    asked = _patiently(lambda: _in_thread(ask), url, f"{redacted(url)}: {doing}", remote, remote.listing_s)
    return Asked(asked).result()


async def _patiently(ask: Callable[[], Awaitable[T]], url: str, what: str, remote: Remote, most_s: float) -> T:
    """What a request gives; asked again where it may help, given up where it does not, and told of where it is long.

    what: is done, for people. most_s: that one request may take.
    Raises: StorageError where it failed for too long; ValueError at once, which is ours; see refusal.
    """
    begin, last = time.monotonic(), "it has not answered"
    bound_s = most_s + max(most_s, remote.patience_s)

    def tell() -> None:
        message = "%s takes more than %g s, and is given up after %.0f at the latest: %s"
        _tell(url, message, what, remote.timeout_s, bound_s, last)

    timer = asyncio.get_running_loop().call_later(remote.timeout_s, tell)
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
                last, took_s = _said(error), time.monotonic() - begin
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


def _tell(url: str, message: str, *args: Any) -> None:
    """Warn, once in a while for each place."""
    root, now = redacted(url).rpartition("/")[0], time.monotonic()
    if now >= _told.get(root, -math.inf) + _TELL_EVERY_S:
        _told[root] = now
        logger.warning(message, *args)


async def _in_thread(call: Callable[[], T]) -> T:
    """What call() gives. The thread is left behind where nobody waits any more, and at exit: it may hang for ever."""
    answer: asyncio.Future[T] = (loop := asyncio.get_running_loop()).create_future()

    def settle(how: Callable[[Any], None], result: Any) -> None:
        if not answer.done():
            how(result)

    def run() -> None:
        settled: tuple[Callable[[Any], None], Any]
        try:
            settled = answer.set_result, call()
        except BaseException as error:
            settled = answer.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, daemon=True, name="datarax_ray-remote").start()
    return await answer


def _changed(url: str, version: str, now: str) -> ChangedError:
    return ChangedError(
        f"{redacted(url)} changed while it was read: its version was {version} when the source was made, and it {now} "
        "now. It may give bytes of two files, so nothing of this read is taken. Put the original back and go on from "
        "the last state, or make a new source."
    )


def _empty(url: str) -> ValueError:
    return ValueError(f"{redacted(url)} is not a complete file: it is empty (0 bytes)")


def refusal(url: str, what: str, error: Exception) -> Exception:
    """What to raise where asking again cannot help. No RuntimeError: readers raise that for a broken record."""
    status = status_of(error)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(f"{redacted(url)}: no such file, or no such bucket ({_said(error)})")
    if isinstance(error, PermissionError) or status in (401, 403) or "credentials" in str(error).lower():
        return PermissionError(
            f"{redacted(url)}: access is refused ({_said(error)}). Give credentials the way that the client of "
            f"{url.partition('://')[0]}:// takes them, on every host that reads"
        )
    return StorageError(
        f"{what} failed: {_said(error)}. That does not pass, so it was not asked again. Look at the URL, and at what "
        "its service and client want (region, options, versions), and go on from the last state."
    )


def cause(url: str, error: Exception) -> Exception | None:
    """The error, unless what it says of the URL could be a secret."""
    return error if redacted(url) == url else None


def _said(error: BaseException) -> str:
    """An error in words, without the queries of URLs in it."""
    return re.sub(r"\?[^\s'\")]+", "", f"{type(error).__name__}: {words_of(error)}")[:500]


Getter = Callable[[Any, str, int | None, int, float], Awaitable[Answer]]


def _header(start: int | None, stop: int) -> str:
    return f"bytes=-{stop}" if start is None else f"bytes={start}-{stop - 1}"


def _answer(url: str, start: int | None, stop: int, content_range: str, version: str | None, data: bytes) -> Answer:
    """What an answer with a Content-Range gives, found to be what was asked for."""
    if start is None and not data:
        raise _empty(url)
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        said = f"Content-Range {content_range[:80]!r}" if content_range else "no Content-Range"
        raise NoRangesError(f"{redacted(url)}: asked for {_header(start, stop)}, it is answered with {said}. {_PROXY}")
    # '*' is a number of bytes that is not told: the last ones end with the file, and of others it is known
    nbytes = int(match[2]) + 1 if match[3] == "*" else int(match[3])
    if int(match[1]) != (max(0, nbytes - stop) if start is None else start):
        raise ConnectionError(f"asked for {_header(start, stop)}, {match[0]!r} came. {_PROXY}")
    if not version:
        raise NoRangesError(
            f"{redacted(url)}: its storage tells neither an ETag nor a time of change, so a file that is replaced "
            "while it is read could not be told. Copy the files, or serve them by another server"
        )
    return Answer(data, nbytes, version)


async def _get_http(client: Any, url: str, start: int | None, stop: int, timeout_s: float) -> Answer:
    from aiohttp import ClientTimeout

    session = await client.set_session()
    options = {"timeout": ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)} | client.kwargs
    headers = dict(options.pop("headers", {})) | {"Range": _header(start, stop), "Accept-Encoding": "identity"}
    async with session.get(client.encode_url(url), headers=headers, **options) as answer:
        answer.raise_for_status()
        etag = answer.headers.get("ETag", "")
        version = etag if etag.strip('W/"') else answer.headers.get("Last-Modified")  # '""' would be that of every file
        if answer.status == 206:
            content_range = answer.headers.get("Content-Range", "")
            return _answer(url, start, stop, content_range, version, await answer.read())
        length = answer.content_length
        if start is None and version and length is not None and length <= stop:  # all of it, as was asked
            return Answer(await answer.read(), length, version)
        raise NoRangesError(
            f"{redacted(url)}: its server gives no byte ranges (it answers {answer.status} with the whole file). Copy "
            "the files, or serve them by a server that does"
        )


async def _get_s3(client: Any, url: str, start: int | None, stop: int, timeout_s: float) -> Answer:
    bucket, key, version_id = client.split_path(url)
    options = {"VersionId": version_id} if version_id else {}
    now, data = asyncio.get_running_loop().time, bytearray()
    async with asyncio.timeout(timeout_s) as limit:
        answer = await client._call_s3("get_object", Bucket=bucket, Key=key, Range=_header(start, stop), **options)
        async with answer["Body"] as body:
            while part := await body.read(_READ_NBYTES):
                data += part
                limit.reschedule(now() + timeout_s)
    return _answer(url, start, stop, answer.get("ContentRange", ""), answer.get("ETag"), bytes(data))


async def _get_gcs(client: Any, url: str, start: int | None, stop: int, timeout_s: float) -> Answer:
    headers, data = await client._call("GET", client.url(url), headers={"Range": _header(start, stop)})
    version = headers.get("X-Goog-Generation") or headers.get("ETag")
    return _answer(url, start, stop, headers.get("Content-Range", ""), version, data)


async def _get_any(client: Any, url: str, start: int | None, stop: int, timeout_s: float) -> Answer:
    """By what every filesystem of fsspec has; the version is what it says of the file after the bytes are there."""
    path = client._strip_protocol(url)

    async def call(name: str, *args: Any, **options: Any) -> Any:
        if client.async_impl:
            return await getattr(client, f"_{name}")(*args, **options)
        return await _in_thread(functools.partial(getattr(client, name), *args, **options))

    if start is None:
        nbytes = int((await call("info", path))["size"])
        start, stop = max(0, nbytes - stop), nbytes
    data = await call("cat_file", path, start=start, end=stop)
    client.invalidate_cache(client._parent(path))
    info = await call("info", path)
    return _answer(url, start, stop, f"bytes {start}-{stop - 1}/{info['size']}", _told_version(info), data)


# What filesystems say of a file that tells it from another, the surest first; none says everything.
TELLING = (
    *("etag", "ETag", "generation", "version", "blob_id"),
    *("mtime", "last_modified", "LastModified", "Last-Modified", "created"),
)


def listed_version(url: str, info: Mapping[str, Any]) -> str:
    """The version of a file as a read of it will tell it, by what its client's listing says; "" where that is not said.

    What a listing says otherwise than a read makes it another version, of which nothing is known.
    """
    match _scheme(url):
        case "http" | "https":
            return ""
        case "s3" | "s3a":
            return str(info.get("ETag") or "")
        case "gs" | "gcs":
            return str(info.get("generation") or "")
        case _:
            return _told_version(info)


def _told_version(info: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {info[name]}" for name in TELLING if info.get(name) is not None)


_GETTERS: dict[str, Getter] = {
    **dict.fromkeys(("http", "https"), _get_http),
    **dict.fromkeys(("s3", "s3a"), _get_s3),
    **dict.fromkeys(("gs", "gcs"), _get_gcs),
}
# Those whose answers say of which version of a file they are. Of others it is asked for after each.
TELLING_VERSION = frozenset(_GETTERS)
_TELLING_PROGRESS = ("http", "https", "s3", "s3a")  # those of which a part that came is seen
