"""Reading from storage that fails for a while: wait, and ask again. What kinds of errors those are is decided here.

`datasets` and huggingface_hub ask again by themselves while they read or open a file (20 times, 5 to 60 s apart). What
comes out of them all the same (a rate limit while a file is looked up, a connection lost for longer) ends up here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from datarax_ray.read.errors import StorageError, message_of
from datarax_ray.read.laps import lap
from datarax_ray.read.streams.open_shards import ShardRun
from datarax_ray.read.streams.rows import Rows
from datarax_ray.read.work_done import repeats

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")

# Each is at most doubled. Half a minute to a minute in all, beside what the tries themselves take, which of clients
# that ask again too is as long: a rate limit's window is often over then, and an actor that is longer at one request
# looks hung.
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_IN_ALL = f"{sum(WAITS_S):.0f} to {2 * sum(WAITS_S):.0f} s"
_SAID_EVERY_S = 15.0  # who waits is told that it goes on

_BUSY = (408, 429, 500, 502, 503, 504)  # asked later, a server may answer
# What a system call says of a device, a mount or a network, and not of the file. EIO: a network file system or FUSE
# gives it for whatever went wrong behind it; of a bad disk it stays, and is an error all the same, half a minute later.
_PASSING = {
    *(errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.EPIPE),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENOBUFS),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOLINK),
    socket.EAI_AGAIN,
}
# Errors that carry no number are known by their modules, none of which is imported for that,
_NETWORK = (
    "aiohttp.",
    "httpx.",
    "urllib3.",
    "requests.",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.IncompleteReadError",
)
# but for what they say of text that is no URL, and never becomes one;
_NO_URL = {"InvalidURL", "MissingSchema", "InvalidSchema"}
# or, from the clients inside pyarrow, by their text.
_SAID = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|REQUEST_TIMEOUT|REQUEST_TIME_TOO_SKEWED"
    r"|INTERNAL_FAILURE)|HTTP status (408|429|5\d\d)"
    r"|google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL|ABORTED)"
)

_NO_HOST = (
    " Nobody knows a host of this name. Where it is gone for good, leave what it had out of the data, or fetch it in a "
    "transform of your own (of images, Image(decode=False) gives the URL), whose errors on_error='skip' leaves out."
)


class RetriedRun:
    """A run through a shard that is opened again, behind what it gave, where the network failed it.

    open_run: a run from a state on.
    """

    def __init__(
        self, open_run: Callable[[Mapping[str, Any] | None], ShardRun], state: Mapping[str, Any] | None
    ) -> None:
        self._open = open_run
        self._state = state
        self._run: ShardRun | None = open_run(state)

    def next(self) -> list[Rows] | None:
        return retried(self._next)

    def state(self) -> Mapping[str, Any] | None:
        return self._state

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _next(self) -> list[Rows] | None:
        if self._run is None:
            self._run = self._open(self._state)
        try:
            given = self._run.next()
        except Exception:
            self.close()
            raise
        if given is not None:
            self._state = self._run.state()
        return given


def retried(read: Callable[[], T], what: str = "the dataset") -> T:
    """What read() gives; called again after a while, and then after longer, where the storage failed it.

    what: that is read, in the log, once and again while it lasts, and in the error.
    Raises: StorageError where it failed each time; at once, whatever else read() raises.
    """
    said_at = begin = time.monotonic()
    for tries, wait_s in enumerate(WAITS_S):
        try:
            return read()
        except Exception as error:
            if not is_transient(error):
                raise
            wait_s = max(wait_s, min(asked_wait_s(error), WAITS_S[-1]))
            now, num_left = time.monotonic(), len(WAITS_S) - tries
            if not tries:
                said = f"asking again up to {num_left} times, over {_IN_ALL} and what they take"
                logger.warning("reading %s failed, %s: %s: %s", what, said, type(error).__name__, _with_cause(error))
                said_at = now
            elif now - said_at >= _SAID_EVERY_S:
                said = f"{tries + 1} times in {now - begin:.0f} s, asking up to {num_left} more times"
                logger.warning("reading %s failed %s", what, said)
                said_at = now
            repeats["requests"] += 1
            with lap("storage"):
                time.sleep(wait_s * (1 + random.random()))  # or all that were refused would come back at once
    try:
        return read()
    except Exception as error:
        if not is_transient(error):
            raise
        raise StorageError(
            f"{what}: reading failed {len(WAITS_S) + 1} times in {time.monotonic() - begin:.0f} s, at last with "
            f"{type(error).__name__}: {_with_cause(error)}. That is the storage or the way to it, no broken data, so "
            "nothing is left out for it. Look at the mount, network or service, and go on from the last state."
            + (_NO_HOST if _has_no_host(error) else "")
        ) from error


def _with_cause(error: Exception) -> str:
    """What an error says, and what it came from: fsspec's FileNotFoundError is the URL alone where nobody answers."""
    cause = error.__cause__
    if cause is None or _is_no_http(error) or str(cause) in str(error):
        return words_of(error)
    return f"{error} ({type(cause).__name__}: {words_of(cause)})"


