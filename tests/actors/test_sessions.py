"""A RaySource and the Ray of its program: started by it, shut down under it, started anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

START = """
import os, sys, threading
import ray
from datarax_ray import RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode

def start():
    ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)

def source(**options):
    module = ArrayRecordSourceModule(ArrayRecordSourceConfig(), sys.argv[1:], transforms=[decode])
    return RaySource(module, num_actors=1, num_cpus=0.5, **options)
"""


def run(body: str, files: list[Path]) -> Any:
    """A program of its own: a Ray that is shut down here would be that of other tests."""
    return subprocess.run(
        [sys.executable, "-c", START + body, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"RAY_ADDRESS": "local"},  # never a cluster that happens to run on this machine
    )


@pytest.mark.slow
def test_a_source_whose_ray_was_shut_down_says_so_though_another_was_started_and_can_be_closed(
    files: list[Path],
) -> None:
    done = run(
        """
start()
used, left = source(), source()
used.get_batch(4), left.get_batch(4)
ray.shutdown()
start()
for ask in (used.stats, lambda: used.add_actors(1), lambda: used.get_batch(8)):
    try:
        ask()
    except RuntimeError as error:
        assert "Ray was shut down" in str(error) and "this RaySource with it; make a new one" in str(error), error
    else:
        raise AssertionError(ask)
used.close()
with source() as another:
    assert another.get_batch(4)["index"].tolist() == [0, 1, 2, 3]
print("ok")
""",
        files,
    )
    assert done.stdout == "ok\n", done.stderr
    assert "Traceback" not in done.stderr  # of the one that was left open as well


@pytest.mark.slow
def test_threads_that_make_the_first_sources_at_once_start_one_ray(files: list[Path]) -> None:
    done = run(
        """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    both = threading.Barrier(2)
    made = list(pool.map(lambda _: (both.wait(), source())[1], range(2)))
    print([each.get_batch(2)["index"].tolist() for each in made])
    for each in made:
        each.close()
    ray.shutdown()  # a local one ends with the thread that started it
""",
        files,
    )
    assert done.stdout == "[[0, 1], [0, 1]]\n", done.stderr
    assert "Traceback" not in done.stderr
    assert "this local Ray also ends with the thread that started it" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "shared"])
def test_a_program_whose_own_node_is_given_up_is_told_that_and_does_not_wait(
    files: list[Path], name: str | None
) -> None:
    done = run(
        f"""
import os, signal, time
from datarax_ray.actors.lifecycle import Thresholds
health = {{"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}}
options = {{"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False, "log_to_driver": False}}
ray.init("local", namespace="job", _system_config=health, **options)
used = source(name={name!r}, thresholds=Thresholds(ask_head_s=0.5))
used.get_batch(4)
node = ray.get_runtime_context().get_node_id()
(raylet,) = ray._private.worker._global_node.all_processes["raylet"]
os.kill(raylet.process.pid, signal.SIGKILL)  # as where /dev/shm is full; the head lives
began = time.monotonic()
try:
    while True:
        used.get_batch(4)
except RuntimeError as error:
    assert "given up" in str(error) and node[:12] in str(error) and "goes on" in str(error), error
assert time.monotonic() - began < 60  # where actors that cannot start are tried, or waited for, it takes minutes
""",
        files,
    )
    assert done.returncode == 0, done.stderr
