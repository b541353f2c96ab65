"""Reading from storage that fails for a while: wait, and ask again. Which errors pass by themselves is decided here.

`datasets` and huggingface_hub ask again by themselves while they read or open a file (20 times, 5 to 60 s apart). Their
errors all the same (a rate limit while a file is looked up, a connection lost for longer) end up here.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from datarax_ray.read.errors import ChangedError, StorageError, message_of
from datarax_ray.read.laps import lap, repeats

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")

# Some 45 s in all, beside the tries themselves, which take as long with clients that ask again too: a rate limit's
# window is often over then, and an actor that spends longer on one request looks hung.
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_MOST_ASKED_S = 30.0  # that a server may ask for by Retry-After
_TELL_EVERY_S = 15.0  # people learn that it goes on

_BUSY = (408, 429, 500, 502, 503, 504)  # asked later, a server may answer
# Numbers by which a system call tells of a device, a mount or a network, and not of the file. EIO: a network file
# system or FUSE gives it for all that went wrong behind it; of a bad disk it stays, and is an error after the waits.
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
_FOR_GOOD = {"InvalidURL", "MissingSchema", "InvalidSchema", "TooManyRedirects"}  # of these modules
# or, from the clients inside pyarrow, by their text.
_SAID = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|REQUEST_TIMEOUT|REQUEST_TIME_TOO_SKEWED"
    r"|INTERNAL_FAILURE)|HTTP status (408|429|5\d\d)"
    r"|google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL|ABORTED)"
)


class Tries:
    """The tries of one read: how long to wait after each failure, and the error after the last.

    what: is done, for people ("/data/a: reading").
    waits_s: before each further try; each is up to half as long again, or as long as the server asks for.
    patience_s: after so long there is no further try, once there were two.
    is_secret: the errors may hold what people must not see, so none is a cause.
    """

    def __init__(
        self, what: str, waits_s: Sequence[float] = WAITS_S, patience_s: float = math.inf, is_secret: bool = False
    ) -> None:
        self._what = what
        self._waits_s = waits_s
        self._patience_s = patience_s
        self._is_secret = is_secret
        self._began = time.monotonic()
        self._tell_at = -math.inf
        self.num_failed = 0

    def wait_s_after(self, error: Exception) -> float:
        """How long to wait before the next try. Raises: StorageError where this was the last one."""
        self.num_failed += 1
        took_s = time.monotonic() - self._began
        num_left = len(self._waits_s) + 1 - self.num_failed
        wait_s = self._waits_s[-num_left] if num_left else 0.0
        if not num_left or (self.num_failed > 1 and took_s + wait_s > self._patience_s):
            raise StorageError(
                f"{self._what} failed {self.num_failed} times in {took_s:.0f} s, at last with {words_of(error)}. That "
                "is the storage or the way to it, no broken data, so nothing is skipped for it. Look at the mount, "
                "network or service, and go on from the last state."
            ) from (None if self._is_secret else error)
        repeats["requests"] += 1
        wait_s = max(wait_s, min(asked_wait_s(error), _MOST_ASKED_S))
        return wait_s * (1 + random.random() / 2)  # or all that were refused would come back at once

    def log(self, error: Exception) -> None:
        """Log a failure, but no more than one in _TELL_EVERY_S."""
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY_S
            times = f"{self.num_failed} times in {now - self._began:.0f} s"
            num_left = len(self._waits_s) + 1 - self.num_failed
            logger.warning("%s failed %s, trying up to %d more times: %s", self._what, times, num_left, words_of(error))


def retried(read: Callable[[], T], what: str = "the dataset") -> T:
    """The result of read(), called again after a while, and then after longer, where the storage failed.

    what: is read, for the log and the error.
    Raises: StorageError where the storage failed each time; any other error of read() at once.
    """
    tries = Tries(f"{what}: reading")
    while True:
        try:
            return read()
        except Exception as error:
            if not is_transient(error):
                raise
            wait_s = tries.wait_s_after(error)
            tries.log(error)
        with lap("storage"):
            time.sleep(wait_s)


def words_of(error: BaseException) -> str:
    """An error and its cause in words, without the queries of URLs: fsspec's FileNotFoundError is the URL alone."""
    said, cause = f"{type(error).__name__}: {message_of(error)}", error.__cause__
    if cause is not None and message_of(cause) not in said:
        said += f" ({type(cause).__name__}: {message_of(cause)})"
    return re.sub(r"\?[^\s'\")]+", "", said)[:500]


def is_transient(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is of the storage or network, and may be over at the next try.

    The first in the chain that tells decides: an HTTP status, a number of the system, or the class. 404 stays 404.
    """
    seen: set[int] = set()  # a library may raise an error from itself, or two from one another
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        passes = _passes(error)
        if passes is not None:
            return passes
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _passes(error: BaseException) -> bool | None:
    """Whether this error is transient; None where its cause decides."""
    if isinstance(error, StorageError | ChangedError):
        return False
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return None if error.__cause__ else False  # fsspec's HTTP takes what a busy server says for a missing file
    status = status_of(error)
    if status is not None:
        return status in _BUSY
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kinds = type(error).__mro__
    if any(f"{kind.__module__}.{kind.__qualname__}".startswith(_NETWORK) for kind in kinds):
        return _FOR_GOOD.isdisjoint(kind.__name__ for kind in kinds)
    if isinstance(error, OSError):
        if isinstance(error.errno, int):
            return error.errno in _PASSING
        if _SAID.search(str(error)):
            return True
    return None


def asked_wait_s(error: BaseException) -> float:
    """The seconds after which a server that refused may be asked again (Retry-After of RFC 9110); 0.0 for none.

    A date, which services give for hours of maintenance, counts as none.
    """
    for each in (error, error.__cause__):
        headers = getattr(each, "headers", None) or getattr(getattr(each, "response", None), "headers", None)
        asked = headers.get("Retry-After") if isinstance(headers, Mapping) else None
        if isinstance(asked, str) and asked.strip().isdecimal():
            return float(asked)
    return 0.0


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error of an HTTP library, where a server said it."""
    kinds = (type(error).__module__, type(error.__cause__).__module__)
    if hasattr(error, "message") and "aiohttp.http_exceptions" in kinds:
        return None  # aiohttp could not read the answer, and gives 400, which no server said
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        metadata = response.get("ResponseMetadata")
        found = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    else:
        found = getattr(error, "status", None) or getattr(response, "status_code", None)
    return found if isinstance(found, int) else None
