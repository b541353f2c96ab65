"""The clients of the storages behind URLs, how each gives a byte range of one version of a file, and URLs for people.

The clients are fsspec's: one registry for every scheme, listings and globs alike, credentials by each client's own
ways, and one event loop for all requests. Its `cat_ranges` does not name the version of a file, and a look-up beside
every read is one more request that still leaves a gap. So the version (an ETag, a generation) comes from the answer
itself where a client shows it, and elsewhere from a request after the bytes. obstore, which does that in Rust, has no
presigned URLs, no `hf://` and no profiles of ~/.aws; pyarrow's filesystems name no versions, and ask for each file's
size when it is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar


def is_url(path: str) -> bool:
    """Whether a path is for one of the clients here; file:// is a path of this machine."""
    return "://" in path and not path.startswith("file://")


def redacted(url: str) -> str:
    """The URL for people, without parts that may be secret, such as a signature.

    >>> redacted("https://me:word@host/a.array_record?X-Amz-Signature=12")
    'https://host/a.array_record'
    """
    plain = re.sub(r"(?<=://)[^/@]*@", "", url)
    return plain.partition("?")[0] if "http" in plain.partition("://")[0] else plain


T = TypeVar("T")

_READ_NBYTES = 2**20  # of a body at a time, or what is there of it
_CONTENT_RANGE = re.compile(r"\s*bytes\s+(\d+)-(\d+)/(\d+|\*)\s*", re.IGNORECASE)
_PROXY = (
    "A proxy or cache on the way may do that: read past it, serve the files by a server of byte ranges, or copy them"
)
# The fields of a filesystem's answer about a file that tell two versions apart, the surest first. None has all.
VERSION_FIELDS = (
    *("etag", "ETag", "generation", "version", "blob_id"),
    *("mtime", "last_modified", "LastModified", "Last-Modified", "created"),
)


@dataclass(frozen=True)
class Answer:
    """Some bytes of a file.

    nbytes: of the whole file.
    version: of the file, as its storage names it: an ETag, say.
    """

    data: bytes
    nbytes: int
    version: str


class NoRangesError(ValueError):
    """A server gives no byte ranges, or does not name the version of a file."""


@dataclass(frozen=True)
class Scheme:
    """How files of one URL scheme are read.

    get: asks a client for bytes [start, stop) of a URL, or for its last `stop` bytes where start is None. The number is
        the seconds without a byte after which it fails, where tells_progress.
    extra: of this package, that installs the client; "" where none does.
    names_versions: whether its answers name the version of the file; of others it is asked for after each.
    tells_progress: whether parts of an answer are seen as they come.
    is_pyarrows: whether pyarrow has a filesystem of its own for it, whose credentials and endpoints may differ.
    """

    get: Callable[[Any, str, int | None, int, float], Awaitable[Answer]]
    extra: str = ""
    names_versions: bool = False
    tells_progress: bool = False
    is_pyarrows: bool = False


def empty(url: str) -> ValueError:
    return ValueError(f"{redacted(url)} is not a complete file: it is empty (0 bytes)")


def _header(start: int | None, stop: int) -> str:
    return f"bytes=-{stop}" if start is None else f"bytes={start}-{stop - 1}"


def _answer(url: str, start: int | None, stop: int, content_range: str, version: str | None, data: bytes) -> Answer:
    """The answer with these bytes, where its Content-Range is the range of the request."""
    if start is None and not data:
        raise empty(url)
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        came = f"Content-Range {content_range[:80]!r}" if content_range else "no Content-Range"
        raise NoRangesError(f"{redacted(url)}: asked for {_header(start, stop)}, it is answered with {came}. {_PROXY}")
    # '*' is an unknown number of bytes: the last ones end with the file, and of others it is known
    nbytes = int(match[2]) + 1 if match[3] == "*" else int(match[3])
    if int(match[1]) != (max(0, nbytes - stop) if start is None else start):
        raise ConnectionError(f"asked for {_header(start, stop)}, {match[0]!r} came. {_PROXY}")
    if not version:
        raise NoRangesError(
            f"{redacted(url)}: its storage tells neither an ETag nor a time of change, so a file that is replaced "
            "while it is read would not be noticed. Copy the files, or serve them by another server"
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
    """The way of every filesystem of fsspec. The version is that of the file once the bytes are there."""
    path = client._strip_protocol(url)

    async def call(name: str, *args: Any, **options: Any) -> Any:
        if client.async_impl:
            return await getattr(client, f"_{name}")(*args, **options)
        return await in_thread(functools.partial(getattr(client, name), *args, **options))

    if start is None:
        nbytes = int((await call("info", path))["size"])
        start, stop = max(0, nbytes - stop), nbytes
    data = await call("cat_file", path, start=start, end=stop)
    client.invalidate_cache(client._parent(path))
    info = await call("info", path)
    version = ", ".join(f"{name} {info[name]}" for name in VERSION_FIELDS if info.get(name) is not None)
    return _answer(url, start, stop, f"bytes {start}-{stop - 1}/{info['size']}", version, data)


_SCHEMES = {
    "http": Scheme(_get_http, names_versions=True, tells_progress=True),
    "https": Scheme(_get_http, names_versions=True, tells_progress=True),
    "s3": Scheme(_get_s3, "s3", names_versions=True, tells_progress=True, is_pyarrows=True),
    "s3a": Scheme(_get_s3, "s3", names_versions=True, tells_progress=True),
    "gs": Scheme(_get_gcs, "gcs", names_versions=True, is_pyarrows=True),
    "gcs": Scheme(_get_gcs, "gcs", names_versions=True, is_pyarrows=True),
    "az": Scheme(_get_any, "azure"),
    "abfs": Scheme(_get_any, "azure", is_pyarrows=True),
    "abfss": Scheme(_get_any, "azure", is_pyarrows=True),
}
_OTHER = Scheme(_get_any)


def scheme_of(url: str) -> Scheme:
    """The scheme of a URL; of a path, whose first folder may be named like a scheme, that of all others."""
    name, separator, _ = url.partition("://")
    return _SCHEMES.get(name, _OTHER) if separator else _OTHER


@functools.cache
def filesystem(root: str) -> Any:
    """The client for URLs that begin with "s3://bucket", say. All threads share it: fsspec would make one for each.

    Raises: ImportError that names the extra, where the client is not installed; ValueError for an unknown scheme.
    """
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(root)[0]
    except ImportError as error:
        name, extra = root.partition("://")[0], scheme_of(root).extra
        how = f"pip install 'datarax-ray[{extra}]'" if extra else "install it"
        raise ImportError(f"{root}: the client for {name}:// is not installed ({error}); {how}") from error


def filesystem_of(url: str) -> Any:
    """The client for a URL; see filesystem."""
    return filesystem("/".join(url.split("/", 3)[:3]))


async def in_thread(call: Callable[[], T]) -> T:
    """The result of call(). Its thread may hang for ever: nobody waits for it after a cancellation, nor at exit."""
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
