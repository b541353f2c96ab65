"""The soak: an endless stream at full speed, and whether anything grows that should not.

python -m tests.chaos.soak --minutes 20
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil
import ray

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.chaos.stream import TRANSFORMS, write
from tests.waiting import until_all_run

# What a process takes to get warm (caches, arenas, imports) is no growth: slopes are of what comes after.
WARM_UP = 0.25


@dataclass(frozen=True)
class Sample:
    """One look at everything. time_s: since the start. *_nbytes: resident, or in use. store: of all nodes."""

    time_s: float
    driver_nbytes: float
    actors_nbytes: float
    store_nbytes: float
    driver_files: float
    actors_files: float
    driver_threads: float
    actors_threads: float


def soak(minutes: float, num_actors: int, num_records: int, every_s: float = 1.0) -> tuple[list[Sample], int]:
    """Samples of a stream that runs for so long, and the rows that it delivered."""
    with tempfile.TemporaryDirectory() as directory:
        config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=-1)
        source = ArrayRecordSourceModule(config, write(Path(directory), num_records), transforms=TRANSFORMS)
        with RaySource(source, num_actors=num_actors, num_cpus=0.5, max_nbytes=64 * 2**20) as distributed:
            until_all_run(distributed)
            actors = [psutil.Process(stats["pid"]) for stats in distributed.stats().values()]
            samples: list[Sample] = []
            is_over = threading.Event()
            begin = time.monotonic()

            def look() -> None:
                while not is_over.wait(every_s):
                    samples.append(_sample(time.monotonic() - begin, actors))

            watcher = threading.Thread(target=look)
            watcher.start()
            num_rows = 0
            try:
                for batch in distributed.batches(0, StreamOptions(1024)):
                    num_rows += batch.num_rows
                    if time.monotonic() - begin > 60 * minutes:
                        break
            finally:
                is_over.set()
                watcher.join()
    return samples, num_rows


def _sample(time_s: float, actors: list[psutil.Process]) -> Sample:
    driver = psutil.Process()
    total, free = ray.cluster_resources(), ray.available_resources()
    return Sample(
        time_s,
        driver.memory_info().rss - driver.memory_info().shared,
        sum(actor.memory_info().rss - actor.memory_info().shared for actor in actors),
        total["object_store_memory"] - free.get("object_store_memory", 0.0),
        driver.num_fds(),
        sum(actor.num_fds() for actor in actors),
        driver.num_threads(),
        sum(actor.num_threads() for actor in actors),
    )


def slopes(samples: list[Sample]) -> dict[str, tuple[float, float, float]]:
    """Of each measure after the warm-up: its mean, its largest, and its growth in an hour by least squares."""
    table = np.array([astuple(sample) for sample in samples])
    table = table[table[:, 0] >= WARM_UP * table[-1, 0]]
    hours = table[:, 0] / 3600
    return {
        field.name: (table[:, i].mean(), table[:, i].max(), np.polyfit(hours, table[:, i], 1)[0])
        for i, field in enumerate(fields(Sample))
        if i
    }


def report(samples: list[Sample], num_rows: int) -> str:
    lines = [f"{'':16} {'mean':>10} {'max':>10} {'growth in an hour':>18}"]
    for name, (mean, largest, slope) in slopes(samples).items():
        unit, scale = (" MB", 1e6) if name.endswith("nbytes") else ("", 1.0)
        name = name.removesuffix("_nbytes")
        lines.append(
            f"{name:16} {mean / scale:9.1f}{unit} {largest / scale:9.1f}{unit} {slope / scale:+14.2f}{unit} "
            f"({100 * slope / mean if mean else 0:+.1f} %)"
        )
    seconds = samples[-1].time_s
    return "\n".join([*lines, f"{num_rows:,} rows in {seconds:.0f} s, {num_rows / seconds:,.0f} a second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--records", type=int, default=200_000)
    given = parser.parse_args()
    ray.init(
        "local",
        num_cpus=max(given.actors, os.cpu_count() or 1),
        object_store_memory=300 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    print(report(*soak(given.minutes, given.actors, given.records)))


if __name__ == "__main__":
    main()
