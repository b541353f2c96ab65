"""Actors with a runtime environment, on a Ray with all that Ray starts."""

import sys

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

pytestmark = pytest.mark.usefixtures("whole_ray")


@pytest.mark.parametrize(("count", "slow_s"), [(20, 0.0), (100_000, 1.0)])  # in every request, and by reference
def test_actors_without_a_value_that_the_program_set_are_not_admitted(tmp_path, monkeypatch, count, slow_s):
    (tmp_path / "of_a_user.py").write_text(
        "import time\n\nSCALE, SLOW_S = 1, 0\n\n\nclass Scale:\n    def map(self, element):\n"
        "        time.sleep(SLOW_S)\n        return {'x': element['x'] * SCALE}\n"
    )
    monkeypatch.delitem(sys.modules, "of_a_user", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    import of_a_user

    def source():
        config = RandomAccessSourceConfig(num_epochs=1)
        return RandomAccessSource(config, {"x": np.arange(1, count)}, transforms=[of_a_user.Scale()])

    env = {"env_vars": {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}}
    if not slow_s:
        with RaySource(source(), num_actors=1, num_cpus=0.1, runtime_env=env) as same:
            assert same.get_batch(3)["x"].tolist() == [1, 2, 3]
    of_a_user.SCALE, of_a_user.SLOW_S = 5, slow_s  # where the driver is late, the actors wait for its sample
    with (
        RaySource(source(), num_actors=1, num_cpus=0.1, runtime_env=env) as other,
        pytest.raises(RuntimeError, match="other bytes than the driver: field 'x' of the element at position 0"),
    ):
        other.get_batch(3)


def test_actors_that_have_room_and_do_not_start_are_told_apart_from_those_that_have_none():
    source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(20)})
    with (
        RaySource(source, num_actors=1, runtime_env={"py_executable": "sleep 60;"}, start_timeout_s=2) as sleeping,
        pytest.raises(RuntimeError, match=r"none of 1 reader actors runs after 2 s: the cluster has room.*disk"),
    ):
        next(sleeping.batches(0, StreamOptions(8)))