def words_of(error: BaseException) -> str:
    """What an error says; of what could not be read as HTTP not the bytes, and of what was redirected again and again
    where to at last.
    """
    if history := _redirects(error):
        return f"its server redirected it {len(history)} times, at last to {history[-1].headers.get('Location')}"
    if not _is_no_http(error):
        return message_of(error)
    what = str(error.message).partition("\n")[0].rstrip(":")[:80]  # type: ignore[attr-defined]
    return f"what came could not be read as HTTP ({what})"


def is_transient(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is the storage's or network's, and may be over when asked again.

    The first in the chain that tells decides: an HTTP status, a number of the system, or the class. 404 stays 404.
    """
    seen: set[int] = set()  # a library may raise an error from itself, or two from one another
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        told = _told(error)
        if told is not None:
            return told
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _told(error: BaseException) -> bool | None:
    """Whether it is transient, None where that is not for this error alone to say."""
    if isinstance(error, StorageError):
        return False
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return None if error.__cause__ else False  # fsspec's HTTP takes what a busy server says for a missing file
    status = status_of(error)
    if status is not None:
        return status in _BUSY
    if isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError):
        return True
    kinds = type(error).__mro__
    if any(f"{kind.__module__}.{kind.__qualname__}".startswith(_NETWORK) for kind in kinds):
        return _NO_URL.isdisjoint(kind.__name__ for kind in kinds)
    if isinstance(error, OSError):
        if isinstance(error.errno, int):
            return error.errno in _PASSING
        if _SAID.search(str(error)):
            return True
    return None


def _has_no_host(error: BaseException | None) -> bool:
    """Whether the name of a host was answered not to exist. That is no proof: a service that restarts has none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for each in (error, getattr(error, "os_error", None)):  # aiohttp's
            if isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME:
                return True
        error = error.__cause__ or error.__context__
    return False


def _is_no_http(error: BaseException) -> bool:
    """Whether aiohttp could not read what came, as after a body that was longer than it said: it drops the connection.

    Its error then carries 400, as if a server had said that.
    """
    kinds = (type(error).__module__, type(error.__cause__).__module__)
    return hasattr(error, "message") and "aiohttp.http_exceptions" in kinds


def _redirects(error: BaseException) -> Sequence[Any]:
    """The answers that aiohttp followed before it gave up, as each led to another one; () for any other error."""
    kind = type(error)
    is_redirect = (kind.__module__, kind.__name__) == ("aiohttp.client_exceptions", "TooManyRedirects")
    return error.history if is_redirect else ()  # type: ignore[attr-defined]


def asked_wait_s(error: BaseException) -> float:
    """For how long a server that refused asks to be left alone (Retry-After of RFC 9110, in seconds); 0.0 for no word.

    That may be a date, too, which services give for hours of maintenance: no word here.
    """
    for each in (error, error.__cause__):
        headers = getattr(each, "headers", None) or getattr(getattr(each, "response", None), "headers", None)
        asked = headers.get("Retry-After") if isinstance(headers, Mapping) else None
        if isinstance(asked, str) and asked.strip().isdecimal():
            return float(asked)
    return 0.0


def status_of(error: BaseException) -> int | None:
    """The status of HTTP that an error of an HTTP library carries, as a server said it."""
    if _is_no_http(error):
        return None
    if history := _redirects(error):
        return int(history[-1].status)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        metadata = response.get("ResponseMetadata")
        found = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    else:
        found = getattr(error, "status", None) or getattr(response, "status_code", None)
    return found if isinstance(found, int) else None
