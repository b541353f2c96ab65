"""How long a train step waits for its data where one actor makes a batch a little faster than the step takes it.

    python -m tests.benchmarks.train_step [--step-ms 10] [--data-ms 8] [--seconds 20]

A batch is 1,024 shuffled records of 64 bytes. The step sleeps, as a host does while its accelerator works,
and so does a transform in the actor, until reading and it have taken what is asked for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.benchmarks.data import KINDS, dataset, warm
from tests.benchmarks.options import CACHE_DIR, parsed

BATCH = 1024
TARGET = 0.02
READING_MS = 0.8  # of a batch, measured, beside what the transform sleeps


class Takes:
    """A transform that takes so long for a batch of rows."""

    def __init__(self, ms: float) -> None:
        self.s_a_row = ms / 1e3 / BATCH

    def map_columns(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(len(next(iter(columns.values()))) * self.s_a_row)
        return columns


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parsed(
        __doc__, arguments, step_ms=10.0, data_ms=8.0, records=1_000_000, warmup=5.0, seconds=20.0, cache_dir=CACHE_DIR
    )
    kind = KINDS["small"]
    paths = dataset(kind, options.records, options.cache_dir)
    warm(paths)
    config = ArrayRecordSourceConfig(shuffle_files=True, seed=42)
    transforms = [kind.decoder(), Takes(options.data_ms - READING_MS)]
    waits: list[float] = []
    with (
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False),
        RaySource(ArrayRecordSourceModule(config, paths, transforms=transforms), num_actors=1, num_cpus=0.1) as source,
        Pipeline(source=source, batch_size=BATCH) as pipeline,
    ):
        pipeline.step()
        stop = (first := time.perf_counter()) + options.warmup + options.seconds
        for _ in itertools.takewhile(lambda _: time.perf_counter() < stop, itertools.count()):
            time.sleep(options.step_ms / 1e3)
            begin = time.perf_counter()
            pipeline.step()
            if begin - first > options.warmup:
                waits.append(time.perf_counter() - begin)
    ray.shutdown()
    share = sum(waits) / options.seconds
    print(
        f"a step of {options.step_ms:g} ms, data of {options.data_ms:g} ms, 1 actor: waits {share:.2%} of "
        f"{options.seconds:g} s (wanted {TARGET:.0%}), {len(waits)} batches, longest wait {max(waits) * 1e3:.1f} ms"
    )
    return {"waits": share, "num_batches": len(waits), "longest_ms": max(waits) * 1e3, "target": TARGET}


if __name__ == "__main__":
    main()
