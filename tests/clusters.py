"""The clusters of tests, and what they do without."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, services, utils
from ray._private.state import actors
from ray.cluster_utils import Cluster

from tests import warm_workers
from tests.waiting import until

# For a head: no test asks its dashboard, wants it to grow, or looks at what other processes print. Each is a process,
# and half a second of CPU or more.
BARE = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}

# A process that does nothing, and ends with the raylet that started it.
_NOTHING = 'sh -c "exec tail -s 1 --pid $PPID -f /dev/null"'
_PORTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")
_of_ray = services.start_ray_process, services.start_api_server


def _start_lean(command: list[str], process_type: str, **options: Any) -> Any:
    """Start a process of Ray; a raylet without the agents of its node, and with workers that are forked."""
    if process_type == ray_constants.PROCESS_TYPE_RAYLET:
        given = dict(part.removeprefix("--").split("=", 1) for part in command if "=" in part)
        path = Path(given["session_dir"], "sockets", given["node_id"][:8])
        lean = {
            "python_worker_command": given["python_worker_command"].replace(
                sys.executable, str(warm_workers.starter(path)), 1
            ),
            "dashboard_agent_command": f"{sys.executable} {warm_workers.__file__} {path}",
            "runtime_env_agent_command": _NOTHING,
        }
        command = [f"--{name}={lean[name]}" if (name := part[2:].split("=")[0]) in lean else part for part in command]
        for port in _PORTS:  # that the agents would tell the raylet
            _raylet.persist_port(given["session_dir"], given["node_id"], getattr(_raylet, f"{port}_PORT_NAME"), -1)
    return _of_ray[0](command, process_type, **options)


def _start_no_dashboard(include_dashboard: bool | None, *arguments: Any, **options: Any) -> Any:
    """Ray would start the process of a dashboard also where it shall have none."""
    return ("", None) if include_dashboard is False else _of_ray[1](include_dashboard, *arguments, **options)


# Every Ray that this process starts is without what tests do without, four of five seconds of CPU: it has no dashboard,
# agents or metrics, and no runtime environments. See tests/warm_workers.py for its workers. By names of Ray's own, so
# another release starts as it is.
if ray.__version__.startswith("2.60.") and "RAY_STARTS_WORKERS" not in os.environ:  # as with --run-slow
    services.start_ray_process, services.start_api_server = _start_lean, _start_no_dashboard

# Ray asks whether ray[default] is there. Without it agents serve nothing, and take two of these four seconds.
_has_dashboard = utils.get_dashboard_dependency_error
utils.get_dashboard_dependency_error = lambda: ImportError("left out by tests/clusters.py")


@contextlib.contextmanager
def ray_as_it_is() -> Iterator[None]:
    """Rays that start in here have all that Ray starts."""
    before = services.start_ray_process, services.start_api_server, utils.get_dashboard_dependency_error
    services.start_ray_process, services.start_api_server = _of_ray
    utils.get_dashboard_dependency_error = _has_dashboard
    yield
    services.start_ray_process, services.start_api_server, utils.get_dashboard_dependency_error = before


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
