"""Ray Data: read_parquet, random_shuffle by a seed, map_batches, iter_batches, with preserve_order; it has no state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.loaders.work import Job, decode, processes_below


class Loader:
    @staticmethod
    def write(directory: str, num_records: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for part, numbers in enumerate(np.array_split(np.arange(num_records), 4)):
            pq.write_table(pa.table({"number": numbers}), Path(directory) / f"part-{part}.parquet")

    def __init__(self, job: Job) -> None:
        import ray

        if job.trainers > 1:
            raise ValueError("several trainers are of one Ray cluster there (streaming_split), and not asked here")
        ray.init(
            "local", num_cpus=max(1, job.readers), object_store_memory=100 * 2**20, include_dashboard=False,
            log_to_driver=False,
        )  # fmt: skip
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        found = ray.data.read_parquet(job.directory).random_shuffle(seed=job.seed)
        self._batches = found.map_batches(numbers, batch_size=16).iter_batches(
            batch_size=job.batch_size, batch_format="numpy"
        )

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            yield batch["number"].tolist()

    def state(self) -> None:
        return None

    def restore(self, state: bytes) -> None:
        raise AssertionError("it gave no state")

    def readers(self) -> list[int]:
        return processes_below("ray::MapBatches") or processes_below("ray::")


def numbers(batch: dict[str, Any]) -> dict[str, Any]:
    return {"number": np.array([decode(np.int64(number).tobytes()) for number in batch["number"]])}
