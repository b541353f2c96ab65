"""What many small files cost: shuffled records a second of many files, beside those of few.

    python -m tests.benchmarks.small_files [--files 20000] [--records 20000000] [--actors 0,2] [--repeats 3]

writes that many records of 64 bytes to 20 files and to as many as are asked for, and reads both in turns, each run in a
process of its own (0 actors: in that process, without Ray), after a warm-up in which every file is opened. The first
batch is told apart: it has counted, checked and opened files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.benchmarks.competitors import Delivery, Task
from tests.benchmarks.one import run
from tests.benchmarks.report import rate
from tests.data import write_file

FEW = 20
_EPOCHS = 1000  # more than anyone delivers: a run ends by its time


def write(directory: Path, num_files: int, num_records: int) -> None:
    directory.mkdir()
    each, data = num_records // num_files, os.urandom(64 * 1024)
    for index in range(num_files):
        write_file(directory / f"{index:06d}.array_record", (data[64 * (i % 1024) :][:64] for i in range(each)))


def main(arguments: Sequence[str] | None = None) -> dict[int, float]:
    """The ratio of the rates, by the number of actors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--actors", type=lambda text: [int(n) for n in text.split(",")], default=[0, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before what is counted")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run, that are counted")
    options = parser.parse_args(arguments)
    ratios: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        counts = (FEW, options.files)
        for count in counts:
            write(Path(folder) / str(count), count, options.records)
        for actors in options.actors:
            found: dict[int, list[Delivery]] = {count: [] for count in counts}
            for _ in range(options.repeats):
                for count in counts:
                    found[count].append(run(_task(Path(folder) / str(count), actors, options)))
            who = f"{actors} actors" if actors else "one process"
            for count, deliveries in found.items():
                rates = sorted(map(rate, deliveries))
                cpu_us = median(each.cpu_s / max(1, each.records) for each in deliveries) * 1e6
                first_s = median(each.first_batch_s for each in deliveries)
                print(
                    f"{who}, {count:,} files: {median(rates):,.0f} records/s ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
                    f"{cpu_us:.2f} us of CPU a record, the first batch after {first_s:.1f} s",
                    flush=True,
                )
            few, many = (median(map(rate, found[count])) for count in counts)
            ratios[actors] = many / max(few, 1e-9)
            print(f"{who}: ratio {ratios[actors]:.2f}", flush=True)
    return ratios


def _task(directory: Path, actors: int, options: argparse.Namespace) -> Task:
    return Task(
        "RaySource" if actors else "in-process",
        "small",
        [str(directory)],
        num_records=options.records,
        records=_EPOCHS * options.records,
        seconds=options.seconds,
        workers=actors,
        warmup_s=options.warmup,
    )


if __name__ == "__main__":
    main()
