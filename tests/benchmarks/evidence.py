"""What evidence costs: `python -m tests.benchmarks.evidence`. In a state, a batch, a resume, and at the start.

CPU of this process, medians of 30 with the quartiles beside. A batch is 64 rows, its step is taken as 10 ms.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.sample import sampled
from datarax_ray.feed.source import Source
from datarax_ray.feed.trail import Trail
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.formats.random_access import ArraysReader
from datarax_ray.read.streams.indexed import IndexedStream

KINDS: dict[str, Callable[[int], dict[str, np.ndarray]]] = {
    "64 B, 2 fields": lambda n: {"x": np.zeros((n, 14), np.float32), "label": np.arange(n)},
    "4 KB": lambda n: {"x": np.zeros((n, 1024), np.float32)},
    "150 KB": lambda n: {"image": np.zeros((n, 224, 224, 3), np.uint8)},
    "text": lambda n: {"text": np.array([f"row {i} " * 20 for i in range(n)], object)},
}
ROWS, STEP_S, RUNS = 64, 0.010, 30


def median(call: Callable[[], Any]) -> str:
    """Milliseconds of CPU: the median of many calls, and the quartiles."""
    took = []
    for _ in range(RUNS):
        begin = time.process_time_ns()
        call()
        took.append((time.process_time_ns() - begin) / 1e6)
    low, middle, high = statistics.quantiles(took, n=4)
    return f"{middle:8.3f} ({low:.3f} to {high:.3f})"


class Double:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element


def main() -> None:
    print(f"{'rows':16} {'state, bytes':>12}  {'batch, ms':>26}  {'state, ms':>26}  {'resume, ms':>26}")
    for name, make in KINDS.items():
        columns = make(ROWS)
        reader = ArraysReader({key: np.concatenate([column] * 8) for key, column in columns.items()})
        stream = IndexedStream(reader, order_of(reader.num_records, 1, "global"), 4, (Double(),))
        source = Source(stream)
        source.get_batch(ROWS)
        state = source.get_state()
        nbytes = len(json.dumps(state["evidence"]))
        batch = HostBatch(columns, np.arange(ROWS), 0, StreamState(ROWS), ROWS)

        def of_batch(batch: HostBatch = batch) -> Any:
            trail, begin = Trail(), StreamState(5)
            for _ in range(20):
                trail = trail.then(batch, begin, is_written=False)
            return trail

        def resumed(stream: IndexedStream = stream, state: dict[str, Any] = state) -> None:
            again = Source(stream)
            again.set_state(state)
            again.verify()

        each = median(of_batch).split(" (")[0]
        print(
            f"{name:16} {nbytes:12}  {float(each) / 20:8.4f}, {float(each) / 20 / STEP_S / 10:.2f} % of a step  "
            f"{median(source.get_state):>26}  {median(resumed):>26}"
        )
    print(f"\na sample of one process, 8 elements made twice: {median(lambda: sampled(stream))} ms")


if __name__ == "__main__":
    main()
