"""What each process of a JAX job does in test_meshes: the same streams on many meshes, and what it holds of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import ray
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax_ray import ConcatThenSplit, FirstFitPack, LengthBatches, Pipeline, RaySource
from datarax_ray.sources import (
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import Squares
from tests.pipeline.mesh_transforms import SEQ_LEN, DropFifths, Noise, Twice, document, tokens

BATCH_SIZE = 16

# Of 8 devices in the order of jax.devices(), which is by process: how they stand in the mesh, its axes, and the spec.
MESHES: dict[str, tuple[Any, tuple[int, ...], tuple[str, ...], P]] = {
    "plain": (range(8), (8,), ("data",), P("data")),
    "reversed": (range(7, -1, -1), (8,), ("data",), P("data")),
    "interleaved": ((0, 4, 1, 5, 2, 6, 3, 7), (8,), ("data",), P("data")),
    "data and fsdp": (range(8), (2, 4), ("data", "fsdp"), P(("data", "fsdp"))),
    "fsdp and data": (range(8), (2, 4), ("data", "fsdp"), P(("fsdp", "data"))),
    "model across hosts": ((0, 4, 1, 5, 2, 6, 3, 7), (4, 2), ("data", "model"), P("data")),
    "model inside hosts": (range(8), (4, 2), ("data", "model"), P("data", None)),
    "replicated": (range(8), (8,), ("data",), P()),
    "data x seq": (range(8), (2, 4), ("data", "seq"), P("data", "seq")),
    "data x seq across hosts": (range(8), (2, 4), ("seq", "data"), P("data", "seq")),
    "seq alone": (range(8), (8,), ("seq",), P(None, "seq")),
    "fsdp x data x model": ((0, 4, 2, 6, 1, 5, 3, 7), (2, 2, 2), ("fsdp", "data", "model"), P(("data", "fsdp"))),
}
# Rows apart from each other, and the same ones in both processes.
FEW = ("interleaved", "model across hosts")
# Streams of every kind, and the meshes that each goes through, from one to the next.
STREAMS = {
    "records": tuple(MESHES),
    "behind a filter": ("interleaved", "model across hosts", "data x seq across hosts", "fsdp and data"),
    "flat_map": ("reversed", "model across hosts"),
    "short at the end": FEW,
    "short at the end, behind a filter": FEW,
    "padded": FEW,
    "concat then split": ("interleaved", "data x seq across hosts"),
    "first fit": ("interleaved", "replicated"),
    "by length": FEW,
    "mixture": ("fsdp and data", "model across hosts"),
    "stream of shards": FEW,
}


SCANNED = {"records": ("interleaved", "model across hosts"), "behind a filter": ("data x seq across hosts",)}


class Run(NamedTuple):
    """The batches on one mesh from number `skipped` on, what a scan over the first of them counted, the last state."""

    mesh: str
    skipped: int
    batches: list[dict[str, Any]]
    counted: int | None
    state: str


def sharding_of(name: str) -> NamedSharding:
    order, shape, axes, spec = MESHES[name]
    return NamedSharding(Mesh(np.array(jax.devices())[list(order)].reshape(shape), axes), spec)


def records(n: int, *transforms: Any, seed: int = 42, num_epochs: int = 2) -> RandomAccessSource:
    config = RandomAccessSourceConfig(seed=seed, shuffle=True, num_epochs=num_epochs)
    return RandomAccessSource(config, Squares(n), transforms=transforms)


def source_of(stream: str, directory: str) -> Any:
    if stream == "behind a filter":
        return records(100, tokens, DropFifths(), Noise())  # 160 rows
    if stream == "flat_map":
        return records(96, Twice(), tokens, Noise())
    if stream == "short at the end":
        return records(76, tokens, Noise())  # 152 rows
    if stream == "short at the end, behind a filter":
        return records(85, tokens, DropFifths(), Noise())  # 136 rows
    if stream == "padded":
        return records(75, tokens, DropFifths(), Noise())  # 120 rows
    if stream in ("concat then split", "first fit", "by length"):
        return records(150, document)
    if stream == "mixture":
        both = [records(n, tokens, Noise(), seed=n, num_epochs=-1) for n in (70, 50)]
        return MixtureSource(both, weights=[0.7, 0.3], length=128)
    if stream == "stream of shards":
        files = sorted(str(path) for path in Path(directory).glob("*.jsonl"))
        kept: dict[str, Any] = {"download_kwargs": {"data_files": files}, "turn_size": 3, "shuffle_buffer_size": 8}
        config = HFStreamingConfig(name="json", split="train", streaming=True, shuffle=True, num_epochs=2, **kept)
        return HFStreamingSource(config, transforms=[tokens, Noise()])
    return records(72, tokens, Noise())  # 144 rows


def add_uniform(batch: dict[str, Any], keys: jax.Array) -> dict[str, Any]:
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


def pipeline(stream: str, source: Any, **options: Any) -> Pipeline:
    packings = {
        "concat then split": ConcatThenSplit(SEQ_LEN),
        "first fit": FirstFitPack(SEQ_LEN),
        "by length": LengthBatches(boundaries=(3, 5, 8), num_batches=3),
    }
    is_padded = stream == "padded"
    return Pipeline(
        source=source,
        stages=[add_uniform],
        batch_size=BATCH_SIZE,
        rngs=nnx.Rngs(0),
        packing=packings.get(stream),
        drop_remainder=not is_padded and "short" not in stream,
        pad_remainder=is_padded,
        **options,
    )


def held(batch: dict[str, Any]) -> dict[str, Any]:
    """What this process holds of a batch: of each array (index, rows) of its shards, and the global shape."""
    out: dict[str, Any] = {}
    for name, array in batch.items():
        if isinstance(array, jax.Array):
            shards = [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]
            out[name] = (array.shape, shards)
        else:
            out[name] = array
    return out


def count(carry: jax.Array, batch: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
    """A step that sums over the rows of all processes, and gives back its batch."""
    return carry + batch["index"].sum(), batch


def scanned(made: Pipeline, length: int) -> tuple[list[dict[str, Any]], int]:
    """What this process holds of so many batches that a scan went over, and what it counted."""
    counted, outs = made.scan(count, length=length, init_carry=jax.numpy.int32(0))
    batches: list[dict[str, Any]] = [{} for _ in range(length)]
    for name, array in outs.items():
        for number, batch in enumerate(batches):
            shards = [(shard.index[1:], np.asarray(shard.data)[number]) for shard in array.addressable_shards]
            batch[name] = (array.shape[1:], shards)
    return batches, int(counted.addressable_shards[0].data)


def run(stream: str, meshes: tuple[str, ...], source: Any) -> list[Run]:
    """The stream on each mesh; each but the first begins at a state of the one before, so a state goes from one to the
    next, and goes on after a scan over some batches.
    """
    out, skipped, saved, rng = [], 0, "", np.random.default_rng(len(stream))
    for mesh in meshes:
        made = pipeline(stream, source, sharding=sharding_of(mesh))
        if saved:
            made.set_state(json.loads(saved))
        batches, counted = scanned(made, 3) if mesh in SCANNED.get(stream, ()) else ([], None)
        states = [json.dumps(made.get_state())]
        for batch in made:
            batches.append(held(batch))
            states.append(json.dumps(made.get_state()))
        out.append(Run(mesh, skipped, batches, counted, json.dumps(made.get_state())))
        number = int(rng.integers(3)) if skipped < 3 else 0
        skipped, saved = skipped + len(batches) - len(states) + 1 + number, states[number]
        if skipped > 4:
            skipped, saved = 0, ""
    return out


def check_refused_where_the_mesh_has_no_device() -> None:
    devices = [device for device in jax.devices() if device.process_index == 0]
    if jax.process_index() != 0:
        with pytest.raises(ValueError, match=r"has no device of this process"):
            pipeline("records", records(72), sharding=NamedSharding(Mesh(np.array(devices), "data"), P("data")))


def main(process_index: int, num_processes: int, port: int, directory: str, out: str, ray_address: str) -> None:
    """ray_address: of a cluster whose actors the processes share; "" to read in each of them."""
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process_index)
    check_refused_where_the_mesh_has_no_device()
    streams = STREAMS
    if num_processes > 2:
        streams = dict.fromkeys(("records", "behind a filter"), tuple(MESHES))
    if ray_address:
        ray.init(ray_address, namespace="job", log_to_driver=False)
        streams = {"records": FEW[:1], "behind a filter": FEW, "concat then split": FEW[1:], "by length": FEW}
    report = {}
    for stream, meshes in streams.items():
        source = source_of(stream, directory)
        if ray_address:
            source = RaySource(source, num_actors=2, num_cpus=0.5, name=stream, chunk_size=16)
        report[stream] = run(stream, meshes, source)
        source.close()
    Path(out).write_bytes(pickle.dumps(report))
