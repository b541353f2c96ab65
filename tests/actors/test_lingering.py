"""Actors that outlive their drivers: jobs one after the other and at once, killed ones, and the end of it all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.cli import pool as pool_command
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.cli.screens import answer, screen
from tests.data import Noted, decode, write_files
from tests.resume import assert_equal
from tests.waiting import until

NAMESPACE = "sweep"
LIMITS = Thresholds(ask_head_s=0.2, lease_s=6.0)
JOB = """
import sys, time
import ray
from pathlib import Path
from tests.actors.test_lingering import make, distribute
ray.init(sys.argv[1], namespace="sweep", log_to_driver=False)
source = distribute(make(Path(sys.argv[2])), linger_s=float(sys.argv[4]))
total = 0
for _ in range(int(sys.argv[3])):
    total += int(source.get_batch(8)["index"].sum())
print(total, *(stats["pid"] for stats in source.stats().values()), flush=True)
if sys.argv[5] == "killed":
    time.sleep(1000)
source.close()
"""


def make(directory: Path) -> ArrayRecordSourceModule:
    config = ArrayRecordSourceConfig(shuffle_files=True, seed=3, num_epochs=2)
    paths = sorted(directory.glob("*.array_record"))
    return ArrayRecordSourceModule(config, paths, transforms=[decode, Noted(directory / "read")])


def distribute(module: ArrayRecordSourceModule, **options: Any) -> RaySource:
    return RaySource(module, num_actors=2, num_cpus=0.1, name="sweep", thresholds=LIMITS, **options)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_files(tmp_path, [400, 200])
    return tmp_path


def job(cluster: Cluster, directory: Path, num_batches: int, linger_s: float, end: str = "") -> Any:
    words = [sys.executable, "-c", JOB, cluster.address, str(directory), str(num_batches), str(linger_s), end]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def said(running: Any) -> list[str]:
    return running.stdout.readline().split()


def listed(cluster: Cluster) -> list[Any]:
    pool_command.list_pools(cluster.address, shown := screen(as_json=True))
    return json.loads(answer(shown))


@pytest.mark.slow
def test_jobs_one_after_the_other_find_the_actors_of_those_before_until_they_are_stopped(
    cluster: Cluster, directory: Path
) -> None:
    first = job(cluster, directory, 20, linger_s=1000)
    total, *pids = said(first)
    assert first.wait(60) == 0
    first.stdout.close()
    pools = until(lambda: [each for each in listed(cluster) if not each["drivers"]])
    assert [(each["name"], each["num_running"]) for each in pools] == [("sweep", 2)]
    with distribute(make(directory), linger_s=1000) as source:
        got = [source.get_batch(8) for _ in range(20)]
        assert sorted(str(stats["pid"]) for stats in source.stats().values()) == sorted(pids)
        stop = "sweep", cluster.address, (shown := screen())
        until(lambda: listed(cluster)[0]["drivers"])
        with pytest.raises(ValueError, match="would lose the actors of 'sweep', and start others; end these jobs"):
            pool_command.stop(*stop)
    alone = make(directory)
    assert_equal(got, [alone.get_batch(8) for _ in got])
    assert sum(int(batch["index"].sum()) for batch in got) == int(total)
    until(lambda: not listed(cluster)[0]["drivers"])
    pool_command.stop(*stop)
    assert answer(shown) == "sweep: 2 reader actors ended\n"
    until(lambda: not listed(cluster))
    until(lambda: not any(_is_there(int(pid)) for pid in pids))


@pytest.mark.slow  # a cluster, and the time until actors end
def test_after_a_killed_driver_the_actors_serve_the_next_and_end_by_themselves(
    cluster: Cluster, directory: Path
) -> None:
    killed = job(cluster, directory, 5, 3, end="killed")
    _, *pids = said(killed)
    until(lambda: [(each["num_running"], len(each["drivers"])) for each in listed(cluster)] == [(2, 1)])
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    until(lambda: [(each["num_running"], len(each["drivers"])) for each in listed(cluster)] == [(2, 0)], timeout_s=20)
    killed.stdout.close()
    with distribute(make(directory), linger_s=3) as source:
        source.get_batch(8)
        assert sorted(str(stats["pid"]) for stats in source.stats().values()) == sorted(pids)
    until(lambda: not any(_is_there(int(pid)) for pid in pids), timeout_s=60)
    until(lambda: not any(each["num_running"] for each in listed(cluster) if not each["drivers"]))


@pytest.mark.slow
def test_a_pool_whose_only_driver_was_killed_is_listed_no_more(cluster: Cluster, directory: Path) -> None:
    killed = job(cluster, directory, 5, 0.1, end="killed")
    said(killed)
    until(lambda: [len(each["drivers"]) for each in listed(cluster)] == [1])
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    until(lambda: not listed(cluster))  # the driver's word is believed for 90 s


def test_several_at_once_read_once(cluster: Cluster, tmp_path: Path) -> None:
    """Each record is read once in each of two epochs, or for a late request, of which a busy machine has many."""
    for attempt in range(4):
        place = tmp_path / str(attempt)  # of its own: actors keep blocks for who is late
        place.mkdir()
        write_files(place, [400, 200])
        with distribute(make(place), linger_s=5) as one, distribute(make(place), linger_s=5) as two:
            for source in (one, two):
                until(lambda source=source: len(source._actors.actors()) == 2)
            for _ in range(150):
                assert_equal([one.get_batch(8)], [two.get_batch(8)])
        counts = Counter((place / "read").read_text().split())
        assert set(counts) == {str(index) for index in range(600)}
        if sum(counts.values()) <= 1.5 * 1200:
            return
    pytest.fail(f"records were read {sum(counts.values())} times, four times over, and 1200 would do")


def test_a_pool_that_nobody_could_find_again_is_refused(cluster: Cluster, directory: Path) -> None:
    with pytest.raises(ValueError, match="linger_s=5 keeps the actors for drivers that come later, who find them by"):
        RaySource(make(directory), num_actors=1, linger_s=5)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
