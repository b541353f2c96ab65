"""What many small files cost one reader: shuffled records a second of many files, beside those of few files.

    python -m tests.benchmarks.small_files --files 2000 --records 2000000

writes that many records of 64 bytes to 20 files and to as many as are asked for, and reads random blocks of both, in
turns, in this process: what an actor does. Opening is counted apart: it is done once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from datarax_ray.read.formats.array_record import ArrayRecordReader
from tests.data import write_file

FEW = 20
BLOCK = 8192  # records, as of a chunk of 64-byte records


def write(directory: Path, num_files: int, num_records: int) -> list[Path]:
    directory.mkdir()
    each, data = num_records // num_files, os.urandom(64 * 1024)
    return [
        write_file(directory / f"{index:06d}.array_record", (data[64 * (i % 1024) :][:64] for i in range(each)))
        for index in range(num_files)
    ]


def rates(reader: ArrayRecordReader, seconds: float, rng: np.random.Generator) -> Iterator[float]:
    """Records a second of one block after another."""
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        records = rng.integers(0, reader.num_records, BLOCK)
        begin = time.perf_counter()
        reader.read(records)
        yield BLOCK / (time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of three turns")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        readers: dict[int, ArrayRecordReader] = {}
        found: dict[int, list[float]] = {}
        for count in (FEW, options.files):
            paths = write(Path(folder) / str(count), count, options.records)
            begin = time.perf_counter()
            readers[count], found[count] = ArrayRecordReader.of(paths), []
            made = time.perf_counter()
            readers[count].read(np.arange(count) * (options.records // count))
            opened = time.perf_counter()
            print(f"{count:,} files: counted in {made - begin:.1f} s, opened in {opened - made:.1f} s", flush=True)
        for _ in range(3):
            for count, reader in readers.items():
                found[count] += rates(reader, options.seconds, rng)
        for count, each in found.items():
            print(f"{count:,} files: {statistics.median(each):,.0f} records/s", flush=True)
        few, many = (statistics.median(each) for each in found.values())
        print(f"ratio {many / few:.2f}")
        for reader in readers.values():
            reader.close()


if __name__ == "__main__":
    main()
