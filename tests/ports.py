"""Ports at which servers of tests will listen."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that Linux gives to whatever connects (32768 and up), and above those that Ray gives its workers (10002
# to 19999): of such a port, free when asked, another process may be the owner before the server starts.
_OURS = range(20000, 32768)


def free_ports(number: int) -> list[int]:
    """So many different ports at which nobody listens, and which nobody is given by chance."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.SystemRandom().sample(_OURS, len(_OURS)):
            each = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == number:
                return found
    raise OSError(f"no {number} free ports in {_OURS}")


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
