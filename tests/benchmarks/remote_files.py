"""ArrayRecord files over loopback HTTP with a delay for each request, beside the same files on disk: one process.

python -m tests.benchmarks.remote_files [--delay-ms 20] [--groups 64] [--rows 4096]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.formats.array_record import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import write_file
from tests.http_files import HttpFiles

GROUP, RECORD_NBYTES = 256, 4096


def stream_of(where: Any, shuffle: Any) -> IndexedStream:
    reader = ArrayRecordReader.of(where)
    if shuffle == "global":
        return IndexedStream(reader, order_of(reader.num_records, 7, "global"), 2)
    reader = reader.with_room_for(2 * 8 * GROUP)
    return IndexedStream(reader, order_of(reader.num_records, 7, "block", block_size=GROUP, window_blocks=8), 2)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """One line for each order and epoch: requests, bytes over the size of the files, records/s far and on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--groups", type=int, default=64, help="groups of 256 records of 4 KB, in the order by blocks")
    parser.add_argument("--rows", type=int, default=4096, help="records that stand alone, in the global order")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for shuffle, count, group in (("block", options.groups * GROUP, GROUP), ("global", options.rows, 1)):
            path = Path(folder) / f"{shuffle}.array_record"
            write_file(path, (rng.bytes(RECORD_NBYTES) for _ in range(count)), group)
            server = HttpFiles(path.parent, options.delay_ms / 1000)
            streams = {"far": stream_of(f"{server.url}/{path.name}", shuffle), "disk": stream_of(path, shuffle)}
            started = server.count()
            for epoch in range(2):
                rates = {}
                for name, stream in streams.items():
                    begin = time.perf_counter()
                    for start in range(epoch * count, (epoch + 1) * count, 1024):
                        stream.read_at(start, min(start + 1024, (epoch + 1) * count))
                    rates[name] = count / (time.perf_counter() - begin)
                requests, nbytes = server.count()
                found.append({"order": shuffle, "epoch": epoch, "start": started[0], "requests": requests})
                found[-1] |= {"bytes": nbytes / path.stat().st_size, "far": rates["far"], "disk": rates["disk"]}
                print(
                    f"{shuffle} order, epoch {epoch}: {requests} requests (and {started[0]} to start), "
                    f"{found[-1]['bytes']:.2f} x the bytes, {rates['far']:,.0f} records/s, on disk {rates['disk']:,.0f}"
                )
            for stream in streams.values():
                stream.close()
            server.close()
    return found


if __name__ == "__main__":
    main()
