"""A host without the mount: one of two nodes runs where another file system lies over the data's directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.clusters import BARE
from tests.data import AddNoise, FailAt, decode, write_files
from tests.waiting import until, until_all_run

STORE_NBYTES = 80 * 2**20


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that one of the nodes does not see."""
    return tmp_path_factory.mktemp("mount")


@pytest.fixture(scope="module")
def blind(mount: Path, by_value: None) -> Iterator[str]:
    """The id of the node that does not see the mount; another one does, each with room for one actor."""
    covered = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {mount} && exec "$0" "$@"']
    if subprocess.run([*covered, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    with contextlib.ExitStack() as stack:
        head = {"num_cpus": 1, "object_store_memory": STORE_NBYTES} | BARE
        cluster = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(cluster.shutdown)
        ray.init(cluster.address, log_to_driver=False)
        stack.callback(ray.shutdown)
        seeing = cluster.add_node(num_cpus=1, resources={"host": 1}, object_store_memory=STORE_NBYTES)
        command = f"start --address {cluster.address} --num-cpus 1 --block --disable-usage-stats".split()
        options = ["--resources", '{"host": 1}', "--object-store-memory", str(STORE_NBYTES)]
        raylet = subprocess.Popen(
            [*covered, str(Path(sys.executable).parent / "ray"), *command, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        stack.callback(raylet.wait, 60)
        stack.callback(os.killpg, raylet.pid, signal.SIGTERM)
        known = (seeing.node_id, ray.get_runtime_context().get_node_id())

        def others() -> list[str]:
            return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in known]

        yield until(others, 120)[0]


def make(paths: Any, *transforms: Any, **config: Any) -> ArrayRecordSourceModule:
    options = {"shuffle_files": True, "num_epochs": 4} | config
    return ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), paths, transforms=[decode, *transforms])


def told(batches: Any) -> list[Any]:
    return [
        (batch.positions.tolist(), batch.columns["noise"].tobytes(), [skip.position for skip in batch.skipped])
        for batch in batches
    ]


def check(source: Any, blind: str, caplog: Any) -> None:
    """The stream is that of one process, and the node that does not see all of the data was benched, and named."""
    want = told(source.batches(0, StreamOptions(8)))
    with RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 1}, chunk_size=20) as distributed:
        until_all_run(distributed)
        before = distributed.stats()
        (blind_actor,) = [index for index, stats in before.items() if stats["node_id"] == blind]
        assert told(distributed.batches(0, StreamOptions(8))) == want
        assert distributed.recoveries.counts["benched"] == 1
        (recovery,) = [last for last in distributed.recoveries.last if last.kind == "benched"]
        assert recovery.actor == blind_actor
        assert blind[:12] in recovery.where
        assert "mount" in recovery.reason
        assert {index: stats["pid"] for index, stats in distributed.stats().items()} == {
            index: stats["pid"] for index, stats in before.items()
        }
    assert f"node {blind[:12]}" in caplog.text
    assert caplog.text.count("is benched for") == 1


def test_a_node_without_the_files_is_benched_and_changes_nothing(mount: Path, blind: str, caplog: Any) -> None:
    check(make(write_files(mount, (40, 60)), AddNoise()), blind, caplog)


class NeedsFile:
    """Reads a file beside the records, for each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return element | {"beside": len(self.path.read_bytes())}


def test_records_that_only_one_node_cannot_read_are_never_left_out(
    mount: Path, blind: str, tmp_path: Path, caplog: Any
) -> None:
    (mount / "beside").write_bytes(b"12345")
    transforms = [NeedsFile(mount / "beside"), FailAt(17), FailAt(71), AddNoise()]
    check(make(write_files(tmp_path, (40, 60)), *transforms, on_error="skip"), blind, caplog)
