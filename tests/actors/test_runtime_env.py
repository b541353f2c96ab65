"""Actors with a runtime environment, on a Ray with all that Ray starts."""

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

pytestmark = pytest.mark.usefixtures("whole_ray")


def test_actors_that_have_room_and_do_not_start_are_told_apart_from_those_that_have_none():
    source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(20)})
    with (
        RaySource(source, num_actors=1, runtime_env={"py_executable": "sleep 60;"}, start_timeout_s=2) as sleeping,
        pytest.raises(RuntimeError, match=r"none of 1 reader actors runs after 2 s: the cluster has room.*disk"),
    ):
        next(sleeping.batches(0, StreamOptions(8)))
