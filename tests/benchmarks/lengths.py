"""The padding that batches by length save, and their cost, run by hand: CPU microseconds a row of one process.

    python -m tests.benchmarks.lengths [--rows 50000] [--repeats 5]

Lists of lognormal lengths (median 100, up to 1,024) in batches of 256 on the host: padded in the order of the stream
(pools of one batch), and by length in pools of 16 and 64 batches. All take turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from datarax_ray import LengthBatches, Pipeline, RandomAccessSource, RandomAccessSourceConfig
from tests.benchmarks.options import parsed

BATCH, LONGEST = 256, 1024


def main(arguments: Sequence[str] | None = None) -> dict[int, tuple[float, float]]:
    """Print a line for each size of pools; give the share of padding and the cost of a row, by size."""
    options = parsed(__doc__, arguments, rows=50_000, repeats=5)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(100), 0.8, options.rows), 1, LONGEST).astype(int)
    elements = [{"tokens": np.arange(length, dtype=np.int32)} for length in lengths]
    source = RandomAccessSource(RandomAccessSourceConfig(shuffle=True, num_epochs=1), elements)
    costs: dict[int, list[float]] = {1: [], 16: [], 64: []}
    shares: dict[int, float] = {}
    for _ in range(options.repeats):
        for size, spent in costs.items():
            packing = LengthBatches("tokens", boundaries=64, num_batches=size)
            pipeline = Pipeline(source=source, batch_size=BATCH, packing=packing, on_host=True)
            begin = time.process_time()
            assert sum(len(batch["tokens"]) for batch in pipeline) == options.rows
            spent.append((time.process_time() - begin) / options.rows * 1e6)
            shares[size] = pipeline.stats().padding.share
    found = {size: (shares[size], median(spent)) for size, spent in costs.items()}
    for size, (share, cost) in found.items():
        print(f"pools of {size} batches: {share:.1%} padding, {cost:.2f} CPU us a row")
    return found


if __name__ == "__main__":
    main()
