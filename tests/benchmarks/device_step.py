"""How much longer a train step on JAX's first device takes for being fed, and whether what it is fed is right.

    python -m tests.benchmarks.device_step [--kind jpeg] [--batch 256] [--step-ms 60] [--actors 8] [--seconds 15]

--kind: any of tests.benchmarks.data that is not stored in groups. --width: of the matrices.

The step multiplies matrices in bfloat16 for --step-ms, and makes a number of every byte of its batch and where it
stands. Pictures are cropped at random to 224 x 224 on the host. In turns: the step over one batch that lies on the
device already; fed with batches made ahead; and with none made ahead. The host is one step ahead of the device, as a
loop is that looks at its loss. The numbers of all batches are compared with those of a plain loop over raw reads.
--actors 0: without Ray. Where the device is the CPU, the step takes the cores that readers need: its times mean little.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray

from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests import oracle
from tests.benchmarks.data import KINDS, Kind, dataset, warm
from tests.benchmarks.options import CACHE_DIR, parsed, spread

SEED = 42
SIDE = 224
AHEAD = (2, 0)  # batches made ahead
_FACTOR = np.uint32(2654435761)  # odd: what stands elsewhere changes the number, which is exact modulo 2**32


class Crop:
    """A part of 224 x 224 of each picture."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        image = element["image"]
        top, left = (int(rng.integers(0, length - SIDE + 1)) for length in image.shape[:2])
        return {"image": image[top : top + SIDE, left : left + SIDE]}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parsed(
        __doc__, arguments, kind="jpeg", records=int, batch=256, step_ms=60.0, width=4096, actors=8, seconds=15.0,
        repeats=3, cache_dir=CACHE_DIR,
    )  # fmt: skip
    kind = KINDS[options.kind]
    paths = dataset(kind, options.records or kind.num_records, options.cache_dir)
    warm(paths)
    with contextlib.ExitStack() as stack:
        if options.actors:
            ray.init(address="local", num_cpus=options.actors + 1, include_dashboard=False, log_to_driver=False)
            stack.callback(ray.shutdown)
        return _measured(kind, paths, options)


def _measured(kind: Kind, paths: list[str], options: argparse.Namespace) -> dict[str, Any]:
    with _pipeline(kind, paths, options, 0) as pipeline:
        rows = pipeline.step()[kind.field]
    step = _Step(options.width, options.step_ms, rows)
    found: dict[str, Any] = {"device": jax.devices()[0].device_kind, "batch_nbytes": rows.nbytes, "runs": []}
    found["copy_s"] = _copy_s(np.asarray(rows))
    fed: list[list[int]] = []
    for _ in range(options.repeats):
        run = {"alone_s": step.timed(itertools.repeat(rows), options.seconds / 3)[0]}
        for ahead in AHEAD:
            with _pipeline(kind, paths, options, ahead) as pipeline:
                pipeline.step()  # the actors have started
                batches = (batch[kind.field] for batch in pipeline)
                run[f"fed_{ahead}_s"], run[f"waits_{ahead}"], numbers = step.timed(batches, options.seconds)
            fed.append(numbers)
        found["runs"].append(run)
    longest = max(fed, key=len)
    want = list(itertools.islice(_plain_loop(kind, paths, options.batch), 1, 1 + len(longest)))
    found["num_batches"] = sum(map(len, fed))
    found["num_wrong"] = sum(n != w for numbers in fed for n, w in zip(numbers, want, strict=False))
    _tell(options, found)
    return found


def _pipeline(kind: Kind, paths: list[str], options: argparse.Namespace, ahead: int) -> Pipeline:
    config = ArrayRecordSourceConfig(seed=SEED, shuffle_files=True, num_epochs=-1)
    transforms = [kind.decoder(), *([Crop()] if kind.name == "jpeg" else [])]
    source: Any = ArrayRecordSourceModule(config, paths, transforms=transforms)
    if options.actors:
        source = RaySource(source, num_actors=options.actors, num_cpus=1)
    return Pipeline(source=source, batch_size=options.batch, prefetch=ahead)


