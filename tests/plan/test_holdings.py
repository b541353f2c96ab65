"""What one owner holds of a chunk is the same, found backwards from its records or forwards from the positions."""

from __future__ import annotations

import numpy as np
import pytest

from datarax_ray.plan.orders import owned_positions as holdings
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.orders.record_groups import Groups
from datarax_ray.plan.partitions import Ticket, assign, cut, owners_in
from datarax_ray.plan.trainer_rows import TrainerPositions, TrainerRows, share_of_rank

GROUPS = Groups(np.random.default_rng(0).integers(100, 3000, 60))
ORDERS = {
    "global": Order(50_001, seed=2**32 - 1, shuffle="global"),
    "grain's": Order(40_000, seed=1, shuffle="global", rounds=4),
    "groups": Order(GROUPS.num_records, seed=7, shuffle="block", groups=GROUPS, window_blocks=16),
}


def tickets(order: Order, size: int = 17_001, rows: TrainerPositions | None = None) -> list[Ticket]:
    """Of all chunks of three epochs, for each of three owners."""
    layout = cut(order, 64)
    owners = assign(layout, order, (0, 1, 2))
    stop = 3 * order.num_records
    return [
        Ticket(start, min(start + size, stop), layout, shards, rows)
        for start in range(0, stop, size)
        for shards in owners_in(order, layout, owners, start, min(start + size, stop)).values()
    ]


def forwards(order: Order, ticket: Ticket) -> tuple[list[int], list[int]]:
    """A plain loop over the positions."""
    assert ticket.layout is not None
    assert ticket.shards is not None
    positions = np.arange(ticket.start, ticket.stop)
    if ticket.rows is not None:
        positions = positions[ticket.rows.contain(positions)]
    records = order.records(positions)
    runs = order.groups.of(records) if ticket.layout.by_group else records // ticket.layout.run_records
    mine = [int(run) % ticket.layout.num_shards in ticket.shards for run in runs]
    return positions[mine].tolist(), records[mine].tolist()


@pytest.mark.parametrize("name", ORDERS)
def test_backwards_and_forwards_agree_at_every_chunk(name):
    order = ORDERS[name]
    num_backwards = 0
    for ticket in tickets(order):
        want = forwards(order, ticket)
        for _ in range(2):  # the first time forwards, where nobody asked before
            positions, records = ticket.select(order)
            assert (positions.dtype, records.dtype) == (np.int64, np.int64)
            assert (positions.tolist(), records.tolist()) == want
        num_backwards += holdings.held(order, ticket.layout, ticket.shards, ticket.start, ticket.stop) is not None
    assert num_backwards == len(tickets(order))


def test_a_trainer_gets_its_rows_of_them():
    order = ORDERS["global"]
    rows = TrainerPositions(0, None, TrainerRows(64, share_of_rank(1, 4)))
    for ticket in tickets(order, rows=rows)[:6] * 2:
        positions, records = ticket.select(order)
        assert (positions.tolist(), records.tolist()) == forwards(order, ticket)


def test_a_chunk_of_the_last_position_alone():
    order = ORDERS["global"]
    last = order.num_records - 1
    found = []
    for shards in owners_in(order, cut(order, 64), (0, 1) * 512, last, last + 1).values():
        ticket = Ticket(last, last + 1, cut(order, 64), shards)
        found += [ticket.select(order)[1].tolist() for _ in range(2)][1]
    assert found == order.records(np.array([last])).tolist()


@pytest.mark.parametrize(
    "order",
    [
        Order(50_001),  # file order needs no permutation
        Order(50_001, shuffle="block", block_size=64),
        Order(8_000, shuffle="global"),  # a table, forwards as well
        Order(2**40, shuffle="global"),  # more than anyone remembers
    ],
)
def test_where_forwards_is_better_nothing_is_remembered(order):
    layout = cut(order, 64)
    shards = tuple(range(0, layout.num_shards, 3))
    assert [holdings.held(order, layout, shards, 0, 1000) for _ in range(3)] == [None] * 3


def test_who_holds_nearly_everything_goes_forwards():
    order = ORDERS["global"]
    layout = cut(order, 64)
    assert [holdings.held(order, layout, tuple(range(1000)), 0, 1000) for _ in range(3)] == [None] * 3


def test_a_ticket_asked_once_makes_no_table():
    order = Order(70_000, seed=99, shuffle="global")
    layout = cut(order, 64)
    assert holdings.held(order, layout, (1, 2), 0, 1000) is None
    assert holdings.held(order, layout, (1, 2), 1000, 2000) is not None
