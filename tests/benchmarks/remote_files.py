"""ArrayRecord files over loopback HTTP, read by real actors, beside the bandwidth of the server and the files on disk.

python -m tests.benchmarks.remote_files [--delay-ms 20] [--cap-mb 30] [--groups 800] [--rows 60000] [--repeats 3]

The server is a process of its own: it waits before each answer, and sends all bodies together at the cap. --groups: of
256 records of 4 KB, in the order by blocks. --rows: records that stand alone, in the global order; --epochs of these
come from the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ray

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeRaw, Pipeline, RaySource
from tests.benchmarks.options import parsed, spread
from tests.data import write_file

GROUP, RECORD_NBYTES, BATCH = 256, 4096, 1024
# Until then chunks grow to what is worth while, by what the first of them took.
WARM_UP_S = 3.0


class Server:
    """A folder behind a URL."""

    def __init__(
        self, folder: Path, delay_s: float, rate: float, faults: Mapping[str, float] = {}, stuck_s: float = 60.0
    ) -> None:
        told = [str(folder), str(delay_s), str(rate), json.dumps(faults), str(stuck_s)]
        command = [sys.executable, "-m", "tests.http_files", *told]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._asked, self._answered = self._process.stdin, self._process.stdout
        assert self._asked is not None
        assert self._answered is not None
        self.url = self._answered.readline().strip()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Requests, bytes that were sent, and requests that failed."""
        self._asked.write("\n")
        self._asked.flush()
        requests, nbytes, broken = map(int, self._answered.readline().split())
        return requests, nbytes, broken

    def close(self) -> None:
        self._asked.close()
        self._process.wait()
        self._answered.close()


@contextlib.contextmanager
def served(*given: Any) -> Iterator[Server]:
    """A Server of these arguments, beside a Ray, which may be there already."""
    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=2**29, log_to_driver=False)
            stack.callback(ray.shutdown)
        server = Server(*given)
        stack.callback(server.close)
        yield server


def rates(where: Any, num_actors: int, server: Server, num_epochs: int = 1, **settings: Any) -> tuple[float, float]:
    """Records/s that came and bytes/s that the server sent, after the warm-up; of all where that was shorter."""
    config = ArrayRecordSourceConfig(shuffle=True, seed=7, num_epochs=num_epochs, **settings)
    decode = DecodeRaw("uint8", (RECORD_NBYTES,), "x")
    source = RaySource(ArrayRecordSourceModule(config, where, transforms=[decode]), num_actors=num_actors, num_cpus=0.5)
    with Pipeline(source=source, batch_size=BATCH, on_host=True) as pipeline:
        begin = warm = time.perf_counter(), server.counts[1], 0
        for count, _ in enumerate(pipeline, 1):
            if warm is begin and time.perf_counter() > begin[0] + WARM_UP_S:
                warm = time.perf_counter(), server.counts[1], count
        began, sent_before, num_before = warm if warm[2] < count else begin
        took_s = time.perf_counter() - began
        return BATCH * (count - num_before) / took_s, (server.counts[1] - sent_before) / took_s


@contextlib.contextmanager
def files(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """One of groups, one of records that stand alone."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        paths = Path(folder) / "groups.array_record", Path(folder) / "records.array_record"
        for path, count, group in zip(paths, (options.groups * GROUP, options.rows), (GROUP, 1), strict=True):
            write_file(path, (rng.bytes(RECORD_NBYTES) for _ in range(count)), group)
        yield paths


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for block order, one for global order, one for its later epochs from the disk: requests for each group or
    record, bytes for each of the files', records/s beside the cap and beside the files on disk.
    """
    options = parsed(
        __doc__, arguments, delay_ms=20.0, cap_mb=30.0, groups=800, rows=60_000, epochs=12, actors=2, repeats=3
    )
    found = []
    with contextlib.ExitStack() as stack:
        groups, records = stack.enter_context(files(options))
        server = stack.enter_context(served(groups.parent, options.delay_ms / 1000, options.cap_mb * 1e6))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cache = {"cache_dir": folder, "cache_nbytes": 2**34}
        blocks = {"shuffle_block_size": GROUP}
        workloads: Sequence[tuple[str, Path, int, int, dict[str, Any]]] = (
            ("block order", groups, GROUP, 1, blocks),
            ("global order, first epoch", records, 1, 1, cache),
            ("global order, from the cache", records, 1, options.epochs, cache),
        )
        for what, path, unit, num_epochs, settings in workloads:
            far, disk, before, after = [], [], server.counts, server.counts
            on_disk = blocks if settings is blocks else {}
            for _ in range(options.repeats):
                if what.endswith("first epoch") and far:
                    shutil.rmtree(folder)
                before = server.counts
                far.append(rates(f"{server.url}/{path.name}", options.actors, server, num_epochs, **settings))
                after = server.counts
                disk.append(rates(path, options.actors, server, num_epochs, **on_disk)[0])
            num_units = options.groups if unit == GROUP else options.rows
            came, sent = [rate for rate, _ in far], [rate / options.cap_mb / 1e6 for _, rate in far]
            requests, nbytes = (now - then for now, then in zip(after[:2], before[:2], strict=True))
            line = {"requests": requests / num_units, "nbytes": nbytes / path.stat().st_size}
            line |= {"of_cap": median(sent), "of_disk": median(came) / median(disk)}
            found.append({"what": what} | line)
            print(
                f"{what}: {line['requests']:.3f} requests for each {unit} records, {line['nbytes']:.3f} x the bytes; "
                f"{spread(sent, '.2f')} of the cap; {spread(came)} records/s, {line['of_disk']:.2f} of the disk",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
