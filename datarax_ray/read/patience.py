"""Reading over a network that fails for a while: wait, and begin again at the last cursor.

`datasets` and huggingface_hub ask again by themselves while they read or open a file (20 times, 5 to 60 s apart). What
comes out of them all the same (a rate limit while a file is looked up, a connection lost for longer) ends up here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from datarax_ray.read.lanes import LaneRun
from datarax_ray.read.rows import Rows

logger = logging.getLogger("datarax_ray")

T = TypeVar("T")

# Half a minute in all: a rate limit's window is often over then, and an actor that is longer at one ticket looks hung.
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_BUSY = (408, 429, 500, 502, 503, 504)  # asked later, a server may answer
_NETWORK = ("aiohttp.", "httpx.", "urllib3.", "requests.")


class PatientRun:
    """A run through a lane that is opened again, behind what it gave, where the network failed it.

    open_run: a run from a state on.
    """

    def __init__(
        self, open_run: Callable[[Mapping[str, Any] | None], LaneRun], state: Mapping[str, Any] | None
    ) -> None:
        self._open = open_run
        self._state = state
        self._run: LaneRun | None = open_run(state)

    def next(self) -> list[Rows] | None:
        return patiently(self._next)

    def state(self) -> Mapping[str, Any]:
        assert self._state is not None  # asked for behind some elements
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


def patiently(read: Callable[[], T]) -> T:
    """What read() gives; called again after a while, and then after longer, where the network failed it."""
    for wait_s in WAITS_S:
        try:
            return read()
        except Exception as error:
            if not is_transient(error):
                raise
            wait_s *= 1 + random.random()  # or all that were refused would come back at once
            logger.warning("reading failed, asking again in %.1f s: %s: %s", wait_s, type(error).__name__, error)
            time.sleep(wait_s)
    return read()


def is_transient(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a network's or a busy server's, and may be over when asked again.

    Errors of HTTP libraries that carry a status say by it: 404 stays 404. They are known by their modules, and none of
    these libraries is imported for that.
    """
    while error is not None:
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status in _BUSY
        kinds = [f"{kind.__module__}." for kind in type(error).__mro__]
        if isinstance(error, ConnectionError | asyncio.TimeoutError | TimeoutError) or any(
            kind.startswith(_NETWORK) for kind in kinds
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
