"""Dealing shards, driven with events only: by value, and by a random scheduler that a plain rotation checks."""

import json
import random
from dataclasses import replace

import pytest

from datarax_ray.feed.window import Window
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, Cursor, InterleavedOrder, ShardEnd, ShardReadRequest
from datarax_ray.plan.scheduling import ShardScheduler
from datarax_ray.plan.state import StreamState
from tests import shards_oracle

E = EPOCH_POSITIONS


OWNERS = (7, 8, 7)  # of shards


def scheduler(num_shards=2, turn_size=2, *, start=0, stop=None, rest=None, **options):
    order = InterleavedOrder(num_shards, turn_size)
    return ShardScheduler(order, start=state(order, start, rest), stop=stop, **options)


def state(order, start, rest):
    return StreamState(start, extra=order.extra_in(rest or {}, StreamState(start), {}))


def answer(*shards):
    """What a block says of where shards stand: (shard, ordinal of its cursor, length)."""
    return tuple(ShardEnd(shard, Cursor(ordinal, {"at": ordinal}), length) for shard, ordinal, length in shards)


def test_each_actor_is_asked_for_its_shards():
    machine = scheduler(3)
    deal = machine.next_chunk(6, OWNERS)
    assert (deal.start, deal.stop, deal.size) == (0, 6, 6)
    assert dict(deal.requests) == {
        7: ShardReadRequest(0, 6, ((0, Cursor()), (2, Cursor()))),
        8: ShardReadRequest(0, 6, ((1, Cursor()),)),
    }


def test_the_next_epoch_is_dealt_once_all_shards_are_known_to_have_ended():
    machine = scheduler(2, stop=2 * E)
    first = machine.next_chunk(8, OWNERS)
    assert machine.next_chunk(8, OWNERS).start == 8  # nobody knows yet
    machine.arrived(dict(first.requests)[7], answer((0, 4, 4)))
    machine.arrived(dict(first.requests)[8], answer((1, 3, 3)))
    deal = machine.next_chunk(8, OWNERS)
    assert deal.start == E
    assert {request.shards[0][1] for request in dict(deal.requests).values()} == {Cursor()}
    for request in dict(deal.requests).values():
        machine.arrived(request, answer((request.shards[0][0], 0, 2)))
    assert machine.is_exhausted


def test_a_shard_longer_than_was_dealt_is_not_over():
    machine = scheduler(1)
    machine.next_chunk(4, OWNERS)
    machine.arrived(ShardReadRequest(0, 4, ((0, Cursor()),)), answer((0, 0, 10)))
    assert machine.next_chunk(4, OWNERS).start == 4
    assert machine.next_chunk(4, OWNERS).start == 8
    assert machine.next_chunk(4, OWNERS).start == E


def test_a_state_says_nothing_of_what_was_not_delivered():
    machine = scheduler(2)
    assert machine.extra_at(0) is None
    deals = [machine.next_chunk(8, OWNERS) for _ in range(3)]
    for number, deal in enumerate(deals):
        for request in dict(deal.requests).values():
            machine.arrived(request, answer((request.shards[0][0], 4 * number + 3, None)))
    assert machine.extra_at(5) is None
    machine.released(8, has_elements=True)
    assert machine.extra_at(7) is None
    assert machine.extra_at(8).plain() == {
        "epoch": 0,
        "cursors": {"0": {"ordinal": 3, "state": {"at": 3}}, "1": {"ordinal": 3, "state": {"at": 3}}},
        "lengths": {},
    }
    machine.released(16, has_elements=False)
    machine.released(24, has_elements=True)
    assert machine.extra_at(9).cursors[0].ordinal == 3  # a batch that ends behind the first chunk's element
    assert machine.extra_at(25).cursors[0].ordinal == 11


def test_what_is_known_of_one_epoch_is_not_taken_for_another():
    rest = {"epoch": 0, "cursors": {"0": {"ordinal": 0, "state": {"epoch": 0}}}, "lengths": {"1": 3}}
    machine = scheduler(2, start=E + 1, rest=rest)
    assert dict(machine.next_chunk(8, OWNERS).requests)[8].shards == ((1, Cursor()),)


