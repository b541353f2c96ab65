"""Blocks for several trainers, by value: how often each is made, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from datarax_ray.plan.lanes import Cursor, LaneTicket
from datarax_ray.plan.shards import Ticket
from datarax_ray.read.blocks import Block
from datarax_ray.read.sharing import SharedBlocks


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
    ticket = Ticket(0, 10, num_readers=3)
    blocks = [shared.block(replace(ticket), make) for _ in range(3)]
    assert make.made == [(0, 10)]
    assert all(block is blocks[0] for block in blocks)
    assert shared.nbytes == 0
    shared.block(ticket, make)
    assert make.made == [(0, 10)] * 2


def test_nothing_is_kept_for_a_trainer_alone() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for _ in range(2):
        shared.block(Ticket(0, 10), make)
    assert make.made == [(0, 10)] * 2
    assert shared.nbytes == 0


def test_tickets_that_ask_for_something_else_are_made_alone() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for ticket in [Ticket(0, 10, num_readers=2), Ticket(0, 9, num_readers=2), Ticket(0, 10, None, (1,), num_readers=2)]:
        shared.block(ticket, make)
    assert len(make.made) == 3


def test_cursors_are_no_part_of_what_is_asked() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    for cursor in (Cursor(), Cursor(5, {"shard": 1})):
        shared.block(LaneTicket(0, 10, ((3, cursor),), num_readers=2), make)
    shared.block(LaneTicket(0, 10, ((4, Cursor()),), num_readers=2), make)
    assert make.made == [(0, 10)] * 2


def test_the_latest_blocks_within_the_bound_are_kept() -> None:
    make, shared = Maker(), SharedBlocks(160)
    tickets = [Ticket(10 * i, 10 * i + 10, num_readers=2) for i in range(3)]
    for ticket in tickets:
        shared.block(ticket, make)
    assert shared.nbytes == 160
    for ticket in reversed(tickets):
        shared.block(ticket, make)
    assert make.made == [(0, 10), (10, 20), (20, 30), (0, 10)]
    assert shared.nbytes == 80


def test_a_block_beyond_the_bound_is_not_kept() -> None:
    make, shared = Maker(), SharedBlocks(79)
    assert len(shared.block(Ticket(0, 10, num_readers=2), make).positions) == 10
    assert shared.nbytes == 0


def test_what_failed_is_tried_again() -> None:
    make, shared = Maker(), SharedBlocks(1000)
    make.failure = OSError("the disk is away")
    ticket = Ticket(0, 10, num_readers=2)
    assert shared.block(ticket, make).failure is make.failure
    make.failure = None
    assert shared.block(ticket, make).failure is None


@pytest.mark.parametrize("kind", [Ticket, lambda *of, **named: LaneTicket(*of, (), **named)])
def test_tickets_of_every_kind_can_be_looked_up(kind: Any) -> None:
    assert hash(kind(0, 1, num_readers=2).asked) == hash(kind(0, 1, num_readers=2).asked)
