"""Files that lie on some nodes of the cluster alone: found by these nodes, and never opened by the driver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datarax_ray.actors.connecting import connect
from datarax_ray.actors.connection import RAY_LOCK, check_can_connect
from datarax_ray.actors.start_quorum import has_labels
from datarax_ray.plan.arguments import named_arguments, ordered
from datarax_ray.read.formats.array_record.files import NodeFiles, RecordFile, counted
from datarax_ray.read.formats.remote.urls import is_url


@named_arguments
def files_on_nodes(
    paths: Any,
    *,
    resources: Mapping[str, float] | None = None,
    label_selector: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> NodeFiles:
    """The ArrayRecord files that nodes have, each some of them: for ArrayRecordSourceModule, and RaySource to read.

    The stream is that of all files in one directory, whichever node has which, and so is its state. A file that
    several nodes have is one, read by any of these. Actors run where the files are, at least one on each such node.

    paths: as ArrayRecordSourceModule takes them, absolute: each node looks for them on its own disks.
    resources, label_selector: of the nodes to ask, as RaySource takes them, None for all that have CPUs.
    timeout_s: for their answers, which take as long as opening the files there.

    Raises: FileNotFoundError where no node has any; ValueError where nodes have different files of one name (of another
    size or count, or other bytes where the digest of a file looks: its begin, its end, eight pages between), or a file
    is broken; TimeoutError where nodes do not answer.
    """
    ordered("paths", paths)
    is_one = isinstance(paths, str | os.PathLike) or hasattr(paths, "filename") or not isinstance(paths, Iterable)
    named = [paths] if is_one else list(paths)
    for each in named:
        path = os.fspath(getattr(each, "filename", each))
        if is_url(path) or not os.path.isabs(path):
            why = (
                "the same on every node: give it to the source itself" if is_url(path) else "relative to nothing there"
            )
            raise ValueError(f"{each} is {why}; files of nodes are named by absolute paths")
    check_can_connect()
    with RAY_LOCK:
        connect(None, 1.0)
        wanted = {"CPU": 1e-9, **(resources or {})}
        nodes = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"]
            and has_labels(node["Labels"], label_selector or {})
            and all(node["Resources"].get(name, 0.0) >= amount for name, amount in wanted.items())
        ]
        look = ray.remote(num_cpus=0)(_look)
        asked = {
            node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(named)
            for node in nodes
        }
    if not asked:
        raise RuntimeError(f"no node of the cluster has {wanted} and the labels {dict(label_selector or {})}")
    try:
        found = dict(zip(asked, ray.get(list(asked.values()), timeout=timeout_s), strict=True))
    except GetTimeoutError:
        there = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)[0])
        silent = [node[:12] for node, ref in asked.items() if ref not in there]
        raise TimeoutError(
            f"{len(silent)} of {len(asked)} nodes did not say within {timeout_s:g} s which files they have: {silent}. "
            "Give a longer timeout_s, or take these nodes out of the cluster"
        ) from None
    return NodeFiles.union(found)


def _look(named: list[Any]) -> list[list[RecordFile]]:
    """On a node: what it has of each path."""
    found: list[list[RecordFile]] = []
    for path in named:
        try:
            found.append(counted(path))
        except FileNotFoundError:  # another node has it
            found.append([])
        except Exception as error:
            error.add_note(f"on node {ray.get_runtime_context().get_node_id()[:12]}")
            raise
    return found
