"""A trial: a position that was lost again and again is read in a process of its own.

A lost actor proves nothing about the record that it read: whoever kills actors kills them at any record. A process
that reads this position alone, and ends while its actor lives on, is evidence. A trial takes two such processes: where
memory runs out, the kernel may choose an innocent one.

Ray ends all actors of a node whose memory runs out, but not the process that takes the memory. So the trial ends a
process that takes much of the memory left, before Ray acts. If little was left to begin with, the error says so and
blames no record.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ray import cloudpickle
from ray._private.utils import get_system_memory, get_used_memory  # as Ray counts it: of the container, where in one

from datarax_ray.read.block import Block
from datarax_ray.read.stream import Stream

# To start Python and import what a description needs, which takes a second on an idle host.
START_S = 60.0
_NUM_RUNS = 2
_READY = b"r"
_WATCH_S = 0.02  # between two looks at its memory, of which it may take some GB a second
# A process may take this share of the memory that is left: far less than Ray's limit, so that it is seen in time,
_ROOM_SHARE = 0.5
# and at least as much as any read and its imports take. Where that is more than the share, no record is blamed.
_LEAST_NBYTES = 256 * 2**20
_LITTLE_ROOM_SHARE = 0.75
_RAYS_SHARE = 0.95  # RAY_memory_usage_threshold where it is not set
_OF_MEMORY = "MiB of memory"
_PR_SET_PDEATHSIG = 1  # sys/prctl.h


@dataclass(frozen=True)
class Trial:
    """How a position is tried.

    timeout_s: for the read. wait_for_room_s: before the read, while the node has little memory left.
    """

    timeout_s: float
    wait_for_room_s: float = 30.0

    @property
    def most_s(self) -> float:
        """The longest that a trial takes."""
        return self.wait_for_room_s + _NUM_RUNS * (START_S + self.timeout_s)


def try_to_read(pickled: Callable[[], bytes], description: Stream, trial: Trial, request: Any) -> Block:
    """The block of the request; a block of broken records if every process that reads it ends.

    pickled: gives the description as it was before anything was read.

    Raises: RuntimeError if no process starts; MemoryError if too little memory is left to blame the record; the errors
    of reading, as for a missing file.
    """
    ended, until = "", time.monotonic() + trial.wait_for_room_s
    for _ in range(_NUM_RUNS):
        while (room := _room_nbytes()) * _ROOM_SHARE < _LEAST_NBYTES and time.monotonic() < until:
            time.sleep(_WATCH_S)
        is_enough = room * _ROOM_SHARE >= _LEAST_NBYTES
        little = min(_LEAST_NBYTES, _LITTLE_ROOM_SHARE * room) if room > 0 else _LEAST_NBYTES
        found = _run(pickled(), request, trial.timeout_s, room * _ROOM_SHARE if is_enough else little)
        if isinstance(found, Block):
            return found
        ended = found
        if not is_enough and _OF_MEMORY in ended:
            raise MemoryError(
                f"positions [{request.start}, {request.stop}) ({', '.join(description.names(request))}) were lost with "
                f"the actors that read them. They were tried in a process of their own: {ended}. Before, the node had "
                f"{max(0, int(room)) >> 20} MiB left until Ray ends processes: too little to tell whether the record "
                "or its transforms are at fault. Run fewer actors on a node (RaySource's num_actors, memory=), or "
                "fewer other processes, and go on from the last state."
            )
    return description.read(request, ended)


def _run(pickled: bytes, request: Any, timeout_s: float, nbytes: float) -> Block | str:
    """The block, or the reason why its process ended. nbytes: of memory that the process may take."""
    paths = os.pathsep.join([os.getcwd() if path == "" else path for path in sys.path])
    with _file() as asked, _file() as answer:
        pickle.dump((pickled, request), asked)
        asked.seek(0)
        files = asked.fileno(), answer.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", "from datarax_ray.actors.trial import main; main()", *map(str, files)],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            env=os.environ | {"PYTHONPATH": paths},
            process_group=0,  # together with the processes that it forks
        )
        try:
            why_killed = _watch(process, files[1], timeout_s, nbytes)
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answer.seek(0)
        is_ready, block = answer.read(1) == _READY, answer.read()
    if not is_ready:
        raise RuntimeError(
            f"positions [{request.start}, {request.stop}) were lost with the actors that read them, and could not be "
            f"tried in a process of their own: it did not start within {START_S:g} s, or ended with {_named(status)}"
        )
    if status == 0:
        found: Block | Exception = pickle.loads(block)
        if isinstance(found, Exception):
            raise found
        return found
    return why_killed or _named(status)


def _file() -> IO[bytes]:
    """A file that a process may inherit: of memory where there is such, which no full disk spoils."""
    if hasattr(os, "memfd_create"):  # Linux
        return os.fdopen(os.memfd_create("datarax_ray"), "w+b")
    return tempfile.TemporaryFile()


def _watch(process: subprocess.Popen[bytes], answer: int, timeout_s: float, nbytes: float) -> str:
    """Wait for the end of the process. Kill it if it is late, or takes nbytes more memory than when it was ready.

    Returns the reason of a kill after it was ready; else "".
    """
    until, before = time.monotonic() + START_S, math.inf
    while process.poll() is None:
        is_ready = before < math.inf
        time.sleep(_WATCH_S if is_ready else _WATCH_S / 4)
        now, taken = time.monotonic(), _taken_nbytes(process.pid)
        if not is_ready and os.fstat(answer).st_size:
            until, before = now + timeout_s, taken
        elif taken - before > nbytes:
            process.kill()
            return f"it took {int(taken - before) >> 20} {_OF_MEMORY}, much of what its node had left, and was killed"
        elif now > until:
            process.kill()
            return f"it took longer than request_timeout_s={timeout_s:g}, and was killed" if is_ready else ""
    return ""


def _taken_nbytes(pid: int) -> int:
    """The memory of a process that it shares with no other; 0 where that is not known."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * resource.getpagesize()


def _room_nbytes() -> float:
    """The memory that processes of this node may take before Ray ends some of them."""
    share = float(os.environ.get("RAY_memory_usage_threshold", _RAYS_SHARE))  # noqa: SIM112 - Ray's name
    return share * get_system_memory() - get_used_memory()


def _named(status: int) -> str:
    """An exit status, for people."""
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):  # a number without a name
        name = signal.Signals(-status).name
        return f"{name}, as when memory runs out" if name == "SIGKILL" else name
    return f"signal {-status}"


def portable(error: BaseException) -> Exception:
    """The error; a RuntimeError with its text where it does not survive pickling or would end the driver."""
    with contextlib.suppress(Exception):  # whatever a foreign class raises there
        if isinstance(cloudpickle.loads(cloudpickle.dumps(error)), Exception) and isinstance(error, Exception):
            return error
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())


def main() -> None:
    """The process that tries: takes description and request from one file, answers by another, which argv names."""
    with contextlib.suppress(OSError, AttributeError):  # Linux: it ends with the actor, also where that is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(int(sys.argv[1]), "rb") as asked, os.fdopen(int(sys.argv[2]), "wb") as answer:
        pickled, request = pickle.load(asked)
        description = pickle.loads(pickled)
        answer.write(_READY)
        answer.flush()
        try:
            found = description.read(request)
        except Exception as error:  # of a file or its storage: it must not be taken for the end of the process
            found = portable(error)
        answer.write(cloudpickle.dumps(found))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of libraries may not end
