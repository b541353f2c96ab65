"""ArrayRecord files over loopback HTTP, read by real actors, beside the bandwidth of the server and the files on disk.

python -m tests.benchmarks.remote_files [--delay-ms 20] [--cap-mb 30] [--groups 1500] [--rows 60000] [--repeats 3]

The server is a process of its own: it waits before each answer, and sends all bodies together at the cap.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

    def __init__(self, folder: Path, delay_s: float, rate: float) -> None:
        command = [sys.executable, "-m", "tests.http_files", str(folder), str(delay_s), str(rate)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._asked, self._answered = self._process.stdin, self._process.stdout
        assert self._asked is not None
        assert self._answered is not None
        self.url = self._answered.readline().strip()

    def count(self) -> tuple[int, int]:
        """Requests and bytes since it was last asked."""
        self._asked.write("\n")
        self._asked.flush()
        requests, nbytes = self._answered.readline().split()
        return int(requests), int(nbytes)

    def close(self) -> None:
        self._asked.close()
        self._process.wait()
        self._answered.close()


@dataclass(frozen=True)
class Epoch:
    """What an epoch took. requests: for each group or record. nbytes: for each byte of the files. rate: records/s after
    the warm-up, of the whole epoch where that was shorter.
    """

    requests: float
    nbytes: float
    rate: float


def epochs(where: Any, order: Mapping[str, Any], num_actors: int, num_epochs: int = 2) -> Iterator[float]:
    """The rate of each epoch, as it ends."""
    config = ArrayRecordSourceConfig(shuffle=True, seed=7, num_epochs=num_epochs, **order)
    decode = DecodeRaw("uint8", (RECORD_NBYTES,), "x")
    source = RaySource(ArrayRecordSourceModule(config, where, transforms=[decode]), num_actors=num_actors, num_cpus=0.5)
    with Pipeline(source=source, batch_size=BATCH, on_host=True) as pipeline:
        per_epoch = len(pipeline) // num_epochs
        batches = iter(pipeline)
        for _ in range(num_epochs):
            begin = time.perf_counter()
            came = []
            for _ in range(per_epoch):
                next(batches)
                came.append(time.perf_counter() - begin)
            steady = [at for at in came if at > WARM_UP_S] or came
            yield BATCH * (len(steady) - 1) / (steady[-1] - steady[0]) if len(steady) > 1 else BATCH / steady[-1]


def far(server: Server, path: Path, order: Mapping[str, Any], num_actors: int, num_units: int) -> list[Epoch]:
    server.count()
    found = []
    for rate in epochs(f"{server.url}/{path.name}", order, num_actors):
        requests, nbytes = server.count()
        found.append(Epoch(requests / num_units, nbytes / path.stat().st_size, rate))
    return found


@contextlib.contextmanager
def files(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """One of groups, one of records that stand alone."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        paths = Path(folder) / "groups.array_record", Path(folder) / "records.array_record"
        for path, count, group in zip(paths, (options.groups * GROUP, options.rows), (GROUP, 1), strict=True):
            write_file(path, (rng.bytes(RECORD_NBYTES) for _ in range(count // BATCH * BATCH)), group)
        yield paths


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One line for each order and epoch: requests, bytes, records/s beside the cap and beside the disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--cap-mb", type=float, default=30, help="MB/s that the server sends")
    parser.add_argument(
        "--groups", type=int, default=1500, help="groups of 256 records of 4 KB, in the order by blocks"
    )
    parser.add_argument("--rows", type=int, default=60_000, help="records that stand alone, in the global order")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    cap = options.cap_mb * 1e6 / RECORD_NBYTES
    blocks, everywhere = {"shuffle_block_size": GROUP}, {}
    found = []
    with files(options) as (groups, records), contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=2**29, log_to_driver=False)
            stack.callback(ray.shutdown)
        server = Server(groups.parent, options.delay_ms / 1000, options.cap_mb * 1e6)
        stack.callback(server.close)
        workloads = ("block", groups, blocks, "group", GROUP), ("global", records, everywhere, "record", 1)
        for order, path, kind, unit, unit_size in workloads:
            num_units = path.stat().st_size // (RECORD_NBYTES * unit_size)
            runs, disk = [], []
            for _ in range(options.repeats):
                with tempfile.TemporaryDirectory() as cache:
                    kept = {"cache_dir": cache, "cache_nbytes": 2**34} if order == "global" else {}
                    runs.append(far(server, path, kind | kept, options.actors, num_units))
                disk.append(list(epochs(path, kind, options.actors)))
            for epoch in range(2):
                each = [run[epoch] for run in runs]
                line = {"order": order, "epoch": epoch, "requests": median(run.requests for run in each)}
                line["nbytes"] = median(run.nbytes for run in each)
                rates = sorted(run.rate for run in each)
                line |= {"of_cap": median(rates) / cap, "of_disk": median(rates) / median(run[epoch] for run in disk)}
                found.append(line)
                print(
                    f"{order} order, epoch {epoch}: {line['requests']:.3f} requests a {unit}, {line['nbytes']:.2f} x "
                    f"the bytes, {median(rates):,.0f} records/s ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
                    f"{line['of_cap']:.2f} of the cap, {line['of_disk']:.2f} of the disk",
                    flush=True,
                )
    return found


if __name__ == "__main__":
    main()
