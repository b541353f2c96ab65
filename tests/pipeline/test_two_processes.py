"""Two real JAX processes share each batch: their rows, joined by rank, are the batch of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import ray
from flax import nnx
from ray.cluster_utils import Cluster

from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import AddNoise, DropThirds, decode

ROOT = Path(__file__).parents[2]
BATCH_SIZE = 16


def source_of(directory: Path, *filters: Any) -> ArrayRecordSourceModule:
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=2)
    return ArrayRecordSourceModule(config, directory, transforms=[decode, AddNoise(), *filters])


def pipeline(source: Any, **options: Any) -> Pipeline:
    return Pipeline(source=source, stages=[add_uniform], batch_size=BATCH_SIZE, rngs=nnx.Rngs(0), **options)


def add_uniform(batch: dict, keys: jax.Array) -> dict:
    return batch | {"uniform": jax.vmap(jax.random.uniform)(keys)}


def rows(batch: dict) -> dict:
    """What this process holds of a batch, as plain lists."""
    local = {}
    for key in ("index", "noise", "uniform", "values"):
        shards = sorted(batch[key].addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local[key] = np.concatenate([np.asarray(shard.data) for shard in shards]).tolist()
    return local | {"name": batch["name"].tolist()}


def train(process_index: int, port: int, directory: str, out: str, ray_address: str) -> None:
    """What one of the processes runs. ray_address: of a cluster whose actors they share, behind a filter; or ""."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process_index)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None))
    source: Any = source_of(Path(directory))
    if ray_address:
        ray.init(ray_address, namespace="job", log_to_driver=False)
        behind_a_filter = source_of(Path(directory), DropThirds())
        source = RaySource(behind_a_filter, num_actors=2, num_cpus=0.5, name="train", chunk_size=16)
    with pipeline(source, sharding=sharding, drop_remainder=True) as made:
        batches = []
        for batch in made:
            assert batch["values"].shape == (BATCH_SIZE, 5)
            batches.append(rows(batch))
        Path(out).write_text(json.dumps([batches, made.get_state()]))


def trained(directory: Path, scratch: Path, ray_address: str = "") -> list[tuple[list[dict], dict]]:
    """The batches and the last state of each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": str(ROOT)}
    outs = [scratch / f"{rank}.json" for rank in range(2)]
    trainers = []
    for rank, out in enumerate(outs):
        given = f"{rank}, {port}, {str(directory)!r}, {str(out)!r}, {ray_address!r}"
        code = f"from tests.pipeline.test_two_processes import train; train({given})"
        trainers.append(subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True))
    for trainer in trainers:
        _, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, errors[-3000:]
    return [tuple(json.loads(out.read_text())) for out in outs]


def test_rows_of_two_processes_joined_by_rank_are_the_batch(files: list[Path], tmp_path: Path) -> None:
    (left, left_state), (right, right_state) = trained(files[0].parent, tmp_path)
    assert left_state == right_state
    want = [rows(batch) for batch in pipeline(source_of(files[0].parent))]
    assert joined(left, right) == want


def test_two_processes_that_share_ray_actors_behind_a_filter_have_their_rows_too(
    files: list[Path], tmp_path: Path
) -> None:
    directory = files[0].parent
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80 * 2**20})
    try:
        (left, left_state), (right, right_state) = trained(directory, tmp_path, cluster.address)
    finally:
        cluster.shutdown()
    assert left_state == right_state
    want = [rows(batch) for batch in pipeline(source_of(directory, DropThirds()), drop_remainder=True)]
    assert joined(left, right) == want


def joined(left: list[dict], right: list[dict]) -> list[dict]:
    return [{key: a[key] + b[key] for key in a} for a, b in zip(left, right, strict=True)]
