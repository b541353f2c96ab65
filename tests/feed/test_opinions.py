"""Second opinions: by value, and whole streams over nodes of which some cannot read all that there is."""

import random

import numpy as np
import pytest

from datarax_ray.feed.flow import Arrived, Lost
from datarax_ray.feed.second_reads import Believed, Opinions
from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.feed.window import Part
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.requests import ListedPositions, Wanted
from datarax_ray.plan.state import StreamState
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import BlockCache
from datarax_ray.read.errors import RecordError, Skipped
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import AddNoise, DropThirds, decode, record
from tests.feed.pools import OneActor
from tests.read.test_blocks import Memory

NODES = {0: "a", 1: "a", 2: "b", 3: "c"}
PART = Part(0, 0, 1, ReadRequest(0, 8))


def only(*positions):
    return ReadRequest(0, 8, wanted=Wanted(ListedPositions(positions)))


def good(*positions):
    return Block(np.array(positions, np.int64), None)


def skipping(*positions, reason="gone"):
    return Block(good(0).positions, None, tuple(Skipped(f"memory[{p}]", p, reason) for p in positions))


def failing(error, at=0):
    return Block(np.arange(at), None, failure=error, failure_position=at)


def tell(*said, part=PART, nodes=NODES):
    """What comes of blocks that are told one by one, each by the node that was asked; and who was asked what."""
    opinions, asked = Opinions(), []
    node = nodes[part.actor]
    for block in said:
        found = opinions.heard(part, block, node, nodes)
        if isinstance(found, Believed):
            return found, asked
        part, node = found, nodes[found.actor]
        asked.append((found.actor, found.request))
    raise AssertionError(f"nobody believes it, and actor {part.actor} is asked for {part.request}")


def test_a_good_block_is_believed_at_once_and_with_one_node_every_block():
    assert tell(good(1)) == (Believed(PART, good(1)), [])
    for block in (failing(OSError("gone")), skipping(3)):
        assert tell(block, nodes={0: "a", 1: "a"}) == (Believed(PART, block), [])


def test_what_failed_is_asked_for_elsewhere_and_the_node_is_blamed():
    found, asked = tell(failing(OSError("no such file")), good(1))
    assert found.part == Part(0, 0, 2, PART.request)
    assert found.block.failure is None
    assert found.blamed == {"a": "OSError: no such file"}
    assert asked == [(2, PART.request)]


def test_a_record_that_is_broken_on_two_nodes_is_broken():
    error = RecordError("memory[5]", 5)
    found, asked = tell(failing(error, 5), failing(RecordError("memory[5]", 5), 5))
    assert found.block.failure is error
    assert found.blamed == {}
    assert len(asked) == 1


def test_what_fails_as_a_whole_is_tried_on_a_third_node():
    found, asked = tell(failing(OSError("no file")), failing(OSError("no file")), good(1))
    assert found.part.actor == 3
    assert found.blamed == {"a": "OSError: no file"}
    assert asked == [(2, PART.request), (3, PART.request)]


@pytest.mark.parametrize("at", [5, 0])
def test_the_node_that_reads_more_is_believed_also_where_the_part_begins_with_a_broken_record(at):
    deep = failing(RecordError(f"memory[{at}]", at), at)
    for said in ([failing(OSError("no file")), deep, deep], [deep, failing(OSError("no file")), deep]):
        found, _ = tell(*said)
        assert isinstance(found.block.failure, RecordError)
        assert found.block.failure_position == at
        assert set(found.blamed.values()) == {"OSError: no file"}


def test_records_that_are_left_out_are_asked_for_alone_and_believed_where_they_are_broken_again():
    found, asked = tell(skipping(3, 6), skipping(3, 6))
    assert asked == [(2, only(3, 6))]
    assert found == Believed(PART, skipping(3, 6))


