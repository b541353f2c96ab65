"""The benchmark of Hugging Face streams, run by hand: rows per CPU second of one process.

    python -m tests.benchmarks.hf_streams [--rows 400000] [--repeats 5] [--json FILE]

--rows: in each file of small rows, and a 25th of it of tokens.

What a reader actor does (requests in, blocks out, over four Parquet files as shards) beside `datasets`' own batched
NumPy iteration of the same stream, `with_format("numpy").iter(1000)` and `iter(4000)`, whichever is faster. `datasets`
shuffles by a buffer, here of 1,000 rows: of a part of the rows, since it takes so long. All take turns in one process,
with memory kept as actors keep it. CPU seconds, so that a busy machine does not decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray.actors.reader_actor import keep_freed_memory
from datarax_ray.plan.orders.interleaved import Cursor, ShardReadRequest
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource
from tests.benchmarks.options import parsed

TARGET = 0.8  # of the rate of `datasets`
SHARDS = 4
# Rows of a request: what the window comes to ask of one actor at a time.
KINDS = {"small": 2**17, "tokens": 2**12}
_BUFFER_ROWS, _SHUFFLED_ROWS = 1000, 20_000


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it all, print the table, and give what --json writes."""
    options = parsed(__doc__, arguments, rows=400_000, repeats=5, json=Path)
    keep_freed_memory()
    report: dict[str, Any] = {"target": TARGET}
    for kind in KINDS:
        with TemporaryDirectory() as directory:
            report[kind] = _measure(_stream(kind, options.rows, Path(directory)), KINDS[kind], options.repeats)
        print(kind, {name: f"{rate:,.2f}" for name, rate in report[kind].items()})
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    return report


def _measure(dataset: Any, chunk: int, repeats: int) -> dict[str, float]:
    runs: dict[str, Callable[[], int]] = {
        "datasets, 1000": lambda: _iterated(dataset, 1000),
        "datasets, 4000": lambda: _iterated(dataset, 4000),
        "in file order": lambda: _read(dataset, chunk, shuffle=False),
        "shuffled": lambda: _read(dataset, chunk, shuffle=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    # all read the same; and the first touch of memory costs as much as the reading
    assert len({run() for run in runs.values()}) == 1
    buffered = dataset.shuffle(seed=0, buffer_size=_BUFFER_ROWS).take(_SHUFFLED_ROWS)
    runs["datasets, shuffled"] = lambda: _iterated(buffered, 1000)
    rates["datasets, shuffled"] = []
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.process_time()
            rates[name].append(run() / (time.process_time() - begin))
    found = {name: median(measured) for name, measured in rates.items()}
    best = max(found["datasets, 1000"], found["datasets, 4000"])
    found |= {f"{name}, of datasets": found[name] / best for name in ("in file order", "shuffled")}
    return found | {"shuffled, of datasets shuffled": found["shuffled"] / found["datasets, shuffled"]}


def _iterated(dataset: Any, batch_size: int) -> int:
    return sum(len(next(iter(batch.values()))) for batch in dataset.with_format("numpy").iter(batch_size))


def _read(dataset: Any, chunk: int, *, shuffle: bool) -> int:
    description = HFStreamingSource(HFStreamingConfig(num_epochs=1, shuffle=shuffle), dataset=dataset).describe()
    shards = tuple((shard, Cursor()) for shard in range(SHARDS))
    rows, start = 0, 0
    while len((block := description.read(ShardReadRequest(start, start + chunk, shards))).positions):
        rows, start = rows + len(block.positions), start + chunk
    return rows


def _stream(kind: str, rows: int, directory: Path) -> Any:
    return datasets.load_dataset("parquet", data_files=written(kind, rows, directory), split="train", streaming=True)


def written(kind: str, rows: int, directory: Path) -> list[str]:
    """The paths of its shards. rows: in each of small ones."""
    paths = []
    for shard in range(SHARDS):
        rng = np.random.default_rng(shard)
        paths.append(str(directory / f"{shard}.parquet"))
        if kind == "small":
            columns = {"a": rng.integers(0, 9, rows), "b": rng.random(rows), "c": rng.integers(0, 9, rows, np.int32)}
            pq.write_table(pa.table(columns), paths[-1], row_group_size=20_000)
        else:
            tokens = rng.integers(0, 50_000, (max(1, rows // 25), 1024), np.int32)
            lists = pa.ListArray.from_arrays(np.arange(len(tokens) + 1, dtype=np.int32) * 1024, tokens.reshape(-1))
            pq.write_table(pa.table({"tokens": lists}), paths[-1], row_group_size=1000)
    return paths


if __name__ == "__main__":
    main()
