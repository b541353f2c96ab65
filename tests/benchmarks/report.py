"""What the runs of a benchmark amount to: a summary for each competitor, one table for a kind, the machine in words."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.competitors import Delivery, Task
from tests.benchmarks.data import KINDS
from tests.benchmarks.one import run

# What each kind of records asks of RaySource, on 2 cores: of raw reads by as many processes, of others' best setting.
AGAINST = ("raw reads", "Grain's best", "Ray Data")
TARGETS = {
    "small": (0.85, 25.0, 1.1),
    "tokens": (0.8, 3.0, 1.8),
    "large": (0.35, 2.0, 2.5),
    "jpeg": (None, 1.0, None),  # raw reads decode no JPEG
    "small256": (0.3, None, None),
    "tokens256": (0.6, None, None),
}
_PACKAGES = ("datarax-ray", "ray", "grain", "array_record", "jax", "numpy", "opencv-python-headless")
_HEADERS = (
    "",
    "records/s",
    "min to max",
    "of raw",
    "of Grain's best",
    "of Ray Data",
    "MB/s",
    "CPU µs a record",
    "first batch, s",
    "notes",
)


@dataclass(frozen=True)
class Summary:
    """One competitor's runs, in its setting. rate: median records/s. cpu_us: median CPU microseconds a record."""

    kind: str
    competitor: str
    workers: int
    name: str
    rates: list[float]
    cpu_us: float
    first_batch_s: float
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def is_ours(self) -> bool:
        return self.competitor in ("RaySource", "in-process")


def rate(delivery: Delivery) -> float:
    """Records a second after the first batch; 0 where there was no second one."""
    return delivery.records / delivery.seconds if delivery.seconds else 0.0


def cpu_us(delivery: Delivery) -> float:
    """Microseconds of CPU for each record."""
    return delivery.cpu_s / max(1, delivery.records) * 1e6


def summarise(task: Task, deliveries: Sequence[Delivery]) -> Summary:
    return Summary(
        task.kind,
        task.competitor,
        task.workers,
        _name(task),
        [rate(delivery) for delivery in deliveries],
        median(map(cpu_us, deliveries)),
        median(delivery.first_batch_s for delivery in deliveries),
        {key: max(delivery.notes[key] for delivery in deliveries) for key in deliveries[0].notes},
    )


def ratios(summary: Summary, everyone: Sequence[Summary]) -> tuple[float | None, ...]:
    """The rate over the best of each of AGAINST: of raw reads with as many processes (in-process: with one)."""
    kind = [other for other in everyone if other.kind == summary.kind]
    raw = [s.rate for s in kind if s.competitor == "raw" and s.workers == max(1, summary.workers)]
    grain = [s.rate for s in kind if s.competitor.startswith("grain.")]
    ray_data = [s.rate for s in kind if s.competitor == "Ray Data by hand"]
    is_held = (summary.competitor.startswith("raw") or summary.is_ours, True, summary.is_ours)
    return tuple(
        summary.rate / max(rates) if is_one and rates and max(rates) else None
        for is_one, rates in zip(is_held, (raw, grain, ray_data), strict=True)
    )


def verdicts(everyone: Sequence[Summary]) -> list[str]:
    """One sentence for each target: what RaySource reached, and whether that is enough."""
    said = []
    for kind, targets in TARGETS.items():
        rays = [s for s in everyone if s.kind == kind and s.competitor == "RaySource"]
        for index, (label, target) in enumerate(zip(AGAINST, targets, strict=True)):
            # Against raw, each number of actors on its own; the best counts, since more actors than cores only share.
            found = [(ratio, s.workers) for s in rays if (ratio := ratios(s, everyone)[index]) is not None]
            if target is None or not found:
                continue
            best, workers = max(found)
            verb = "reaches" if best >= target else "misses"
            said.append(f"{kind}: {best:.2f} x {label} with {workers} actors {verb} the target of {target:g}")
    return said


