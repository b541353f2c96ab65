"""Files that some nodes alone have: every position is read once, by an actor whose node has its record."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.feed.window import Window
from datarax_ray.plan.homes import HomedOrder, HomeQuorum, Homes, assign_at_home, may_read
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.partitions import ReadRequest, owners_in
from datarax_ray.plan.scheduling import RecordScheduler

NODES = ("a", "b", "c")


@pytest.mark.parametrize("kind", ["none", "global", "block", "groups"])
@given(data=st.data())
def test_every_position_is_read_once_by_an_actor_that_has_its_record(kind, data):
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any))
    has = [frozenset(data.draw(st.sets(st.sampled_from(NODES), min_size=1))) for _ in sizes]
    nodes = tuple(dict.fromkeys(has))
    starts = np.cumsum([0, *sizes]).tolist()
    homes = Homes(tuple(starts[:-1]), tuple(nodes.index(each) for each in has), nodes, (("f",),) * len(nodes))
    options = {}
    if kind == "block":
        options = {"block_size": 4}
    elif kind == "groups":
        cuts = [min(8, size - at) for size in sizes for at in range(0, size, 8)]  # no group is in two files
        options = {"groups": RecordGroups(np.array(cuts))}
    shuffle = "block" if kind == "groups" else kind
    order = HomedOrder(order_of(sum(sizes), seed=7, shuffle=shuffle, **options), homes)
    partitioning = order.partitioning(data.draw(st.integers(1, 9)))
    of_actor = dict(enumerate([*NODES, *data.draw(st.lists(st.sampled_from(NODES), max_size=4))]))
    before = assign_at_home(partitioning, nodes, of_actor, [*of_actor])
    fewer = [actor for actor in of_actor if actor < 3 or data.draw(st.booleans())]
    owners = assign_at_home(partitioning, nodes, of_actor, fewer, before, {fewer[-1]: 0.5})
    start = data.draw(st.integers(0, sum(sizes)))
    stop = start + data.draw(st.integers(1, 2 * sum(sizes)))
    found = []
    for actor, partitions in owners_in(order, partitioning, owners, start, stop).items():
        request = ReadRequest(start, stop, partitioning, partitions)
        assert may_read(request, nodes, of_actor[actor])
        positions, records = request.select(order)
        found += zip(positions.tolist(), records.tolist(), strict=True)
        files = np.searchsorted(starts, records, "right") - 1
        assert all(of_actor[actor] in has[file] for file in files.tolist())
    positions = np.arange(start, stop)
    assert sorted(found) == list(zip(positions.tolist(), order.order.records(positions).tolist(), strict=True))


def test_where_a_home_has_no_actor_nobody_owns_anything():
    order = HomedOrder(order_of(10), Homes((0, 5), (0, 1), (frozenset("a"), frozenset("b")), (("x",), ("y",))))
    partitioning = order.partitioning(1)
    assert assign_at_home(partitioning, order.homes.nodes, {1: "a", 2: "a"}, [1, 2]) is None
    assert order.homes.without(frozenset("a")) == [1]
    assert order.homes.all_nodes == ("a", "b")


def test_what_a_lost_node_was_asked_for_can_be_read_by_those_who_have_it():
    order = HomedOrder(order_of(200), Homes((0, 100), (0, 1), (frozenset("ab"), frozenset("ac")), (("x",), ("y",))))
    nodes = order.homes.nodes
    scheduler = RecordScheduler(order, order.partitioning(10), start=0, stop=200)
    window = Window(scheduler, chunk_size=200, max_nbytes=2**30)
    window.reassign([0, 1, 2], None, {0: "a", 1: "b", 2: "c"})
    lost = [part for part in window.asks() if part.actor == 0]
    window.reassign([1, 2], None, {1: "b", 2: "c"})
    for part in lost:
        window.lost(part)
    again = window.asks()
    assert {part.actor for part in again} == {1, 2}
    assert all(may_read(part.request, nodes, {1: "b", 2: "c"}[part.actor]) for part in again)


def test_a_home_without_an_actor_is_waited_for_and_one_that_is_gone_is_not():
    quorum = HomeQuorum(Homes((0, 5), (0, 1), (frozenset("a"), frozenset("b")), (("x",), ("y",))), 10.0)
    missing = quorum.missing(frozenset("a"))
    for now in (50.0, 60.0):
        quorum.check(missing, frozenset("ab"), now)
    with pytest.raises(RuntimeError, match=r"^y .*on node b alone, which is without a running actor for 10 s: "):
        quorum.check(missing, frozenset("ab"), 60.5)
    assert quorum.missing(frozenset("ab")) == []
    quorum.check(missing, frozenset("ab"), 61.0)  # it waits anew
    with pytest.raises(RuntimeError, match="on node b alone, which is gone"):
        quorum.check(missing, frozenset("a"), 61.0)
