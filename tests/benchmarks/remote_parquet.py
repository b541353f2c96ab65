"""Parquet over loopback HTTP, read by real actors: ParquetSource beside Ray Data's read_parquet, over the same server.

python -m tests.benchmarks.remote_parquet [--kinds tokens] [--delay-ms 20] [--cap-mb 1000] [--actors 2] [--repeats 3]

Each run is a process of its own, one pass over the files; those of the two take turns. The server is a process of its
own: it waits before each answer, sends all bodies together at the cap, and counts requests and bytes. CPU seconds are
those of all processes of a run but the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.competitors import Task
from tests.benchmarks.one import run
from tests.benchmarks.options import CACHE_DIR, parsed, spread
from tests.benchmarks.remote_files import Server
from tests.benchmarks.tables import TABLES, tables

_COMPETITORS = (("Ray Data", "any"), ("ParquetSource, RaySource", "file"), ("ParquetSource, RaySource", "block"))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each kind of rows and competitor: seconds, CPU for a row, requests and bytes of one pass."""
    options = parsed(
        __doc__, arguments, kinds=["tokens"], rows=int, delay_ms=20.0, cap_mb=1000.0, actors=2, repeats=3,
        cache_dir=CACHE_DIR,
    )  # fmt: skip
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
                requests, sent, _ = (after - first for after, first in zip(server.counts, before, strict=True))
                line = {"seconds": delivery.first_batch_s + delivery.seconds, "first_batch_s": delivery.first_batch_s}
                line |= {"cpu_us": delivery.all_cpu_s / num_rows * 1e6, "requests": requests, "nbytes": sent / nbytes}
                lines.append(line)
        server.close()
        for lines, (competitor, order) in zip(runs, _COMPETITORS, strict=True):
            middle = {name: median(line[name] for line in lines) for name in lines[0]}
            found.append({"kind": kind, "competitor": competitor, "order": order} | middle)
            print(
                f"{kind}, {competitor}, {order} order: {spread([line['seconds'] for line in lines], '.1f')} s, "
                f"the first batch after {middle['first_batch_s']:.1f}; {middle['cpu_us']:.2f} CPU us a row; "
                f"{middle['requests']:.0f} requests, {middle['nbytes']:.2f} x the bytes",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
