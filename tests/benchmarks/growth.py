"""What grows with the work: `python -m tests.benchmarks.growth [--repeats 5]`.

A source's description over 1,000 to 1,000,000 ArrayRecord files, which are named and not there, with 1,000 or 1,000,000
records each, shuffled as a whole: from 10**6 to 10**12 records. Each size is a process of its own, and the sizes take
turns. Columns: the driver's bytes for the description, by tracemalloc; the bytes that travel to an actor; CPU of the
scheduler and the first request's order at position 0 and at a far one, for 16 actors; and the bytes of a state there.
The exponent is the slope of the line through the logarithms: 0 is constant, 1 in proportion.
"""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence
from statistics import linear_regression, median
from typing import Any

from datarax_ray.plan.requests import EVERYTHING
from tests.benchmarks.one import answer, answer_of
from tests.benchmarks.options import parsed

_FILES, _EACH = (1_000, 10_000, 100_000, 1_000_000), (1_000, 1_000_000)
_ACTORS, _CHUNK, _FAR = 16, 32_768, 10**12
_COLUMNS = ("driver_nbytes", "sent_nbytes", "first_s", "far_s", "state_nbytes")


def measure(num_files: int, each: int) -> dict[str, float]:
    """One description in this process."""
    import numpy as np
    import ray

    from datarax_ray.plan.orders.kinds import order_of
    from datarax_ray.plan.state import StreamState
    from datarax_ray.read.formats.array_record.files import RecordFile
    from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
    from datarax_ray.read.streams.indexed import IndexedStream

    tracemalloc.start()
    digests = (f"{number:016x}" for number in range(2**60, 2**62))  # each another one, as those of real files
    files = [
        RecordFile(f"/data/train-{i:07d}.array_record", each, 100 * each, 1, 0, each, next(digests), next(digests))
        for i in range(num_files)
    ]
    reader = ArrayRecordReader(files)
    del files
    stream = IndexedStream(reader, order_of(reader.num_records, 0, "global"), -1, (), "raise")
    found = {"driver_nbytes": float(tracemalloc.get_traced_memory()[0])}
    tracemalloc.stop()
    found["sent_nbytes"] = len(ray.cloudpickle.dumps(stream))
    for name, position in (("first_s", 0), ("far_s", _FAR)):
        begin = time.process_time()
        state = StreamState.at(position)
        scheduler = stream.scheduler(state, None, EVERYTHING)
        scheduler.fit(_ACTORS)
        chunk = scheduler.next_chunk(_CHUNK, [i % _ACTORS for i in range(scheduler.partitioning.num_partitions)])
        stream.order.records(np.arange(chunk.start, chunk.stop))
        found[name] = time.process_time() - begin
    found["state_nbytes"] = len(json.dumps(state))
    return found


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = parsed(__doc__, arguments, files=list(_FILES), records=list(_EACH), repeats=5)
    found: dict[tuple[int, int], list[dict[str, float]]] = defaultdict(list)
    for _ in range(options.repeats):
        for each in options.records:
            for num_files in options.files:
                found[each, num_files].append(answer_of(["-m", "tests.benchmarks.growth"], [num_files, each]))
    table = []
    print(f"{'files':>10} {'records':>10}  " + "".join(f"{name:>15}" for name in _COLUMNS))
    for (each, num_files), runs in found.items():
        row = {"files": num_files, "records": num_files * each}
        table.append(row | {name: median(run[name] for run in runs) for name in _COLUMNS})
        print(f"{num_files:10,} {num_files * each:10.0e}  " + "".join(f"{table[-1][name]:15,.4g}" for name in _COLUMNS))
    for each in options.records:
        rows = [row for row in table if row["records"] == each * row["files"]]
        if len(rows) > 1:
            x = [math.log(row["files"]) for row in rows]
            slopes = (linear_regression(x, [math.log(row[name]) for row in rows]).slope for name in _COLUMNS)
            print(f"{'exponent':>10} {each:10,}  " + "".join(f"{slope:15.2f}" for slope in slopes))
    return table


if __name__ == "__main__":
    answer(measure) or main()
