"""Everyone who delivers Parquet rows in the benchmark, one function each; see competitors.py for the rules."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tests.benchmarks.competitors import SEED, Delivery, Task, cpu_s, start_ray
from tests.benchmarks.tables import TABLES


def ray_data(task: Task) -> Delivery:
    """Ray Data's read_parquet and iter_batches, in NumPy, in whatever order it likes; epochs as one list of files."""
    import ray

    notes = start_ray(task)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    begin = time.monotonic()
    found = ray.data.read_parquet(task.paths * _num_epochs(task))
    batches = found.iter_batches(batch_size=TABLES[task.kind].batch_size, batch_format="numpy")
    return replace(_consume(task, iter(batches), begin), notes=notes)


def in_process(task: Task) -> Delivery:
    """ParquetSource without Ray."""
    from datarax_ray.feed.stream import StreamOptions

    begin = time.monotonic()
    source = _source(task)
    return _consume(task, _columns(source.batches(0, StreamOptions(TABLES[task.kind].batch_size))), begin)


def ray_source(task: Task) -> Delivery:
    """ParquetSource through RaySource with `workers` actors. setting: order "file" or "block"."""
    from datarax_ray.actors.source import RaySource
    from datarax_ray.feed.stream import StreamOptions

    notes = start_ray(task)
    begin = time.monotonic()
    with RaySource(_source(task), num_actors=task.workers, num_cpus=0.1) as source:
        stream = source.batches(0, StreamOptions(TABLES[task.kind].batch_size))
        delivery = _consume(task, _columns(stream), begin)
        stats = source.stats().values()
        notes |= {
            "actor_max_rss_nbytes": max(actor["max_rss_nbytes"] for actor in stats),
            "num_blocks": sum(actor["num_blocks"] for actor in stats),
        }
    return replace(delivery, notes=notes)


def _source(task: Task) -> Any:
    from datarax_ray.sources import ParquetSource, ParquetSourceConfig

    config = ParquetSourceConfig(seed=SEED, shuffle=task.setting["order"] == "block", num_epochs=_num_epochs(task))
    return ParquetSource(config, task.paths)


def _num_epochs(task: Task) -> int:
    return -(-task.records // task.num_records)


def _columns(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.columns


def _consume(task: Task, batches: Iterator[Any], begin: float) -> Delivery:
    """Take batches until the rows or the seconds are reached. The clock starts when the first batch is here."""
    identities: list[int] = []
    first = end = first_cpu = 0.0
    begin_cpu = cpu_s()
    done = first_rows = 0
    for batch in batches:
        end = time.monotonic()
        done += len(batch["index"])
        if not first:
            first, first_rows, first_cpu = end, done, cpu_s()
        if task.identify:
            identities += batch["index"].tolist()
        if done >= task.records or end - first >= task.seconds:
            break
    end_cpu = cpu_s()
    delivery = Delivery(done - first_rows, end - first, first - begin, end_cpu - first_cpu, identities)
    return replace(delivery, all_cpu_s=end_cpu - begin_cpu)
