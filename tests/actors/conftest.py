"""A cluster whose pools are seen from outside of their programs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

from tests.clusters import LocalRay, ray_as_it_is, started


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A head with room for the driver and two actors; this process is in the Ray namespace NAMESPACE of its module."""
    patch = pytest.MonkeyPatch()
    # as Ray has it in this process, for all: a command would turn it on in here, and an earlier test's Ray has
    patch.setenv("RAY_AUTH_MODE", os.environ.get("RAY_AUTH_MODE", "disabled"))
    with started(3, namespace=request.module.NAMESPACE) as cluster:
        yield cluster
    patch.undo()


@pytest.fixture(scope="module")
def whole_ray(ray_of_modules: LocalRay, by_value: None) -> Iterator[None]:
    """A local Ray with the agents of its node, and with workers that it starts itself."""
    ray_of_modules.end()
    with ray_as_it_is():
        ray_of_modules.begin()
    yield
    ray_of_modules.end()
