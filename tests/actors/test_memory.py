"""Nodes that run out of memory, by Ray's own monitor and rules; of room for objects, in the store and on disk."""

import itertools

import numpy as np
import psutil
import pytest
import ray

from datarax_ray import RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.errors import RecordError
from tests.clusters import started
from tests.data import AddNoise, array_records, decode, noise_of, write_file
from tests.waiting import until, until_all_run

STORE_NBYTES = 80 * 2**20  # the least that Ray takes
# What a node may use more than this machine does now. Other programs may take some of that: their growth ends actors
# here as well, once or twice, which the stream survives too.
ROOM_NBYTES = 3 * 2**29
STEP_NBYTES = 32 * 2**20
# Far beyond the room, and there is that much in this machine: a monitor that does nothing is an error, not a disaster.
MOST_NBYTES = 4 * 2**30


@pytest.fixture(scope="module")
def cluster(by_value):
    # what does not fit is then made in files on disk, after a wait of 2 s in which there might be room
    with started(_system_config={"automatic_object_spilling_enabled": False}) as cluster:
        yield cluster


@pytest.fixture
def memory():
    if psutil.virtual_memory().available < 2 * MOST_NBYTES:
        pytest.skip(f"less than {2 * MOST_NBYTES >> 30} GiB of memory are free")


def add_node(cluster, name, **settings):
    """A node for two actors, with settings of Ray's that only its own raylet has."""
    return cluster.add_node(num_cpus=1, resources={name: 2}, object_store_memory=STORE_NBYTES, env_vars=settings)


def limit(room_nbytes):
    """The settings of a monitor that looks every 50 ms."""
    memory = psutil.virtual_memory()
    share = (memory.total - memory.available + room_nbytes) / memory.total
    return {"RAY_memory_usage_threshold": f"{share:.4f}", "RAY_memory_monitor_refresh_ms": "50"}


