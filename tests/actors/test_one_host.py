"""Two trainers of one host, the actors on another one: what goes over the network between the two."""

import hashlib
import os

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from datarax_ray import ConcatThenSplit, RaySource
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.trainer_rows import Share
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.clusters import BARE
from tests.waiting import until

STORE_NBYTES = 160 * 2**20
N, LENGTH = 4000, 4096


class Documents:
    """N documents of LENGTH bytes."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"x": np.random.default_rng(index).integers(0, 255, LENGTH, np.uint8)}

    def __repr__(self):
        return "Documents()"


class Keep:
    def filter(self, element):
        return True


@pytest.fixture(scope="module")
def cluster(by_value):
    """A head for the trainers, and a node for the actors."""
    head = {"num_cpus": 1, "resources": {"trainer": 2}, "object_store_memory": STORE_NBYTES} | BARE
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, resources={"host": 2}, object_store_memory=STORE_NBYTES)
    ray.init(cluster.address, log_to_driver=False, namespace="one host")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def make(*transforms):
    config = RandomAccessSourceConfig(num_epochs=2, shuffle=True)
    return RandomAccessSource(config, Documents(), transforms=transforms)


def on_hosts(transforms, name, num_actors=1, **options):
    """Of one actor nothing is asked of another because it is late: on a busy machine that brings some of it twice."""
    options = {"num_cpus": 0.1, "resources": {"host": 1}} | options
    return RaySource(make(*transforms), num_actors=num_actors, name=name, **options)


@ray.remote(num_cpus=0, resources={"trainer": 1})
def train(name, transforms, options, ready):
    """Where each batch ends, and a digest of this trainer's rows. It begins when the others do (ready: a folder)."""
    with on_hosts(transforms, name) as source:
        (ready / str(os.getpid())).touch()
        until(lambda: len(list(ready.iterdir())) == options.process_count, 100)
        return told(source.batches(0, options))


def told(batches):
    return [(batch.stop, hashlib.md5(batch.columns["x"].tobytes()).hexdigest()) for batch in batches]


def stored_nbytes(cluster):
    """Of all objects that were ever made in, or brought to, the head's store."""
    head = cluster.head_node
    return int(node_stats(head.node_ip_address, head.node_manager_port, False).store_stats.cumulative_created_bytes)


@pytest.mark.parametrize(
    ("name", "transforms", "packing", "shares"),
    [
        pytest.param(
            *("packed", (), ConcatThenSplit(1000, "x"), [Share(2, (0,)), Share(2, (1,))]), marks=pytest.mark.slow
        ),
        pytest.param("equal rows", (), None, [Share(1, (0,), 2)] * 2, marks=pytest.mark.slow),
        pytest.param(*("equal rows behind a filter", (Keep(),), None, [Share(2, (1,), 2)] * 2), marks=pytest.mark.slow),
    ],
)
def test_a_host_is_sent_once_what_its_trainers_want(cluster, tmp_path, name, transforms, packing, shares):
    options = [StreamOptions(64, packing=packing, share=share, process_count=2) for share in shares]
    with on_hosts(transforms, name):  # or the first trainer to end might take the actors with it
        before = stored_nbytes(cluster)
        got = ray.get([train.remote(name, transforms, each, tmp_path) for each in options])
        brought = stored_nbytes(cluster) - before
    for found, each in zip(got, options, strict=True):
        assert found == told(make(*transforms).batches(0, each))
    num_parts = len({part for share in shares for part in share.parts}) / shares[0].num_parts
    assert brought < 1.1 * 2 * N * LENGTH * num_parts
