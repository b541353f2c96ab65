"""What the harness must notice, done on purpose."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from tests.fuzz import outcomes


class MisbehavingTarget:
    """Each kind does what it is called."""

    def __init__(self, directory: Path) -> None:
        pass

    kinds = ("good", "crash", "exit", "hang", "memory", "wrong")

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        if kind == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "exit":
            os._exit(0)
        elif kind == "hang":
            threading.Event().wait()
        elif kind == "memory":
            os.write(os.open(os.devnull, os.O_WRONLY), b"\1" * (400 * 2**20))
        elif kind == "wrong":
            return outcomes.WRONG, "on purpose"
        return outcomes.UNHARMED, ""
