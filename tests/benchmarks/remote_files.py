"""ArrayRecord files over loopback HTTP, read by real actors, beside the bandwidth of the server and the files on disk.

python -m tests.benchmarks.remote_files [--delay-ms 20] [--cap-mb 30] [--groups 800] [--rows 60000] [--repeats 3]

The server is a process of its own: it waits before each answer, and sends all bodies together at the cap.
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
    def counts(self) -> tuple[int, int]:
        """Requests and bytes that were sent."""
        return self._told()[:2]

    @property
    def num_broken(self) -> int:
        """Requests that failed."""
        return self._told()[2]

    def _told(self) -> tuple[int, int, int]:
        self._asked.write("\n")
        self._asked.flush()
        requests, nbytes, broken = self._answered.readline().split()
        return int(requests), int(nbytes), int(broken)

    @property
    def sent(self) -> int:
        """Bytes."""
        return self.counts[1]

    def close(self) -> None:
        self._asked.close()
        self._process.wait()
        self._answered.close()


def rates(where: Any, num_actors: int, server: Server, num_epochs: int = 1, **settings: Any) -> tuple[float, float]:
    """Records/s that came and bytes/s that the server sent, after the warm-up; of all where that was shorter."""
    config = ArrayRecordSourceConfig(shuffle=True, seed=7, num_epochs=num_epochs, **settings)
    decode = DecodeRaw("uint8", (RECORD_NBYTES,), "x")
    source = RaySource(ArrayRecordSourceModule(config, where, transforms=[decode]), num_actors=num_actors, num_cpus=0.5)
    with Pipeline(source=source, batch_size=BATCH, on_host=True) as pipeline:
        begin = warm = time.perf_counter(), server.sent, 0
        for count, _ in enumerate(pipeline, 1):
            if warm is begin and time.perf_counter() > begin[0] + WARM_UP_S:
                warm = time.perf_counter(), server.sent, count
        began, sent_before, num_before = warm if warm[2] < count else begin
        took_s = time.perf_counter() - began
        return BATCH * (count - num_before) / took_s, (server.sent - sent_before) / took_s


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--cap-mb", type=float, default=30, help="MB/s that the server sends")
    parser.add_argument("--groups", type=int, default=800, help="groups of 256 records of 4 KB, in the order by blocks")
    parser.add_argument("--rows", type=int, default=60_000, help="records that stand alone, in the global order")
    parser.add_argument("--epochs", type=int, default=12, help="of these, from the disk")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    found = []
    with files(options) as (groups, records), contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=2**29, log_to_driver=False)
            stack.callback(ray.shutdown)
        server = Server(groups.parent, options.delay_ms / 1000, options.cap_mb * 1e6)
        stack.callback(server.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cache = {"cache_dir": folder, "cache_nbytes": 2**34}
        blocks = {"shuffle_block_size": GROUP}
        workloads: Sequence[tuple[str, Path, int, int, dict[str, Any]]] = (
            ("block order", groups, GROUP, 1, blocks),
            ("global order, first epoch", records, 1, 1, cache),
            ("global order, from the cache", records, 1, options.epochs, cache),
        )
        for what, path, unit, num_epochs, settings in workloads:
            far, disk, before, after = [], [], (0, 0), (0, 0)
            on_disk = blocks if settings is blocks else {}
            for _ in range(options.repeats):
                if what.endswith("first epoch") and far:
                    shutil.rmtree(folder)
                before = server.counts
                far.append(rates(f"{server.url}/{path.name}", options.actors, server, num_epochs, **settings))
                after = server.counts
                disk.append(rates(path, options.actors, server, num_epochs, **on_disk)[0])
            num_units = options.groups if unit == GROUP else options.rows
            came, sent = sorted(rate for rate, _ in far), sorted(rate / options.cap_mb / 1e6 for _, rate in far)
            line = {
                "requests": (after[0] - before[0]) / num_units,
                "nbytes": (after[1] - before[1]) / path.stat().st_size,
            }
            line |= {"of_cap": median(sent), "of_disk": median(came) / median(disk)}
            found.append({"what": what} | line)
            print(
                f"{what}: {line['requests']:.3f} requests for each {unit} records, {line['nbytes']:.3f} x the bytes; "
                f"{line['of_cap']:.2f} of the cap ({sent[0]:.2f} to {sent[-1]:.2f}); {median(came):,.0f} records/s "
                f"({came[0]:,.0f} to {came[-1]:,.0f}), {line['of_disk']:.2f} of the disk",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
