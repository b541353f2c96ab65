"""What one owner holds of a chunk is the same, found backwards from its records or forwards from the positions."""

import tracemalloc

import numpy as np
import pytest

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.mixture import Mixture, MixtureOrder
from datarax_ray.plan.orders.order import MAX_HELD, ascending
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.plan.requests import Wanted
from datarax_ray.plan.trainer_rows import TrainerPositions, TrainerRows, share_of_rank
from datarax_ray.plan.weights import WeightSchedule

GROUPS = RecordGroups(np.random.default_rng(0).integers(100, 3000, 60))
ORDERS = {
    "global": order_of(50_001, seed=2**32 - 1, shuffle="global"),
    "grain's": order_of(40_000, seed=1, shuffle="global", rounds=4),
    "groups": order_of(GROUPS.num_records, seed=7, shuffle="block", groups=GROUPS, window_blocks=30),
    "small windows": order_of(GROUPS.num_records, seed=7, shuffle="block", groups=GROUPS, window_blocks=4),
    "blocks": order_of(50_001, seed=5, shuffle="block", block_size=100, window_blocks=50),
    "a window of all": order_of(40_000, 3, "block", groups=RecordGroups([1000] * 40), window_blocks=10**6),
    "a large block": order_of(50_001, seed=5, shuffle="block", block_size=7_000, window_blocks=2),
}
MIXED = {
    "mixture": MixtureOrder(
        Mixture((3, 5, 1, 7), 1), (*[ORDERS[name] for name in ("global", "groups", "blocks")], order_of(40_007))
    ),
    "changed": MixtureOrder(
        Mixture((7, 2), 3, ((900, (5, 1)),)), (order_of(700, 1, "global"), order_of(50_001, 1, "global"))
    ),
}
MIXED["schedule"] = MixtureOrder(
    Mixture(WeightSchedule([(0, [1, 0]), (90_000, [1, 3]), (150_000, [0, 1])], num_steps=5), 3), MIXED["changed"].orders
)
MIXED["nested"] = MixtureOrder(Mixture((2, 1), 9), (MIXED["mixture"], ORDERS["small windows"]))
ALL = ORDERS | MIXED


def run_records(order):
    return tuple(map(run_records, order.orders)) if isinstance(order, MixtureOrder) else 64


def requests(order, size=17_001, rows=None):
    """Of chunks one after the other, of three epochs if they are small, for each of three owners."""
    partitioning = order.partitioning(run_records(order))
    owners = assign(partitioning, (0, 1, 2))
    stop = min(3 * order.num_records, 250_000)
    return [
        ReadRequest(start, min(start + size, stop), partitioning, partitions, Wanted(rows))
        for start in range(0, stop, size)
        for partitions in owners_in(order, partitioning, owners, start, min(start + size, stop)).values()
    ]


def forwards(order, request):
    """Of all positions, those whose records are in the partitions."""
    assert request.partitioning is not None
    assert request.partitions is not None
    positions = np.arange(request.start, request.stop)
    if (rows := request.wanted.positions) is not None:
        positions = positions[rows.contain(positions)]
    records = order.records(positions)
    mine = np.isin(order.partitions_of(request.partitioning, records), request.partitions)
    return positions[mine].tolist(), records[mine].tolist()


@pytest.mark.parametrize("name", ALL)
def test_backwards_and_forwards_agree_at_every_chunk(name):
    order = ALL[name]
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


@pytest.mark.parametrize("num_held", [0, 1, 30, 40, 100])
def test_what_is_held_stands_in_order_however_much_of_the_span_it_is(num_held):
    offsets = np.random.default_rng(num_held).permutation(100)[:num_held]
    found = ascending(offsets, 1000 - offsets, 100)
    assert [each.dtype for each in found] == [np.int64] * 2
    assert (found[0].tolist(), (1000 - found[1]).tolist()) == (sorted(offsets.tolist()),) * 2


@pytest.mark.parametrize("num_records", [2 * MAX_HELD, 6 * MAX_HELD + 12_345])
def test_what_one_remembers_and_takes_to_find_it_does_not_grow_with_what_one_holds(num_records):
    order = order_of(16 * num_records, seed=4, shuffle="global")
    partitioning = order.partitioning(64)
    partitions = tuple(range(7, partitioning.num_partitions, 16))
    assert order.owned_positions(partitioning, partitions, 0, 1000) is None
    far = 3 * order.num_records + order.num_records // 2
    tracemalloc.start()
    found = order.owned_positions(partitioning, partitions, far, far + 20_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    request = ReadRequest(far, far + 20_000, partitioning, partitions)
    assert tuple(each.tolist() for each in found) == forwards(order, request)
    assert most < 7 * 8 * MAX_HELD, "all that it holds would be six arrays of MAX_HELD"
