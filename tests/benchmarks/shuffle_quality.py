"""How well each order shuffles, beside the true permutation. Counted, not timed: the same on every machine.

    python -m tests.benchmarks.shuffle_quality [--records 1048576] [--plot FILE.svg] [--json FILE]

The records are sorted by label, 1,024 of each, and stored in groups of 256: the worst case for an order that keeps
groups together. Of the true permutation (NumPy's) and of each order:

- travelled: how far records move, on average, as a part of all of them; 1/3 where every place is as likely.
- neighbours: pairs in a row that come from one group, as a part of all pairs.
- labels: different ones in a batch of 1,024, on average.
- runs: records in a row that have one label, on average.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray.plan.orders.kinds import WINDOW_BLOCKS, order_of
from tests.benchmarks.options import parsed

GROUP, LABEL, BATCH = 256, 1024, 1024
WINDOWS = [4**power for power in range(7)]
TRUE, GLOBAL, FILES = "true permutation", "global shuffle", "file order"
# The panels of the plot: a measure, its title, and whether its axis is logarithmic.
PANELS = (("labels", f"labels in a batch of {BATCH:,}", False), ("neighbours", "neighbours of one group", True))
WIDTH, HEIGHT, MARGIN = 460, 300, 60


def measured(records: np.ndarray) -> dict[str, float]:
    """The measures of an order. records: the record at each position."""
    count, labels = len(records), records // LABEL
    batches = np.sort(labels[: count - count % BATCH].reshape(-1, BATCH), axis=1)
    return {
        "travelled": float(np.abs(records - np.arange(count)).mean() / count),
        "neighbours": float((records[1:] // GROUP == records[:-1] // GROUP).mean()),
        "labels": float(1 + (np.diff(batches, axis=1) > 0).sum(axis=1).mean()),
        "runs": count / float(1 + (labels[1:] != labels[:-1]).sum()),
    }


def of_orders(count: int, seed: int = 7) -> dict[str, dict[str, float]]:
    """The measures of each order of so many records, by its name."""
    everything = np.arange(count)
    found = {TRUE: measured(np.random.default_rng(seed).permutation(count))}
    found[GLOBAL] = measured(order_of(count, seed, "global").records(everything))
    for window in WINDOWS:
        order = order_of(count, seed, "block", block_size=GROUP, window_blocks=window)
        found[f"blocks of {GROUP}, windows of {window:,}"] = measured(order.records(everything))
    found[FILES] = measured(everything)
    return found


def plot(found: dict[str, dict[str, float]]) -> str:
    """An SVG of the block orders by their windows, each panel with a line at the true permutation."""
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" role="img" '
             'font-family="system-ui, sans-serif" font-size="13" fill="#7b8088">',
             "<title>Block order by its window, beside the true permutation</title>"]  # fmt: skip
    blocks = [each for name, each in found.items() if name.startswith("blocks")]
    for panel, (measure, title, is_log) in enumerate(PANELS):
        values, true = [each[measure] for each in blocks], found[TRUE][measure]
        scale = np.log10 if is_log else np.asarray
        low, high = (scale(min(*values, true)), scale(max(*values, true))) if is_log else (0.0, max(*values, true))
        xs = np.linspace(panel * WIDTH + MARGIN, (panel + 1) * WIDTH - 20, len(WINDOWS))
        ys = HEIGHT - MARGIN - (scale(np.array([*values, true])) - low) / (high - low) * (HEIGHT - 2 * MARGIN)
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(xs, ys, strict=False))
        lines += [
            f'<text x="{xs[0]:.0f}" y="28" font-size="15">{title}</text>',
            f'<path d="M{xs[0]:.0f} {ys[-1]:.0f}H{xs[-1]:.0f}" stroke="#7b8088" stroke-dasharray="5 4"/>',
            f'<text x="{xs[0]:.0f}" y="{ys[-1] - 6:.0f}">true permutation: {true:.3g}</text>',
            f'<polyline points="{points}" fill="none" stroke="#4c8bd6" stroke-width="2"/>',
        ]
        for x, y, value, window in zip(xs, ys, values, WINDOWS, strict=False):
            anchor = "middle" if not is_log else "end" if x == xs[-1] else "start"
            at = y - 10 if is_log or y > HEIGHT / 3 else y + 20
            lines += [
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{5 if window == WINDOW_BLOCKS else 3}" fill="#4c8bd6"/>',
                f'<text x="{x:.0f}" y="{at:.0f}" text-anchor="{anchor}" font-size="11">{value:.3g}</text>',
                f'<text x="{x:.0f}" y="{HEIGHT - 30}" text-anchor="middle">{window:,}</text>',
            ]
        lines.append(f'<text x="{xs[-1]:.0f}" y="{HEIGHT - 10}" text-anchor="end">blocks in a window</text>')
    return "\n".join([*lines, "</svg>\n"])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Print the table, write the plot, and give what --json writes."""
    options = parsed(__doc__, arguments, records=2**20, plot=Path, json=Path)
    found = of_orders(options.records)
    for name, measures in found.items():
        print(f"{name:28}", *(f"{measure} {value:<10.4g}" for measure, value in measures.items()))
    if options.plot:
        options.plot.write_text(plot(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    return found


if __name__ == "__main__":
    main()
