"""Parquet rows, as Ray Data delivers them and as this project's source; see competitors.py for the rules."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tests.benchmarks.competitors import SEED, Delivery, Task, consume, num_epochs, start_ray
from tests.benchmarks.tables import TABLES

WINDOW_NBYTES = 256 * 2**20


def ray_data(task: Task) -> Delivery:
    """Ray Data's read_parquet and iter_batches, in NumPy, in whatever order it likes; epochs as one list of files.

    setting: order "any", or "local" with its shuffle of rows among as many as make 256 MiB, as our window has.
    """
    import ray

    notes = start_ray(task)
    ray.data.DataContext.get_current().enable_progress_bars = False
    begin = time.monotonic()
    found = ray.data.read_parquet(task.paths * num_epochs(task))
    table = TABLES[task.kind]
    shuffle = {"local_shuffle_buffer_size": WINDOW_NBYTES // table.nbytes, "local_shuffle_seed": SEED}
    shuffle = shuffle if task.setting["order"] == "local" else {}
    batches = found.iter_batches(batch_size=table.batch_size, batch_format="numpy", **shuffle)
    return replace(consume(task, batches, begin), notes=notes)


def parquet_source(task: Task) -> Any:
    """setting: order "file" or "block"."""
    from datarax_ray.sources import ParquetSource, ParquetSourceConfig

    config = ParquetSourceConfig(seed=SEED, shuffle=task.setting["order"] == "block", num_epochs=num_epochs(task))
    return ParquetSource(config, task.paths)
