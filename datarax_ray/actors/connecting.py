"""Coming to a Ray: the program's, else a running cluster, else a local one that is started here; and saying which."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time

import ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.utils import get_system_memory, get_used_memory  # they know of cgroups
from ray._raylet import AuthenticationTokenLoader, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError

from datarax_ray.actors.connection import Connection
from datarax_ray.actors.local_ray import sigterm_kept, start_local
from datarax_ray.actors.ray_log_filter import bound_prints

logger = logging.getLogger("datarax_ray")

# Of a local Ray, which is one machine: more actors than this wait for cores or files that others use, at 130 MB each.
_ACTORS_PER_CORE = 4
_MIN_LIMIT = 16
_ACTOR_NBYTES = 130 * 2**20
# A head that is being started answers within seconds, and ray.init asks one that does not for two minutes, in silence.
_ANSWER_S = 20.0
_RETRY_S = 1.0
_ADDRESS = re.compile(r"auto|local|\w+://.+|.+:\d+")  # of those with ://, Ray says itself which it takes
_GIVE_TOKEN = "put that of the cluster's head into ~/.ray/auth_token (mode 600), or into RAY_AUTH_TOKEN"
_started: list[Connection] = []  # to the local Ray that was started here, if any


def connect(num_actors: int | None, num_cpus: float) -> tuple[int | None, float]:
    """Make sure that there is a Ray, and give how many actors to start in it, and the CPUs that each reserves.

    In a local one that was started here these are fewer than asked for, and reserve none: whatever they reserved, they
    would share the cores of this machine, and sources of one program (training, validation, a test) would wait for one
    another's actors.

    A local one listens on loopback and has token authentication; see local_ray. A running cluster is what ray.init()
    takes for one: RAY_ADDRESS, or what `ray start` started last on this host. It is sent a token where it wants one,
    unless RAY_AUTH_MODE says whether it is.

    Raises: ValueError for a RAY_ADDRESS that is none; ConnectionError where no cluster answers at its address.
    """
    if ray.is_initialized():
        is_ours = any(started.is_there for started in _started)
        return (_limited(num_actors), 0.0) if is_ours else (num_actors, num_cpus)
    named = os.environ.get("RAY_ADDRESS", "")
    if named and not _ADDRESS.fullmatch(named):
        raise ValueError(
            f"RAY_ADDRESS={named} is no address of a Ray cluster: that is host:port, as `ray start --head` says it, "
            "auto for the one on this host, or local to start one here"
        )
    bound_prints()
    address = named if "://" in named else services.canonicalize_bootstrap_address(None)
    if address is not None:
        _wait_for(address, f"RAY_ADDRESS={named}" if named else "what `ray start` left on this host")
        if os.environ.get("RAY_AUTH_MODE") == "token" and not AuthenticationTokenLoader.instance().has_token(True):
            raise ConnectionError(f"RAY_AUTH_MODE=token, and this program has no token: {_GIVE_TOKEN}")  # Ray aborts
        is_by_client = "://" in address  # which Ray reads of RAY_ADDRESS itself
        if not is_by_client and "RAY_AUTH_MODE" not in os.environ and _wants_token(address):
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        try:
            with sigterm_kept():
                # without an address Ray sends a token wherever there is one, and a Ray that has none cancels its actors
                ray.init(None if is_by_client else address, log_to_driver=True)
        except Exception as error:
            if not is_by_client and _wants_token(address):
                error.add_note(
                    "It answers those who send its token, and this program has none, or another: "
                    f"{_GIVE_TOKEN}, and set RAY_AUTH_MODE=token"
                )
            raise
        logger.info("attached to the running Ray cluster at %s", ray.get_runtime_context().gcs_address)
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
            "this local Ray also ends with the thread that started it, and the program a minute later; call "
            "ray.init() in the main thread before, or keep this one"
        )
    return num_actors, 0.0


def _wants_token(address: str) -> bool:
    """Whether the Ray at an address answers only those who send its token; of one that does not answer ray.init says
    more.
    """
    try:
        GcsClient(address=address)
    except AuthenticationError:
        return True
    except Exception:
        return False
    return False


def most_local_actors(num_cores: int, free_nbytes: int) -> int:
    """How many actors a Ray on one machine is given at most: four for each core, 16 at least, in half its free memory.

    >>> most_local_actors(num_cores=8, free_nbytes=64 * 2**30)
    32
    >>> most_local_actors(num_cores=2, free_nbytes=1 * 2**30)
    3
    """
    return max(1, min(max(_MIN_LIMIT, _ACTORS_PER_CORE * num_cores), free_nbytes // 2 // _ACTOR_NBYTES))


def _limited(num_actors: int | None) -> int | None:
    num_cores, free = os.cpu_count() or 1, max(0, get_system_memory() - get_used_memory())
    limit = most_local_actors(num_cores, free)
    if num_actors is None or num_actors <= limit:
        return num_actors
    logger.warning(
        "num_actors=%d is more than a Ray on this machine alone is given: it has %d cores and %.1f GB of memory free, "
        "and %d actors are started. The batches are the same; on a cluster all are started",
        num_actors,
        num_cores,
        free / 1e9,
        limit,
    )
    return limit


def _wait_for(address: str, source: str, answer_s: float = _ANSWER_S, retry_s: float = _RETRY_S) -> None:
    """Return once something answers at an address; one of a Ray Client is ray.init's to try."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return
    deadline = time.monotonic() + answer_s
    is_told = False
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
            if not is_told:
                logger.warning("no answer yet from the Ray cluster at %s (%s): %s; trying on", address, source, error)
                is_told = True
            time.sleep(retry_s)
