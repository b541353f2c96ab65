"""A cluster whose pools are seen from outside of their programs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.clusters import BARE


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A head with room for the driver and two actors; this process is in the Ray namespace NAMESPACE of its module."""
    head = {"num_cpus": 3, "object_store_memory": 80 * 2**20} | BARE
    patch = pytest.MonkeyPatch()
    # as Ray has it in this process, for all: a command would turn it on in here, and an earlier test's Ray has
    patch.setenv("RAY_AUTH_MODE", os.environ.get("RAY_AUTH_MODE", "disabled"))
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, namespace=request.module.NAMESPACE, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()
