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


class Queues(OneActor):
    """Actors that read what they are asked for one after the other, and end, with all of that, at what ends them.

    where: the node of each. num_ended: actors and trials.
    """

    def __init__(self, description, where):
        super().__init__(description)
        self.where = where
        self.queues = {actor: [] for actor in where}
        self.told = {}
        self.num_ended = 0

    def actors(self):
        return tuple(self.where)

    def nodes(self):
        return self.where

    def send(self, part):
        self.queues[part.actor].append(part)

    def receive(self, sent):
        while not any(part in self.told for part in sent):
            for actor, queue in self.queues.items():
                if queue:
                    self.turn(actor, queue)
        return self.told.pop(next(part for part in sent if part in self.told))

    def turn(self, actor, queue):
        part = queue[0]
        block = self._description.read(part.request)
        is_bad = block.failure is not None
        self.num_ended += is_bad
        if is_bad and not part.is_trial:
            self.told |= {each: Lost(each, "it ended", was_read=each is part) for each in queue}
            queue.clear()
            return
        block = self._description.read(part.request, "SIGKILL") if is_bad else block
        self.told[queue.pop(0)] = Arrived(part, block, self.where[actor])

    def lost(self, sent):
        return [self.told.pop(part) for part in list(sent) if isinstance(self.told.get(part), Lost)]

    def discard(self, sent):
        for part in sent:
            self.told.pop(part, None)
            if part in self.queues[part.actor]:
                self.queues[part.actor].remove(part)


def index_of(batch):
    return batch.columns["index"].tolist()


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


def records(transforms, shuffle="global", on_error="skip", n=30, seed=7):
    reader = Memory(map(record, range(n)))
    return IndexedStream(reader, order_of(n, seed, shuffle), 2, (decode, *transforms), on_error)


def tokens(element):
    return {"tokens": np.arange(element["index"] % 5 + 1)}


KINDS = {
    "file order": lambda end: records([end, AddNoise()], "none"),
    "shuffled": lambda end: records([end, AddNoise()]),
    "filtered": lambda end: records([end, AddNoise(), DropThirds()]),
    "mixed": lambda end: MixtureStream((records([end, AddNoise()]), records([AddNoise()], n=20)), (2, 1)),
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


@pytest.mark.parametrize("window_size", [1, 70])
@pytest.mark.parametrize("where", [{0: ""}, {0: "a", 1: "b"}, {0: "a", 1: "a", 2: "b", 3: "b"}])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_what_ends_its_process_inside_a_shard_is_found_in_few_deaths(num_shards, where, window_size):
    shards = datasets.IterableDataset.from_generator(
        functools.partial(indexes, count=600), gen_kwargs={"shards": list(range(num_shards))}
    )
    order = InterleavedOrder(num_shards, 4, is_shuffled=window_size > 1, window_size=window_size)
    plain = InterleavedStream(HFShards(shards, "shards"), order, 1)
    want = [index for batch in batches(plain, None, StreamState(), StreamOptions(5)) for index in index_of(batch)]
    broken = InterleavedStream(HFShards(shards.map(EndAt(333).map), "shards"), order, 1)
    pool, got = Queues(broken, where), []

    def collect():
        for batch in batches(broken, pool, StreamState(), StreamOptions(5, chunk_size=256)):
            got.extend(index_of(batch))

    with pytest.raises(RecordError, match=r"shard 0\[\d+\].*every process that reads it ends: SIGKILL"):
        collect()
    first = want.index(333) if window_size == 1 else min(want.index(index) for index in range(280, 350))
    assert got == want[: first // 5 * 5]
    # of a chunk of 256 in eighths: 2 of the whole, 1 of 32, 1 of 4, 2 of the one and its trial. Where a second node is
    # asked, behind what it was asked before, the first one goes on meanwhile
    assert pool.num_ended <= (7 if len(set(where.values())) == 1 else 20)
