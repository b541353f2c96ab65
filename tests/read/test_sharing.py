"""Blocks for several trainers, by value: how often each is made, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest

from datarax_ray.plan.orders.interleaved import Cursor, ShardReadRequest
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.requests import Sharing, Wanted
from datarax_ray.plan.runs import runs_of
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import MAX_KEPT, BlockCache, merged, part_of


def shared(request, num_trainers, part="all"):
    return replace(request, wanted=Wanted(sharing=Sharing(num_trainers, part)))


class BatchProducer:
    """Makes blocks of 8 bytes a position, and counts."""

    def __init__(self):
        self.made = []
        self.failure = None

    def __call__(self, request):
        self.made.append((request.start, request.stop))
        positions = np.arange(request.start, request.stop)
        return Block(positions, positions, failure=self.failure)


def test_a_block_is_made_once_for_all_trainers_and_then_forgotten():
    make, cache = BatchProducer(), BlockCache(1000)
    blocks = [cache.answer(shared(ReadRequest(0, 10), 3), make) for _ in range(3)]
    assert make.made == [(0, 10)]
    assert all(block is blocks[0] for block in blocks)
    assert cache.nbytes == 0
    cache.answer(shared(ReadRequest(0, 10), 3), make)
    assert make.made == [(0, 10)] * 2


def test_what_several_trainers_are_to_have_is_handed_to_all_of_them_as_it_was_to_the_first():
    make, cache, handed = BatchProducer(), BlockCache(1000), []

    def hand(block):
        handed.append(block.columns.tolist())
        return f"object {len(handed)}"

    def ask(part, num_elements=None):
        request = ReadRequest(0, 10, wanted=Wanted(sharing=Sharing(4, part, num_elements, num_equal=2)))
        return cache.answer(request, make, hand)

    places = [ask("places") for _ in range(4)]
    assert [told.whole_nbytes for told in places] == [80] * 4
    first, second = runs_of(np.arange(5)), runs_of(np.arange(5, 10))
    answers = [ask(rows, 10) for rows in (first, second, second, first)]
    assert answers == ["object 1", "object 2", "object 2", "object 1"]
    assert handed == [list(range(5)), list(range(5, 10))]
    assert make.made == [(0, 10)]
    assert (len(cache), cache.nbytes) == (0, 0)
    whole = ReadRequest(0, 10, wanted=Wanted(sharing=Sharing(2, "all", num_equal=2)))
    assert [cache.answer(whole, make, hand) for _ in range(2)] == ["object 3"] * 2
    make.failure = OSError("the disk is away")
    assert cache.answer(whole, make, hand).failure is make.failure  # said to each, and not kept
    assert (len(cache), cache.nbytes) == (0, 0)


def test_requests_that_ask_for_something_else_are_made_alone():
    make, cache = BatchProducer(), BlockCache(1000)
    for request in [ReadRequest(0, 10), ReadRequest(0, 9), ReadRequest(0, 10, None, (1,))]:
        cache.answer(shared(request, 2), make)
    assert len(make.made) == 3


def test_cursors_are_no_part_of_what_is_asked():
    make, cache = BatchProducer(), BlockCache(1000)
    for cursor in (Cursor(), Cursor(5, {"shard": 1})):
        cache.answer(shared(ShardReadRequest(0, 10, ((3, cursor),)), 2), make)
    cache.answer(shared(ShardReadRequest(0, 10, ((4, Cursor()),)), 2), make)
    assert make.made == [(0, 10)] * 2


def test_the_latest_blocks_within_the_bound_are_kept():
    make, cache = BatchProducer(), BlockCache(160)
    requests = [shared(ReadRequest(10 * i, 10 * i + 10), 2) for i in range(3)]
    for request in requests:
        cache.answer(request, make)
    assert cache.nbytes == 160
    for request in reversed(requests):
        cache.answer(request, make)
    assert make.made == [(0, 10), (10, 20), (20, 30), (0, 10)]
    assert cache.nbytes == 80


def test_blocks_that_hold_nothing_are_forgotten_too():
    cache = BlockCache(1000)
    for start in range(2 * MAX_KEPT):  # nobody asks for the rows of a block that has none
        empty = Block(np.empty(0, np.int64), None)
        cache.answer(shared(ReadRequest(start, start + 1), 2, "places"), lambda request, empty=empty: empty)
    assert len(cache) == MAX_KEPT
    make = BatchProducer()
    cache.answer(shared(ReadRequest(2 * MAX_KEPT - 1, 2 * MAX_KEPT), 2, "places"), make)
    assert not make.made


def test_where_elements_are_and_some_of_them_are_parts_of_the_same_block():
    make, cache = BatchProducer(), BlockCache(1000)
    places = [cache.answer(shared(ReadRequest(5, 15), 2, "places"), make) for _ in range(2)]
    for told in places:
        assert (told.positions.tolist(), told.columns.shape, told.whole_nbytes) == (list(range(5, 15)), (0,), 80)
    selected = [runs_of(np.array(rows)) for rows in ([0, 2, 9], [4])]
    parts = [cache.answer(shared(ReadRequest(5, 15), 2, rows), make) for rows in selected]
    assert [part.columns.tolist() for part in parts] == [[5, 7, 14], [9]]
    assert make.made == [(5, 15)]
    assert cache.nbytes == 0  # both trainers had their rows
    whole = merged(places[0], parts[0], selected[0])
    assert (whole.positions.tolist(), whole.columns.tolist()) == (list(range(5, 15)), [5, 7, 14])
    assert whole.selected is selected[0]


def test_of_documents_the_tokens_that_are_wanted_and_which_documents_have_some():
    lengths, tokens = np.array([3, 4, 1, 2]), {"x": np.arange(10)}
    block = Block(np.array([5, 6, 6, 9]), tokens, lengths=lengths)
    runs = runs_of(np.array([2, 3, 4, 8]))
    told, part = part_of(block, "places"), part_of(block, runs)
    assert (told.lengths.tolist(), told.columns["x"].tolist(), told.whole_nbytes) == ([3, 4, 1, 2], [], 80)
    assert (part.positions.tolist(), part.lengths.tolist(), part.columns["x"].tolist()) == (
        [5, 6, 9],
        [3, 4, 2],
        [2, 3, 4, 8],
    )
    whole = merged(told, part, runs)
    assert (whole.lengths.tolist(), whole.columns["x"].tolist()) == ([3, 4, 1, 2], [2, 3, 4, 8])
    for other in ([3, 5, 1, 1], [3, 2, 1]):  # as many documents of other lengths, or fewer tokens
        again = Block(block.positions[: len(other)], tokens, lengths=np.array(other))
        with pytest.raises(RuntimeError, match="from position 5 on differ in a second read"):
            merged(told, part_of(again, runs), runs)


def test_a_part_of_another_block_than_was_told_of_is_an_error():
    told = part_of(BatchProducer()(ReadRequest(0, 10)), "places")
    for rows in ([8, 9], [3]):
        part = part_of(BatchProducer()(ReadRequest(1, 9)), runs_of(np.array(rows)))
        with pytest.raises(RuntimeError, match=f"from position {rows[0]} on differ in a second read"):
            merged(told, part, runs_of(np.array(rows)))
    failed = Block(np.arange(2), np.arange(2), failure=OSError("the disk is away"))
    runs = runs_of(np.array([1, 5]))
    with pytest.raises(OSError, match="the disk is away"):
        merged(told, part_of(failed, runs), runs)
