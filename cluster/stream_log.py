"""The stream log: one JSON line per consumed batch, so that two runs can be compared batch by batch.

A line is {"step", "stop", "loss", "sha256"}. Lines of steps after the restored checkpoint are superseded. At a URL
nothing can be appended, so the log is in parts (datarax_ray.read.lines), and complete at each checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.lines import UrlLines


@final
class StreamLog:
    """Appends to a log that holds each step exactly once, however often the job was stopped.

    path: the log, made if missing, or a URL below which its parts are. restored_step: the step of the checkpoint, 0 for
    a new run; later lines are cut off.

    Raises: ValueError if the log ends before restored_step, or has a line that is none of a stream log.
    """

    def __init__(self, path: str | os.PathLike[str], restored_step: int) -> None:
        self._log = _UrlLog(os.fspath(path)) if is_url(os.fspath(path)) else _FileLog(Path(path))
        self.num_superseded = self._log.truncate(restored_step)

    def append(self, step: int, stop: int, loss: float, batch: Mapping[str, Any]) -> None:
        """Log a consumed batch. stop: the position after it."""
        line = {"step": step, "stop": stop, "loss": loss, "sha256": digest(batch)}
        self._log.append(json.dumps(line) + "\n")

    def sync(self) -> None:
        """Write the lines to storage. Call it before each checkpoint, so that no checkpoint is ahead of its log."""
        self._log.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()


class _FileLog:
    """Each line is in the file when it is appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def truncate(self, restored_step: int) -> int:
        """Cut off superseded lines, and open the file. Returns the number of lines that were cut off."""
        num_superseded = 0
        if self._path.exists():
            with self._path.open("rb") as lines:
                _, nbytes, num_superseded = kept(lines, restored_step, str(self._path))
            os.truncate(self._path, nbytes)
        self._file = self._path.open("a")
        return num_superseded

    def append(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _UrlLog:
    """Lines wait for `sync`, as every addition rewrites a part."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines = UrlLines(url)
        self._waiting: list[str] = []

    def truncate(self, restored_step: int) -> int:
        """Cut off superseded lines. Returns their number."""
        lines = [line.encode() for line in self._lines.read()]
        num_kept, _, num_superseded = kept(lines, restored_step, redacted(self._url))
        if num_superseded:
            numbers = itertools.count()
            self._lines.keep(lambda line: next(numbers) < num_kept)
        return num_superseded

    def append(self, line: str) -> None:
        self._waiting.append(line)

    def sync(self) -> None:
        if self._waiting:
            self._lines.append(self._waiting)
            self._waiting = []

    def close(self) -> None:
        self.sync()


def digest(batch: Mapping[str, Any]) -> str:
    """sha256 over each field in the order of the names: "name dtype shape\\n", then its bytes in C order."""
    sha = hashlib.sha256()
    for name in sorted(batch):
        array = np.asarray(batch[name])
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def kept(lines: Iterable[bytes], restored_step: int, where: str) -> tuple[int, int, int]:
    """The number and bytes of the lines to keep, and the number to cut off: lines after restored_step, and an
    unfinished last line.
    """
    num_kept = kept_nbytes = last_step = num_superseded = 0
    for number, line in enumerate(lines, 1):
        step = _step(line, f"{where}, line {number}") if line.endswith(b"\n") else None
        if step is None or step > restored_step:  # an unfinished line is the last: its writer was killed
            num_superseded += 1
        elif num_superseded:
            raise ValueError(f"{where}, line {number} is step {step}, after a later step; this is no stream log")
        else:
            num_kept, kept_nbytes, last_step = num_kept + 1, kept_nbytes + len(line), step
    if last_step and last_step < restored_step:
        raise ValueError(
            f"{where} ends at step {last_step} and the checkpoint is at step {restored_step}; going on would leave a "
            "gap in the log. Give the log of this checkpoint directory, or a new file."
        )
    return num_kept, kept_nbytes, num_superseded


def _step(line: bytes, where: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where} is {line[:60]!r}, which is no line of a stream log; to go on would damage this file. "
            "Give another --stream-log."
        ) from error