class _Step:
    """The step, and how often it multiplies to take so many milliseconds."""

    def __init__(self, width: int, step_ms: float, rows: jax.Array) -> None:
        self._weights = jax.random.normal(jax.random.key(0), (width, width), jnp.bfloat16)
        self._run = jax.jit(_step)
        self._products = 1
        self.timed([rows], 0)  # compiled
        while (took_s := self.timed([rows], 0)[0]) < step_ms / 2e3:
            self._products *= 2
        self._products = max(1, round(self._products * step_ms / 1e3 / took_s))

    def timed(self, batches: Iterable[jax.Array], seconds: float) -> tuple[float, float, list[int]]:
        """Seconds a step, the part of them in which the loop waited for its batch, and the number of each batch."""
        weights, numbers, waited_s = self._weights, [], 0.0
        stream = iter(batches)
        begin = time.perf_counter()
        while not numbers or time.perf_counter() < begin + seconds:
            asked = time.perf_counter()
            rows = next(stream)
            waited_s += time.perf_counter() - asked
            weights, number = self._run(weights, rows, self._products)
            numbers.append(number)
            jax.block_until_ready(numbers[-2:-1])
        jax.block_until_ready(weights)
        took = time.perf_counter() - begin
        return took / len(numbers), waited_s / took, [int(number) for number in numbers]


def _step(weights: jax.Array, rows: jax.Array, products: Any) -> tuple[jax.Array, jax.Array]:
    """(weights, the batch's number). The weights depend on it."""
    values = rows.reshape(-1).astype(jnp.uint32)
    number = (values * (jnp.arange(values.size, dtype=jnp.uint32) * _FACTOR + np.uint32(1))).sum(dtype=jnp.uint32)

    def product(_: int, held: jax.Array) -> jax.Array:
        held = held @ weights
        return held / (jnp.abs(held).max() + 1)

    start = weights + (number % 2).astype(weights.dtype)
    return jax.lax.fori_loop(0, products, product, start), number


def _plain_loop(kind: Kind, paths: list[str], batch_size: int) -> Iterator[int]:
    """The number of each batch, by NumPy, of raw reads in the order of Grain's shuffle."""
    transforms = [lambda record: {kind.field: kind.decode_row(record)}, *([Crop()] if kind.name == "jpeg" else [])]
    found = oracle.elements(oracle.stored(paths), seed=SEED, num_epochs=10**6, transforms=transforms, rng_seed=SEED)
    while rows := [element[kind.field] for _, element in itertools.islice(found, batch_size)]:
        values = np.stack(rows).reshape(-1).astype(np.uint32)
        factors = np.arange(values.size, dtype=np.uint32) * _FACTOR + np.uint32(1)
        yield int((values * factors).sum(dtype=np.uint32))


def _copy_s(rows: np.ndarray) -> float:
    """Seconds to copy a batch to the device, with nothing beside it."""
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        jax.block_until_ready(jax.device_put(rows.copy()))
        times.append(time.perf_counter() - begin)
    return median(times)


def _tell(options: argparse.Namespace, found: dict[str, Any]) -> None:
    def told(name: str, scale: float) -> str:
        return spread([scale * run[name] for run in found["runs"]], ".1f")

    print(
        f"{found['device']}, {options.actors} actors, {options.kind}, batches of {options.batch}, "
        f"{found['batch_nbytes'] / 1e6:.1f} MB, {1e3 * found['copy_s']:.1f} ms to copy one by itself"
    )
    print(f"the step alone: {told('alone_s', 1e3)} ms")
    for ahead in AHEAD:
        print(f"{ahead} ahead: {told(f'fed_{ahead}_s', 1e3)} ms, waits {told(f'waits_{ahead}', 100)} %")
    print(f"{found['num_wrong']} of {found['num_batches']} batches differ from the plain loop's")


if __name__ == "__main__":
    main()
