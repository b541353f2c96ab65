"""What many small files cost: shuffled records a second of many files, beside those of few.

    python -m tests.benchmarks.small_files [--files 20000] [--records 20000000] [--actors 0,2] [--repeats 3]

writes that many records of 64 bytes to 20 files and to as many as are asked for, and reads both in turns, each run in a
process of its own (0 actors: in that process, without Ray), after a warm-up in which every file is opened. The first
batch is told apart: it has counted, checked and opened files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.benchmarks.competitors import Delivery, Task
from tests.benchmarks.one import run
from tests.benchmarks.options import parsed, spread
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
    options = parsed(
        __doc__, arguments, files=20_000, records=20_000_000, actors=[0, 2], repeats=3, warmup=5.0, seconds=4.0
    )
    ratios: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        counts = (FEW, options.files)
        for count in counts:
            write(Path(folder) / str(count), count, options.records)
        for actors in options.actors:
            found: dict[int, list[Delivery]] = {count: [] for count in counts}
            for _ in range(options.repeats):
                for count in counts:
                    task = Task(
                        "RaySource" if actors else "in-process", "small", [str(Path(folder) / str(count))],
                        options.records, _EPOCHS * options.records, options.seconds, actors, warmup_s=options.warmup,
                    )  # fmt: skip
                    found[count].append(run(task))
            who = f"{actors} actors" if actors else "one process"
            for count, deliveries in found.items():
                cpu_us = median(each.cpu_s / max(1, each.records) for each in deliveries) * 1e6
                first_s = median(each.first_batch_s for each in deliveries)
                print(
                    f"{who}, {count:,} files: {spread([*map(rate, deliveries)])} records/s, "
                    f"{cpu_us:.2f} us of CPU a record, the first batch after {first_s:.1f} s",
                    flush=True,
                )
            few, many = (median(map(rate, found[count])) for count in counts)
            ratios[actors] = many / max(few, 1e-9)
            print(f"{who}: ratio {ratios[actors]:.2f}", flush=True)
    return ratios


if __name__ == "__main__":
    main()
