"""Who else is asked for what is late: by events and times, and in whole streams over actors of different speeds."""

import dataclasses

import pytest

from datarax_ray.feed.flow import Arrived, Flow, Stall
from datarax_ray.feed.second_reads import LATE, Backups
from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.feed.window import Part, Window
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.requests import EVERYTHING
from datarax_ray.plan.state import StreamState
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule, MixtureSource
from tests.data import write_files
from tests.feed.pools import OneActor
from tests.feed.test_flow import KINDS, EndAt, told

BOTH = (0, 1)


def part(chunk, actor):
    return Part(chunk, actor, actor, ReadRequest(10 * chunk, 10 * chunk + 10))


def backups(*sent, left=(), in_doubt=(), took_s=1.0):
    """With these sent at 1.0, when a first request of each actor has just taken that long."""
    found = Backups(left, in_doubt)
    for actor in BOTH:
        found.sent(part(0, actor), 1.0 - took_s)
        found.read(part(0, actor), 1.0)
    for each in sent:
        found.sent(each, 1.0)
    return found


def asked(found, now, actors=BOTH):
    """(chunk, of whom, who is asked, whether too) of each."""
    return [(ask.part.chunk, ask.part.actor, ask.copy.actor, ask.is_begun) for ask in found.asks(actors, now)]


def test_nobody_is_asked_while_all_have_something_to_do_and_none_is_late():
    assert asked(backups(part(1, 0), part(1, 1), part(2, 0)), 1.9) == []


def test_who_has_nothing_to_do_is_asked_for_what_stands_in_line_elsewhere():
    assert asked(backups(part(1, 0), part(2, 0), part(3, 0)), 1.1) == [(2, 0, 1, False)]


def test_what_an_actor_is_at_is_asked_of_another_one_too_once_it_takes_long():
    found = backups(part(1, 0))
    assert asked(found, 1.0 + LATE) == []
    assert asked(found, 1.1 + LATE) == [(1, 0, 1, True)]
    assert asked(found, 2.0 + LATE) == []  # once is enough


def test_what_stands_in_line_behind_what_takes_long_is_asked_of_others_though_they_are_busy():
    found = backups(part(1, 0), part(2, 0), part(2, 1), part(3, 1))
    assert asked(found, 1.5) == []
    found.read(part(2, 1), 1.9)
    assert asked(found, 1.2 + LATE) == [(2, 0, 1, False)]  # but not for what it is at: they have no time


def test_requests_as_short_as_a_look_and_what_was_lost_before_are_asked_of_nobody_else():
    found = backups(dataclasses.replace(part(1, 0), attempt=1), part(2, 0), part(3, 0), took_s=0.01)
    assert asked(found, 1.05) == []
    assert asked(found, 9.0) == [(2, 0, 1, False), (3, 0, 1, False)]


def test_nothing_is_late_before_anything_is_known_of_what_requests_take():
    found = Backups((), ())
    found.sent(part(0, 0), 0.0)
    found.sent(part(1, 0), 0.0)
    assert asked(found, 100.0) == []


def test_an_actor_that_reads_what_nobody_waits_for_any_more_has_no_time_until_it_is_done():
    found = backups(part(1, 0), part(1, 1), part(2, 1), left=[part(1, 0)])
    assert found.is_begun(part(1, 0))
    assert asked(found, 1.5) == []
    found.read(part(1, 0), 2.0)
    assert asked(found, 2.0) == [(2, 1, 0, False)]


