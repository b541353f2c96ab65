"""The Parquet benchmark, run by hand: rows/s that reach the process that trains, beside Ray Data.

    python -m tests.benchmarks.parquet [--kinds small,tokens,text] [--actors 2] [--repeats 5] [--json FILE]

ParquetSource in file order and in block order (row groups shuffled, windows of them mixed), alone and through
RaySource, against `ray.data.read_parquet(...).iter_batches(batch_format="numpy")`, which promises no order. Each run
is a process of its own; runs of the competitors take turns (A B C, A B C). Ratios are taken within a turn, so that a
busy spell of the machine meets both sides. CPU seconds are those of all processes of a run, Ray's own among them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from tests.benchmarks.competitors import Delivery, Task
from tests.benchmarks.data import warm
from tests.benchmarks.one import run
from tests.benchmarks.report import machine, rate
from tests.benchmarks.tables import TABLES, tables

VERSION = 1
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
    options = parsed(arguments)
    described = machine()
    chosen = [task for kind in options.kinds for task in tasks(kind, options)]
    deliveries: list[list[Delivery]] = [[] for _ in chosen]
    for repeat in range(options.repeats):
        for task, found in zip(chosen, deliveries, strict=True):
            found.append(run(task))
            said = f"{rate(found[-1]):,.0f} rows/s, {_cpu_us(found[-1]):.2f} CPU us a row"
            print(f"run {repeat + 1} of {options.repeats}: {task.kind} {_name(task)}: {said}", file=sys.stderr)
    results = [_result(task, index, chosen, deliveries) for index, task in enumerate(chosen)]
    report = {
        "version": VERSION,
        "machine": described,
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "results": results,
        "runs": [
            asdict(task) | {"deliveries": [asdict(one) for one in found]}
            for task, found in zip(chosen, deliveries, strict=True)
        ],
        "verdicts": _verdicts(results),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    _show(results, options.markdown)
    for verdict in report["verdicts"]:
        print(f"- {verdict}")
    return report


def tasks(kind: str, options: argparse.Namespace) -> list[Task]:
    table = TABLES[kind]
    num_rows = options.rows or table.num_rows
    paths = tables(table, num_rows, options.cache_dir)
    warm(paths)
    rows = num_rows * (1 if options.quick else table.epochs)
    tasks = []
    for competitor, workers, orders in (
        *(("Ray Data", actors, ("any",)) for actors in options.actors),
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
    """One competitor's medians, and its ratios to Ray Data with as many workers (alone: the first), turn by turn."""
    peers = [i for i, other in enumerate(chosen) if other.kind == task.kind and other.competitor == "Ray Data"]
    peer = next((i for i in peers if chosen[i].workers == task.workers), peers[0])
    mine, theirs = deliveries[index], deliveries[peer]
    return {
        "kind": task.kind,
        "name": _name(task),
        "rate": median(map(rate, mine)),
        "rates": list(map(rate, mine)),
        "ratios": [rate(a) / max(rate(b), 1e-9) for a, b in zip(mine, theirs, strict=True)],
        "cpu_us": median(map(_cpu_us, mine)),
        "cpu_ratio": median(_cpu_us(a) / max(_cpu_us(b), 1e-9) for a, b in zip(mine, theirs, strict=True)),
        "first_batch_s": median(one.first_batch_s for one in mine),
        "notes": {key: max(one.notes[key] for one in mine) for key in mine[0].notes},
    }


def _cpu_us(delivery: Delivery) -> float:
    return delivery.cpu_s / max(1, delivery.records) * 1e6


def _name(task: Task) -> str:
    if task.competitor == "Ray Data":
        return f"Ray Data, {task.workers} CPUs"
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


def _show(results: Sequence[dict[str, Any]], as_markdown: bool) -> None:
    for kind in dict.fromkeys(result["kind"] for result in results):
        rows = [_row(result) for result in results if result["kind"] == kind]
        table = TABLES[kind]
        sizes = f"row groups of {table.row_group:,}, batches of {table.batch_size:,}"
        title = f"{kind}: rows of {table.nbytes:,} bytes, {sizes}"
        if as_markdown:
            lines = [_HEADERS, ["---", *["---:"] * (len(_HEADERS) - 1)], *rows]
            print(f"\n**{title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
            continue
        shown = RichTable(*_HEADERS, title=title)
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in rows:
            shown.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 180).print(shown)
    print()


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


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.parquet", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows", type=int, help="in each dataset (default: 1,600,000 small, 40,000 tokens, 200,000 text)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each competitor (default: 5)")
    parser.add_argument("--seconds", type=float, default=6.0, help="at most this long a run (default: 6)")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(TABLES), help="of rows")
    parser.add_argument("--actors", type=lambda text: [int(n) for n in text.split(",")], default=[2])
    parser.add_argument("--json", type=Path, help="write every run and the machine's description here")
    parser.add_argument("--markdown", action="store_true", help="print the tables for a README")
    parser.add_argument("--quick", action="store_true", help="one epoch a run")
    parser.add_argument("--identify", action="store_true", help="also collect which rows came (slower)")
    cache = Path(tempfile.gettempdir()) / "datarax_ray-benchmarks"
    parser.add_argument("--cache-dir", type=Path, default=cache, help=f"of the datasets (default: {cache})")
    options = parser.parse_args(arguments)
    unknown = set(options.kinds) - set(TABLES)
    if unknown:
        parser.error(f"--kinds knows {', '.join(TABLES)}, not {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
