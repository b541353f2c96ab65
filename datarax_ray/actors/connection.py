"""The connection to Ray of a pool's actors, which may end at any moment: ray.shutdown() in another thread.

If the connection ends under a call, Ray raises SystemExit, and the program would end as if all were well. A call to
Ray, or a dropped reference to an object, during the shutdown ends the process without a Python error. So no call of
ours runs in that time, and its errors name the shutdown.
Source: CoreWorkerProcessImpl::GetCoreWorker in ray/src/ray/core_worker/core_worker_process.cc; check_signals in
ray/python/ray/_raylet.pyx.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Iterator

import ray
import ray._private.state
import ray._private.worker
from ray.exceptions import RayError
from ray.experimental import internal_kv

from datarax_ray.read.forked import check_not_forked

# Ray holds it while it connects and shuts down. Private, so it may go; tests/actors/test_shutdown.py would see that.
RAY_LOCK = getattr(ray._private.worker, "_connect_or_shutdown_lock", None) or threading.RLock()
WHY_RAYLET_ENDED = "raylet.err in /tmp/ray/session_latest/logs says why; a full /dev/shm is one reason"
START_AGAIN = "Start the program again once the node is back, or on another: the last state that was saved goes on"
# The messages of Ray's calls where the raylet of this node, at the other end of a pipe, has ended.
_PIPE_ENDS = ("broken pipe", "connection reset by peer", "end of file")
_USERS_EXIT = re.compile(r"sys\.exit is called\)\. Exit code(?:: (?P<code>.*)\.| was not specified\.)", re.DOTALL)


class Connection:
    """The connection that exists when this is made."""

    def __init__(self) -> None:
        self._made_in = os.getpid()
        self._session = _session()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that made it, and so has nothing to end."""
        return os.getpid() != self._made_in

    def is_of(self, other: Connection) -> bool:
        """Whether both are to the same Ray."""
        return self._session == other._session

    @property
    def is_there(self) -> bool:
        """Whether the connection still exists, with no other since. The caller holds RAY_LOCK."""
        return ray.is_initialized() and _session() == self._session

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For calls of a moment: ray.shutdown() in another thread waits for their end.

        Raises: RuntimeError where Ray was shut down before; a call would start another Ray, or ask another one.
        """
        check_not_forked(self._made_in, "this RaySource")  # before the lock, which may stay locked
        with RAY_LOCK:
            if not self.is_there:
                raise _ended()
            with self._as_meant():
                yield

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """For one call that waits. Raises: RuntimeError where Ray was shut down before or meanwhile."""
        with self.held():
            pass
        with self._as_meant():
            yield

    @contextlib.contextmanager
    def _as_meant(self) -> Iterator[None]:
        """Raise what happened: Ray was shut down, or a signal's handler raised an error during the call."""
        try:
            yield
        except SystemError as error:  # C code has met the handler's exception, which is its context
            raise error.__context__ or error from None
        except (Exception, SystemExit) as error:
            with RAY_LOCK:  # or the references in the frames that this unwinds would be dropped while Ray goes down
                is_there = self.is_there
            # Ray makes SystemExit(1) of every one that a handler raises
            if (users := _USERS_EXIT.search(getattr(error, "ray_terminate_msg", ""))) is not None:
                raise SystemExit(_code(users["code"])) from None
            if is_there:
                if _is_of_pipe(error):
                    raise _without_raylet(error) from error
                raise
            raise _ended() from error


def _ended() -> RuntimeError:
    return RuntimeError(
        "Ray was shut down (ray.shutdown(), or the end of ray.init's context), and the actors of this RaySource with "
        "it; make a new one, which goes on from the state of this one. Shut Ray down once the stream is closed"
    )


def _is_of_pipe(error: BaseException) -> bool:
    """Whether Ray itself cannot talk with the raylet; a task's OSError is a RayError, and Python's has a number."""
    is_rays = isinstance(error, OSError) and error.errno is None and not isinstance(error, RayError)
    return is_rays and str(error).lower().startswith(_PIPE_ENDS)


def _without_raylet(error: BaseException) -> RuntimeError:
    return RuntimeError(
        f"Ray's processes on this node have ended ({error}), and actors cannot answer this program any more: "
        f"{WHY_RAYLET_ENDED}. {START_AGAIN}"
    )


def _code(said: str | None) -> int | str | None:
    return int(said) if said is not None and re.fullmatch(r"-?\d+", said) else said


def _session() -> tuple[str, str]:
    """The ids that tell this connection to Ray from every other."""
    context = ray.get_runtime_context()
    return context.get_job_id(), context.get_node_id()


_FORKED_FROM: list[int] = []  # the process that was connected to Ray, where this one was forked off from it


def check_can_connect() -> None:
    for pid in _FORKED_FROM:
        check_not_forked(pid, "the connection to Ray")


def _forget() -> None:
    """In a forked process: neither use nor end its copy of the connection.

    Ray would end the copy with the process, and wait there for threads that the fork does not have.
    """
    if not ray.is_initialized():
        return
    _FORKED_FROM[:] = [os.getppid()]
    worker = ray._private.worker.global_worker
    for client in (*vars(worker).values(), *vars(ray._private.state.state).values(), internal_kv.global_gcs_client):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    atexit.unregister(ray._private.worker.shutdown)
    worker.set_is_connected(False)
    worker.set_mode(None)  # or an exception that ends the process would be told to the head
    del worker.core_worker  # which references tell that they are dropped
    with contextlib.suppress(AttributeError):  # glibc has it: exit(status) goes to _exit(status) at once
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)


os.register_at_fork(after_in_child=_forget)
