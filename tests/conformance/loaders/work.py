"""What all loaders are given to do: the job, and the transform of a record."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# So long a record takes to decode, in the process that reads it: or all would be read before anything goes wrong.
_DECODE_S = 0.002


@dataclass(frozen=True)
class Job:
    """What one trainer is to get: one epoch of the directory, shuffled by the seed, in batches of all trainers.

    readers: processes that read for it; 0 for its own. trainer: which of so many trainers. scratch: a folder on the
    disk of this host, of this run alone and of what starts it again.
    """

    directory: str
    num_records: int
    batch_size: int
    readers: int = 0
    trainer: int = 0
    trainers: int = 1
    seed: int = 7
    scratch: str = ""


def decode(record: bytes) -> np.ndarray:
    """The number in a record."""
    time.sleep(_DECODE_S)
    return np.frombuffer(record, "<i8", 1)[0]


def write_array_records(directory: str, num_records: int) -> None:
    """In four files."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for part, numbers in enumerate(np.array_split(np.arange(num_records), 4)):
        writer = ArrayRecordWriter(str(Path(directory) / f"part-{part}.array_record"), "group_size:1")
        for number in numbers.tolist():
            writer.write(np.int64(number).tobytes() + bytes(56))
        writer.close()


def files(directory: str) -> list[str]:
    return sorted(map(str, Path(directory).glob("part-*")))


def processes_below(*names: str) -> list[int]:
    """The ids of processes that this one started, and they, whose command begins with one of these; () for any."""
    parents: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            commands[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended
            continue
        parents.setdefault(int(stat[1]), []).append(int(path.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        todo += children
        found += [pid for pid in children if commands[pid].startswith(names or "")]
    return sorted(found)


def workers() -> list[int]:
    """The ids of processes that multiprocessing started for this one, but for its own helper."""
    return [pid for pid in processes_below() if "resource_tracker" not in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return "resource_tracker"
