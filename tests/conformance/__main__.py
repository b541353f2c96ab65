"""What a loader does where a run is killed, resized, cut off or slowed down, as a table.

python -m tests.conformance --loader ours
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.conformance.loaders import LOADERS, loader_of
from tests.conformance.run import CASES, Outcome, Size, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--loader", default="ours", help=f"{', '.join(LOADERS)}, or FILE.py:NAME of another")
    parser.add_argument("--records", type=int, default=Size.num_records)
    parser.add_argument("--batch-size", type=int, default=Size.batch_size)
    parser.add_argument("--case", action="append", help="a case by a part of its name; all of them if none is given")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments = parser.parse_args()
    cases = [case for case in CASES if any(part in case.name for part in arguments.case or [""])]
    size = Size(arguments.records, arguments.batch_size)
    progress = Console(stderr=True)
    try:
        loader_of(arguments.loader)
    except ImportError as error:
        progress.print(f"{arguments.loader} is left out: {error}", soft_wrap=True)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run(
            arguments.loader, size, Path(directory), cases, lambda outcome: progress.print(f"  {_line(outcome)}")
        )
    if arguments.json:
        print(json.dumps([outcome._asdict() | {"difference": _plain(outcome)} for outcome in outcomes]))
    else:
        Console().print(table(arguments.loader, outcomes))
    return int(not all(outcome.is_the_same for outcome in outcomes))


def table(loader: str, outcomes: list[Outcome]) -> Table:
    found = Table(
        loader, "rows lost", "rows repeated", "batches of other rows", "in another order", "restarts", "said",
        box=box.SIMPLE,
    )  # fmt: skip
    for outcome in outcomes:
        counts = ["–"] * 4 if outcome.difference is None else map(str, outcome.difference)
        found.add_row(outcome.case, *counts, str(outcome.restarts), outcome.said[:90])
    return found


def _line(outcome: Outcome) -> str:
    found = "the same" if outcome.is_the_same else outcome.said or outcome.difference
    return f"{outcome.case}: {found}"


def _plain(outcome: Outcome) -> dict[str, int] | None:
    return None if outcome.difference is None else outcome.difference._asdict()


if __name__ == "__main__":
    sys.exit(main())
