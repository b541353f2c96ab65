"""What a batch costs, at the level that users have: `python -m tests.benchmarks.batches [--against REV]`.

A Pipeline gives batches on the device, with no train step behind them. Each run is a process of its own; the builds and
the sizes take turns. CPU is that of all processes, Ray's own included, after a warm-up. With batches of several sizes,
"a batch" is the part of the cost that does not grow with the rows: the intercept of the line through the sizes.

In the same turns: "device_put" has jax.device_put of the same arrays alone; "raw" reads the same records by two
processes of array_record alone, and drops them; and `--against` measures another commit. `--kinds`: of SIZES.
`--sizes`: rows of a batch, in place of those there. `--seconds`: with actors five times as long, since an actor's block
may be thousands of batches, and is read at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"small256": (64, 256, 1024, 8192), "small": (1024,), "tokens": (1024,), "tokens256": (1024,), "large": (64,)}
_WARMUP_S = 3.0  # until memory that is used again has all been used once
_FILL_S = 12.0  # until actors have read as far ahead as they may
_LONGER = 5  # with actors
_DEVICE_PUT, _RAW = -1, -2  # in place of a number of actors
_NAMES = {_DEVICE_PUT: "device_put", _RAW: "raw"}
# As actors have it: by default array_record alone takes its memory anew from the kernel for every read.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}


def deliver(kind_name: str, paths: list[str], rows: int, fields: int, actors: int, seconds: float) -> dict[str, float]:
    """One run in this process. Returns rates and CPU seconds: of all processes, and of this one, for each batch."""
    import jax
    import numpy as np

    from tests.benchmarks.competitors import cpu_s

    if actors == _DEVICE_PUT:
        return _device_put(rows, fields, seconds)
    if actors == _RAW:
        return _raw(kind_name, paths, rows, seconds)
    from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeFields, Pipeline, RaySource
    from tests.benchmarks.data import KINDS

    kind = KINDS[kind_name]
    decode = kind.decoder()
    if kind_name.startswith("small") and fields > 1:
        decode = DecodeFields({f"f{index}": ("int64", ()) for index in range(8)})  # the 8 numbers of a record
    block = "auto" if kind.group_size > 1 else None
    config = ArrayRecordSourceConfig(seed=0, shuffle_files=True, num_epochs=-1, shuffle_block_size=block)
    source: Any = ArrayRecordSourceModule(config, paths, transforms=[decode])
    if actors:
        import ray

        ray.init(address="local", num_cpus=max(2, actors + 1), include_dashboard=False, log_to_driver=False)
        source = RaySource(source, num_actors=actors, num_cpus=0.1)
    jax.config.update("jax_enable_x64", True)
    with Pipeline(source=source, batch_size=rows) as pipeline:
        batches: Iterator[Any] = iter(pipeline)
        until = time.perf_counter() + (_FILL_S if actors else _WARMUP_S)
        seconds *= _LONGER if actors else 1
        while time.perf_counter() < until:
            next(batches)
        count, begin, cpu, own = 0, time.perf_counter(), cpu_s(), time.process_time()
        while (elapsed := time.perf_counter() - begin) < seconds:
            for _ in range(max(1, 4096 // rows)):
                batch = next(batches)
                count += 1
        np.asarray(jax.tree.leaves(batch)[0])
        return {
            "batch_s": elapsed / count,
            "cpu_s": (cpu_s() - cpu) / count,
            "own_s": (time.process_time() - own) / count,
        }


def _device_put(rows: int, fields: int, seconds: float) -> dict[str, float]:
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    count, columns = 0, {f"f{index}": np.zeros((rows, 8 // fields), np.int64) for index in range(fields)}
    begin, own = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - begin) < seconds:
        for _ in range(100):
            jax.device_put({name: column.copy() for name, column in columns.items()})
            count += 1
    cpu = (time.process_time() - own) / count
    return {"batch_s": elapsed / count, "cpu_s": cpu, "own_s": cpu}


def _raw(kind_name: str, paths: list[str], rows: int, seconds: float) -> dict[str, float]:
    from tests.benchmarks.competitors import Task, raw
    from tests.benchmarks.data import KINDS

    size = KINDS[kind_name].group_size
    setting = {"call": "groups", "batch": size} if size > 1 else {"call": "single", "batch": 1024}
    endless = 10**12
    found = raw(Task("raw", kind_name, paths, endless, endless, seconds, 2, setting, warmup_s=_WARMUP_S))
    batch_s, cpu_s = (spent / found.records * rows for spent in (found.seconds, found.cpu_s))
    return {"batch_s": batch_s, "cpu_s": cpu_s, "own_s": 0.0}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    from tests.benchmarks.data import KINDS, dataset, warm
    from tests.benchmarks.options import CACHE_DIR, parsed

    options = parsed(
        __doc__, arguments, against=str, kinds=["small256"], sizes=[0], fields=[1, 8], actors=[0, 2], repeats=5,
        seconds=4.0, records=int, cache_dir=CACHE_DIR,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        builds = {"here": ROOT}
        if options.against:
            builds[options.against] = Path(scratch) / "other"
            tree = ["git", "-C", str(ROOT), "worktree"]
            subprocess.run([*tree, "add", "-q", "--detach", str(builds[options.against]), options.against], check=True)
        try:
            found: dict[tuple[Any, ...], list[dict[str, float]]] = defaultdict(list)
            paths = {}
            for kind in options.kinds:
                paths[kind] = dataset(KINDS[kind], options.records or KINDS[kind].num_records, options.cache_dir)
                warm(paths[kind])
            for _ in range(options.repeats):
                for arm in _arms(options, builds):
                    kind, fields, actors, rows, build = arm
                    found[arm].append(_run(builds[build], kind, paths[kind], rows, fields, actors, options.seconds))
        finally:
            if options.against:
                subprocess.run([*tree, "remove", "--force", str(builds[options.against])], check=True)
    return {"rows": _show(found)}


def _arms(options: argparse.Namespace, builds: dict[str, Path]) -> Iterator[tuple[str, int, int, int, str]]:
    for kind in options.kinds:
        for fields in options.fields if kind == "small256" else [1]:
            alone = [_RAW] * (fields == 1) + [_DEVICE_PUT] * (kind == "small256")
            for actors in alone + options.actors:
                sizes = SIZES[kind] if options.sizes == [0] else options.sizes
                for rows in sizes[-1:] if actors == _RAW else sizes:
                    for build in list(builds)[: 1 if actors < 0 else None]:
                        yield kind, fields, actors, rows, build


def _run(root: Path, *task: Any) -> dict[str, float]:
    """One run in a fresh process, with the package of that tree and the benchmark of this one."""
    from tests.benchmarks.one import answer_of

    path = os.pathsep.join([str(root), str(ROOT)])
    measured: dict[str, float] = answer_of([str(Path(__file__).resolve())], task, root, PYTHONPATH=path, **_MALLOC)
    return measured


def _show(found: dict[tuple[Any, ...], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Print a line for each arm, and one for what a batch costs beyond its rows. Times in microseconds."""
    from tests.benchmarks.data import KINDS

    table: list[dict[str, Any]] = []
    lines: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    print(f"{'records':10} {'fields':>6} {'actors':>10} {'build':>10} {'rows':>5} {'batches/s':>10}  CPU us a batch")
    for (kind, fields, actors, rows, build), runs in found.items():
        cpu = sorted(run["cpu_s"] * 1e6 for run in runs)
        each = {"kind": kind, "fields": fields, "actors": actors, "build": build, "rows": rows, "cpu_us": median(cpu)}
        each |= {
            "rate": 1 / median(run["batch_s"] for run in runs),
            "own_us": median(run["own_s"] for run in runs) * 1e6,
        }
        table.append(each)
        lines[kind, fields, actors, build].append((rows, each["cpu_us"]))
        raw = next((one for one in table if one["kind"] == kind and one["actors"] == _RAW), None)
        of_row = each["cpu_us"] / rows
        beside = "" if raw is None else f", {of_row * raw['rows'] / raw['cpu_us']:.2f} of raw"
        who = _NAMES.get(actors, actors)
        print(
            f"{kind:10} {fields:>6} {who:>10} {build:>10.10} {rows:>5} {each['rate']:>10,.0f}  {each['cpu_us']:,.0f} "
            f"({cpu[0]:,.0f} to {cpu[-1]:,.0f}), {of_row:.2f} a row{beside}; this process {each['own_us']:,.0f} "
            f"({each['own_us'] * 1e3 / (rows * KINDS[kind].nbytes):.2f} s a GB)"
        )
    for (kind, fields, actors, build), points in lines.items():
        if len(points) > 1:
            (few, low), (many, high) = points[0], points[-1]
            of_row = (high - low) / (many - few)
            who = _NAMES.get(actors, f"{actors} actors")
            print(
                f"{kind}, {fields} fields, {who}, {build}: a batch {low - of_row * few:,.0f} us, a row {of_row:.3f} us"
            )
    return table


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("["):
        Path(sys.argv[2]).write_text(json.dumps(deliver(*json.loads(sys.argv[1]))))
    else:
        main()