@pytest.mark.parametrize(
    "rest",
    [
        {"cursors": [1]},
        {"cursors": {"a": {"ordinal": 0, "state": None}}},
        {"cursors": {"0": 5}},
        {"cursors": {"0": {"ordinal": 1}}},
        {"lengths": {"x": 1}},
    ],
)
def test_shards_that_cannot_be_read_are_refused(rest):
    with pytest.raises(ValueError, match="the state's shards cannot be read: .* the state is damaged"):
        state(InterleavedOrder(2, 2), 8 - 3, rest)


def test_a_request_is_split_by_position_into_requests_for_the_shards_that_have_any_there():
    machine = scheduler(num_shards=3, turn_size=2)
    machine.arrived(ShardReadRequest(0, 6, ((1, Cursor()),)), answer((1, 2, None)))
    ((_, request),) = machine.next_chunk(12, (7, 7, 7)).requests
    pieces = machine.split(replace(request, start=2, stop=9))
    assert pieces == [
        ShardReadRequest(2, 3, ((1, Cursor(2, {"at": 2})),)),
        ShardReadRequest(3, 4, ((1, Cursor(2, {"at": 2})),)),
        ShardReadRequest(4, 5, ((2, Cursor()),)),
        ShardReadRequest(5, 6, ((2, Cursor()),)),
        ShardReadRequest(6, 7, ((0, Cursor()),)),
        ShardReadRequest(7, 8, ((0, Cursor()),)),
        ShardReadRequest(8, 9, ((1, Cursor(2, {"at": 2})),)),
    ]
    assert machine.split(ShardReadRequest(2, 42, ((1, Cursor()),))) == [
        ShardReadRequest(lo, lo + 5, ((1, Cursor()),)) for lo in range(2, 42, 5)
    ]


@pytest.mark.parametrize("may_come", [False, True])
def test_an_epoch_of_shards_without_an_element_ends_the_stream_where_none_may_come_elsewhere(may_come):
    machine = scheduler(2)
    _, second = (machine.next_chunk(4, OWNERS) for _ in range(2))
    assert machine.released(4, has_elements=False, may_come=may_come) is None
    for request in dict(second.requests).values():
        machine.arrived(request, answer((request.shards[0][0], 2, 4)))
    assert not machine.is_exhausted
    if may_come:
        assert "was kept, nor of 1 epochs" in machine.released(8, has_elements=False)
        assert machine.released(16, has_elements=False) is None
    else:
        with pytest.raises(RuntimeError, match="no element of epoch 0, of 8 in 2 shards, was kept"):
            machine.released(8, has_elements=False)


def test_a_block_that_failed_as_a_whole_says_nothing_of_shards():
    machine = scheduler(2)
    deal = machine.next_chunk(8, OWNERS)
    machine.arrived(dict(deal.requests)[7], ())
    assert dict(machine.next_chunk(8, OWNERS).requests)[7].shards[0][1] == Cursor()


def plain(extra):
    return None if extra is None else extra.plain()


