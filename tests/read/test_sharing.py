"""Blocks for several trainers, by value: how often each is made, and what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from datarax_ray.plan.orders.interleaved import Cursor, LaneTicket
from datarax_ray.plan.partitions import Ticket
from datarax_ray.read.block import Block
from datarax_ray.read.block_cache import MAX_KEPT, Shared, SharedBlocks, merged, part_of


class Maker:
    """Makes blocks of 8 bytes a position, and counts."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.failure: Exception | None = None

    def __call__(self, ticket: Any) -> Block:
        self.made.append((ticket.start, ticket.stop))
        positions = np.arange(ticket.start, ticket.stop)
        return Block(positions, positions, failure=self.failure)


def test_a_block_is_made_once_for_all_trainers_and_then_forgotten() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    blocks = [shared.answer(Shared(Ticket(0, 10), 3), make) for _ in range(3)]
    assert make.made == [(0, 10)]
    assert all(block is blocks[0] for block in blocks)
    assert shared.nbytes == 0
    shared.answer(Shared(Ticket(0, 10), 3), make)
    assert make.made == [(0, 10)] * 2


def test_nothing_is_kept_for_a_trainer_alone() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for _ in range(2):
        shared.answer(Ticket(0, 10), make)
    assert make.made == [(0, 10)] * 2
    assert shared.nbytes == 0


def test_tickets_that_ask_for_something_else_are_made_alone() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for ticket in [Ticket(0, 10), Ticket(0, 9), Ticket(0, 10, None, (1,))]:
        shared.answer(Shared(ticket, 2), make)
    assert len(make.made) == 3


def test_cursors_are_no_part_of_what_is_asked() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for cursor in (Cursor(), Cursor(5, {"shard": 1})):
        shared.answer(Shared(LaneTicket(0, 10, ((3, cursor),)), 2), make)
    shared.answer(Shared(LaneTicket(0, 10, ((4, Cursor()),)), 2), make)
    assert make.made == [(0, 10)] * 2


def test_the_latest_blocks_within_the_bound_are_kept() -> None:
    make, shared = Maker(), SharedBlocks(160)
    tickets = [Shared(Ticket(10 * i, 10 * i + 10), 2) for i in range(3)]
    for ticket in tickets:
        shared.answer(ticket, make)
    assert shared.nbytes == 160
    for ticket in reversed(tickets):
        shared.answer(ticket, make)
    assert make.made == [(0, 10), (10, 20), (20, 30), (0, 10)]
    assert shared.nbytes == 80


def test_blocks_that_hold_nothing_are_forgotten_too() -> None:
    shared = SharedBlocks(1000)
    for start in range(2 * MAX_KEPT):  # nobody asks for the rows of a block that has none
        empty = Block(np.empty(0, np.int64), None)
        shared.answer(Shared(Ticket(start, start + 1), 2, "places"), lambda ticket, empty=empty: empty)
    assert len(shared) == MAX_KEPT
    make = Maker()
    shared.answer(Shared(Ticket(2 * MAX_KEPT - 1, 2 * MAX_KEPT), 2, "places"), make)
    assert not make.made


def test_a_block_beyond_the_bound_is_not_kept() -> None:
    make, shared = Maker(), SharedBlocks(79)
    assert len(shared.answer(Shared(Ticket(0, 10), 2), make).positions) == 10
    assert shared.nbytes == 0


def test_what_failed_is_tried_again() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    make.failure = OSError("the disk is away")
    ticket = Shared(Ticket(0, 10), 2)
    assert shared.answer(ticket, make).failure is make.failure
    make.failure = None
    assert shared.answer(ticket, make).failure is None


def test_where_elements_are_and_some_of_them_are_parts_of_the_same_block() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    places = [shared.answer(Shared(Ticket(5, 15), 2, "places"), make) for _ in range(2)]
    for told in places:
        assert (told.positions.tolist(), told.columns.shape, told.whole_nbytes) == (list(range(5, 15)), (0,), 80)
    picked = [np.array([0, 2, 9]), np.array([4])]
    parts = [shared.answer(Shared(Ticket(5, 15), 2, rows), make) for rows in picked]
    assert [part.columns.tolist() for part in parts] == [[5, 7, 14], [9]]
    assert make.made == [(5, 15)]
    assert shared.nbytes == 0  # both trainers had their rows
    whole = merged(places[0], parts[0], picked[0])
    assert (whole.positions.tolist(), whole.columns.tolist()) == (list(range(5, 15)), [5, 7, 14])
    assert whole.picked is picked[0]


def test_a_part_of_another_block_than_was_told_of_is_an_error() -> None:
    told = part_of(Maker()(Ticket(0, 10)), "places")
    for rows in ([8, 9], [3]):
        part = part_of(Maker()(Ticket(1, 9)), np.array(rows))
        with pytest.raises(RuntimeError, match=f"from position {rows[0]} on were others when they were read again"):
            merged(told, part, np.array(rows))
    failed = Block(np.arange(2), np.arange(2), failure=OSError("the disk is away"))
    with pytest.raises(OSError, match="the disk is away"):
        merged(told, part_of(failed, np.array([1, 5])), np.array([1, 5]))