class Leak:
    """Takes all memory there is at one element, as long as a file is not there; `once`: it makes the file itself."""

    def __init__(self, path, *, once):
        self.path = path
        self.once = once

    def map(self, element):
        if element["index"] == 13 and not self.path.exists():
            if self.once:
                self.path.touch()
            taken = [np.ones(STEP_NBYTES, np.uint8) for _ in range(MOST_NBYTES // STEP_NBYTES)]
            raise AssertionError(f"{len(taken) * STEP_NBYTES} bytes were taken, and nobody ended this process")
        return element


def make(paths, leak):
    return array_records(paths, decode, leak, AddNoise(), shuffle_files=leak.once, num_epochs=6)


@pytest.mark.slow  # through all the memory of a node
def test_actors_that_ray_ends_for_memory_come_back_and_change_nothing(cluster, memory, files, tmp_path, caplog):
    leaked = tmp_path / "leaked"
    leaked.touch()
    source = make(files, Leak(leaked, once=True))
    want = noise_of(source.batches(0, StreamOptions(8)))
    node = add_node(cluster, "small", **limit(ROOM_NBYTES))
    with RaySource(source, num_actors=2, num_cpus=0.1, resources={"small": 1}, chunk_size=10) as distributed:
        until_all_run(distributed)
        leaked.unlink()
        stream = distributed.batches(0, StreamOptions(8))
        got = noise_of(itertools.islice(stream, 3))
        got += noise_of(stream)
        assert leaked.exists()
        assert got == want

        def told():
            """Who reads on is told: Ray may end an actor when another one has long read for it."""
            assert noise_of(distributed.batches(0, StreamOptions(8))) == want
            return {"restarted", "replaced"} & set(+distributed.recoveries.counts)

        until(told, 120)  # replaced, where the machine has no room for long
        until_all_run(distributed)
        recoveries = distributed.recoveries
        assert any(last.reason.startswith("out of memory: ") for last in recoveries.last)
        assert all(last.num_retried < 40 for last in recoveries.last)
    assert "reason: out of memory: " in caplog.text
    cluster.remove_node(node)


@pytest.mark.slow  # several times through all the memory
def test_a_record_that_takes_all_memory_wherever_it_is_read_is_an_error_that_says_so(cluster, memory, files, tmp_path):
    source = make(files, Leak(tmp_path / "never", once=False))
    node = add_node(cluster, "tiny", **limit(ROOM_NBYTES))
    with RaySource(source, num_actors=1, num_cpus=0.1, resources={"tiny": 1}, chunk_size=8) as distributed:
        stream = distributed.batches(0, StreamOptions(4))
        assert len(list(itertools.islice(stream, 2))) == 2
        with pytest.raises(
            RecordError,
            match=r"part-00002\S*\[1\] \(position 13\): .*that reads it ends: (it took \d+ MiB of memory|SIGKILL)",
        ):
            list(stream)
    cluster.remove_node(node)


class Inflate:
    """32 KB of an 8-byte record."""

    def map(self, stored):
        return {"x": np.frombuffer(stored * 4096, np.uint8)}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """190 MB, more than two stores."""
    path = tmp_path_factory.mktemp("large") / "large.array_record"
    write_file(path, (i.to_bytes(8, "little") for i in range(2000)), group_size=16)
    return array_records(path, Inflate(), num_epochs=3)


def first_bytes(batches):
    return [batch.columns["x"][:, :8].tobytes() for batch in batches]


def are_all_read(distributed):
    """Whether nothing that is in flight is still read, or waits for room."""
    refs = [sent.ref for actor in distributed._actors._set.actors.values() for sent in actor.state.requests]
    return len(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) == len(refs)


def in_use():
    total, free = ray.cluster_resources(), ray.available_resources()
    return total["object_store_memory"] - free["object_store_memory"]


@pytest.mark.slow  # Ray waits 2 s for each object that has no room
def test_more_in_flight_than_the_store_holds_without_spilling_changes_nothing(cluster, large):
    want = first_bytes(large.batches(0, StreamOptions(100)))
    node = add_node(cluster, "unspilled")
    options = {"chunk_size": 500, "max_nbytes": 10 * STORE_NBYTES}
    with RaySource(large, num_actors=2, num_cpus=0.1, resources={"unspilled": 1}, **options) as distributed:
        stream = distributed.batches(0, StreamOptions(100))
        got = first_bytes(itertools.islice(stream, 6))
        until(lambda: sum(stats["nbytes"] for stats in distributed.stats().values()) > 2 * STORE_NBYTES)
        got += first_bytes(stream)
        assert distributed.recoveries.counts == {}
    assert got == want
    cluster.remove_node(node)


@pytest.mark.slow  # a Ray of its own
def test_where_neither_store_nor_disk_has_room_the_error_says_what_to_lower(cluster, large):
    want = first_bytes(large.batches(0, StreamOptions(100)))
    node = add_node(cluster, "full", RAY_local_fs_capacity_threshold="0.0001")
    options = {"chunk_size": 500, "max_nbytes": 10 * STORE_NBYTES}
    with RaySource(large, num_actors=2, num_cpus=0.1, resources={"full": 1}, **options) as distributed:
        stream = distributed.batches(0, StreamOptions(100))
        got = first_bytes(itertools.islice(stream, 6))
        until(lambda: are_all_read(distributed))
        with pytest.raises(RuntimeError, match=r"positions \[\d+, \d+\) fits nowhere .*OutOfDisk.* Lower .*max_nbytes"):
            got.extend(batch.columns["x"][:, :8].tobytes() for batch in stream)
    assert got == want[: len(got)]
    del stream
    until(lambda: in_use() == 0)
    with RaySource(large, num_actors=2, num_cpus=0.1, resources={"full": 1}, max_nbytes=STORE_NBYTES // 4) as lower:
        assert first_bytes(lower.batches(100 * len(got), StreamOptions(100))) == want[len(got) :]
    cluster.remove_node(node)
