"""Keeps what Ray prints about lost reader actors off the screen: each recovery is a log line of our own.

Ray's driver prints "A worker died or was killed ..." (10 lines, to stdout) for every process that goes, whatever
log_to_driver says. Its one filter is RAY_DEDUP_LOGS_SKIP_REGEX, read when ray is imported; it knows no processes, and
the user's own workers must not die in silence. So the filter object that Ray asks is given one that knows ours.
Source: ray/_private/ray_logging, LogDeduplicator.deduplicate; ray/_private/worker.py, listen_error_messages.
"""

from __future__ import annotations

import re
from typing import Any

# Ray says these of a worker by its process and node, and of a task by its class and method.
_DIED = re.compile(r"^A worker died or was killed .*Node ID: (\w+) .*Worker PID: (\d+)", re.DOTALL)
_RETRIED = re.compile(r"^Task ReaderActor\.\w+ failed\. There are .* so the task will be retried\.")


class _OurLines:
    """What LogDeduplicator asks whether to leave a line out, with re.Pattern's one method that it calls."""

    def __init__(self, users: Any) -> None:
        self._users = users  # the pattern of RAY_DEDUP_LOGS_SKIP_REGEX, None without
        self.processes: set[tuple[str, int]] = set()

    def search(self, line: str) -> bool:
        died = _DIED.match(line)
        if died is not None and (died[1], int(died[2])) in self.processes:
            return True
        return _RETRIED.match(line) is not None or (self._users is not None and bool(self._users.search(line)))


def silence(node_id: str, pid: int) -> None:
    """Do not print that this process of ours is gone. Does nothing where Ray has another way of printing."""
    try:
        from ray._private.ray_logging import stdout_deduplicator
    except ImportError:
        return
    if not isinstance(getattr(stdout_deduplicator, "skip_re", ""), _OurLines):
        stdout_deduplicator.skip_re = _OurLines(getattr(stdout_deduplicator, "skip_re", None))
    stdout_deduplicator.skip_re.processes.add((node_id, pid))
