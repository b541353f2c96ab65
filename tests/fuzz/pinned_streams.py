"""Digests of 200 random streams, pinned: `python -m tests.fuzz.pinned_streams` names the cases whose stream changed.

Each digest covers the rows of every batch and the position behind it, of one case of tests.fuzz.streams, read in one
process. `--write` pins the streams anew, which is right only where a change of the stream is meant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray import Pipeline
from datarax_ray.read.errors import RecordError
from tests.fuzz.stream_cases import NEW_WEIGHTS, SOURCES, Case, draw, make_source, packing_of

PINNED = Path(__file__).with_name("pinned_streams.json")
NUM_CASES = 200


def digest(case: Case, directory: Path) -> str:
    """Sixteen hex digits of the batches of the case, with the position and the rest of the state after each."""
    found = hashlib.sha256()
    source = make_source(directory, case)
    with Pipeline(
        source=source,
        batch_size=case.batch_size,
        packing=packing_of(case),
        drop_remainder=case.ending == "drop",
        pad_remainder=case.ending == "pad",
    ) as pipeline:
        stop = source.describe().stop
        skip = [(a, b if stop is None else min(b, stop)) for a, b in case.skip if stop is None or a < stop]
        if skip or case.reweighted is not None:
            weights = None if case.reweighted is None else NEW_WEIGHTS
            pipeline.amend(skip=skip, weights=weights, at=case.reweighted)
        try:
            while True:
                batch: Any = pipeline.step()
                for name in sorted(batch):
                    column = np.asarray(batch[name])
                    values = repr(column.tolist()).encode() if column.dtype.kind in "OTU" else column.tobytes()
                    found.update(f"{name} {column.dtype} {column.shape}".encode() + values)
                state = pipeline.get_state()
                found.update(f"{state['position']} {_rest(state)}".encode())
        except StopIteration:
            found.update(f"end, {pipeline.num_skipped} skipped".encode())
        except RecordError as error:
            found.update(f"RecordError at {error.position}".encode())
        except (ValueError, RuntimeError) as error:  # a stream without any element
            found.update(type(error).__name__.encode())
    return found.hexdigest()[:16]


def _rest(state: dict[str, Any]) -> str:
    """Where the stream goes on beside the position; the times in a log of amendments differ from run to run."""
    rest = {name: value for name, value in state.get("rest", {}).items() if name != "amendments"}
    return json.dumps(rest, sort_keys=True)


def changed(numbers: range, directory: Path) -> list[str]:
    """The numbered cases whose stream is not the pinned one, with the call that reads each again."""
    pinned = json.loads(PINNED.read_text())
    cases = ((number, draw(random.Random(f"streams {number}"), kinds=sorted(SOURCES))) for number in numbers)
    return [f"{n}: --case '{case.to_json()}'" for n, case in cases if digest(case, directory) != pinned[n]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    logging.getLogger("datarax_ray").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as scratch:
        if args.write:
            cases = [draw(random.Random(f"streams {n}"), kinds=sorted(SOURCES)) for n in range(NUM_CASES)]
            PINNED.write_text(json.dumps([digest(case, Path(scratch)) for case in cases], indent=0) + "\n")
            return 0
        wrong = changed(range(NUM_CASES), Path(scratch))
        print("\n".join(wrong) or f"{NUM_CASES} streams are as pinned")
        return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
