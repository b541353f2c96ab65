"""Refusing to go on in a process that was forked off: threads, locks and connections are of the one that made them."""

from __future__ import annotations

import os


class ForkedError(Exception):
    """Used in a process that was forked off. No RuntimeError, which readers raise for broken records, to be skipped."""


def check_not_forked(made_in: int, what: str) -> None:
    """Raise ForkedError where this is another process than the one with the id `made_in`, which made `what`."""
    if os.getpid() != made_in:
        raise ForkedError(
            f"{what} belongs to process {made_in}, and this is process {os.getpid()}, forked off from it without "
            "its threads: it would wait for ever, or crash. Make sources and pipelines in this process, started "
            'by multiprocessing\'s "spawn" method; a state of the other one goes on here'
        )


class OneProcess:
    """What starts threads in the first process that uses it, and is of no use to those forked off from that."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._used_in: int | None = None

    def check(self) -> None:
        """Before each use. Raises: ForkedError in a process that was forked off after the first."""
        self._used_in = self._used_in or os.getpid()
        check_not_forked(self._used_in, self._what)
