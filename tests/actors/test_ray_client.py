"""A trainer outside the cluster, by Ray Client: the same stream, through a killed actor and a resume."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ray.cluster_utils import Cluster

from datarax_ray import Pipeline
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.clusters import BARE
from tests.data import decode, write_files
from tests.ports import free_port

BATCH, BEFORE, KILLED = 32, 10, 3

TRAINER = f"""
import hashlib, json, os, signal, sys
import ray
from datarax_ray import Pipeline, RaySource
from tests.actors.test_ray_client import BATCH, make, told
from tests.waiting import until

for _ in range(5):
    try:  # Ray has a proxy some time after its head, and for each client a server, which may die as it starts
        ray.init(sys.argv[1])
        break
    except ConnectionError as error:
        print(error)
assert ray.util.client.ray.is_connected()
digest = hashlib.sha256()
with RaySource(make(sys.argv[2:]), num_actors=2, num_cpus=0.5, chunk_size=16, max_nbytes=2**12) as source:
    with Pipeline(source=source, batch_size=BATCH) as pipeline:
        for step in range({BEFORE}):
            if step == {KILLED}:
                os.kill(source.stats()[0]["pid"], signal.SIGKILL)
            told(digest, pipeline.step())
        state = json.dumps(pipeline.get_state())
        until(lambda: source._actors.actors() and source.recoveries.num_lost, 60)  # others may have read for it by now
    print("lost", source.recoveries.num_lost)
with RaySource(make(sys.argv[2:]), num_actors=3, num_cpus=0.5) as source:
    with Pipeline(source=source, batch_size=BATCH) as pipeline:
        pipeline.set_state(json.loads(state))
        for batch in pipeline:
            told(digest, batch)
print("digest", digest.hexdigest())
"""


def make(paths):
    return ArrayRecordSourceModule(
        ArrayRecordSourceConfig(shuffle_files=True, seed=5, num_epochs=2), paths, transforms=[decode]
    )


def told(digest, batch):
    digest.update(repr({key: np.asarray(column).tolist() for key, column in sorted(batch.items())}).encode())


@pytest.fixture(scope="module")
def address():
    port = free_port()
    # With it, a server that the proxy forks may end by a segmentation fault in gRPC, and the client waits 30 s.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    head = {"num_cpus": 4, "object_store_memory": 80 * 2**20, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head | BARE)
    yield f"ray://127.0.0.1:{port}"
    cluster.shutdown()
    del os.environ["GRPC_ENABLE_FORK_SUPPORT"]


@pytest.mark.slow  # a head with a proxy, which forks a server for each client
def test_a_trainer_that_ray_client_connects_has_the_stream_through_a_kill_and_a_resume(tmp_path, address):
    paths = [str(path) for path in write_files(tmp_path, [300, 200])]
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, address, *paths],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256()
    with Pipeline(source=make(paths), batch_size=BATCH) as alone:
        for batch in alone:
            told(digest, batch)
    assert f"digest {digest.hexdigest()}" in done.stdout
    assert "lost 1" in done.stdout
