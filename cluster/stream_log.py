"""The stream log: one JSON line per consumed batch, so that two runs can be compared batch by batch.

A line is {"step", "stop", "loss", "sha256"}. The checkpoint decides: what a log says about later steps is superseded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np


@final
class StreamLog:
    """Appends to a log that holds each step exactly once, however often the job was stopped.

    path: the log, made if missing. restored_step: the step of the checkpoint, 0 where the job starts anew; lines after
    it are cut off.

    Raises: ValueError where the log ends before restored_step, or holds what is no line of it.
    """

    def __init__(self, path: str | os.PathLike[str], restored_step: int) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.num_superseded = truncate(self._path, restored_step)
        self._file = self._path.open("a")

    def append(self, step: int, stop: int, loss: float, batch: Mapping[str, Any]) -> None:
        """Log a consumed batch. stop: the position after it."""
        line = {"step": step, "stop": stop, "loss": loss, "sha256": digest(batch)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Put the lines on the disk. To be called before a checkpoint, so that no checkpoint is ahead of its log."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def digest(batch: Mapping[str, Any]) -> str:
    """sha256 over each field in the order of the names: "name dtype shape\\n", then its bytes in C order."""
    sha = hashlib.sha256()
    for name in sorted(batch):
        array = np.asarray(batch[name])
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def truncate(path: Path, restored_step: int) -> int:
    """Cut off the lines after restored_step, and a last line that was never finished. Returns how many lines went."""
    if not path.exists():
        return 0
    kept_nbytes = last_step = num_superseded = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            step = _step(line, f"{path}, line {number}") if line.endswith(b"\n") else None
            if step is None or step > restored_step:  # a torn line is the last: what wrote it was killed
                num_superseded += 1
            elif num_superseded:
                raise ValueError(f"{path}, line {number} is step {step}, after a later one; this is no stream log")
            else:
                kept_nbytes, last_step = kept_nbytes + len(line), step
    if last_step and last_step < restored_step:
        raise ValueError(
            f"{path} ends at step {last_step} and the checkpoint is at step {restored_step}; going on would leave a "
            "gap in the log. Give the log that belongs to this checkpoint directory, or a new file."
        )
    os.truncate(path, kept_nbytes)
    return num_superseded


def _step(line: bytes, where: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where} is {line[:60]!r}, which is no line of a stream log; writing on would spoil that file. "
            "Give another --stream-log."
        ) from error
