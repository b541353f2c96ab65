"""Mutants in bulk: `python -m tests.fuzz.run --minutes 10` prints how many were tried and what came of them.

`--target NAME` for one target; `--job '["array_record 16", "forged", 17]'` to see one mutant again. The exit code is 1
where a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import outcomes, supervisor
from tests.fuzz.targets import NAMES, make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", action="append", choices=NAMES)
    parser.add_argument("--seed", type=int, default=0, help="where to begin, so that two runs try different mutants")
    parser.add_argument("--job", type=json.loads)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        if args.job:
            name, kind, seed = args.job
            print(make(name, directory).check(kind, random.Random(f"{name} {kind} {seed}")))
            return 0
        end = time.monotonic() + 60 * args.minutes
        report = supervisor.run(_until(end, args.target or NAMES, args.seed, directory), directory)
    print(table(report))
    return 1 if report.broken else 0


def _until(end: float, names: tuple[str, ...], seed: int, directory: Path) -> Iterator[supervisor.Job]:
    for job in supervisor.jobs(names, range(seed, seed + 10**9), directory / "kinds"):
        if time.monotonic() > end:
            return
        yield job


def table(report: supervisor.Report) -> str:
    """Mutants by target and outcome, by kind of mutation and outcome, and every broken promise with its job."""
    shown = [o for o in outcomes.ALL if o not in outcomes.BROKEN or any(found == o for *_, found in report.counts)]
    lines = [f"{report.total:,} mutants, {len(report.broken)} broken promises"]
    for place in (0, 1):
        counts: Counter[tuple[str, str]] = Counter()
        for key, count in report.counts.items():
            counts[key[place], key[2]] += count
        lines += ["", f"{'mutants of' if place == 0 else 'mutated by':32}" + "".join(f"{o[:26]:>28}" for o in shown)]
        for name in sorted({name for name, _ in counts}):
            lines.append(f"{name:32}" + "".join(f"{counts[name, o]:>28,}" for o in shown))
    for job, outcome, detail in report.broken[:50]:
        lines += ["", f"{outcome}: --job '{json.dumps(job)}'", f"  {detail}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
