"""How much of the package runs: distinct functions and files for a source, for its first batch, and for two more.

    python -m tests.benchmarks.calls [--list]

A reader of the code has to know this many functions to follow a record. Counted by `sys.setprofile` in all threads:
ArrayRecord files, a global shuffle, one map, batches of 16, one process, no stages. A warm-up comes first, so a
function that only a first use needs does not count. Functions without a name of their own (comprehensions, lambdas)
and generated ones (a dataclass's `__init__`) do not count either. `--list` names the functions, file by file.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import datarax_ray
from tests.benchmarks.options import parsed
from tests.data import write_files

ROOT = Path(datarax_ray.__file__).parent
BATCH_SIZE = 16
ROWS = ("making a source and its pipeline", "the first batch", "two more batches")


def decode(record: bytes) -> dict[str, Any]:
    return {"values": np.frombuffer(record, "<i4")}


class Profile:
    """The functions of the package that run, from one `taken` to the next."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def taken(self) -> dict[str, list[str]]:
        """The functions that ran since the last call, by file."""
        codes, self._codes = self._codes, set()
        found: defaultdict[str, list[str]] = defaultdict(list)
        for code in sorted(codes, key=lambda code: (code.co_filename, code.co_firstlineno)):
            if code.co_filename.startswith(f"{ROOT}/") and not code.co_name.startswith("<"):
                found[Path(code.co_filename).relative_to(ROOT).as_posix()].append(code.co_qualname)
        return dict(found)


def measured(folder: Path) -> list[dict[str, list[str]]]:
    """The functions by file, for each of ROWS."""
    from datarax_ray.pipeline import Pipeline
    from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule

    config = ArrayRecordSourceConfig(seed=42, shuffle_files=True)

    def run(taken: Callable[[], dict[str, list[str]]]) -> list[dict[str, list[str]]]:
        taken()
        source = ArrayRecordSourceModule(config, str(folder / "*.array_record"), transforms=[decode])
        with closing(Pipeline(source=source, batch_size=BATCH_SIZE, prefetch=0)) as pipeline:
            batches = iter(pipeline)
            found = [taken()]
            next(batches)
            found.append(taken())
            next(batches)
            next(batches)
            return [*found, taken()]

    run(dict)
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        return run(profile.taken)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> list[dict[str, list[str]]]:
    is_listing = parsed(__doc__, arguments, list=False).list
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), [1000] * 4)
        found = measured(Path(folder))
    for name, functions in zip(ROWS, found, strict=True):
        print(f"{name}: {sum(map(len, functions.values()))} functions in {len(functions)} files")
        for file, names in functions.items() if is_listing else ():
            print(f"    {file}: {', '.join(names)}")
    return found


if __name__ == "__main__":
    main()
