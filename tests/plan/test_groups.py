"""Orders over groups of different sizes, against a plain walk over whole epochs, and who gets a request of them."""

import numpy as np
import pytest

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in

SIZES = (5, 1, 7, 3, 3, 9, 2, 4)
N = sum(SIZES)


def blocks(seed=3, window_blocks=3, sizes=SIZES):
    return order_of(sum(sizes), seed=seed, shuffle="block", groups=RecordGroups(sizes), window_blocks=window_blocks)


def test_each_window_holds_exactly_its_groups_whole():
    """The plain walk: permute the groups with the cipher, cut them into threes, and compare sets."""
    order, starts = blocks(), np.cumsum([0, *SIZES])
    for epoch in range(4):
        records = order.records(np.arange(epoch * N, (epoch + 1) * N)).tolist()
        slots = cipher.permute(np.arange(len(SIZES)), len(SIZES), seed=3 + epoch).tolist()
        for window in (slots[:3], slots[3:6], slots[6:]):
            expected = [r for g in window for r in range(starts[g], starts[g + 1])]
            got, records = records[: len(expected)], records[len(expected) :]
            assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("order", [order_of(N, groups=RecordGroups(SIZES)), blocks(window_blocks=1)])
def test_no_group_has_two_owners(order):
    layout = Partitioning(1, 3, by_group=True)
    owners = assign(layout, [0, 1, 2])
    read_by = {}
    for start, stop in [(0, N), (3, 9), (N - 4, 3 * N)]:
        for actor, partitions in owners_in(order, layout, owners, start, stop).items():
            _, records = ReadRequest(start, stop, layout, partitions).select(order)
            for group in order.groups.of(records).tolist():
                read_by.setdefault(group, set()).add(actor)
    assert [len(actors) for actors in read_by.values()] == [1] * len(SIZES)


def test_a_global_shuffle_does_not_depend_on_groups():
    grouped, plain = order_of(N, shuffle="global", groups=RecordGroups(SIZES)), order_of(N, shuffle="global")
    assert grouped.partitioning(4) == plain.partitioning(4)
    assert np.array_equal(grouped.records(np.arange(2 * N)), plain.records(np.arange(2 * N)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RecordGroups([]), "at least one record each, got sizes \\[\\]"),
        (lambda: RecordGroups([3, 0]), "at least one record each, got sizes \\[3, 0\\]"),
        (
            lambda: order_of(4, groups=RecordGroups([3])),
            "groups of 3 records in all do not fit num_records=4; groups cover every record",
        ),
        (lambda: order_of(4, shuffle="block", block_size=2, groups=RecordGroups([4])), "block_size is 1 then, got 2"),
        (lambda: order_of(4, shuffle="block", window_blocks=0), "window_blocks must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "sizes",
    [[256] * 50, ([256] * 9 + [1]) * 40, [1] * 2000 + [5000], [5000] + [1] * 2000, [3], [1], [1, 10**12], [7, 1] * 33],
)
def test_the_group_of_each_record_is_that_of_a_plain_search(sizes):
    groups = RecordGroups(sizes)
    records = np.concatenate([groups.starts[:-1], groups.starts[1:] - 1, np.arange(min(groups.num_records, 5000))])
    records = np.concatenate([records, np.random.default_rng(0).integers(0, groups.num_records, 1000)])
    assert np.array_equal(groups.of(records), np.searchsorted(groups.starts, records, side="right") - 1)


def test_only_owners_of_groups_in_the_window_get_a_request():
    order = blocks(window_blocks=1)
    layout = order.partitioning(run_records=99)
    assert layout.by_group
    owners = assign(layout, list(range(8)))
    assert len(owners_in(order, layout, owners, 0, 1)) == 1
    assert len(owners_in(order, layout, owners, 0, N)) == 8
    in_file_order = order_of(N, groups=RecordGroups(SIZES))
    assert owners_in(in_file_order, layout, owners, 5, 7) == {1: (1,), 2: (2,)}
