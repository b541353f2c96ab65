"""Digests and stamps of files: they identify a file of a name, size and count without reading all of it.

A digest covers a part of the bytes, and is the same for every copy of the file, on any host. A stamp is from the file
system, for one process. It shows every later change, in place too, except for one of the same size whose time of change
is put back to the nanosecond.
"""

from __future__ import annotations

import hashlib
import os
import time

HEAD_NBYTES = 4096  # one page of what opening reads anyway
# What stands in an ArrayRecord file after its records: 64 KiB of padding, and before that where each chunk begins, so
# that a record of another compressed length moves what follows it. With the last records; hashed in 0.2 ms.
TAIL_NBYTES = 256 * 1024
# Of files whose chunks are all of one length only their bytes differ: some pages of them, a round trip each where the
# file is on another machine.
NUM_PAGES = 8


def sampled_spans(nbytes: int, tail_nbytes: int = TAIL_NBYTES, num_pages: int = NUM_PAGES) -> list[tuple[int, int]]:
    """The bytes [start, stop) that the digest of a file of this size covers: head, some pages between, and tail.

    >>> sampled_spans(290_000)
    [(0, 290000)]
    >>> sampled_spans(10**9)[:3]
    [(0, 4096), (111081984, 111086080), (222163968, 222168064)]
    >>> sampled_spans(10**9)[-2:]
    [(888655872, 888659968), (999737856, 1000000000)]
    """
    tail = nbytes - tail_nbytes
    if tail <= (num_pages + 1) * HEAD_NBYTES:
        return [(0, nbytes)]
    pages = [k * tail // (num_pages + 1) for k in range(num_pages + 1)]
    return [*((start, start + HEAD_NBYTES) for start in pages), (tail, nbytes)]


def head_and_content(path: str) -> tuple[str, str]:
    """Digests of the first bytes of a file, and of its sampled_spans; sixteen hex digits each."""
    content = hashlib.sha256()
    with open(path, "rb", buffering=HEAD_NBYTES) as file:
        head = file.read(HEAD_NBYTES)
        for start, stop in sampled_spans(os.fstat(file.fileno()).st_size):
            file.seek(start)
            content.update(file.read(stop - start))
    return hashlib.sha256(head).hexdigest()[:16], content.hexdigest()[:16]


Stamp = tuple[int, int, int]  # a plain one, since it is taken for every file of every read


def stamp(path: str) -> Stamp:
    """Inode, size and time of change of a file.

    Raises: OSError, with the path, where there is no such file.
    """
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


# The coarsest time of change that file systems in use have is a second; and clocks of servers differ from this one's.
_SETTLED_S = 10.0


def lasting_stamp(path: str) -> str:
    """A stamp that any later change of the file changes, on any host; "" of a file that changed seconds ago, as it may
    change again within the same tick. Raises: OSError.

    It has the time of change of status, which no program sets.
    """
    found = os.stat(path)
    if time.time() < max(found.st_mtime, found.st_ctime) + _SETTLED_S:
        return ""
    return f"stamp {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def difference(old: Stamp, new: Stamp) -> str:
    """What changed between two stamps, in words, with both values.

    >>> difference((7, 100, 5), (7, 90, 5))
    'its size in bytes was 100 and is 90'
    """
    names = ("inode", "size in bytes", "time of change in ns")
    return ", ".join(f"its {name} was {a} and is {b}" for name, a, b in zip(names, old, new, strict=True) if a != b)
