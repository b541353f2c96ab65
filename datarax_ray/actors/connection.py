"""The connection to Ray: the program's own Ray, else a running cluster, else a local one that is started here.

It may end at any moment: ray.shutdown() in another thread. If it ends under a call, Ray raises SystemExit, and the
program would end as if all were well. A call to Ray, or a dropped reference to an object, during the shutdown ends the
process without a Python error. So no call of ours runs in that time, and its errors name the shutdown.
Source: CoreWorkerProcessImpl::GetCoreWorker in ray/src/ray/core_worker/core_worker_process.cc; check_signals in
ray/python/ray/_raylet.pyx.

A local Ray listens on loopback alone and answers only who has its token: whoever reaches a Ray without one runs code as
its user.
Source: token authentication in https://docs.ray.io/en/latest/ray-security/token-auth.html, on for new local clusters
since 2.59.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import ray._private.state
import ray._private.worker
from ray._private import ray_constants, services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._raylet import AuthenticationTokenLoader, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError
from ray.experimental import internal_kv

from datarax_ray.read.forked import check_not_forked

logger = logging.getLogger("datarax_ray")

# Ray holds it while it connects and shuts down. Private, so it may go; tests/actors/test_shutdown.py would see that.
RAY_LOCK = getattr(ray._private.worker, "_connect_or_shutdown_lock", None) or threading.RLock()
WHY_RAYLET_ENDED = "raylet.err in /tmp/ray/session_latest/logs says why; a full /dev/shm is one reason"
START_AGAIN = "Start the program again, on this node or another: it continues from the last saved state"
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
                # Ray itself cannot talk with the raylet; a task's OSError is a RayError, and Python's has a number
                is_rays = isinstance(error, OSError) and error.errno is None and not isinstance(error, RayError)
                if is_rays and str(error).lower().startswith(_PIPE_ENDS):
                    raise RuntimeError(
                        f"Ray's processes on this node have ended ({error}), and actors cannot answer this program any "
                        f"more: {WHY_RAYLET_ENDED}. {START_AGAIN}"
                    ) from error
                raise
            raise _ended() from error


def _ended() -> RuntimeError:
    return RuntimeError(
        "Ray was shut down (ray.shutdown(), or the end of ray.init's context), and the actors of this RaySource with "
        "it; make a new RaySource, which goes on from the state of this one. Close the stream before Ray is shut down"
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


# Of a local Ray: more actors than this wait for cores or files that others use, at 130 MB each.
_ACTORS_PER_CORE = 4
_MIN_LIMIT = 16
# A head that is being started answers within seconds; ray.init waits for two minutes, in silence.
_ANSWER_S = 20.0
_RETRY_S = 1.0
_ADDRESS = re.compile(r"auto|local|\w+://.+|.+:\d+")  # Ray itself checks those with ://
_GIVE_TOKEN = "put the token of the cluster's head into ~/.ray/auth_token (mode 600), or into RAY_AUTH_TOKEN"
START_OR_NAME = "start a head (`ray start --head`), or give the address of one (HOST:PORT)"
_started: list[Connection] = []  # to the local Ray that was started here, if any


def connect(num_actors: int | None, num_cpus: float) -> tuple[int | None, float]:
    """Make sure that there is a Ray. Returns the number of actors to start in it, and the CPUs that an actor reserves.

    The Ray is the program's own, else a running cluster: RAY_ADDRESS, or one that runs here (see cluster_here). A
    program that attaches sends its token if the cluster wants one, unless RAY_AUTH_MODE decides. Otherwise a local Ray
    is started. There actors reserve no CPU, and their number is limited: sources of one program (training, validation,
    a test) share the cores of this machine, and would wait for one another's actors.

    Raises: ValueError for a malformed RAY_ADDRESS; ConnectionError if no cluster answers there, or several run here.
    """
    if ray.is_initialized():
        is_ours = any(started.is_there for started in _started)
        return (_limited(num_actors), 0.0) if is_ours else (num_actors, num_cpus)
    named = os.environ.get("RAY_ADDRESS", "")
    if named and not _ADDRESS.fullmatch(named):
        raise ValueError(
            f"RAY_ADDRESS={named} is no address of a Ray cluster. Give host:port, as `ray start --head` prints it, "
            "auto for the Ray of this host, or local for a new Ray here"
        )
    if named in ("", "auto"):
        address = cluster_here(of_programs=named == "auto")
        if named and address is None:
            raise ConnectionError(f"RAY_ADDRESS=auto is the Ray of this host, and none runs here: {START_OR_NAME}")
    else:
        address = named if "://" in named else services.canonicalize_bootstrap_address(named)
    if address is not None:
        _attach(address, f"RAY_ADDRESS={named}" if named else "what `ray start` left on this host")
        return num_actors, num_cpus
    num_actors = _limited(num_actors)
    logger.warning(
        "starting a local Ray (%s), which takes some seconds and ends with this program; to read on a cluster, set "
        "RAY_ADDRESS to its address, or call ray.init(address) before",
        f"RAY_ADDRESS={named}" if named else "no cluster is running here",
    )
    start_local("local", num_cpus=os.cpu_count() or 1, include_dashboard=False, log_to_driver=True)
    _started[:] = [Connection()]
    if threading.current_thread() is not threading.main_thread():  # Ray's processes ask for PR_SET_PDEATHSIG
        logger.warning(
            "the local Ray ends with the thread that started it, and the program a minute later; call ray.init() in "
            "the main thread before, or keep this thread alive"
        )
    return num_actors, 0.0


def cluster_here(*, of_programs: bool = False) -> str | None:
    """The address of the cluster on this host, None for none: of the last `ray start`, in whatever --temp-dir.

    Where RAY_TMPDIR is set, it is looked for in that directory alone.

    of_programs: if there is none, also a Ray that a program has started for itself.
    Raises: ConnectionError where several run, and Ray's own directory names none of them.
    """
    if (last := services.find_bootstrap_address(None)) is None:
        raylets = [args for args in _raylets() if args["temp_dir"].is_relative_to(os.environ.get("RAY_TMPDIR", "/"))]
        found = {args["gcs"] for args in raylets if services.find_bootstrap_address(args["temp_dir"]) is not None}
        if not found and of_programs:
            found = {args["gcs"] for args in raylets}
        if len(found) > 1:
            raise ConnectionError(
                f"several Rays run on this host: {', '.join(sorted(found))}. Set RAY_ADDRESS to one of them; a program "
                "may also set RAY_ADDRESS=local, for a Ray of its own"
            )
        last = next(iter(found), None)
    return last and services.canonicalize_bootstrap_address(last)


def _raylets() -> Iterator[dict[str, Any]]:
    """temp_dir and gcs (HOST:PORT) of each Ray node that runs on this host, by the arguments of its process."""
    for process in services.psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]  # None for a process that has ended, or of another user
        args = dict(arg.split("=", 1) for arg in command if "=" in arg)
        if Path(command[0]).name == "raylet" and {"--temp_dir", "--gcs-address"} <= args.keys():
            yield {"temp_dir": Path(args["--temp_dir"]), "gcs": args["--gcs-address"]}


def _attach(address: str, source: str) -> None:
    """ray.init for a running cluster, or by a Ray Client where the address has a ://, which Ray reads itself."""
    is_by_client = "://" in address
    if not is_by_client:
        _wait_for(address, source)
    if os.environ.get("RAY_AUTH_MODE") == "token" and not AuthenticationTokenLoader.instance().has_token(True):
        raise ConnectionError(f"RAY_AUTH_MODE=token, and this program has no token: {_GIVE_TOKEN}")  # Ray aborts
    if not is_by_client and "RAY_AUTH_MODE" not in os.environ and _wants_token(address):
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        with sigterm_kept():
            # without an address Ray sends a token wherever there is one, and a Ray that has none cancels its actors
            ray.init(None if is_by_client else address, log_to_driver=True)
    except Exception as error:
        if not is_by_client and _wants_token(address):
            error.add_note(
                "The cluster answers only programs that send its token. This program has no token, or a different "
                f"one: {_GIVE_TOKEN}, and set RAY_AUTH_MODE=token"
            )
        raise
    logger.info("attached to the running Ray cluster at %s", ray.get_runtime_context().gcs_address)