def test_records_that_another_node_can_read_are_never_left_out():
    found, asked = tell(skipping(3, 6), skipping(6), skipping(6), skipping(6))
    assert asked == [(2, only(3, 6)), (2, PART.request), (3, only(6))]
    assert found.part == Part(0, 0, 2, PART.request)
    assert [skip.position for skip in found.block.skipped] == [6]
    assert found.blamed == {"a": "gone"}


def test_a_node_that_can_read_nothing_has_no_say_in_what_is_left_out():
    found, _ = tell(skipping(3), failing(OSError("no file")), skipping(3))
    assert [skip.position for skip in found.block.skipped] == [3]
    assert found.blamed == {"b": "OSError: no file"}


def test_a_node_that_reads_all_of_it_when_it_is_asked_again_is_believed():
    opinions = Opinions()
    assert opinions.heard(PART, failing(OSError("a moment")), "a", NODES) == Part(0, 0, 2, PART.request)
    found = opinions.heard(PART, good(1), "a", {1: "a"})  # the other node has gone meanwhile
    assert found.block.failure is None


def test_a_second_opinion_that_is_lost_begins_anew_with_the_whole():
    opinions = Opinions()
    opinions.lost(PART)
    opinions.lost(opinions.heard(PART, skipping(3), "a", NODES))
    assert opinions.heard(PART, good(1), "b", NODES) == Believed(PART, good(1))


class Hosts(OneActor):
    """Three actors on three nodes; each record is missing on one node or none, some are broken everywhere."""

    def __init__(self, description, seed, num_blind, shared):
        super().__init__(description)
        self.random = random.Random(seed)
        self.shared = shared
        self.num_blind = num_blind
        self.blamed = set()

    def actors(self):
        return tuple(sorted(self.random.sample(range(3), 2))) if self.random.random() < 0.1 else (0, 1, 2)

    def nodes(self):
        return {0: "n0", 1: "n1", 2: "n2"}

    def blame(self, node, reason):
        self.blamed.add(node)

    def receive(self, sent):
        part = self.random.choice(list(sent))
        if self.random.random() < 0.2:
            return Lost(part, "lost on purpose")
        is_blind = part.actor < self.num_blind
        description = self._description
        if is_blind and part.chunk % 2:
            gone = FileNotFoundError("no mount")
            return Arrived(part, Block(np.empty(0, np.int64), None, failure=gone), f"n{part.actor}")
        if is_blind:
            reader = Memory(description.reader.records, set(range(0, 40, 3)) | description.reader.unreadable)
            description = IndexedStream(reader, description.order, 3, description.transforms, description.on_error)
        shared = self.shared[part.actor]
        return Arrived(part, shared.answer(part.request, lambda t: description.read(t)), f"n{part.actor}")


@pytest.mark.parametrize("process_count", [1, 2])
@pytest.mark.parametrize("filters", [[], [DropThirds()]], ids=["map", "filter"])
@pytest.mark.parametrize("shuffle", [pytest.param("none", marks=pytest.mark.slow), "global"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_node_that_reads_less_than_the_others_changes_nothing(process_count, filters, shuffle, on_error):
    broken = [11, 17] if on_error == "skip" else []
    reader = Memory(map(record, range(40)), broken)
    description = IndexedStream(reader, order_of(40, 7, shuffle), 3, (decode, AddNoise(), *filters), on_error)

    def told(pool, rank):
        shares_actors = isinstance(pool, Hosts)
        options = StreamOptions(6, False, rank, process_count, chunk_size=9, shares_actors=shares_actors)
        return [
            (batch.positions.tolist(), batch.columns["noise"].tolist(), [skip.position for skip in batch.skipped])
            for batch in batches(description, pool, StreamState(), options)
        ]

    for seed in range(3):
        for rank in range(process_count):
            pool = Hosts(description, seed, 1, [BlockCache(2**20) for _ in range(3)])
            assert told(pool, rank) == told(None, rank)
            assert pool.blamed <= {"n0"}
            assert pool.blamed
