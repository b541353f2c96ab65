"""The figures that docs/evidence.md tells of, measured anew: python -m tests.figures [NAME ...]

Real Ray, real actors, real processes of JAX; some minutes. Counts are the same on any machine, and times are longer on
one that has other work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.simulation import real
from tests.waiting import until_all_run

READ_S, BATCH_SIZE = 0.02, 16  # for a record
NUM_RECORDS, NUM_TRAINERS = 4000, 4
NEEDED, MOST_ACTORS, SCALE_S, LOOKED_S = 5, 12, 2.0, 20.0  # actors that a trainer needs; of one that may have more


class Counted:
    """A filter that keeps all, and leaves a byte in a file for each record that it sees."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def filter(self, element: Any) -> bool:
        with self._path.open("ab", buffering=0) as file:
            file.write(b".")
        return True


def numbers(count: int, *transforms: Any, num_epochs: int = -1) -> RandomAccessSource:
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=num_epochs)
    return RandomAccessSource(config, real.Numbers(count), transforms=transforms)


def meshes() -> str:
    """Every shard of every mesh of tests/pipeline/mesh_worker.py, byte for byte, in real processes."""
    from tests.pipeline.mesh_worker import MESHES

    command = [sys.executable, "-m", "pytest", "-q", "--run-slow", "tests/pipeline/test_meshes.py"]
    ended = subprocess.run(command, capture_output=True, text=True)
    return f"{len(MESHES)} meshes tried, {'all' if ended.returncode == 0 else 'NOT all'} right"


def reads() -> str:
    """Trainers that share actors behind a filter, so that nobody knows beforehand whose rows are whose."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, namespace="figures")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "read"

        def train(rank: int) -> None:
            source = numbers(NUM_RECORDS, Counted(path), num_epochs=1)
            # of one actor nothing is asked of another because it is late, as on a busy machine
            with RaySource(source, num_actors=1, num_cpus=0.1, name="figures") as shared:
                options = StreamOptions(BATCH_SIZE, process_index=rank, process_count=NUM_TRAINERS, shares_actors=True)
                for _ in shared.batches(0, options):
                    pass

        trainers = [threading.Thread(target=train, args=(rank,)) for rank in range(NUM_TRAINERS)]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
        times = path.stat().st_size / NUM_RECORDS
    ray.shutdown()
    return f"{NUM_TRAINERS} trainers behind a filter: each record is read {times:.2f} times"


def drain() -> str:
    """From the notice that a node is about to go to the end of the last request that its actors read."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1, resources={"host": 2}) for _ in range(2)]
    ray.init(cluster.address, log_to_driver=False)
    source = numbers(10**9, real.Wait(READ_S, 4096))
    with RaySource(source, num_actors=4, num_cpus=0.1, resources={"host": 1}) as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(BATCH_SIZE))
        _go_on(stream, LOOKED_S)
        mine = [i for i, each in distributed.stats().items() if each["node_id"] == nodes[1].node_id]
        ray._raylet.GcsClient(address=cluster.address).drain_node(nodes[1].node_id, 2, "preempted", 2**62)
        begin = last = time.monotonic()
        num_blocks = 0
        while time.monotonic() - last < LOOKED_S:
            _go_on(stream, 0.2)
            found = sum(each["num_blocks"] for i, each in distributed.stats().items() if i in mine)
            if found != num_blocks:
                num_blocks, last = found, time.monotonic()
    ray.shutdown()
    cluster.shutdown()
    return f"from a drain notice to the last request handed over: {last - begin:.1f} s"


def autoscaling() -> str:
    """A trainer that needs a few actors, begun with one: how long it waits once their number has come to rest."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    source = numbers(10**9, real.Wait(READ_S, 4096))
    limits = Thresholds(scale_s=SCALE_S, ask_head_s=SCALE_S)
    train_s = BATCH_SIZE * READ_S / NEEDED
    with RaySource(source, num_actors=(1, MOST_ACTORS), num_cpus=0.01, thresholds=limits) as scaled:
        stream = scaled.batches(0, StreamOptions(BATCH_SIZE))
        before = _go_on(stream, LOOKED_S / 2, train_s)
        _go_on(stream, 3 * LOOKED_S, train_s)
        after, num_actors = _go_on(stream, LOOKED_S, train_s), scaled.num_actors
    ray.shutdown()
    return f"trainer that needs {NEEDED} actors: waits {before:.0%} with 1 to begin with, {after:.0%} with {num_actors}"


def simulation() -> str:
    """Simulated efficiency beside that of real actors that only wait."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    found = [(n, real.simulated(n).efficiency, real.real(n).efficiency) for n in (1, 4, 16, 32)]
    ray.shutdown()
    return "actors, simulated and real: " + "; ".join(f"{n}: {a:.2f}, {b:.2f}" for n, a, b in found)


def _go_on(stream: Any, lasts_s: float, train_s: float = 0.0) -> float:
    """Train on for so long; how much of it was a wait for batches."""
    begin, waited_s = time.monotonic(), 0.0
    while (now := time.monotonic()) - begin < lasts_s:
        next(stream)
        waited_s += time.monotonic() - now
        time.sleep(train_s)
    return waited_s / (time.monotonic() - begin)


FIGURES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (reads, drain, autoscaling, simulation, meshes)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(FIGURES), help=", ".join(FIGURES))
    for name in parser.parse_args().names:
        print(FIGURES[name](), flush=True)


if __name__ == "__main__":
    main()
