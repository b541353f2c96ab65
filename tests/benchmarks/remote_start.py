"""The start of a stream over many files behind URLs: the source, then its first batch.

python -m tests.benchmarks.remote_start [--files 10000] [--delay-ms 20] [--batch 1024]

The server is a process of its own, which waits before each answer. Each file has records of its own. The start is that
of a new process; what it was asked for before the first batch came is told, and the CPU of that process.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeRaw, Pipeline
from tests.benchmarks.options import parsed
from tests.benchmarks.remote_files import Server
from tests.data import write_file

_RECORDS, _RECORD_NBYTES = 20, 64


def first_batch(urls: Sequence[str], batch_size: int, cache_dir: str) -> dict[str, float]:
    """Seconds and CPU until the source is made, and then until its first shuffled batch."""
    began, cpu_s = time.perf_counter(), time.process_time()
    config = ArrayRecordSourceConfig(shuffle=True, seed=7, cache_dir=cache_dir, cache_nbytes=2**32)
    decode = DecodeRaw("uint8", (_RECORD_NBYTES,), "x")
    source = ArrayRecordSourceModule(config, list(urls), transforms=[decode])
    made_s = time.perf_counter() - began
    with Pipeline(source=source, batch_size=batch_size, on_host=True) as pipeline:
        next(iter(pipeline))
    return {"made_s": made_s, "first_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each of two starts: with an empty disk cache, and with the ends of the files in it."""
    options = parsed(__doc__, arguments, files=10_000, delay_ms=20.0, batch=1024)
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "data").mkdir()
        for number in range(options.files):
            rng = np.random.default_rng(number)
            write_file(
                folder / "data" / f"{number:05}.array_record", (rng.bytes(_RECORD_NBYTES) for _ in range(_RECORDS))
            )
        server = Server(folder / "data", options.delay_ms / 1000, 1e9)
        stack.callback(server.close)
        urls = [f"{server.url}/{number:05}.array_record" for number in range(options.files)]
        for what in ("the first start", "a later start"):
            before = server.counts[0]
            told = json.dumps([urls, options.batch, str(folder / "disk")])
            command = [sys.executable, "-m", "tests.benchmarks.remote_start", "--child"]
            said = subprocess.run(command, input=told, capture_output=True, text=True, check=True).stdout
            line = json.loads(said.splitlines()[-1])
            found.append({"what": what} | line | {"requests": server.counts[0] - before})
            print(
                f"{what}: the source after {line['made_s']:.1f} s, its first batch after {line['first_s']:.1f}, "
                f"{line['cpu_s']:.1f} s of CPU; {found[-1]['requests']:,} requests",
                flush=True,
            )
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        print(json.dumps(first_batch(*json.load(sys.stdin))))
    else:
        main()
