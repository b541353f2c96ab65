"""A network that is cut and heals: nodes in network namespaces of their own, each with an address of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.clusters import BARE
from tests.data import AddNoise, decode, write_files
from tests.waiting import until, until_all_run

pytestmark = pytest.mark.slow  # a minute: a cluster, and cuts that last longer than patience
STORE_NBYTES = 80 * 2**20


# Ray calls a node dead after a dozen checks of a second or two without an answer; before that, nothing of it is lost.
PATIENCE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 12,
}


class Switch:
    """What all cables end in; the driver and the head of the cluster sit at it."""

    def __init__(self):
        self.name = f"dr{os.getpid()}s"
        self._subnet = f"10.99.{os.getpid() % 250}"
        self.address = f"{self._subnet}.1"
        ip("link", "add", self.name, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self.name)
        ip("link", "set", self.name, "up")

    def address_of(self, number):
        return f"{self._subnet}.{number + 2}"

    def close(self):
        ip("link", "del", self.name)


class Host:
    """A network namespace with an address and a raylet of its own, at the end of a cable that can be cut."""

    def __init__(self, switch, number):
        self._name = f"dr{os.getpid()}n{number}"
        self._cable = f"{self._name}a"
        self.address = switch.address_of(number)
        self._raylet: subprocess.Popen[bytes] | None = None
        ip("netns", "add", self._name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth", "netns", self._name)
        ip("link", "set", self._cable, "master", switch.name, "up")
        ip("-n", self._name, "addr", "add", f"{self.address}/24", "dev", "eth")
        for device in ("eth", "lo"):
            ip("-n", self._name, "link", "set", device, "up")
        ip("-n", self._name, "route", "add", "default", "via", switch.address)

    def start(self, head):
        command = f"start --address {head} --node-ip-address {self.address} --num-cpus 1 --block --disable-usage-stats"
        options = ["--resources", '{"host": 1}', "--object-store-memory", str(STORE_NBYTES)]
        self._raylet = subprocess.Popen(
            ["ip", "netns", "exec", self._name, str(Path(sys.executable).parent / "ray"), *command.split(), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cut(self):
        ip("link", "set", self._cable, "down")

    def heal(self):
        ip("link", "set", self._cable, "up")

    def wait(self):
        assert self._raylet is not None
        self._raylet.wait(60)

    def stop(self):
        if self._raylet is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._raylet.pid, signal.SIGTERM)
            self._raylet.wait(60)

    def close(self):
        subprocess.run(["ip", "netns", "del", self._name], check=False)


def ip(*command):
    subprocess.run(["ip", *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def network(by_value):
    """The head's address, and two hosts with room for one actor each; there is none where the driver is."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command here")
    with contextlib.ExitStack() as stack:
        hosts = []
        try:
            switch = Switch()
            stack.callback(switch.close)
            for number in range(2):
                hosts.append(Host(switch, number))
                stack.callback(hosts[-1].close)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        head = {"num_cpus": 1, "node_ip_address": switch.address, "object_store_memory": STORE_NBYTES}
        head |= {"_system_config": PATIENCE} | BARE
        cluster = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(cluster.shutdown)
        ray.init(cluster.address, log_to_driver=False, _node_ip_address=switch.address)
        stack.callback(ray.shutdown)
        for host in hosts:  # one by one: they share a file system, where Ray has names for sockets
            host.start(cluster.address)
            stack.callback(host.stop)
            until(lambda host=host: host.address in alive(), 60)
        yield cluster.address, hosts


def alive():
    """The addresses of the nodes that Ray believes to be there."""
    return [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]


def make(directory):
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=20)
    return ArrayRecordSourceModule(config, write_files(directory, (60, 60)), transforms=[decode, AddNoise()])


def distribute(source):
    return RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 1}, chunk_size=20)


def places(source):
    """Address to id and process of the actor there."""
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return {nodes[stats["node_id"]]: (index, stats["pid"]) for index, stats in source.stats().items()}


def rows(batches):
    return [[batch.positions.tolist(), batch.columns["noise"].tobytes()] for batch in batches]


def test_cuts_shorter_than_rays_patience_heal_and_nothing_is_started_again(network, tmp_path):
    _, hosts = network
    source = make(tmp_path)
    want = rows(source.batches(0, StreamOptions(8)))
    with distribute(source) as distributed:
        until_all_run(distributed)
        before = places(distributed)
        assert set(before) == {host.address for host in hosts}
        stream = distributed.batches(0, StreamOptions(8))
        got = rows(itertools.islice(stream, 5))
        for host in hosts:
            host.cut()
            got += rows(itertools.islice(stream, 60))
            assert host.address in alive()  # Ray has not given it up: others have read for it
            host.heal()
            until_all_run(distributed)
            assert set(distributed.recoveries.counts) <= {"answered"}  # or others have read the parts before it was due
        got += rows(stream)
        assert places(distributed) == before
    assert got == want


def test_a_host_that_ray_has_given_up_is_done_without_until_it_joins_again(network, tmp_path):
    head, hosts = network
    source = make(tmp_path)
    want = rows(source.batches(0, StreamOptions(8)))
    with distribute(source) as distributed:
        until_all_run(distributed)
        before = places(distributed)
        stream = distributed.batches(0, StreamOptions(8))
        got = rows(itertools.islice(stream, 5))
        hosts[1].cut()
        got += rows(itertools.islice(stream, 60))
        until(lambda: hosts[1].address not in alive(), 60)
        got += rows(itertools.islice(stream, 60))
        hosts[1].heal()
        hosts[1].wait()  # its raylet hears that it is dead, and ends; a cloud starts the next one
        hosts[1].start(head)
        until_all_run(distributed, 60)
        got += rows(stream)
        after = places(distributed)
        (recovery,) = distributed.recoveries.last
    assert got == want
    assert set(after) == set(before)
    assert after[hosts[0].address] == before[hosts[0].address]
    assert recovery.actor == before[hosts[1].address][0]
    assert recovery.kind == "restarted"