def show(everyone: Sequence[Summary], as_markdown: bool) -> None:
    for kind in dict.fromkeys(summary.kind for summary in everyone):
        rows = [_row(summary, everyone) for summary in everyone if summary.kind == kind]
        spec = KINDS[kind]
        title = f"{kind}: records of {spec.nbytes:,} bytes decoded, batches of {spec.batch_size}"
        print_table(title, _HEADERS, rows, as_markdown)


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], as_markdown: bool) -> None:
    """Numbers stand on the right: all but the first column, and the notes."""
    sides = ["left" if header in ("", "notes") else "right" for header in headers]
    if as_markdown:
        lines = [headers, ["---" if side == "left" else "---:" for side in sides], *rows]
        print(f"\n**{title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    table = Table(*headers, title=title)
    for column, side in zip(table.columns, sides, strict=True):
        column.justify = "left" if side == "left" else "right"
    for row in rows:
        table.add_row(*row)
    # notes and settings are long; where nobody knows the width (a pipe), do not fold them
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def in_turns(tasks: Sequence[Task], repeats: int) -> list[list[Delivery]]:
    """The deliveries of each task, which take turns, so that a busy spell of the machine meets all of them."""
    deliveries: list[list[Delivery]] = [[] for _ in tasks]
    for repeat in range(repeats):
        for task, found in zip(tasks, deliveries, strict=True):
            found.append(run_told(task, f"run {repeat + 1} of {repeats}"))
    return deliveries


def run_told(task: Task, what: str) -> Delivery:
    """The delivery of a task, with a line on the error stream."""
    found = run(task)
    setting = f" {task.setting}" if task.setting else ""
    speed = f"{rate(found):,.0f}/s, {cpu_us(found):.2f} CPU us each"
    print(f"{what}: {task.kind} {task.competitor} {task.workers}{setting}: {speed}", file=sys.stderr)
    return found


def reported(options: Namespace, tasks: Sequence[Task], deliveries: Sequence[Sequence[Delivery]], **more: Any) -> Any:
    """All of a run as plain values, which go to the file of --json; the verdicts are printed."""
    runs = zip(tasks, deliveries, strict=True)
    found = {
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "runs": [asdict(task) | {"deliveries": [asdict(each) for each in its]} for task, its in runs],
        **more,
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n" + "\n".join(f"- {verdict}" for verdict in more["verdicts"]))
    return found


def machine() -> dict[str, Any]:
    """The machine and the versions, in plain values."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []  # not Linux
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_nbytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in _PACKAGES},
        "load_average": list(os.getloadavg()),
    }


def _version(package: str) -> str | None:
    """The version of an installed package; None of one that no competitor in this run needs."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _name(task: Task) -> str:
    one, many = {"RaySource": ("actor", "actors")}.get(task.competitor, ("process", "processes"))
    parts = [f"{task.workers} {one if task.workers == 1 else many}"]
    parts += [f"{key} {value}" for key, value in task.setting.items()]
    return task.competitor if task.competitor == "in-process" else f"{task.competitor}, {', '.join(parts)}"


def _row(summary: Summary, everyone: Sequence[Summary]) -> list[str]:
    return [
        summary.name,
        f"{summary.rate:,.0f}",
        f"{min(summary.rates):,.0f} to {max(summary.rates):,.0f}",
        *(f"{ratio:.2f}" if ratio is not None else "" for ratio in ratios(summary, everyone)),
        f"{summary.rate * KINDS[summary.kind].nbytes / 1e6:,.0f}",
        f"{summary.cpu_us:,.1f}",
        f"{summary.first_batch_s:.2f}",
        ", ".join(_notes(summary.notes)),
    ]


def _notes(notes: dict[str, Any]) -> list[str]:
    said = []
    if "actor_max_rss_nbytes" in notes:
        said.append(f"actor {notes['actor_max_rss_nbytes'] / 1e6:.0f} MB before data")
    if "object_store_max_nbytes" in notes:
        store, bound = notes["object_store_max_nbytes"] / 2**20, notes["window_max_nbytes"] / 2**20
        said.append(f"object store at most {store:.0f} of {bound:.0f} MiB")
    return said
