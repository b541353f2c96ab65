"""Whole streams over actors that end at some positions, as a process does, unless these are tried apart."""

import functools
import itertools
import random

import datasets
import numpy as np
import pytest

from datarax_ray.feed.flow import Arrived, Flow, Lost
from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.plan.orders.interleaved import InterleavedOrder
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.hugging_face.shards import HFShards
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.interleaved import InterleavedStream
from datarax_ray.read.streams.mixture import MixtureStream
from tests.data import AddNoise, DropThirds, decode, record
from tests.feed.pools import OneActor
from tests.read.test_blocks import Memory


class EndsError(Exception):
    """Of a process that reads what it must not."""


class EndAt:
    """Ends whoever reads these elements."""

    def __init__(self, *indexes):
        self.indexes = indexes

    def map(self, element):
        if element["index"] in self.indexes:
            raise EndsError
        return element


class Mortal(OneActor):
    """Two actors, which end where an element is one that ends them, and now and then for no reason.

    tried: the actors that tried positions apart, and found that these end processes.
    """

    def __init__(self, description, seed, nodes=None):
        super().__init__(description)
        self.where = nodes or {}
        self.tried = []
        self.random = random.Random(seed)
        self.shared = [BlockCache(2**20), BlockCache(2**20)]
        self.num_ended = 0

    def actors(self):
        return (0, 1)

    def nodes(self):
        return self.where

    def read(self, request):
        block = self._description.read(request)
        if block.failure is not None or block.skipped:
            raise EndsError
        return block

    def receive(self, sent):
        part = self.random.choice(list(sent))
        if self.random.random() < 0.1:
            return Lost(part, "for no reason")
        make = functools.partial(self.try_apart, part.actor) if part.is_trial else self.read
        try:
            block = self.shared[part.actor].answer(part.request, make)
            return Arrived(part, block, self.where.get(part.actor, ""))
        except EndsError:
            self.num_ended += 1
            return Lost(part, "it ended")

    def try_apart(self, actor, request):
        try:
            return self.read(request)
        except EndsError:
            self.tried.append(actor)
            return self._description.read(request, "SIGKILL")


def records(transforms, shuffle="global", on_error="skip", n=50, seed=7):
    reader = Memory(map(record, range(n)))
    return IndexedStream(reader, order_of(n, seed, shuffle), 2, (decode, *transforms), on_error)


def tokens(element):
    return {"tokens": np.arange(element["index"] % 5 + 1)}


KINDS = {
    "file order": lambda end: records([end, AddNoise()], "none"),
    "shuffled": lambda end: records([end, AddNoise()]),
    "filtered": lambda end: records([end, AddNoise(), DropThirds()]),
    "mixed": lambda end: MixtureStream((records([end, AddNoise()]), records([AddNoise()], n=30)), (2, 1)),
}


def told(found):
    return [
        (
            batch.positions.tolist(),
            batch.columns["noise"].tolist(),
            batch.state,
            [skip.position for skip in batch.skipped],
        )
        for batch in found
    ]


@pytest.mark.parametrize(("process_count", "chunk_size"), [(1, 20), (2, 1), (2, None)])
@pytest.mark.parametrize("kind", KINDS)
def test_records_that_end_their_process_are_left_out_as_those_that_raise(kind, chunk_size, process_count):
    description = KINDS[kind](EndAt(3, 17, 18))
    for rank in range(process_count):
        options = {"process_index": rank, "process_count": process_count, "chunk_size": chunk_size}
        want = told(batches(description, None, StreamState(), StreamOptions(6, **options)))
        pool = Mortal(description, rank)
        assert told(batches(description, pool, StreamState(), StreamOptions(6, shares_actors=True, **options))) == want
        assert pool.num_ended > 6
        begin = want[1][2]
        resumed = batches(description, Mortal(description, 9), begin, StreamOptions(6, shares_actors=True, **options))
        assert told(resumed) == want[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_ends_its_process_is_an_error_after_every_batch_before_it(kind):
    description = KINDS[kind](EndAt(17))
    for each in getattr(description, "components", [description]):
        object.__setattr__(each, "on_error", "raise")

    def collect(pool, found):
        for batch in batches(description, pool, StreamState(), StreamOptions(4, chunk_size=20)):
            found += told([batch])

    want, got = [], []
    with pytest.raises(RecordError, match=r"memory\[17\].*EndsError") as plain:
        collect(None, want)
    with pytest.raises(RecordError, match=r"memory\[17\].*every process that reads it ends: SIGKILL") as apart:
        collect(Mortal(description, 1), got)
    assert got == want
    assert apart.value.position == plain.value.position


def test_a_record_that_ends_its_process_is_tried_on_two_nodes_and_read_by_no_other_process():
    description = records([EndAt(17), AddNoise()])
    want = told(batches(description, None, StreamState(), StreamOptions(4)))
    pool = Mortal(description, 5, {0: "a", 1: "b"})
    assert told(batches(description, pool, StreamState(), StreamOptions(4, chunk_size=20))) == want
    assert sorted(pool.tried) == [0, 0, 1, 1]  # in each of two epochs


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_element_of_a_shard_that_ends_its_process_is_an_error_that_names_shard_and_position(on_error):
    shards = HFShards(datasets.IterableDataset.from_generator(indexes, gen_kwargs={"shards": [0, 1, 2]}), "shards")
    description = InterleavedStream(shards, InterleavedOrder(3, 4), 1, (EndAt(112), AddNoise()), on_error)
    got = []

    def collect():
        for batch in batches(description, Mortal(description, 2), StreamState(), StreamOptions(5, chunk_size=60)):
            got.extend(batch.columns["index"].tolist())

    with pytest.raises(RecordError, match=r"\[12\] \(position 40\).*process that reads it ends: SIGKILL") as error:
        collect()
    assert error.value.position == 40
    turns = [(turn, shard) for turn in range(4) for shard in range(3)][:10]
    assert got == [100 * shard + 4 * turn + n for turn, shard in turns for n in range(4)]


def indexes(shards, count=20):
    for shard in shards:
        yield from ({"index": 5 * count * shard + n} for n in range(count))


class AllAtOnce(OneActor):
    """Many actors, all of whose parts have been read when they are looked at. num_given: parts, of each `receive`."""

    def __init__(self, description):
        super().__init__(description)
        self.num_given = []

    def actors(self):
        return tuple(range(64))

    def ended(self, sent):
        return list(sent)

    def receive(self, sent):
        self.num_given.append(len(sent))
        return super().receive(sent)


def test_of_parts_that_were_seen_to_be_read_each_is_received_without_a_look_at_the_others(monkeypatch):
    description = records([AddNoise()], n=640)
    pool, options = AllAtOnce(description), StreamOptions(10, chunk_size=320)
    want = told(batches(description, None, StreamState(), options))
    seconds = itertools.count()  # so that each turn of the stream looks
    monkeypatch.setattr("datarax_ray.feed.stream.Flow", lambda *given: Flow(*given, clock=lambda: next(seconds)))
    assert told(batches(description, pool, StreamState(), options)) == want
    assert len(pool.num_given) > 100
    assert set(pool.num_given) == {1}
