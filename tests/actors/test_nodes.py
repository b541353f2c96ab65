"""Faults of nodes: several raylets on this machine, some of which go, come late, or run out of memory for objects."""

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.experimental import get_object_locations

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.feed.stream import StreamOptions
from tests.clusters import started
from tests.data import array_records, write_file
from tests.waiting import until, until_all_run

STORE_NBYTES = 80 * 2**20  # the least that Ray takes


@pytest.fixture(scope="module")
def cluster(by_value):
    """A head for the driver alone, and one node for two actors."""
    with started() as cluster:
        add_node(cluster)
        yield cluster


def add_node(cluster, **options):
    return cluster.add_node(num_cpus=1, resources={"host": 2}, object_store_memory=STORE_NBYTES, **options)


class Inflate:
    """4 KB of an 8-byte record."""

    def map(self, stored):
        return {"x": np.frombuffer(stored * 512, np.uint8)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("nodes") / "a.array_record"
    write_file(path, (i.to_bytes(8, "little") for i in range(4000)), group_size=16)
    return array_records(path, Inflate())


def rows(batches):
    return [[batch.positions.tolist(), batch.columns["x"].tobytes()] for batch in batches]


def on_hosts(source, num_actors, **options):
    return RaySource(source, num_actors=num_actors, num_cpus=0.1, resources={"host": 1}, **options)


@pytest.mark.slow
def test_actors_that_only_some_nodes_may_hold_wait_for_room_there(cluster, source, caplog):
    """The CPU of another node, which is free, is none for them."""
    want = rows(source.batches(0, StreamOptions(500)))
    labelled = cluster.add_node(num_cpus=1, labels={"role": "cpu"}, object_store_memory=STORE_NBYTES)
    try:
        with RaySource(source, num_actors=2, num_cpus=1, label_selector={"role": "cpu"}) as crowded:
            assert rows(crowded.batches(0, StreamOptions(500))) == want
    finally:
        cluster.remove_node(labelled, allow_graceful=False)
    assert "(each needs 1 CPU of 3, on nodes with the labels {'role': 'cpu'}, " in caplog.text


def test_a_node_lost_without_grace_takes_its_actors_and_unread_objects_and_changes_nothing(cluster, source):
    want = rows(source.batches(0, StreamOptions(50)))
    node = add_node(cluster)
    with on_hosts(source, 4, chunk_size=400) as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(50))
        got = rows(itertools.islice(stream, 9))  # one chunk is released, and many are asked for
        mine = [i for i, stats in distributed.stats().items() if stats["node_id"] == node.node_id]
        assert len(mine) == 2
        # what is in flight has been read there, and nobody has fetched it
        until(lambda: all(distributed.stats()[i]["num_blocks"] >= 5 for i in mine))
        cluster.remove_node(node, allow_graceful=False)
        got += rows(stream)
        # others have read what they were late with, so that it may be noticed only now; there is no room for them
        until(lambda: set(distributed._actors.actors()) == set(range(4)) - set(mine), 60.0)
        lost = distributed._actors._set.actors[mine[0]].state
        assert distributed._actors.recoveries.num_retried or lost.loss is not None
    assert got == want


@pytest.mark.slow
def test_a_node_that_drains_hands_over_before_it_goes_and_changes_nothing(cluster, source):
    want = rows(source.batches(0, StreamOptions(50)))
    node = add_node(cluster)
    with on_hosts(source, 4, chunk_size=60, thresholds=Thresholds(ask_head_s=0.2)) as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(50))
        got = rows(itertools.islice(stream, 3))
        mine = {i for i, stats in distributed.stats().items() if stats["node_id"] == node.node_id}
        assert len(mine) == 2
        # as an autoscaler does when its cloud announces a preemption
        gcs = ray._raylet.GcsClient(address=cluster.address)
        accepted, why = gcs.drain_node(node.node_id, 2, "preempted", 2**62)
        assert accepted, why
        until(lambda: set(distributed._actors.actors()) == set(range(4)) - mine)
        got += rows(itertools.islice(stream, 40))  # all that they were asked for before, of 16 chunks of 60
        before = {i: distributed.stats()[i]["num_blocks"] for i in mine}
        got += rows(itertools.islice(stream, 20))
        assert {i: distributed.stats()[i]["num_blocks"] for i in mine} == before, "they were asked for more"
        assert distributed.recoveries.counts["drained"] == 1
        cluster.remove_node(node, allow_graceful=False)
        got += rows(stream)
    assert got == want


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """190 MB in elements of 32 KB."""
    path = tmp_path_factory.mktemp("large") / "large.array_record"
    write_file(path, (i.to_bytes(8, "little") * 8 for i in range(2000)), group_size=16)
    return array_records(path, Inflate(), num_epochs=3)


def sample(batches):
    return [batch.columns["x"].tobytes()[:: 8 * 512] for batch in batches]


def overfill(distributed, batches):
    """The first batches, when the actors have read on as far as they may."""
    until_all_run(distributed)
    got = sample(itertools.islice(batches, 6))
    until(lambda: sum(stats["num_blocks"] for stats in distributed.stats().values()) >= 16)
    return got


def test_objects_that_are_lost_alone_are_read_again(cluster, large, caplog):
    want = sample(large.batches(0, StreamOptions(100)))
    options = {"chunk_size": 500, "max_nbytes": 10 * STORE_NBYTES, "thresholds": Thresholds(fetch_s=1.0)}
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    before = set(session.glob("ray_spilled_objects_*/*"))  # of streams that have ended
    with on_hosts(large, 2, **options) as distributed:
        stream = distributed.batches(0, StreamOptions(100))
        got = overfill(distributed, stream)
        actors = distributed.stats()
        spilled = until(lambda: {path for path in session.glob("ray_spilled_objects_*/*") if path.is_file()} - before)
        for path in spilled:  # the disk of a host that lives on
            path.unlink(missing_ok=True)
        got += sample(stream)
        recoveries = distributed.recoveries
        if not recoveries.counts:  # one time in some ten runs of all tests
            assert got == want
            pytest.skip("all that was spilled when it was deleted had been used already, so nothing was lost")
        assert set(recoveries.counts) == {"reread"}
        assert recoveries.num_retried == recoveries.counts["reread"] == caplog.text.count(" reread, ")
        assert {(i, s["pid"]) for i, s in distributed.stats().items()} == {(i, s["pid"]) for i, s in actors.items()}
    assert got == want


class HalfOfThem:
    def filter(self, element):
        return bool(element["x"][0] % 2)


def test_a_trainers_rows_that_were_picked_elsewhere_come_here_while_others_are_used(cluster, tmp_path):
    path = write_file(tmp_path / "a.array_record", (i.to_bytes(8, "little") for i in range(4000)), group_size=16)
    source = array_records(path, Inflate(), HalfOfThem())
    here = ray.get_runtime_context().get_node_id()
    with on_hosts(source, 2, chunk_size=400, name="halves") as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(200, process_count=2))
        rows(itertools.islice(stream, 3))
        sent = [ask for actor in distributed._actors._set.actors.values() for ask in actor.state.requests]
        in_flight = [ask.ref for ask in sent if not isinstance(ask.part.request.wanted.sharing.part, str)]
        assert len(in_flight) >= 2
        ray.wait(in_flight, num_returns=len(in_flight), fetch_local=False)
        due = max((ask.look_at for ask in sent if ask.look_at < math.inf), default=0.0)
        until(lambda: time.monotonic() > due)
        next(stream)
        until(lambda: all(here in where["node_ids"] for where in get_object_locations(in_flight).values()))
