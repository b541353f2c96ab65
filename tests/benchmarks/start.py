"""How long the first batch takes, over many small files, at the first position and far behind it.

    python -m tests.benchmarks.start [--files 1000] [--records 1000000] [--actors 0,2] [--repeats 5]

writes that many records of 64 bytes, and takes a Pipeline's first batch of them, shuffled, in a process of its own for
each run: from the import of this package on, behind those of JAX, Flax and Ray, and ray.init (0 actors: without Ray).
Runs take turns: a start over these files at the first position, and one that goes on from position 10**12.
CPU seconds are those of the process itself, and of all that Ray started as well. --settle: seconds until times of
change say enough.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.competitors import cpu_s
from tests.benchmarks.one import answer, answer_of
from tests.benchmarks.options import parsed, spread
from tests.benchmarks.small_files import write

_BATCH, _FAR = 1024, 10**12
PARTS = ("import", "source", "pipeline", "first batch")
STARTS = (("a start", 0), (f"a start at {_FAR:,}", _FAR))


def first_batch(folder: str, num_actors: int, position: int) -> dict[str, float]:
    """Seconds from the package's import to the first batch on the device, and of each part; CPU seconds of all
    processes, and of these the process' own.
    """
    import flax.nnx  # noqa: F401 - as users do before
    import jax

    jax.block_until_ready(jax.device_put(0))
    if num_actors:
        import ray

        ray.init(address="local", num_cpus=num_actors + 2, include_dashboard=False, log_to_driver=False)
    times, cpu_before, own_before = [time.perf_counter()], cpu_s(), time.process_time()
    from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeRaw, Pipeline

    times.append(time.perf_counter())
    config = ArrayRecordSourceConfig(shuffle=True, num_epochs=-1)
    source: Any = ArrayRecordSourceModule(config, folder, transforms=[DecodeRaw("uint8", (64,), "x")])
    times.append(time.perf_counter())
    if num_actors:
        from datarax_ray import RaySource

        source = RaySource(source, num_actors=num_actors, num_cpus=0.5)
    pipeline = Pipeline(source=source, batch_size=_BATCH)
    pipeline.seek(position)
    times.append(time.perf_counter())
    batch = next(iter(pipeline))
    times.append(time.perf_counter())
    found = dict(zip(PARTS, (later - earlier for earlier, later in itertools.pairwise(times)), strict=True))
    found |= {"seconds": times[-1] - times[0], "own_cpu_s": time.process_time() - own_before}
    found |= {"cpu_s": cpu_s() - cpu_before, "records": len(batch["x"])}
    pipeline.close()
    return found


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A line for each number of actors and kind of start."""
    options = parsed(__doc__, arguments, files=1000, records=1_000_000, actors=[0, 2], repeats=5, settle=11.0)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "files"
        write(folder, options.files, options.records)
        time.sleep(options.settle)
        for num_actors in options.actors:
            found: list[list[dict[str, float]]] = [[] for _ in STARTS]
            for _ in range(options.repeats):
                for runs, (_, position) in zip(found, STARTS, strict=True):
                    runs.append(answer_of(["-m", "tests.benchmarks.start"], [str(folder), num_actors, position]))
            for runs, (what, _) in zip(found, STARTS, strict=True):
                middle = {name: median(run[name] for run in runs) for name in runs[0]}
                lines.append({"actors": num_actors, "what": what} | middle)
                seconds = spread([run["seconds"] for run in runs], ".2f")
                print(
                    f"{f'{num_actors} actors' if num_actors else 'one process'}, {what}: {seconds} s, "
                    f"{middle['cpu_s']:.2f} s of CPU, "
                    f"{middle['own_cpu_s']:.2f} of them in the program itself; "
                    + ", ".join(f"{part} {middle[part]:.2f} s" for part in PARTS),
                    flush=True,
                )
    return lines


if __name__ == "__main__":
    answer(first_batch) or main()
