"""Parquet over loopback HTTP, read by real actors: ParquetSource beside Ray Data's read_parquet, over the same server.

python -m tests.benchmarks.remote_parquet [--kinds tokens] [--delay-ms 20] [--cap-mb 1000] [--actors 2] [--repeats 3]

Each run is a process of its own, one pass over the files; those of the two take turns. The server is a process of its
own: it waits before each answer, sends all bodies together at the cap, and counts requests and bytes. CPU seconds are
those of all processes of a run but the server's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.competitors import Task
from tests.benchmarks.one import run
from tests.benchmarks.remote_files import Server
from tests.benchmarks.tables import TABLES, tables

_COMPETITORS = (("Ray Data", "any"), ("ParquetSource, RaySource", "file"), ("ParquetSource, RaySource", "block"))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of rows and competitor: seconds, CPU for a row, requests and bytes of one pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["tokens"])
    parser.add_argument("--rows", type=int, default=0, help="of each kind; 0 for its own number")
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--cap-mb", type=float, default=1000, help="MB/s that the server sends")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    cache = Path.home() / ".cache" / "datarax_ray_benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache, help=f"of the datasets (default: {cache})")
    options = parser.parse_args(arguments)
    found = []
    for kind in options.kinds:
        num_rows = options.rows or TABLES[kind].num_rows
        paths = tables(TABLES[kind], num_rows, options.cache_dir)
        nbytes = sum(Path(path).stat().st_size for path in paths)
        server = Server(Path(paths[0]).parent, options.delay_ms / 1000, options.cap_mb * 1e6)
        urls = [f"{server.url}/{Path(path).name}" for path in paths]
        task = Task("", kind, urls, num_rows, num_rows, seconds=600.0, workers=options.actors)
        runs: list[list[dict[str, float]]] = [[] for _ in _COMPETITORS]
        for _ in range(options.repeats):
            for lines, (competitor, order) in zip(runs, _COMPETITORS, strict=True):
                before = server.counts
                delivery = run(replace(task, competitor=competitor, setting={"order": order}))
                requests, sent = (after - first for after, first in zip(server.counts, before, strict=True))
                line = {"seconds": delivery.first_batch_s + delivery.seconds, "first_batch_s": delivery.first_batch_s}
                line |= {"cpu_us": delivery.all_cpu_s / num_rows * 1e6, "requests": requests, "nbytes": sent / nbytes}
                lines.append(line)
        server.close()
        for lines, (competitor, order) in zip(runs, _COMPETITORS, strict=True):
            middle = {name: median(line[name] for line in lines) for name in lines[0]}
            found.append({"kind": kind, "competitor": competitor, "order": order} | middle)
            least, *_, most = sorted(line["seconds"] for line in lines * 2)
            print(
                f"{kind}, {competitor}, {order} order: {middle['seconds']:.1f} s ({least:.1f} to {most:.1f}),"
                f" the first batch after {middle['first_batch_s']:.1f}; {middle['cpu_us']:.2f} CPU us a row; "
                f"{middle['requests']:.0f} requests, {middle['nbytes']:.2f} x the bytes",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