class Scheduler:
    """A window over shards whose actors answer, die, join and leave in any order.

    What was delivered is checked against the plain rotation, and every state against what it leaves to deliver.
    """

    def __init__(self, seed, *, num_epochs, chunk_size, max_nbytes):
        self.random = random.Random(seed)
        self.num_shards = self.random.choice([1, 2, 5])
        self.turn_size = self.random.choice([1, 2, 4])
        self.num_epochs, self.chunk_size, self.max_nbytes = num_epochs, chunk_size, max_nbytes
        self.lengths = [
            [self.random.choice([0, 1, 7, 30]) for _ in range(self.num_shards - 1)] + [self.random.randrange(1, 20)]
            for _ in range(num_epochs)
        ]
        self.order = InterleavedOrder(self.num_shards, self.turn_size)
        self.actors, self.next_actor = [0, 1], 2
        self.want = [
            (epoch, *at)
            for epoch in range(num_epochs)
            for at in shards_oracle.rotation(self.lengths[epoch], self.turn_size)
        ]
        self.states = []
        self.got = []
        self.begin(0, None)

    def begin(self, start, rest):
        begin = state(self.order, start, rest)
        self.scheduler = ShardScheduler(self.order, start=begin, stop=self.num_epochs * E)
        self.window = Window(self.scheduler, chunk_size=self.chunk_size, max_nbytes=self.max_nbytes)
        self.window.reassign(self.actors)
        self.start = start
        self.in_flight, self.arrived = [], {}

    def position(self, epoch, shard, ordinal):
        turns = ordinal // self.turn_size * self.num_shards + shard
        return epoch * E + turns * self.turn_size + ordinal % self.turn_size

    def elements(self, request):
        """(position, shard, ordinal) of what a request asks for, one by one."""
        epoch = request.start // E
        found = []
        for shard, cursor in request.shards:
            before = 0
            for ordinal in range(self.lengths[epoch][shard]):
                position = self.position(epoch, shard, ordinal)
                if position < request.start:
                    before = ordinal + 1
                elif position < request.stop:
                    found.append((position, shard, ordinal))
            assert cursor.ordinal <= before, "a cursor behind what is asked for"
            assert cursor.ordinal == 0 or cursor.state["epoch"] == epoch
        return sorted(found)

    def ends(self, request):
        epoch = request.start // E
        found = self.elements(request)
        ends = []
        for shard, cursor in request.shards:
            last = max([ordinal + 1 for _, at, ordinal in found if at == shard], default=cursor.ordinal)
            at = self.random.randrange(cursor.ordinal, last + 1)
            length = self.lengths[epoch][shard]
            # who was asked for more than there is has met the end; who was asked for all of it may have
            is_known = self.position(epoch, shard, length) < request.stop or (
                last == length and self.random.random() < 0.5
            )
            ends.append(ShardEnd(shard, Cursor(at, {"epoch": epoch}), length if is_known else None))
        return ends

    def step(self):
        self.random.choices([self.ask, self.arrive, self.lose, self.change, self.release], [30, 40, 4, 1, 25])[0]()

    def ask(self):
        self.in_flight += self.window.asks()

    def arrive(self):
        if self.in_flight:
            part = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self.window.arrived(part, 10)
            self.scheduler.arrived(part.request, self.ends(part.request))
            self.arrived.setdefault(part.chunk, []).append(part)

    def lose(self):
        if self.in_flight:
            self.window.lost(self.in_flight.pop(self.random.randrange(len(self.in_flight))))

    def change(self):
        if self.random.random() < 0.5 or len(self.actors) == 1:
            self.actors = [*self.actors, self.next_actor]
            self.next_actor += 1
        else:
            self.actors = self.random.sample(self.actors, len(self.actors) - 1)
        self.window.reassign(self.actors)

    def release(self):
        self.ask()  # as the stream does before it looks at the head
        if self.window.is_finished or self.window.head:
            return
        start, stop = self.window.head_range
        number = min(self.arrived, default=None)
        is_first = number is not None and start <= self.arrived[number][0].request.start < stop
        parts = self.arrived.pop(number) if is_first else []
        found = sorted(at for part in parts for at in self.elements(part.request))
        for position, shard, ordinal in found:
            self.got.append((position // E, shard, ordinal))
            self.states.append((position + 1, json.dumps(plain(self.scheduler.extra_at(position + 1))), len(self.got)))
        self.window.release()
        self.scheduler.released(stop, bool(found))

    def run(self):
        for _ in range(10**6):
            if self.window.is_finished:
                return
            self.step()
        raise AssertionError("the stream does not finish")


@pytest.mark.parametrize(("chunk_size", "max_nbytes"), [(1, 10), (7, 60), (None, 10**6), (64, 10**6), (None, 30)])
@pytest.mark.parametrize("num_epochs", [1, 3])
def test_a_random_scheduler_finds_no_loss_no_repetition_and_exact_states(num_epochs, chunk_size, max_nbytes):
    for seed in range(6):
        scheduler = Scheduler(seed, num_epochs=num_epochs, chunk_size=chunk_size, max_nbytes=max_nbytes)
        scheduler.run()
        assert scheduler.got == scheduler.want
        states = scheduler.states
        for position, rest, done in states[:: max(1, len(states) // 12)]:
            scheduler.begin(position, json.loads(rest))
            scheduler.got = []
            scheduler.run()
            assert scheduler.got == scheduler.want[done:]
