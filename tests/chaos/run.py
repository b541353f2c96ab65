"""The chaos run: one stream through many faults, against the same stream in one process.

python -m tests.chaos.run --records 2000000 --epochs 3 --faults 60
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.chaos.faults import RESOURCE, Chaos
from tests.chaos.stream import BATCH_SIZE, TRANSFORMS, Delivered, deliver, write
from tests.clusters import started


@dataclass(frozen=True)
class Size:
    """How much of it. faults: how many, spread evenly over the stream. frozen_s: how long a frozen actor is frozen."""

    num_records: int
    num_epochs: int
    num_faults: int
    num_nodes: int = 3
    actors_per_node: int = 2
    chunk_size: int | None = None
    frozen_s: float = 12.0
    seed: int = 0


@dataclass
class Outcome:
    """What happened. waits: of each fault by kind, the longest wait for one batch until the next fault, seconds."""

    want: Delivered
    got: Delivered
    waits: dict[str, list[float]] = field(default_factory=dict)
    recoveries: Counter[str] = field(default_factory=Counter)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    num_retried: int = 0
    quiet_s: float = 0.0
    took_s: float = 0.0


@contextmanager
def cluster_of(size: Size) -> Iterator[Cluster]:
    """A head without actors, where the driver is, and nodes for actors: raylets of their own on this machine."""
    with started(1, 150 * 2**20) as cluster:
        for _ in range(size.num_nodes):
            cluster.add_node(num_cpus=1, resources={RESOURCE: size.actors_per_node}, object_store_memory=80 * 2**20)
        yield cluster


def run(size: Size, directory: Path) -> Outcome:
    """The whole run, on a cluster of its own."""
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=size.num_epochs, seed=size.seed)
    source = ArrayRecordSourceModule(config, write(directory, size.num_records), transforms=TRANSFORMS)
    options = StreamOptions(BATCH_SIZE)
    want = deliver(source.batches(0, options), size.num_records)
    with cluster_of(size) as cluster:
        distributed = RaySource(
            source,
            num_actors=size.num_nodes * size.actors_per_node,
            num_cpus=0.1,
            resources={RESOURCE: 1},
            chunk_size=size.chunk_size,
            max_nbytes=40 * 2**20,
        )
        outcome = Outcome(want, Delivered(size.num_records))
        chaos = Chaos(cluster, distributed, size.seed, size.actors_per_node, size.frozen_s)
        with distributed:
            begin = time.monotonic()
            try:
                _consume(distributed, chaos, options, size, outcome)
            finally:
                chaos.close()
            outcome.took_s = time.monotonic() - begin
            found = distributed.recoveries
            outcome.recoveries, outcome.num_retried = found.counts, found.num_retried
            for recovery in found.last:
                outcome.recovered_s.setdefault(recovery.kind, []).append(recovery.took_s)
    return outcome


def _consume(source: RaySource, chaos: Chaos, options: StreamOptions, size: Size, outcome: Outcome) -> None:
    kinds = list(chaos.kinds)
    order = [kinds[number % len(kinds)] for number in range(size.num_faults)]
    chaos.random.shuffle(order)
    total = size.num_records * size.num_epochs
    due = [(number + 1) * total // (size.num_faults + 1) for number in range(size.num_faults)]
    kind, longest = "", 0.0
    begin = time.monotonic()
    for batch in source.batches(0, options):
        longest = max(longest, time.monotonic() - begin)
        outcome.got.add(batch)
        while due and batch.stop >= due[0]:
            _note(outcome, kind, longest)
            kind, longest = order.pop(), 0.0
            due.pop(0)
            chaos.kinds[kind]()
        begin = time.monotonic()
    _note(outcome, kind, longest)


def _note(outcome: Outcome, kind: str, longest_s: float) -> None:
    if kind:
        outcome.waits.setdefault(kind, []).append(longest_s)
    else:
        outcome.quiet_s = longest_s


def report(outcome: Outcome, size: Size) -> str:
    """The tables, as text."""
    lost, repeated = outcome.got.lost_and_repeated(size.num_epochs)
    lines = [f"{'fault':32} {'times':>5} {'longest wait for a batch, median':>34} {'max':>8}"]
    for kind, waits in sorted(outcome.waits.items()):
        lines.append(f"{kind:32} {len(waits):5} {statistics.median(waits):32.2f} s {max(waits):6.2f} s")
    lines.append(f"{'all':32} {sum(map(len, outcome.waits.values())):5}   (before the first: {outcome.quiet_s:.2f} s)")
    lines += ["", f"{'recovery of an actor':32} {'times':>5} {'time to recover, median':>34} {'max':>8}"]
    for kind, seconds in sorted(outcome.recovered_s.items()):
        lines.append(f"{kind:32} {len(seconds):5} {statistics.median(seconds):32.2f} s {max(seconds):6.2f} s")
    took_s = outcome.took_s
    same = outcome.got.digest == outcome.want.digest
    lines += [
        "",
        f"{size.num_records:,} records, {size.num_epochs} epochs: {outcome.got.num_rows:,} rows, {took_s:.0f} s",
        f"{outcome.num_retried} requests sent again",
        f"digest {outcome.got.digest[:16]} is {'that' if same else 'NOT that'} of one process",
        f"{lost} rows lost, {repeated} repeated",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--actors-per-node", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    size = Size(given.records, given.epochs, given.faults, given.nodes, given.actors_per_node, seed=given.seed)
    with tempfile.TemporaryDirectory() as directory:
        outcome = run(size, Path(directory))
    print(report(outcome, size))
    if outcome.got.digest != outcome.want.digest:
        raise SystemExit("the stream changed")


if __name__ == "__main__":
    main()
