"""Two real JAX processes share each batch: their rows, joined by rank, are the batch of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import AddNoise, decode

ROOT = Path(__file__).parents[2]
BATCH_SIZE = 16


def make(directory: Path, **options: object) -> Pipeline:
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=2)
    source = ArrayRecordSourceModule(config, directory, transforms=[decode, AddNoise()])
    return Pipeline(source=source, stages=[add_uniform], batch_size=BATCH_SIZE, rngs=nnx.Rngs(0), **options)  # type: ignore[arg-type]


def add_uniform(batch: dict, keys: jax.Array) -> dict:
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


def rows(batch: dict) -> dict:
    """What this process holds of a batch, as plain lists."""
    local = {}
    for key in ("index", "noise", "uniform", "values"):
        shards = sorted(batch[key].addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local[key] = np.concatenate([np.asarray(shard.data) for shard in shards]).tolist()
    return local | {"name": batch["name"].tolist()}


def train(process_index: int, port: int, directory: str, out: str) -> None:
    """What one of the processes runs."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process_index)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None))
    with make(Path(directory), sharding=sharding) as pipeline:
        batches = []
        for batch in pipeline:
            assert batch["values"].shape == (BATCH_SIZE, 5)
            batches.append(rows(batch))
        Path(out).write_text(json.dumps([batches, pipeline.get_state()]))


def test_rows_of_two_processes_joined_by_rank_are_the_batch(files: list[Path], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": str(ROOT)}
    trainers = []
    for rank in range(2):
        code = f"from tests.pipeline.test_two_processes import train; train({rank}, {port}, {str(files[0].parent)!r}, "
        code += f"{str(tmp_path / f'{rank}.json')!r})"
        trainers.append(subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True))
    for trainer in trainers:
        _, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, errors[-3000:]
    (left, left_state), (right, right_state) = (json.loads((tmp_path / f"{r}.json").read_text()) for r in range(2))
    assert left_state == right_state
    want = [rows(batch) for batch in make(files[0].parent)]
    assert [{key: a[key] + b[key] for key in a} for a, b in zip(left, right, strict=True)] == want
