"""The ingestion benchmark, run by hand: records/s that reach the process that trains, beside raw reads and Grain.

    python -m tests.benchmarks.ingest [--kinds small256,tokens256] [--actors 1,2,4] [--repeats 3] [--json FILE]

Globally shuffled, decoded and batched records from files in the page cache; small256 and tokens256 are stored in groups
of 256, which are read whole and shuffled as blocks, as Grain does not. Each run is a process of its own; runs of
the competitors take turns (A B C, A B C), so that a busy spell of the machine meets all of them. What counts is the
rate after three seconds of warm-up; the time to the first batch is told apart. Raw reads and Grain run in the best of a
small grid of settings, measured first. Nothing here is a test: only a person can say whether the machine was quiet.
`--quick --warmup 3` measures the same in a sixth of the time: one setting of each grid, and no memory run. `--seconds`:
of a run at most. `--records`: in each dataset, in place of as many as its kind says. `--identify` also collects which
records came. `--json`: a file for every run and the machine's description; `--markdown` prints tables for a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, not with -m

from tests.benchmarks.competitors import Task
from tests.benchmarks.data import KINDS, dataset, warm
from tests.benchmarks.options import CACHE_DIR, parsed
from tests.benchmarks.report import (
    Summary,
    in_turns,
    machine,
    rate,
    reported,
    run_told,
    show,
    summarise,
    verdicts,
)

_EPOCHS = 1000  # more than anyone delivers: a run ends by its time
_WARMUP_S = 3.0  # the same for everyone
_PILOT_S = 2.0  # for each setting of a grid; they differ by far more than such a run's noise
_PILOTS = 2
_MEMORY_S = 4.0
# read(list) in batches that an actor would also ask for, and larger ones
_RAW_BATCHES = {"small": (4096, 65536), "tokens": (1024, 8192), "large": (64, 256), "jpeg": (128, 1024)}
_THREADS = {0: (0, 16), 1: (16,), 2: (1, 16)}  # by Grain workers; 16 is its default


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it all, print the tables, and give what --json writes."""
    options = _options(arguments)
    described = machine()
    chosen: list[Task] = []
    grids: list[dict[str, Any]] = []
    for kind in options.kinds:
        tasks, pilots = _choose(_base(kind, options), options)
        chosen += tasks
        grids += pilots
    deliveries = in_turns(chosen, options.repeats)
    summaries = [
        _with_memory(task, summarise(task, its), options) for task, its in zip(chosen, deliveries, strict=True)
    ]
    show(summaries, options.markdown)
    results = [asdict(summary) | {"rate": summary.rate} for summary in summaries]
    more = {"machine": described, "results": results, "grids": grids, "verdicts": verdicts(summaries)}
    return reported(options, chosen, deliveries, **more)


def _choose(base: Task, options: argparse.Namespace) -> tuple[list[Task], list[dict[str, Any]]]:
    """The tasks of one kind of records, and the grids that were measured to choose them."""
    grids: list[dict[str, Any]] = []

    def best(grid: Iterator[Task]) -> Task:
        candidates = list(grid)
        if len(candidates) == 1:
            return candidates[0]
        found = dict.fromkeys(range(len(candidates)), 0.0)
        for _ in range(_PILOTS):  # in turns; the faster one counts, since a busy machine only ever slows a run
            for index, task in enumerate(candidates):
                pilot = run_told(replace(task, seconds=min(task.seconds, _PILOT_S), warmup_s=0.0), "pilot")
                found[index] = max(found[index], rate(pilot))
        grids.extend(asdict(task) | {"rate": found[index]} for index, task in enumerate(candidates))
        return candidates[max(found, key=found.__getitem__)]

    tasks = []
    is_grouped = KINDS[base.kind].group_size > 1
    for actors in options.actors:
        # both calls stay in the main runs: which is faster depends on idle cores, and raw is what others are held to
        calls = ("groups",) if is_grouped else ("single",) if options.quick else ("list", "single")
        raws = [best(_raw_grid(replace(base, competitor="raw", workers=actors), call, options.quick)) for call in calls]
        tasks += [*raws, replace(raws[-1], competitor="raw+decode")]
    if not is_grouped and not options.no_grain:
        tasks += [best(_loader_grid(base, options.quick)), best(_dataset_grid(base, options.quick))]
    if not is_grouped and not options.no_ray_data:
        tasks.append(best(_ray_data_grid(replace(base, workers=max(options.actors)), options.quick)))
    tasks.append(replace(base, competitor="in-process"))
    tasks += [replace(base, competitor="RaySource", workers=actors) for actors in options.actors]
    return tasks, grids


def _raw_grid(base: Task, call: str, quick: bool) -> Iterator[Task]:
    batches = _RAW_BATCHES.get(base.kind, (KINDS[base.kind].group_size,))
    for batch in batches[: 1 if quick else None]:
        yield replace(base, setting={"call": call, "batch": batch})


def _loader_grid(base: Task, quick: bool) -> Iterator[Task]:
    for workers, threads in _workers_and_threads(quick):
        yield replace(base, competitor="grain.DataLoader", workers=workers, setting={"threads": threads})


def _dataset_grid(base: Task, quick: bool) -> Iterator[Task]:
    for workers, threads in _workers_and_threads(quick):
        for batch in ("map",) if quick else ("map", "iter"):
            setting = {"threads": threads, "batch": batch}
            yield replace(base, competitor="grain.MapDataset", workers=workers, setting=setting)


def _ray_data_grid(base: Task, quick: bool) -> Iterator[Task]:
    for batches in (4,) if quick else (1, 4, 16):
        yield replace(base, competitor="Ray Data by hand", setting={"batch": batches * KINDS[base.kind].batch_size})


def _workers_and_threads(quick: bool) -> list[tuple[int, int]]:
    return [(2, 1)] if quick else [(workers, threads) for workers, some in _THREADS.items() for threads in some]


def _with_memory(task: Task, summary: Summary, options: argparse.Namespace) -> Summary:
    """A RaySource's summary with the most that the object store held, in a run of its own unless it is to be quick."""
    if task.competitor != "RaySource" or options.quick:
        return summary
    # ten times the records: it ends by its time, since it pauses often
    memory = replace(
        task, competitor="RaySource memory", records=10 * task.records, seconds=min(task.seconds, _MEMORY_S)
    )
    return replace(summary, notes=summary.notes | run_told(memory, "memory").notes)


def _base(kind_name: str, options: argparse.Namespace) -> Task:
    kind = KINDS[kind_name]
    num_records = options.records or kind.num_records
    paths = dataset(kind, num_records, options.cache_dir)
    warm(paths)
    warmup_s = (0.0 if options.quick else _WARMUP_S) if options.warmup is None else options.warmup
    records = num_records * (_EPOCHS if warmup_s else 1)
    return Task(
        "", kind_name, paths, num_records, records, options.seconds, identify=options.identify, warmup_s=warmup_s
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parsed(
        __doc__, arguments, records=int, repeats=3, seconds=8.0, kinds=list(KINDS), actors=[1, 2, 4], json=Path,
        markdown=False, quick=False, warmup=float, no_grain=False, no_ray_data=False, identify=False,
        cache_dir=CACHE_DIR,
    )  # fmt: skip
    if unknown := set(options.kinds) - set(KINDS):
        sys.exit(f"--kinds knows {', '.join(KINDS)}, not {', '.join(sorted(unknown))}")
    if "jpeg" in options.kinds and find_spec("cv2") is None:
        sys.exit("the kind jpeg needs OpenCV: pip install 'datarax-ray[images]', or name other --kinds")
    return options


if __name__ == "__main__":
    main()
