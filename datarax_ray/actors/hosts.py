"""The hosts of a cluster at work: one function called on them.

A call that is lost with its host is repeated; a call whose host cannot read or write its part is tried on another host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity

from datarax_ray.actors.connection import RAY_LOCK, Connection, check_can_connect, connect
from datarax_ray.actors.description import shareable
from datarax_ray.actors.recovery import first_line
from datarax_ray.actors.trial import portable
from datarax_ray.read.errors import FULL

logger = logging.getLogger("datarax_ray")

_LOOK_S = 0.5  # between two looks at the cluster, which hosts may have joined
_END_S = 5.0  # for cancelled calls to clean up
# Retries of one call. Spot hosts go often; a call that ends its own process ends it each time.
_MAX_RETRIES = 5


@dataclass(frozen=True)
class _Failed:
    """The error of a call, as a value: Ray's copy of an error has another class and no notes."""

    error: BaseException
    node_id: str
    host: str


def on_hosts(
    function: Callable[[Any], Any], each: Sequence[Any], num_actors: int | None
) -> Generator[tuple[int, Any], None, None]:
    """Call function(item) for every item. Yields the number and the result of a call when it ends.

    function: travels once. It runs again if its process or host is lost, so its result must not depend on the run.
    num_actors: calls at a time, None for one per CPU of the cluster but one.

    Raises: the error of a call, an OSError only from two hosts; RuntimeError for a call that is lost again and again.
    """
    check_can_connect()
    with RAY_LOCK:
        limit, num_cpus = connect(num_actors, 1.0)
        connection = Connection()
        shared = shareable(function)
        options = {"num_cpus": num_cpus, "max_retries": _MAX_RETRIES, "scheduling_strategy": "SPREAD"}
        call = ray.remote(**options)(_called)
    left = deque(enumerate(each))
    pending: dict[Any, int] = {}
    elsewhere: dict[int, str] = {}  # the second node of a call, by its number
    try:
        while left or pending:
            with connection.held():
                most = limit or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)  # hosts join
                while left and len(pending) < most:
                    index, item = left.popleft()
                    node = elsewhere.get(index)
                    there = call if node is None else call.options(scheduling_strategy=NodeAffinity(node, soft=True))
                    pending[there.remote(shared, item)] = index
            with connection.waiting():
                done, _ = ray.wait(list(pending), timeout=_LOOK_S)
            for ref in done:
                index = pending.pop(ref)
                try:
                    with connection.waiting():
                        found = ray.get(ref)
                except RayError as error:
                    raise RuntimeError(
                        f"{each[index]}: its process ended {_MAX_RETRIES + 1} times, the last time by "
                        f"{first_line(error)}. If the data ends it, the same call in one process shows how"
                    ) from None
                if isinstance(found, _Failed):
                    with connection.held():
                        # the head of a cluster often has no CPUs for tasks
                        others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
                    others = [node for node in others if node != found.node_id]
                    # another host may succeed, as where a mount is missing here; a full disk is full for all
                    is_of_host = isinstance(found.error, OSError) and found.error.errno not in FULL
                    if not is_of_host or index in elsewhere or not others:
                        raise found.error
                    logger.warning("%s failed, and another host is tried: %s", found.host, found.error)
                    elsewhere[index] = others[index % len(others)]
                    left.append((index, each[index]))
                    continue
                yield index, found
    finally:
        del shared  # or the traceback of an error would keep it in the object store
        with contextlib.suppress(Exception), connection.held():  # Ray may be shut down, and the calls with it
            for ref in pending:
                ray.cancel(ref)  # by an interrupt, after which they clean up
            # force=True may end this program, where a call ends at that moment ("task that was not pending")
            stuck = ray.wait(list(pending), num_returns=len(pending), timeout=_END_S)[1] if pending else ()
            for ref in stuck:
                ray.cancel(ref, force=True)


def _called(function: Any, item: Any) -> Any:
    if "jax" not in sys.modules:  # what users import may load it, and it would take the accelerator's memory
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        return (pickle.loads(function) if isinstance(function, bytes) else function)(item)
    except Exception as error:
        host = socket.gethostname()
        error.add_note(f"on {host}")
        return _Failed(portable(error), ray.get_runtime_context().get_node_id(), host)
