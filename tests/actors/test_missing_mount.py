"""A mount that one of two nodes does not see, where the driver and the other node do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from tests.clusters import looks_often, started
from tests.data import AddNoise, FailAt, array_records, decode, write_files
from tests.waiting import until, until_all_run

STORE_NBYTES = 80 * 2**20
RAY = "import tests.clusters; from ray.scripts.scripts import main; main()"  # the command, for a lean node


@dataclass
class Disks:
    """shared: a directory that one node does not see. blind: the id of that node."""

    shared: Path
    blind: str


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    root = tmp_path_factory.mktemp("disks")
    for name in ("shared", "nothing"):
        (root / name).mkdir()
    covered = ["unshare", "--mount", "sh", "-c", f'mount --bind "$0" {root / "shared"} && exec "$@"']
    if subprocess.run([*covered, root / "shared", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(started(0, namespace="disks", **looks_often()))
        command = f"start --address {cluster.address} --num-cpus 2 --block --disable-usage-stats".split()
        command += ["--object-store-memory", str(STORE_NBYTES), "--resources", '{"host": 1}']
        nodes = []
        for number, shared in enumerate(("shared", "nothing"), 2):
            raylet = subprocess.Popen(
                [*covered, root / shared, sys.executable, "-c", RAY, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(raylet.wait, 60)
            stack.callback(end, raylet)
            # one after the other: two that start at once on one machine take each other's ports
            until(lambda number=number: sum(node["Alive"] for node in ray.nodes()) == number, 120)
            nodes += {node["NodeID"] for node in ray.nodes()}.difference(nodes)  # the first time the head's too
        yield Disks(root / "shared", nodes[-1])


def end(raylet):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(raylet.pid, signal.SIGKILL)


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


class NeedsFile:
    """Reads a file beside the records, for each of them."""

    def __init__(self, path):
        self.path = path

    def map(self, element):
        return element | {"beside": len(self.path.read_bytes())}


def test_records_that_only_one_node_cannot_read_are_never_left_out(disks, tmp_path, caplog):
    (disks.shared / "beside").write_bytes(b"12345")
    transforms = [decode, NeedsFile(disks.shared / "beside"), FailAt(17), FailAt(71), AddNoise()]
    source = array_records(write_files(tmp_path, (40, 60)), *transforms, num_epochs=3, on_error="skip")
    check(source, disks.blind, caplog)
