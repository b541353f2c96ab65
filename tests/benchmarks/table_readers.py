"""Parquet rows, as Ray Data delivers them and as this project's source; see competitors.py for the rules."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tests.benchmarks.competitors import SEED, Delivery, Task, consume, num_epochs, start_ray
from tests.benchmarks.tables import TABLES


def ray_data(task: Task) -> Delivery:
    """Ray Data's read_parquet and iter_batches, in NumPy, in whatever order it likes; epochs as one list of files."""
    import ray

    notes = start_ray(task)
    ray.data.DataContext.get_current().enable_progress_bars = False
    begin = time.monotonic()
    found = ray.data.read_parquet(task.paths * num_epochs(task))
    batches = found.iter_batches(batch_size=TABLES[task.kind].batch_size, batch_format="numpy")
    return replace(consume(task, batches, begin), notes=notes)


def parquet_source(task: Task) -> Any:
    """setting: order "file" or "block"."""
    from datarax_ray.sources import ParquetSource, ParquetSourceConfig

    config = ParquetSourceConfig(seed=SEED, shuffle=task.setting["order"] == "block", num_epochs=num_epochs(task))
    return ParquetSource(config, task.paths)
