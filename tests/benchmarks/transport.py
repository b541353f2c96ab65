"""What Ray takes to bring arrays from actors, whatever is in them: `python -m tests.benchmarks.transport`.

Two actors return one array again and again, and read nothing; the driver copies each, or lets it go. CPU seconds a GB
of all processes, and of the driver; sizes take turns, in one Ray. `--mib`: sizes of arrays.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.benchmarks.competitors import cpu_s
from tests.benchmarks.options import parsed, spread

_AHEAD = 2  # arrays on their way from each actor


class _Actor:
    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray] = {}

    def give(self, nbytes: int) -> np.ndarray:
        return self.arrays.setdefault(nbytes, np.ones(nbytes, np.uint8))


def brought(actors: Sequence[Any], nbytes: int, seconds: float, *, is_copied: bool) -> tuple[float, float]:
    """CPU seconds a GB: of all processes, and of this one."""
    import ray

    taken = np.ones(nbytes, np.uint8)
    for actor in actors:
        ray.get(actor.give.remote(nbytes))
    coming = deque((actor, actor.give.remote(nbytes)) for actor in [*actors] * _AHEAD)
    count, until, cpu, own = 0, time.perf_counter() + seconds, cpu_s(), time.process_time()
    while time.perf_counter() < until:
        actor, asked = coming.popleft()
        array = ray.get(asked)
        if is_copied:
            np.copyto(taken, array)
        del array, asked
        coming.append((actor, actor.give.remote(nbytes)))
        count += 1
    of_each = max(1, count) * nbytes / 1e9
    return (cpu_s() - cpu) / of_each, (time.process_time() - own) / of_each


def main(arguments: Sequence[str] | None = None) -> None:
    import ray

    options = parsed(__doc__, arguments, mib=[8, 16, 24, 32, 64], repeats=3, seconds=3.0)
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    actors = [ray.remote(num_cpus=0.1)(_Actor).remote() for _ in range(2)]
    runs = [(mib, is_copied) for mib in options.mib for is_copied in (True, False)]
    found: dict[tuple[int, bool], list[tuple[float, float]]] = {run: [] for run in runs}
    for turn in range(1 + options.repeats):  # one for memory that is used for the first time
        for mib, is_copied in runs:
            each = brought(actors, mib * 2**20, options.seconds, is_copied=is_copied)
            found[mib, is_copied] += [each] if turn else []
    for (mib, is_copied), seconds in found.items():
        every, own = (spread(values, ".2f") for values in zip(*seconds, strict=True))
        print(f"{mib:>4} MiB, {'copied' if is_copied else 'let go'}: {every} s of CPU a GB, the driver {own}")
    ray.shutdown()


if __name__ == "__main__":
    main()
