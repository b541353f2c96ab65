"""A network that is cut and heals: a node in a network namespace of its own, with an address of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import AddNoise, decode, write_files
from tests.waiting import until, until_all_run

pytestmark = pytest.mark.slow  # a minute: a cluster, and a cut that lasts longer than patience
STORE_NBYTES = 80 * 2**20


class Host:
    """A network namespace with a raylet in it, behind a cable that can be cut. number: of its subnet."""

    def __init__(self, number: int) -> None:
        self._name = f"dr{os.getpid()}n{number}"
        self._cable = f"{self._name}a"
        self.gateway = f"10.99.{(os.getpid() + number) % 250}.1"
        self.address = self.gateway[:-1] + "2"
        self._raylet: subprocess.Popen[bytes] | None = None
        ip("netns", "add", self._name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth", "netns", self._name)
        ip("addr", "add", f"{self.gateway}/24", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        ip("-n", self._name, "addr", "add", f"{self.address}/24", "dev", "eth")
        for device in ("eth", "lo"):
            ip("-n", self._name, "link", "set", device, "up")
        ip("-n", self._name, "route", "add", "default", "via", self.gateway)

    def start(self, head: str) -> None:
        command = f"start --address {head} --node-ip-address {self.address} --num-cpus 1 --block --disable-usage-stats"
        options = ["--resources", '{"host": 1}', "--object-store-memory", str(STORE_NBYTES)]
        self._raylet = subprocess.Popen(
            ["ip", "netns", "exec", self._name, str(Path(sys.executable).parent / "ray"), *command.split(), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cut(self) -> None:
        ip("link", "set", self._cable, "down")

    def heal(self) -> None:
        ip("link", "set", self._cable, "up")

    def close(self) -> None:
        if self._raylet is not None:
            os.killpg(self._raylet.pid, signal.SIGTERM)
            self._raylet.wait(60)
        subprocess.run(["ip", "netns", "del", self._name], check=False)


def ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with room for one actor, as the head has, where the driver is."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command here")
    try:
        host = Host(0)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    head = {"num_cpus": 1, "resources": {"host": 1}, "node_ip_address": host.gateway}
    cluster = Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": STORE_NBYTES})
    try:
        host.start(cluster.address)
        ray.init(cluster.address, log_to_driver=False, _node_ip_address=host.gateway)
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, 60)
        yield host
    finally:
        ray.shutdown()
        host.close()
        cluster.shutdown()


def rows(batches: Any) -> list[Any]:
    return [[batch.positions.tolist(), batch.columns["noise"].tobytes()] for batch in batches]


def test_a_host_that_is_cut_off_and_comes_back_changes_nothing(host: Host, tmp_path: Path) -> None:
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=12)
    source = ArrayRecordSourceModule(config, write_files(tmp_path, (60, 60)), transforms=[decode, AddNoise()])
    want = rows(source.batches(0, StreamOptions(8)))
    with RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 1}, chunk_size=20) as distributed:
        until_all_run(distributed)
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        assert {nodes[s["node_id"]] for s in distributed.stats().values()} == {host.address, host.gateway}
        stream = distributed.batches(0, StreamOptions(8))
        got = rows(itertools.islice(stream, 5))
        host.cut()
        begin = time.monotonic()
        got += rows(itertools.islice(stream, 60))
        waited = time.monotonic() - begin
        host.heal()
        until_all_run(distributed, 120)
        got += rows(stream)
        assert len(distributed.stats()) == 2
        assert sum(distributed.recoveries.counts.values()) == 1
        assert distributed.recoveries.num_retried > 1
    assert got == want
    assert waited < 30
