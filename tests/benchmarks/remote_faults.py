"""The longest wait for a batch while the storage fails: 2 % of requests refused, 2 % cut, 0.3 % stuck for a minute.

python -m tests.benchmarks.remote_faults [--delay-ms 20] [--records 40000] [--actors 2] [--repeats 3]

Real actors read files of records of 4 KB over loopback HTTP as fast as they can, and keep little of it: the server,
a process of its own, fails by chance. Each stream is compared with that of the same files on disk, batch for batch.
Waits
are those of the program between two batches; the first batch, which waits for Ray's processes too, is told apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from datarax_ray import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    DecodeRaw,
    ParquetSource,
    ParquetSourceConfig,
    Pipeline,
    RaySource,
)
from tests.benchmarks.options import parsed
from tests.benchmarks.remote_files import BATCH, GROUP, RECORD_NBYTES, served
from tests.data import write_file

FAULTS = {"503": 0.02, "cut": 0.02, "stall": 0.0015, "stick": 0.0015}
STUCK_S = 60.0
_ROW_GROUP = 64
_KEPT_NBYTES = 2**25  # of the data, a fifth at most: or a second epoch would ask for nothing


@contextlib.contextmanager
def files(num_records: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for name, group in (("groups", GROUP), ("records", 1)):
            path = Path(folder) / f"{name}.array_record"
            write_file(path, (rng.bytes(RECORD_NBYTES) for _ in range(num_records)), group)
        rows = rng.integers(0, 2**30, (num_records, RECORD_NBYTES // 4), np.int32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        parquet.write_table(pa.table({"x": column}), f"{folder}/rows.parquet", row_group_size=_ROW_GROUP)
        yield Path(folder)


def array_record(where: Any, **settings: Any) -> ArrayRecordSourceModule:
    config = ArrayRecordSourceConfig(shuffle=True, seed=7, num_epochs=2, remote_nbytes=_KEPT_NBYTES, **settings)
    return ArrayRecordSourceModule(config, where, transforms=[DecodeRaw("uint8", (RECORD_NBYTES,), "x")])


def rows(where: Any) -> ParquetSource:
    config = ParquetSourceConfig(shuffle=True, seed=7, num_epochs=2, remote_nbytes=_KEPT_NBYTES)
    return ParquetSource(config, where)


WORKLOADS: Sequence[tuple[str, str, Any]] = (
    ("ArrayRecord, block order", "groups.array_record", partial(array_record, shuffle_block_size=GROUP)),
    ("ArrayRecord, global order", "records.array_record", array_record),
    ("Parquet, block order", "rows.parquet", rows),
)


def waited(source: Any) -> tuple[list[float], str]:
    """Seconds until each batch, and a digest of them all."""
    waits, seen = [], hashlib.sha256()
    with Pipeline(source=source, batch_size=BATCH, on_host=True) as pipeline:
        began = time.perf_counter()
        for batch in pipeline:
            waits.append(time.perf_counter() - began)
            seen.update(np.ascontiguousarray(batch["x"]))
            began = time.perf_counter()
    return waits, seen.hexdigest()


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of files: the longest wait of each pass, and how many requests failed."""
    options = parsed(__doc__, arguments, delay_ms=20.0, records=40_000, actors=2, repeats=3)
    found = []
    with files(options.records) as folder, served(folder, options.delay_ms / 1000, 1e9, FAULTS, STUCK_S) as server:
        for what, name, make in WORKLOADS:
            _, want = waited(make(folder / name))
            longest, firsts, others = [], [], []
            before = server.counts
            for _ in range(options.repeats):
                source = make(f"{server.url}/{name}")
                waits, got = waited(RaySource(source, num_actors=options.actors, num_cpus=0.5))
                if got != want:
                    raise AssertionError(f"{what}: another stream came than that of the files on disk")
                firsts.append(waits[0])
                longest.append(max(waits[1:]))
                others += waits[1:]
            asked, _, failed = (now - then for now, then in zip(server.counts, before, strict=True))
            line = {"what": what, "longest_s": max(longest), "median_longest_s": median(longest), "requests": asked}
            line |= {"failed": failed, "first_s": median(firsts), "typical_s": median(others)}
            found.append(line)
            print(
                f"{what}: the longest wait {max(longest):.2f} s ({', '.join(f'{each:.2f}' for each in longest)}), a "
                f"typical one {median(others) * 1000:.0f} ms, the first batch after {median(firsts):.1f} s; {failed} "
                f"of {asked} requests failed; the same stream as from the disk",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
