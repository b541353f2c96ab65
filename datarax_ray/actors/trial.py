"""A trial: a position that was lost again and again is read in a process of its own, whose end the actor survives.

An actor that is gone is no evidence against the record that it read: whoever kills actors kills them at any record. A
process that was made to read this one position, and ended at it while the actor lived on, is evidence. It takes two
such processes: where the kernel runs out of memory it may choose a process for no fault of its own.

Ray ends all actors of a node whose memory runs out, and not the process that takes it. So a process that takes much of
the memory that is left is ended here before that. Where little is left to begin with, the error says so, and blames no
record.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray._private.utils import get_system_memory, get_used_memory  # as Ray counts it: of the container, where in one

from datarax_ray.read.block import Block
from datarax_ray.read.stream import Stream

# To start Python and import what a description needs, which takes a second on an idle host.
START_S = 60.0
_NUM_RUNS = 2
_READY = b"r"
_LOOK_MS = 100  # between two looks whether a silent process has ended
_WATCH_S = 0.02  # between two looks at its memory, of which it may take some GB a second
# A process may take this share of the memory that is left: far less than Ray's limit, so that it is seen in time,
_ROOM_SHARE = 0.5
# and at least as much as any read and its imports take. Where that is more than the share, no record is blamed.
_LEAST_NBYTES = 256 * 2**20
_LITTLE_ROOM_SHARE = 0.75
_RAYS_SHARE = 0.95  # RAY_memory_usage_threshold where it is not set
_PIPE_NBYTES = 2**20
_OF_MEMORY = "MiB of memory"
_PR_SET_PDEATHSIG = 1  # sys/prctl.h


@dataclass(frozen=True)
class Trial:
    """How a position is tried.

    timeout_s: for reading it. wait_for_room_s: before that, where the node has little memory left; others may take it
    only for a while.
    """

    timeout_s: float
    wait_for_room_s: float = 30.0

    @property
    def most_s(self) -> float:
        """The longest that a trial takes."""
        return self.wait_for_room_s + _NUM_RUNS * (START_S + self.timeout_s)


def try_to_read(pickled: Callable[[], bytes], description: Stream, trial: Trial, request: Any) -> Block:
    """The block of the request; where every process that reads it ends, a block of broken records.

    pickled: gives the description as it was before anything was read.

    Raises: RuntimeError where no process starts; MemoryError where too little memory is left to blame the record; what
    reading raises there, as for a missing file.
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
                f"the actors that read them, and in a process of its own {ended}. Before it read them the node had "
                f"{max(0, int(room)) >> 20} MiB left, for all of its processes, until Ray ends some: too little to "
                "tell whether it is the fault of the record or its transforms. Have fewer actors a node (RaySource's "
                "num_actors, memory=), or less else on it, and go on from the last state."
            )
    return description.read(request, ended)


def _run(pickled: bytes, request: Any, timeout_s: float, nbytes: float) -> Block | str:
    """The block, or the reason why its process ended. nbytes: of memory that the process may take."""
    receiver, sender = os.pipe()
    command = [sys.executable, "-c", "from datarax_ray.actors.trial import main; main()", str(sender)]
    paths = os.pathsep.join([os.getcwd() if path == "" else path for path in sys.path])
    with os.fdopen(receiver, "rb", buffering=0) as answer:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[sender],
                env=os.environ | {"PYTHONPATH": paths},
                process_group=0,  # together with the processes that it forks
            )
        finally:
            os.close(sender)
        try:
            with _at_most(process, START_S):
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended, and so does not answer
                    process.stdin.write(pickle.dumps((pickled, request)))
                first = _answer(answer, process, num_bytes=1)
            with _at_most(process, timeout_s, nbytes) as why_killed:
                block = _answer(answer, process) if first == _READY else b""
                status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if first != _READY:
        raise RuntimeError(
            f"positions [{request.start}, {request.stop}) were lost with the actors that read them, and could not be "
            f"tried in a process of their own: it did not start within {START_S:g} s, or ended with {_named(status)}"
        )
    if block and status == 0:
        found: Block | Exception = pickle.loads(block)
        if isinstance(found, Exception):
            raise found
        return found
    return why_killed[0] if why_killed else _named(status)


def _answer(answer: io.FileIO, process: subprocess.Popen[bytes], num_bytes: int | None = None) -> bytes:
    """The bytes that the process writes, up to num_bytes or its end; its children may hold the pipe for longer."""
    found, there = bytearray(), select.poll()
    there.register(answer, select.POLLIN)
    while num_bytes is None or len(found) < num_bytes:
        has_ended = process.poll() is not None  # before the look at the pipe, which then holds all that it wrote
        if there.poll(0 if has_ended else _LOOK_MS):
            some = answer.read(_PIPE_NBYTES if num_bytes is None else num_bytes - len(found))
            if not some:
                break
            found += some
        elif has_ended:
            break
    return bytes(found)


@contextlib.contextmanager
def _at_most(process: subprocess.Popen[bytes], seconds: float, nbytes: float = math.inf) -> Iterator[list[str]]:
    """Kill the process after so long, or once it has taken nbytes more memory than now; the list says why."""
    why: list[str] = []
    is_done = threading.Event()
    until, before = time.monotonic() + seconds, _taken_nbytes(process.pid)

    def watch() -> None:
        while not (why or is_done.wait(_WATCH_S)):
            taken = _taken_nbytes(process.pid) - before
            if time.monotonic() > until:
                why.append(f"it took longer than request_timeout_s={seconds:g}, and was killed")
            elif taken > nbytes:
                why.append(f"it took {taken >> 20} {_OF_MEMORY}, much of what its node had left, and was killed")
        if why:
            process.kill()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield why
    finally:
        is_done.set()


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
        if isinstance(pickle.loads(pickle.dumps(error)), Exception) and isinstance(error, Exception):
            return error
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())


def main() -> None:
    """The process that tries: takes description and request from stdin, answers by the pipe that its argument names."""
    with contextlib.suppress(OSError, AttributeError):  # Linux: it ends with the actor, also where that is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from ray import cloudpickle

    with os.fdopen(int(sys.argv[1]), "wb") as answer:
        pickled, request = pickle.loads(sys.stdin.buffer.read())
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
