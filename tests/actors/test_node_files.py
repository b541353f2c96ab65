"""Files that lie on some nodes alone: two nodes, each with a disk of its own at one path, and a driver with neither.

And a mount that one of the two does not see, where the driver and the other one do.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from datarax_ray import RaySource, files_on_nodes
from datarax_ray.cli import pool as pool_command
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from datarax_ray.write.formats import ArrayRecordFormat
from datarax_ray.write.shards import write_dataset
from tests.cli.screens import answer, screen
from tests.clusters import BARE, looks_often
from tests.data import AddNoise, DropThirds, FailAt, decode, write_files
from tests.waiting import until, until_all_run

STORE_NBYTES = 80 * 2**20
# of each file: its records, and which of the two nodes have it
FILES = ((70, "a"), (50, "b"), (40, "ab"), (90, "a"), (60, "b"))


@dataclass
class Disks:
    """mount: where both nodes have their disk. whole: all files in one directory. raylets: of the nodes a and b.

    shared: a directory that the node b does not see. blind: the id of that node.
    """

    mount: Path
    whole: Path
    raylets: dict[str, subprocess.Popen[bytes]]
    shared: Path
    blind: str


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    root = tmp_path_factory.mktemp("disks")
    for name in ("mount", "whole", "a", "b", "shared", "nothing"):
        (root / name).mkdir()
    for path, (_, nodes) in zip(write_files(root / "whole", [count for count, _ in FILES]), FILES, strict=True):
        for node in nodes:
            shutil.copy(path, root / node)
    mounted = f'mount --bind "$0" {root / "mount"} && mount --bind "$1" {root / "shared"} && shift && exec "$@"'
    covered = ["unshare", "--mount", "sh", "-c", mounted]
    if subprocess.run([*covered, root / "a", root / "shared", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    with contextlib.ExitStack() as stack:
        head = {"num_cpus": 0, "object_store_memory": STORE_NBYTES} | BARE | looks_often()
        cluster = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(cluster.shutdown)
        ray.init(cluster.address, log_to_driver=False, namespace="disks")
        stack.callback(ray.shutdown)
        command = f"start --address {cluster.address} --num-cpus 2 --block --disable-usage-stats".split()
        command += ["--object-store-memory", str(STORE_NBYTES), "--resources", '{"host": 1}']
        raylets = {}
        nodes = []
        for number, (name, shared) in enumerate((("a", "shared"), ("b", "nothing")), 2):
            raylets[name] = subprocess.Popen(
                [*covered, root / name, root / shared, Path(sys.executable).parent / "ray", *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(raylets[name].wait, 60)
            stack.callback(end, raylets[name])
            # one after the other: two that start at once on one machine take each other's ports
            until(lambda number=number: sum(node["Alive"] for node in ray.nodes()) == number, 120)
            nodes += {node["NodeID"] for node in ray.nodes()}.difference(nodes)  # the first time the head's too
        yield Disks(root / "mount", root / "whole", raylets, root / "shared", nodes[-1])


def end(raylet):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(raylet.pid, signal.SIGKILL)


def make(paths, *transforms, **config):
    options = {"shuffle": True, "num_epochs": 3} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), paths, transforms=[decode, *transforms])


def on_nodes(source, num_actors=4, **options):
    return RaySource(source, num_actors=num_actors, num_cpus=0.1, **options)


def told(batches):
    return [(batch.positions.tolist(), batch.columns["noise"].tobytes()) for batch in batches]


@pytest.mark.parametrize(
    "config",
    [
        {"shuffle_block_size": "auto"},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"shuffle": False})),
    ],
)
def test_the_stream_and_its_state_are_those_of_one_directory(disks, config):
    files = files_on_nodes(disks.mount)
    assert list(disks.mount.iterdir()) == []  # the driver has none of them
    together, apart = (
        make(disks.whole, AddNoise(), DropThirds(), **config),
        make(files, AddNoise(), DropThirds(), **config),
    )
    want = told(together.batches(0, StreamOptions(32)))
    with on_nodes(apart, 3) as source:
        assert told(source.batches(0, StreamOptions(32))) == want
        first = [source.get_batch(32) for _ in range(4)]
        together.set_state(source.get_state())
        second = [together.get_batch(32)["index"].tolist() for _ in range(3)]
        source.set_state(together.get_state())
        third = source.get_batch(32)
    alone = make(disks.whole, AddNoise(), DropThirds(), **config)
    line = [alone.get_batch(32)["index"].tolist() for _ in range(8)]
    assert [batch["index"].tolist() for batch in first] + second + [third["index"].tolist()] == line


def test_trainers_that_share_actors_one_of_which_is_killed_have_its_rows(disks):
    want = told(make(disks.whole, AddNoise(), DropThirds()).batches(0, StreamOptions(32)))
    source = make(files_on_nodes([disks.mount / "*"]), AddNoise(), DropThirds())
    with (
        on_nodes(source, name="disks", chunk_size=64) as first,
        on_nodes(source, name="disks", chunk_size=64) as second,
    ):
        until_all_run(first)
        assert len({stats["node_id"] for stats in first.stats().values()}) == 2
        streams = [
            each.batches(0, StreamOptions(32, process_index=rank, process_count=2))
            for rank, each in enumerate((first, second))
        ]
        got = [told(itertools.islice(stream, 3)) for stream in streams]
        os.kill(first.stats()[0]["pid"], signal.SIGKILL)
        for found, stream in zip(got, streams, strict=True):
            found += told(stream)
    both = [(one[0] + two[0], one[1] + two[1]) for one, two in zip(*got, strict=True)]
    assert both == want


def test_too_few_actors_and_relative_paths_are_refused(disks):
    files = files_on_nodes(disks.mount)
    with pytest.raises(ValueError, match="num_actors=1, and the files lie on 2 nodes, .* give at least 2"):
        on_nodes(make(files), 1)
    with on_nodes(make(files), 3) as source:
        source.remove_actors(1)
        with pytest.raises(ValueError, match="removing 1 of 2 actors would leave some of the 2 nodes that have the"):
            source.remove_actors(1)
        address = ray.get_runtime_context().gcs_address
        shown = screen()

        def is_listed():
            pool_command.list_pools(None, address, shown)
            return source.pool_name in answer(shown)

        until(is_listed)
        with pytest.raises(ValueError, match="cannot read with 1: its files are on 2 nodes"):
            pool_command.resize(source.pool_name, 1, address, shown)
        pool_command.resize(source.pool_name, 3, address, shown)
        assert source.num_actors == 3
    with pytest.raises(ValueError, match="data is relative to nothing there; files of nodes are named by absolute"):
        files_on_nodes("data")
    with pytest.raises(FileNotFoundError, match="no node has a record"):
        files_on_nodes(disks.mount / "none*")
    with pytest.raises(ValueError, match="on some nodes alone .*: give the source to a RaySource"):
        make(files_on_nodes(disks.mount)).get_batch(4)


def told_with_skips(batches):
    return [
        (batch.positions.tolist(), batch.columns["noise"].tobytes(), [skip.position for skip in batch.skipped])
        for batch in batches
    ]


def check(source, blind, caplog):
    """The stream is that of one process, and the node that does not see all of the data was benched, and named."""
    want = told_with_skips(source.batches(0, StreamOptions(8)))
    with RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 1}, chunk_size=20) as distributed:
        until_all_run(distributed)
        before = distributed.stats()
        (blind_actor,) = [index for index, stats in before.items() if stats["node_id"] == blind]
        for _ in range(5):  # on a busy machine the other node may have read all by then
            assert told_with_skips(distributed.batches(0, StreamOptions(8))) == want
            if distributed.recoveries.counts["benched"]:
                break
        assert distributed.recoveries.counts["benched"] == 1
        (recovery,) = [last for last in distributed.recoveries.last if last.kind == "benched"]
        assert recovery.actor == blind_actor
        assert blind[:12] in recovery.where
        assert "shared" in recovery.reason
        assert {index: stats["pid"] for index, stats in distributed.stats().items()} == {
            index: stats["pid"] for index, stats in before.items()
        }
    assert f"node {blind[:12]}" in caplog.text
    assert caplog.text.count("is benched for") == 1


class Slowly:
    """Half a millisecond for each element: a stream that must not end in the meantime needs no CPU for that."""

    def map(self, element):
        time.sleep(0.0005)
        return element


class NeedsFile:
    """Reads a file beside the records, for each of them."""

    def __init__(self, path):
        self.path = path

    def map(self, element):
        return element | {"beside": len(self.path.read_bytes())}


def test_records_that_only_one_node_cannot_read_are_never_left_out(disks, tmp_path, caplog):
    (disks.shared / "beside").write_bytes(b"12345")
    transforms = [NeedsFile(disks.shared / "beside"), FailAt(17), FailAt(71), AddNoise()]
    check(make(write_files(tmp_path, (40, 60)), *transforms, on_error="skip"), disks.blind, caplog)


class SlowShards:
    """Of shards that take so long that both hosts have some."""

    def __call__(self, start, stop):
        time.sleep(0.3)
        yield from (b"%d" % index for index in range(start, stop))


@pytest.mark.slow
def test_what_a_host_without_the_mount_cannot_write_another_one_does(disks, caplog):
    def write(folder, num_actors):
        given = {"made_from": {}, "num_shards": 20, "num_actors": num_actors}
        write_dataset(SlowShards(), 100, folder, ArrayRecordFormat(1), **given)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    with caplog.at_level(logging.WARNING, "datarax_ray"):
        found = write(disks.shared / "a", 3)
    assert "cannot do its part, another host is asked" in caplog.text
    assert found == write(disks.shared / "b", 0)


@pytest.mark.slow
def test_a_lost_node_ends_the_stream_of_what_it_alone_had_and_of_nothing_else(disks):
    """The last one: the node does not come back."""
    everything = make(files_on_nodes(disks.mount), Slowly(), AddNoise(), num_epochs=-1)
    shared = next(path for path, (_, nodes) in zip(sorted(disks.whole.iterdir()), FILES, strict=True) if nodes == "ab")
    some = make(files_on_nodes(disks.mount / shared.name), AddNoise(), num_epochs=50)
    want = told(make(shared, AddNoise(), num_epochs=50).batches(0, StreamOptions(32)))
    with on_nodes(everything, 2, chunk_size=40) as source, on_nodes(some, 2, chunk_size=40) as going_on:
        stream, other = source.batches(0, StreamOptions(32)), going_on.batches(0, StreamOptions(32))
        next(stream)
        got = told(itertools.islice(other, 2))
        end(disks.raylets["b"])
        with pytest.raises(RuntimeError, match=r"array_record.* are on node \w+ alone, which is gone: nobody can read"):
            collections.deque(stream, 0)
        assert got + told(other) == want