def _wants_token(address: str) -> bool:
    """Whether the Ray at an address answers only who sends its token; False where it does not answer at all."""
    try:
        GcsClient(address=address)
    except AuthenticationError:
        return True
    except Exception:  # ray.init says more of it
        return False
    return False


def _wait_for(address: str, source: str, answer_s: float = _ANSWER_S, retry_s: float = _RETRY_S) -> None:
    """Return once something answers at host:port."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + answer_s
    is_logged = False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=answer_s).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"no Ray cluster answers at {address} ({source}) for {answer_s:g} s: {error}. Check that its head "
                    "runs and that this host reaches the port, or start a local Ray here: RAY_ADDRESS=local"
                ) from error
            if not is_logged:
                logger.warning("no answer yet from the Ray cluster at %s (%s): %s; trying on", address, source, error)
                is_logged = True
            time.sleep(retry_s)


def _limited(num_actors: int | None) -> int | None:
    """The number of actors, at most as many as a local Ray on this machine can use."""
    num_cores = os.cpu_count() or 1
    limit = max(_MIN_LIMIT, _ACTORS_PER_CORE * num_cores)
    if num_actors is None or num_actors <= limit:
        return num_actors
    logger.warning(
        "num_actors=%d is too many for a local Ray: this machine has %d cores, so %d actors are started. The batches "
        "are the same; a cluster starts all of them",
        num_actors,
        num_cores,
        limit,
    )
    return limit


def start_local(address: str | None = None, **options: Any) -> None:
    """ray.init(address, **options), where a Ray that it starts listens on loopback and has a token of its user alone.

    RAY_AUTH_MODE=disabled turns authentication off, as for ray.init.

    Raises: what ray.init raises; ValueError where options are for a new cluster and one runs.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        _make_token()
    with _on_loopback(), sigterm_kept(), warnings.catch_warnings():
        # JAX warns of every fork; Ray's processes run another program at once, so none of them waits for its threads
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(address, **options)


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep the program's handler for SIGTERM. ray.init replaces it by sys.exit, and below that by a handler in C++ that
    prints a trace and sometimes aborts the program.

    A program without a handler keeps Ray's, so that its atexit functions run.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _make_token() -> None:
    """Make the token where Ray would make it: every user of the machine could read Ray's own file."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            logger.warning("other users can read the token in %s, and so run code in this Ray; chmod 600 it", path)
    except OSError:  # a home that cannot be written: Ray says what it needs
        logger.debug("no token could be made at %s", path, exc_info=True)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Give Ray the loopback address as this node's, as it does itself on macOS and Windows.

    _node_ip_address="127.0.0.1" does not: ray.init replaces it, and every service then listens on all interfaces.
    """
    # private, so it may go; what holds in the release installed is for tests/actors/test_local_ray.py to say
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        logger.warning("this Ray does not say how to listen on loopback alone; its services listen on all interfaces")
        yield
        return
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
