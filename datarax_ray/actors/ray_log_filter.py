"""Keeps what Ray prints about lost reader actors off the screen, and bounds what the actors print themselves.

Each recovery is a log line of our own.

Ray's driver prints "A worker died or was killed ..." (10 lines, to stdout) for every process that goes, whatever
log_to_driver says. Its one filter is RAY_DEDUP_LOGS_SKIP_REGEX, read when ray is imported; it knows no processes, and
the user's own workers must not die in silence. So the filter object that Ray asks is given one that knows ours.
Source: ray/_private/ray_logging, LogDeduplicator.deduplicate; ray/_private/worker.py, listen_error_messages.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from ray._private import ray_logging

logger = logging.getLogger("datarax_ray")

# A print in a transform comes once for each record; who looks for something finds it in these, or in Ray's files.
_MAX_PRINTED = 1000

# Ray says these of a worker by its process and node, and of a task by its class and method.
_DIED = re.compile(r"^A worker died or was killed .*Node ID: (\w+) .*Worker PID: (\d+)", re.DOTALL)
_RETRIED = re.compile(r"^Task ReaderActor\.\w+ failed\. There are .* so the task will be retried\.")


class _OurLines:
    """What LogDeduplicator asks whether to leave a line out, with re.Pattern's one method that it calls."""

    def __init__(self, users: Any) -> None:
        self._users = users  # the pattern of RAY_DEDUP_LOGS_SKIP_REGEX, None without
        self.processes: set[tuple[str, int]] = set()
        self.num_left: int | None = None  # lines to print from here on; None for all

    def search(self, line: str) -> bool:
        died = _DIED.match(line)
        if died is not None and (died[1], int(died[2])) in self.processes:
            return True
        if _RETRIED.match(line) is not None or (self._users is not None and bool(self._users.search(line))):
            return True
        if self.num_left is None:
            return False
        if self.num_left == 0:
            logger.warning(
                "actors have printed %d lines, and more is not shown here: see worker-*.out and .err in the directory "
                "logs of Ray's session, /tmp/ray/session_latest by default, on each node",
                _MAX_PRINTED,
            )
        self.num_left -= 1
        return self.num_left < 0


def silence(node_id: str, pid: int) -> None:
    """Do not print that this process of ours is gone. Does nothing where Ray has another way of printing."""
    for lines in _ours("stdout_deduplicator"):
        lines.processes.add((node_id, pid))


def bound_prints() -> None:
    """Print the first lines of what the actors of this program print, and no more."""
    for lines in _ours("stdout_deduplicator") + _ours("stderr_deduplicator"):
        lines.num_left = _MAX_PRINTED


def _ours(name: str) -> list[_OurLines]:
    """What one of Ray's filters asks; none where this Ray has no such filter."""
    filtering = getattr(ray_logging, name, None)
    if filtering is None:
        return []
    if not isinstance(getattr(filtering, "skip_re", ""), _OurLines):
        filtering.skip_re = _OurLines(getattr(filtering, "skip_re", None))
    return [filtering.skip_re]
