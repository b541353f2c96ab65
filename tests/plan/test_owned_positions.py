"""What one owner holds of a chunk is the same, found backwards from its records or forwards from the positions."""

from __future__ import annotations

import numpy as np
import pytest

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import Order
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.trainer_rows import TrainerPositions, TrainerRows, share_of_rank

GROUPS = RecordGroups(np.random.default_rng(0).integers(100, 3000, 60))
ORDERS = {
    "global": order_of(50_001, seed=2**32 - 1, shuffle="global"),
    "grain's": order_of(40_000, seed=1, shuffle="global", rounds=4),
    "groups": order_of(GROUPS.num_records, seed=7, shuffle="block", groups=GROUPS, window_blocks=30),
}


def requests(order: Order, size: int = 17_001, rows: TrainerPositions | None = None) -> list[ReadRequest]:
    """Of all chunks of three epochs, for each of three owners."""
    partitioning = order.partitioning(64)
    owners = assign(partitioning, (0, 1, 2))
    stop = 3 * order.num_records
    return [
        ReadRequest(start, min(start + size, stop), partitioning, partitions, Wanted(rows))
        for start in range(0, stop, size)
        for partitions in owners_in(order, partitioning, owners, start, min(start + size, stop)).values()
    ]


def forwards(order: Order, request: ReadRequest) -> tuple[list[int], list[int]]:
    """A plain loop over the positions."""
    assert request.partitioning is not None
    assert request.partitions is not None
    positions = np.arange(request.start, request.stop)
    if (rows := request.wanted.positions) is not None:
        positions = positions[rows.contain(positions)]
    records = order.records(positions)
    runs = order.groups.of(records) if request.partitioning.by_group else records // request.partitioning.run_records
    mine = [int(run) % request.partitioning.num_partitions in request.partitions for run in runs]
    return positions[mine].tolist(), records[mine].tolist()


@pytest.mark.parametrize("name", ORDERS)
def test_backwards_and_forwards_agree_at_every_chunk(name):
    order = ORDERS[name]
    num_backwards = 0
    for request in requests(order):
        want = forwards(order, request)
        for _ in range(2):  # the first time forwards, where nobody asked before
            positions, records = request.select(order)
            assert (positions.dtype, records.dtype) == (np.int64, np.int64)
            assert (positions.tolist(), records.tolist()) == want
        num_backwards += (
            order.owned_positions(request.partitioning, request.partitions, request.start, request.stop) is not None
        )
    assert num_backwards == len(requests(order))


def test_a_trainer_gets_its_rows_of_them():
    order = ORDERS["global"]
    rows = TrainerPositions(0, None, TrainerRows(64, share_of_rank(1, 4)))
    for request in requests(order, rows=rows)[:6] * 2:
        positions, records = request.select(order)
        assert (positions.tolist(), records.tolist()) == forwards(order, request)


def test_a_chunk_of_the_last_position_alone():
    order = ORDERS["global"]
    last = order.num_records - 1
    found = []
    for partitions in owners_in(order, order.partitioning(64), (0, 1) * 512, last, last + 1).values():
        request = ReadRequest(last, last + 1, order.partitioning(64), partitions)
        found += [request.select(order)[1].tolist() for _ in range(2)][1]
    assert found == order.records(np.array([last])).tolist()


@pytest.mark.parametrize(
    "order",
    [
        order_of(50_001, shuffle="block", block_size=64),
        order_of(8_000, shuffle="global"),  # a table, forwards as well
        order_of(2**40, shuffle="global"),  # more than anyone remembers
    ],
)
def test_where_forwards_is_better_nothing_is_remembered(order):
    partitioning = order.partitioning(64)
    partitions = tuple(range(0, partitioning.num_partitions, 3))
    assert [order.owned_positions(partitioning, partitions, 0, 1000) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("order", [order_of(50_001), order_of(GROUPS.num_records, groups=GROUPS)])
def test_in_file_order_owners_look_at_their_own_runs_alone(order):
    for request in requests(order) + requests(order, 997):
        found = order.owned_positions(request.partitioning, request.partitions, request.start, request.stop)
        assert found is not None
        assert (found[0].dtype, found[1].dtype) == (np.int64, np.int64)
        assert tuple(each.tolist() for each in found) == forwards(order, request)
    for request in requests(order, order.num_records):  # whole epochs go forwards
        assert tuple(each.tolist() for each in request.select(order)) == forwards(order, request)


def test_who_holds_nearly_everything_goes_forwards():
    order = ORDERS["global"]
    partitioning = order.partitioning(64)
    assert [order.owned_positions(partitioning, tuple(range(1000)), 0, 1000) for _ in range(3)] == [None] * 3


def test_a_request_asked_once_makes_no_table():
    order = order_of(70_000, seed=99, shuffle="global")
    partitioning = order.partitioning(64)
    assert order.owned_positions(partitioning, (1, 2), 0, 1000) is None
    assert order.owned_positions(partitioning, (1, 2), 1000, 2000) is not None
