"""The Parquet benchmark, run by hand: rows/s that reach the process that trains, beside Ray Data.

    python -m tests.benchmarks.parquet [--kinds small,tokens,text] [--actors 2] [--repeats 5] [--json FILE]

ParquetSource in file order and in block order (row groups shuffled, windows of them mixed), alone and through
RaySource, against `ray.data.read_parquet(...).iter_batches(batch_format="numpy")`, which promises no order, and the
same with Ray Data's local shuffle, beside which block order is told. Each run is a process of its own; runs of the
competitors take turns (A B C, A B C). Ratios are taken within a turn, so that a busy spell of the machine meets both
sides. CPU seconds are those of all processes of a run, Ray's own among them.
`--quick`: one epoch a run. `--rows`, `--seconds`, `--identify`, `--json`, `--markdown`: as of benchmarks.ingest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.competitors import Delivery, Task
from tests.benchmarks.data import warm
from tests.benchmarks.options import CACHE_DIR, parsed
from tests.benchmarks.report import cpu_us, in_turns, machine, print_table, rate, reported
from tests.benchmarks.tables import TABLES, tables

TARGET = 0.9  # of Ray Data's rate
_HEADERS = (
    "",
    "rows/s",
    "min to max",
    "of Ray Data",
    "min to max",
    "MB/s",
    "CPU µs a row",
    "of Ray Data",
    "first batch, s",
)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it all, print the tables, and give what --json writes."""
    options = parsed(
        __doc__, arguments, rows=int, repeats=5, seconds=6.0, kinds=list(TABLES), actors=[2], json=Path,
        markdown=False, quick=False, identify=False, cache_dir=CACHE_DIR,
    )  # fmt: skip
    if unknown := set(options.kinds) - set(TABLES):
        sys.exit(f"--kinds knows {', '.join(TABLES)}, not {', '.join(sorted(unknown))}")
    described = machine()
    chosen = [task for kind in options.kinds for task in tasks(kind, options)]
    deliveries = in_turns(chosen, options.repeats)
    results = [_result(task, index, chosen, deliveries) for index, task in enumerate(chosen)]
    for kind in options.kinds:
        table, rows = TABLES[kind], [_row(result) for result in results if result["kind"] == kind]
        sizes = f"row groups of {table.row_group:,}, batches of {table.batch_size:,}"
        print_table(f"{kind}: rows of {table.nbytes:,} bytes, {sizes}", _HEADERS, rows, options.markdown)
    verdicts = _verdicts(results)
    return reported(options, chosen, deliveries, machine=described, results=results, verdicts=verdicts)


def tasks(kind: str, options: argparse.Namespace) -> list[Task]:
    table = TABLES[kind]
    num_rows = options.rows or table.num_rows
    paths = tables(table, num_rows, options.cache_dir)
    warm(paths)
    rows = num_rows * (1 if options.quick else table.epochs)
    tasks = []
    for competitor, workers, orders in (
        *(("Ray Data", actors, ("any", "local")) for actors in options.actors),
        *(("ParquetSource, RaySource", actors, ("file", "block")) for actors in options.actors),
        ("ParquetSource", 0, ("file", "block")),
    ):
        for order in orders:
            setting = {"order": order}
            tasks.append(
                Task(competitor, kind, paths, num_rows, rows, options.seconds, workers, setting, options.identify)
            )
    return tasks


def _result(task: Task, index: int, chosen: Sequence[Task], deliveries: Sequence[Sequence[Delivery]]) -> dict[str, Any]:
    """One competitor's medians, and its ratios to Ray Data with as many workers (alone: the first), turn by turn.

    Of shuffled rows, to Ray Data with its local shuffle.
    """
    order = "local" if task.setting["order"] in ("block", "local") else "any"
    peers = [
        i
        for i, other in enumerate(chosen)
        if (other.kind, other.competitor, other.setting["order"]) == (task.kind, "Ray Data", order)
    ]
    peer = next((i for i in peers if chosen[i].workers == task.workers), peers[0])
    mine, theirs = deliveries[index], deliveries[peer]
    return {
        "kind": task.kind,
        "name": _name(task),
        "rate": median(map(rate, mine)),
        "rates": list(map(rate, mine)),
        "ratios": [rate(a) / max(rate(b), 1e-9) for a, b in zip(mine, theirs, strict=True)],
        "cpu_us": median(map(cpu_us, mine)),
        "cpu_ratio": median(cpu_us(a) / max(cpu_us(b), 1e-9) for a, b in zip(mine, theirs, strict=True)),
        "first_batch_s": median(one.first_batch_s for one in mine),
        "notes": {key: max(one.notes[key] for one in mine) for key in mine[0].notes},
    }


def _name(task: Task) -> str:
    if task.competitor == "Ray Data":
        return f"Ray Data, {task.workers} CPUs" + ", local shuffle" * (task.setting["order"] == "local")
    where = f"RaySource, {task.workers} actors" if task.workers else "one process"
    return f"{where}, {task.setting['order']} order"


def _verdicts(results: Sequence[dict[str, Any]]) -> list[str]:
    said = []
    for result in results:
        if result["name"].startswith("RaySource"):
            ratio = median(result["ratios"])
            verb = "reaches" if ratio >= TARGET else "misses"
            said.append(f"{result['kind']}, {result['name']}: {ratio:.2f} x Ray Data {verb} the target of {TARGET:g}")
    return said


def _row(result: dict[str, Any]) -> list[str]:
    rates, ratios = result["rates"], result["ratios"]
    return [
        result["name"],
        f"{result['rate']:,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{result['rate'] * TABLES[result['kind']].nbytes / 1e6:,.0f}",
        f"{result['cpu_us']:.2f}",
        f"{result['cpu_ratio']:.2f}",
        f"{result['first_batch_s']:.2f}",
    ]


if __name__ == "__main__":
    main()
