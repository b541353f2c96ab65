"""The clusters of tests, and what they do without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import utils
from ray._private.state import actors
from ray.cluster_utils import Cluster

from tests.waiting import until

# For a head: no test asks its dashboard, wants it to grow, or looks at what other processes print. Each is a process,
# and half a second of CPU or more.
BARE = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}

# Ray asks whether ray[default] is there. Without it a head has no dashboard's process in any case, and the agent of a
# node serves nothing: four seconds of CPU less for each start of a Ray.
HAS_DASHBOARD = utils.get_dashboard_dependency_error
utils.get_dashboard_dependency_error = lambda: ImportError("left out by tests/clusters.py")


def looks_often() -> dict[str, Any]:
    """For a head: a node that is killed is known to be gone after 2.5 s, not 15. One that hangs has as long as ever.

    Not a constant: Ray writes into the dict where this cluster spills objects to.
    """
    return {"_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}}


@contextlib.contextmanager
def started(
    num_cpus: int = 1, store_nbytes: int = 80 * 2**20, namespace: str | None = None, **head: Any
) -> Iterator[Cluster]:
    """A Cluster of a head with room for the driver, to which this process is connected. store_nbytes: Ray's least."""
    settings = {"num_cpus": num_cpus, "object_store_memory": store_nbytes} | BARE | head
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    try:
        ray.init(cluster.address, log_to_driver=False, namespace=namespace)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def store_in_use() -> float:
    """Bytes of the object stores of all nodes, as Ray tells them now and then."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return total["object_store_memory"] - free["object_store_memory"]


def living_actors() -> dict[int, str]:
    """The process and class of each actor that is there, also of those that take no resources."""
    return {actor["Pid"]: actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"}


class LocalRay:
    """Ray on this machine, with room for many small actors, that several modules have one after the other."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    def begin(self) -> None:
        """Start it, where it does not run."""
        if self._cluster is None:
            head = {"num_cpus": 16, "object_store_memory": 200 * 2**20} | BARE
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            ray.init(self._cluster.address, log_to_driver=False)

    def is_as_begun(self) -> bool:
        """Whether no actor is there, and all that was taken is given back, once actors have had the time to end."""
        with contextlib.suppress(TimeoutError):
            return until(lambda: not living_actors() and ray.available_resources() == ray.cluster_resources(), 10)
        return False

    def end(self) -> None:
        if self._cluster is not None:
            ray.shutdown()
            self._cluster.shutdown()
            self._cluster = None
