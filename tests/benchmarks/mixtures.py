"""What a mixture costs beside its components alone, run by hand: CPU microseconds a row of one process.

    python -m tests.benchmarks.mixtures [--rows 400000] [--repeats 5] [--json FILE]

Two datasets of small rows as Parquet files, read whole, shuffled and batched: as Hugging Face streams and as indexed
sources, each alone and two of them mixed 3 to 1, beside `datasets.interleave_datasets` of the same streams and
weights, in batches of NumPy. All take turns. CPU time, so that a busy machine does not decide.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets

from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import HFStreamingConfig, HFStreamingSource, MixtureSource, ParquetSource, ParquetSourceConfig
from tests.benchmarks.hf_streams import SHARDS, written
from tests.benchmarks.options import parsed, spread

WEIGHTS = (3, 1)
BATCH = 1024
ENOUGH = 50  # batches of `datasets`, which takes 200 times as long to interleave one


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run it all, print a line for each, and give what --json writes."""
    options = parsed(__doc__, arguments, rows=400_000, repeats=5, json=Path)
    with TemporaryDirectory() as directory:
        found = _measure(_written(Path(directory), options.rows), options.repeats)
    for name, costs in found.items():
        print(f"{name}: {spread(costs, '.2f')} CPU us a row")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    return found


def _measure(files: tuple[list[str], list[str]], repeats: int) -> dict[str, list[float]]:
    runs: dict[str, Callable[[], Iterable[int]]] = {
        "datasets, one stream": lambda: _iterated(_shuffled(files[0])),
        "datasets, interleaved": lambda: _iterated(
            datasets.interleave_datasets(
                [_shuffled(paths) for paths in files],
                probabilities=[weight / sum(WEIGHTS) for weight in WEIGHTS],
                seed=0,
            )
        ),
        "one stream": lambda: _batched(_stream(files[0])),
        "a mixture of two streams": lambda: _batched(MixtureSource([_stream(paths) for paths in files], WEIGHTS)),
        "one indexed source": lambda: _batched(_indexed(files[0])),
        "a mixture of two indexed": lambda: _batched(MixtureSource([_indexed(paths) for paths in files], WEIGHTS)),
        "a mixture of two indexed, by size": lambda: _batched(
            MixtureSource([_indexed(paths) for paths in files], WEIGHTS, weights_by="a")
        ),
        "a stream and an indexed one": lambda: _batched(
            MixtureSource([_stream(files[0]), _indexed(files[1])], WEIGHTS)
        ),
    }
    costs: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        assert sum(run()) > 0  # the first touch of files and memory costs as much as the reading
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.process_time()
            rows = sum(run())
            costs[name].append((time.process_time() - begin) / rows * 1e6)
    return costs


def _iterated(dataset: Any) -> Iterable[int]:
    batches = itertools.islice(dataset.with_format("numpy").iter(BATCH), ENOUGH)
    return (len(batch["a"]) for batch in batches)


def _batched(source: Any) -> Iterable[int]:
    with source:
        for batch in source.batches(0, StreamOptions(BATCH)):
            yield len(batch.columns["a"])


def _loaded(paths: list[str]) -> Any:
    return datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)


def _shuffled(paths: list[str]) -> Any:
    return _loaded(paths).shuffle(seed=0, buffer_size=1000)


def _stream(paths: list[str]) -> HFStreamingSource:
    return HFStreamingSource(HFStreamingConfig(num_epochs=1, shuffle=True), dataset=_loaded(paths))


def _indexed(paths: list[str]) -> ParquetSource:
    return ParquetSource(ParquetSourceConfig(num_epochs=1, shuffle=True), paths)


def _written(directory: Path, rows: int) -> tuple[list[str], list[str]]:
    first, second = directory / "first", directory / "second"
    for each in (first, second):
        each.mkdir()
    return written("small", rows // SHARDS, first), written("small", rows // SHARDS, second)


if __name__ == "__main__":
    main()
