"""A request that takes longer than its peers is sent a second time, and the first answer counts.

A few of many requests to a storage stick, and a batch waits for its last one. The times of the last requests of about
its size tell when a request is late. A bounded share is sent again: on a full link more requests would help nobody.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_SHARE = 1 / 16  # of requests may be sent again
_MOST_SAVED = 8.0  # of these, for when several stick at once
_SAVED_FIRST = 2.0
_NUM_LEARNED = 64  # times of each size, the last ones
_FEWEST_LEARNED = 8  # fewer tell nothing
_TIMES = 3.0  # as long as nine in ten of these: late
_LEAST_S = 1.0  # a busy host may pause for so long
_MOST_AT_ONCE = 3  # requests for one range


class Peers:
    """The times of requests to one storage, by size, and how many more may be sent again. For the loop's thread alone.

    >>> peers = Peers()
    >>> peers.late_s(4096)
    >>> for _ in range(8):
    ...     peers.took(5000, 0.5)
    >>> peers.late_s(4096), peers.late_s(2**23)
    (1.5, None)
    """

    def __init__(self) -> None:
        self._took: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_LEARNED))
        self._saved = _SAVED_FIRST

    def took(self, nbytes: int, seconds: float) -> None:
        """A request for so many bytes was answered."""
        self._took[_size(nbytes)].append(seconds)
        self._saved = min(_MOST_SAVED, self._saved + _SHARE)

    def late_s(self, nbytes: int) -> float | None:
        """The seconds after which a request for so many bytes is late; None where too little is known."""
        took = sorted(self._took[_size(nbytes)])
        return None if len(took) < _FEWEST_LEARNED else max(_LEAST_S, _TIMES * took[len(took) * 9 // 10])

    def take(self) -> bool:
        """Whether one more request may be sent again; it then counts."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


def _size(nbytes: int) -> int:
    """The class of a size; sizes within a factor of about four share one."""
    return nbytes.bit_length() // 2


async def hedged(ask: Callable[[], Awaitable[T]], peers: Peers, nbytes: int, unknown_s: float) -> T:
    """The result of ask(), a request for about so many bytes; sent again beside the first where that is late.

    unknown_s: after which it is late while too little is known. Raises: the error of the last one, where all failed.
    """
    now = asyncio.get_running_loop().time

    async def timed() -> T:
        began = now()
        answer = await ask()
        peers.took(nbytes, now() - began)
        return answer

    tasks = {asyncio.ensure_future(timed())}
    try:
        while True:
            late_s = peers.late_s(nbytes)
            wait_s = unknown_s if late_s is None else late_s
            done, pending = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            tasks -= done
            well = [task for task in done if task.exception() is None]
            if well or not pending:
                return (well or [*done])[0].result()
            if not done and len(tasks) < _MOST_AT_ONCE and peers.take():
                tasks.add(asyncio.ensure_future(timed()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
