"""A Ray for this program on this machine: it listens on loopback alone, and answers only those who have the token.

Source: token authentication in https://docs.ray.io/en/latest/ray-security/token-auth.html, on for new local clusters
since 2.59. Whoever reaches a Ray without it runs code as its user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

logger = logging.getLogger("datarax_ray")


def start_local(address: str | None = None, **options: Any) -> None:
    """ray.init(address, **options), with what it may start bound to loopback and its token readable by its user alone.

    RAY_AUTH_MODE=disabled turns authentication off, as for ray.init.

    Raises: what ray.init raises; ValueError where options are for a new cluster and one runs.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        _make_token()
    with _on_loopback(), sigterm_kept(), warnings.catch_warnings():
        # JAX warns of every fork; Ray's processes run another program at once, so none of them waits for its threads
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(address, **options)


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """What the program has for SIGTERM stays: ray.init puts a sys.exit in its place, and below that a handler in C++,
    which prints a trace from wherever the signal met it, and now and then aborts the program at that.

    A program that has nothing for it keeps Ray's: with it, what is registered to be done at the end is done.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _make_token() -> None:
    """A token where Ray would make one: Ray's own file can be read by every user of the machine."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            logger.warning("%s can be read by other users, who can then run code in this Ray; chmod 600 it", path)
    except OSError:  # a home that cannot be written: Ray says what it needs
        logger.debug("no token could be made at %s", path, exc_info=True)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Give Ray the loopback address as this node's, as it does itself on macOS and Windows.

    _node_ip_address="127.0.0.1" does not: ray.init replaces it by the address that other hosts see, and every service
    then listens on all interfaces.
    """
    # private, so it may go; what holds in the release installed is for tests/actors/test_local_ray.py to say
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        logger.warning("this Ray does not say how to listen on loopback alone; its services listen on all interfaces")
        yield
        return
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