def test_what_is_in_doubt_is_asked_of_nobody_else_and_does_not_say_what_requests_take():
    found = backups(part(1, 0), part(2, 0), in_doubt=[part(1, 0)])
    assert asked(found, 1.1 + LATE) == [(2, 0, 1, False)]  # which stands in line behind it
    found.lost(part(2, 0))
    found.read(part(1, 0), 100.0)
    found.sent(part(3, 0), 100.0)
    assert asked(found, 100.1 + LATE) == [(3, 0, 1, True)]


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize(
    ("options", "is_anywhere"),
    [({}, True), ({"cacheable": True}, False), ({"shuffle": True, "shuffle_block_size": "auto"}, False)],
)
def test_of_records_in_groups_late_ones_are_asked_of_others_in_file_order_alone(
    tmp_path, options, is_anywhere, is_mixed
):
    paths = write_files(tmp_path, [600], group_size=200)
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(**options), paths)
    if is_mixed:
        source = MixtureSource([source, source], weights=(0.5, 0.5))
    scheduler = source.describe().scheduler(StreamState(), None, EVERYTHING)
    assert any(each.by_group for each in scheduler.partitioning.components or [scheduler.partitioning])
    assert scheduler.limits.is_anywhere == is_anywhere


class Slow(OneActor):
    """Three actors, which read what they are asked for in order. The first takes a hundred times as long.

    now: a clock that goes on while somebody waits. sent, read, dropped: how often each was.
    """

    slow_s = 50.0

    def __init__(self, description):
        super().__init__(description)
        self.now, self.num_sent, self.num_read = 0.0, 0, 0
        self.queues = {actor: [] for actor in range(3)}
        self.begun_at = dict.fromkeys(range(3), 0.0)
        self.blocks, self.dropped, self.known = {}, set(), set()

    def actors(self):
        return (0, 1, 2)

    def nodes(self):
        return {0: "a", 1: "b", 2: "c"}

    def send(self, part):
        self.num_sent += 1
        self.dropped.discard(part)
        if not self.queues[part.actor]:
            self.begun_at[part.actor] = self.now
        self.queues[part.actor].append(part)

    def go_on(self):
        self.now += 0.25
        for actor, queue in self.queues.items():
            takes_s = self.slow_s if actor == 0 else 0.5
            while queue and self.now - self.begun_at[actor] >= takes_s:
                self.begun_at[actor] += takes_s
                each = queue.pop(0)
                self.num_read += 1
                if each not in self.dropped:
                    self.blocks[each] = self._description.read(each.request)

    def receive(self, sent):
        assert not self.dropped & set(sent)
        found = next((each for each in sent if each in self.blocks), None)
        if found is None:
            self.go_on()
            return None
        return Arrived(found, self.blocks.pop(found), self.nodes()[found.actor])

    def ended(self, sent):
        found = [each for each in sent if each in self.blocks and each not in self.known]
        self.known.update(found)
        return found

    def discard(self, sent):
        for each in sent:
            self.dropped.add(each)
            self.blocks.pop(each, None)
            if each in self.queues[each.actor][1:]:
                self.queues[each.actor].remove(each)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_size", [1, 6])
def test_the_stream_is_the_same_and_no_actor_is_waited_for_that_is_slow(kind, chunk_size, monkeypatch):
    description = KINDS[kind](EndAt())
    options = StreamOptions(4, chunk_size=chunk_size)
    want = told(batches(description, None, StreamState(), options))
    pool = Slow(description)
    monkeypatch.setattr("datarax_ray.feed.stream.Flow", lambda *given: Flow(*given, clock=lambda: pool.now))
    assert told(batches(description, pool, StreamState(), options)) == want
    assert pool.now < 0.2 * 50.0 * len(want)  # there are more requests than batches, of 50 each for the slow one


def test_a_request_that_two_are_asked_for_counts_once_in_the_window():
    description = KINDS["shuffled"](EndAt())
    pool = Slow(description)
    window = Window(description.scheduler(StreamState(), 24, EVERYTHING), chunk_size=6, max_nbytes=2**20)
    flow = Flow(window, pool, Stall(description, 1e9), clock=lambda: pool.now)
    positions = []
    while not flow.window.is_finished:
        flow.poll(pool.actors(), {})
        if not flow.window.is_ready:
            flow.receive()
            continue
        _, _, parts, blocks = flow.first()
        assert len({each.index for each in parts}) == len(parts)
        positions += sorted(position for block in blocks for position in block.positions.tolist())
        flow.release()
    assert positions == list(range(24))
    flow.close()
