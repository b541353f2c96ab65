"""The window driven with events only: its protocol by value, and a random scheduler with invariants at every step."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from datarax_ray.feed.window import (
    DEFAULT_MAX_NBYTES,
    FIRST_CHUNK_RECORDS,
    MAX_OPEN_CHUNKS,
    MAX_PART_RECORDS,
    SPLIT_AFTER,
    TARGET_BLOCK_NBYTES,
    TRY_AFTER,
    Bound,
    Part,
    Window,
    next_chunk_size,
)
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.requests import Sharing, Wanted
from datarax_ray.plan.scheduling import RecordScheduler
from datarax_ray.plan.trainer_rows import TrainerPositions, TrainerRows, share_of_rank


class Scheduler:
    """Actors that answer, fail, join and leave at random, and what a correct window may do.

    Every position has `per_position` bytes, so that bytes in flight are known without asking the window.
    """

    def __init__(self, seed: int, *, shuffle: str, chunk_size: int | None, max_nbytes: int, stop: int | None) -> None:
        self.random = random.Random(seed)
        # not tiny where it is shuffled: each epoch would cost milliseconds
        num_records = self.random.choice([1, 3, 50, 1000] if shuffle == "none" else [1000, 9000])
        self.order = order_of(num_records, shuffle=shuffle)
        self.partitioning = Partitioning(self.random.choice([1, 4, 16]), self.random.choice([1, 5, 12]))
        self.actors = [0, 1, 2]
        self.next_actor = 3
        self.max_nbytes = max_nbytes
        self.per_position = 10
        self.position = 5
        self.stop = stop
        scheduler = RecordScheduler(self.order, self.partitioning, start=5, stop=stop)
        self.window = Window(scheduler, chunk_size=chunk_size, max_nbytes=max_nbytes)
        self.window.reassign(self.actors)
        self.in_flight: list[Part] = []
        self.asked: Counter = Counter()
        self.delivered: dict[tuple[int, int], Part] = {}  # (chunk, index) of open chunks
        self.bounds: dict[int, tuple[int, int]] = {}  # of open chunks
        self.positions: dict[Part, list[int]] = {}
        self.opened_to = 5
        self.num_released = 0

    def step(self) -> None:
        self.random.choices(
            [self.ask, self.arrive, self.lose, self.join, self.leave, self.release], [30, 40, 16, 1, 1, 22]
        )[0]()
        self.check()

    def ask(self) -> None:
        before = set(self.bounds)
        for part in self.window.asks():
            key = (part.chunk, part.index, part.attempt, part.request)
            assert not self.asked[key], f"{part} asked twice"
            self.asked[key] += 1
            assert part.actor in self.actors, "asked of one who is gone"
            self.in_flight.append(part)
            if part.chunk not in self.bounds:
                assert part.attempt == 0
                assert part.request.start == self.opened_to, "a gap or overlap between chunks"
                self.opened_to = part.request.stop
                self.bounds[part.chunk] = (part.request.start, part.request.stop)
        if set(self.bounds) - before and len(self.bounds) > 1 and self.num_released:
            in_flight = sum(stop - start for start, stop in self.bounds.values()) * self.per_position
            assert in_flight <= self.max_nbytes, "more than one chunk is open only if all of them fit"

    def arrive(self) -> None:
        if self.in_flight:
            part = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self._deliver(part)

    def _deliver(self, part: Part) -> None:
        key = (part.chunk, part.index)
        assert key not in self.delivered, "delivered twice"
        self.delivered[key] = part
        self.positions[part] = part.request.select(self.order)[0].tolist()
        read_s = self.random.choice([0.0, 1e-4, 0.01]) * len(self.positions[part])
        self.window.arrived(part, self.per_position * len(self.positions[part]), read_s)

    def lose(self) -> None:
        if self.in_flight:
            self._lose(self.in_flight.pop(self.random.randrange(len(self.in_flight))))

    def _lose(self, part: Part) -> None:
        was_read = self.random.random() < 0.8  # or it only stood in line
        self.window.lost(part, was_read=was_read)
        if not was_read:
            self.asked[part.chunk, part.index, part.attempt, part.request] -= 1

    def join(self) -> None:
        if len(self.actors) < 6:
            self.actors.append(self.next_actor)
            self.next_actor += 1
            self._reassign()

    def leave(self) -> None:
        if len(self.actors) > 1:
            gone = self.actors.pop(self.random.randrange(len(self.actors)))
            known_first = self.random.random() < 0.5
            if known_first:
                self._reassign()
            for part in [part for part in self.in_flight if part.actor == gone]:
                self.in_flight.remove(part)
                self._lose(part)
            if not known_first:
                self._reassign()

    def _reassign(self) -> None:
        slow = self.random.choice(self.actors)
        self.window.reassign(self.actors, self.random.choice([None, {slow: 0.25}]))

    def release(self) -> None:
        if not self.bounds or self.window.head:
            return
        start, stop = self.window.head_range
        assert start == self.position, "out of order"
        number = min(self.bounds)
        assert self.bounds.pop(number) == (start, stop)
        parts = [self.delivered.pop(key) for key in sorted(self.delivered) if key[0] == number]
        positions = sorted(p for part in parts for p in self.positions.pop(part))
        assert positions == list(range(start, stop)), "each position is delivered exactly once"
        self.window.release()
        self.position = stop
        self.num_released += 1

    def check(self) -> None:
        machine = self.window
        assert len(self.bounds) <= MAX_OPEN_CHUNKS
        assert sorted(self.bounds) == list(range(self.num_released, self.num_released + len(self.bounds)))
        arrived = self.per_position * sum(len(self.positions[part]) for part in self.delivered.values())
        assert machine.nbytes >= arrived
        assert machine.is_finished == (self.position == self.stop)
        missing = {(p.chunk, p.index) for p in machine.head}
        assert not missing & self.delivered.keys()

    def drain(self) -> None:
        """Only good events from here: the stream must end."""
        for _ in range(10**6):
            if self.window.is_finished:
                return
            self.ask()
            while self.in_flight:
                self.arrive()
            self.release()
            self.check()
        raise AssertionError("the window does not finish")


def schedules(steps: int) -> None:
    settings = [
        ("none", 7, 2000, None),
        ("global", 16, 500, None),
        ("none", None, 20_000, None),
        ("global", None, 100, 3000),
        ("none", 1, 1, 700),
    ]
    for number, (shuffle, chunk_size, max_nbytes, stop) in enumerate(settings * 2):
        scheduler = Scheduler(number, shuffle=shuffle, chunk_size=chunk_size, max_nbytes=max_nbytes, stop=stop)
        for _ in range(steps // (2 * len(settings))):
            scheduler.step()
        assert scheduler.num_released > 10
        if stop is not None:
            scheduler.drain()
            assert scheduler.position == stop


PARTITIONING = Partitioning(run_records=2, num_partitions=4)
BIG = 2**40


def window(actors=(7, 8), *, n=100, start=0, stop=40, chunk_size=8, max_nbytes=BIG, shuffle="none", rows=None):
    order = order_of(n, shuffle=shuffle)
    scheduler = RecordScheduler(order, PARTITIONING, start=start, stop=stop, wanted=Wanted(rows))
    machine = Window(scheduler, chunk_size=chunk_size, max_nbytes=max_nbytes)
    machine.reassign(actors)
    return machine


def over(order, rows=None, **given):
    """A window of two actors over an endless stream, for one of several trainers."""
    partitions = order.partitioning(64)
    scheduler = RecordScheduler(order, partitions, start=0, stop=given.pop("stop", None), wanted=Wanted(rows))
    machine = Window(scheduler, **{"max_nbytes": BIG} | given)
    machine.reassign((7, 8))
    return machine


def complete_head(machine, nbytes=10, read_s=0.0):
    for part in machine.head:
        machine.arrived(part, nbytes, read_s)


def turned(machine, count=None, nbytes=10, read_s=0.0, mine=None):
    """(positions, parts) of the next chunks, all of which arrive and are released.

    nbytes, read_s: of a position. mine: gives how many of the positions in a range count.
    """
    for _ in range(count) if count else iter(lambda: machine.is_finished, True):
        machine.asks()
        parts, positions = machine.head, range(*machine.head_range)
        each = (mine(positions) if mine else len(positions)) / max(1, len(parts))
        complete_head(machine, int(nbytes * each), read_s * each)
        yield positions, parts
        machine.release()


def test_parts_are_asked_of_the_owners_by_chunk():
    asked = window().asks()
    assert asked == [
        Part(0, 0, 7, ReadRequest(0, 8, PARTITIONING, (0, 2))),
        Part(0, 1, 8, ReadRequest(0, 8, PARTITIONING, (1, 3))),
        Part(1, 0, 7, ReadRequest(8, 16, PARTITIONING, (0, 2))),
        Part(1, 1, 8, ReadRequest(8, 16, PARTITIONING, (1, 3))),
    ]


def test_the_head_is_what_is_missing_of_the_first_chunk():
    machine = window()
    assert machine.head == []
    first, second, *later = machine.asks()
    assert machine.head == [first, second]
    machine.arrived(second, 5)
    for part in later:
        machine.arrived(part, 5)
    assert machine.head == [first]
    assert machine.head_range == (0, 8)
    machine.arrived(first, 5)
    assert machine.head == []


def test_what_is_behind_a_failure_in_its_chunk_is_not_waited_for():
    machine = window(actors=(7,))
    whole, later = machine.asks()
    for _ in range(SPLIT_AFTER):
        machine.lost(whole)
        first, *others = machine.asks()
        whole = first
    pieces = [first, *others]
    assert [part.request.start for part in pieces] == list(range(8))
    machine.arrived(pieces[1], 5)
    machine.lost(pieces[5])  # and waits to be asked for again
    machine.arrived(pieces[3], 0)
    assert [part.request.start for part in machine.failed(0, 3)] == [4, 5, 6, 7]
    assert machine.asks() == []
    assert machine.head == [pieces[0], pieces[2]]
    machine.arrived(pieces[0], 5)
    machine.arrived(pieces[2], 5)
    assert machine.head == []
    machine.release()
    assert machine.head == [later]


def test_a_lost_part_goes_to_the_new_owner_whether_told_before_or_after():
    for told_before in (True, False):
        machine = window()
        first, *_ = machine.asks()
        if told_before:
            machine.reassign((9, 8))
        machine.lost(first)
        if not told_before:
            machine.reassign((9, 8))
        (again,) = machine.asks()  # before anything new
        assert again == replace(first, actor=9, attempt=1)
        assert again in machine.head
        machine.arrived(again, 1)  # what was asked is what is known to be in flight
        assert first.index not in [part.index for part in machine.head]


def test_a_part_that_only_stood_in_line_stays_whole_however_often_it_is_lost():
    machine = window()
    part, *_ = machine.asks()
    for _ in range(100):
        machine.lost(part, was_read=False)
        (part,) = machine.asks()
    assert part == Part(0, 0, 7, ReadRequest(0, 8, PARTITIONING, (0, 2)))


def test_every_piece_that_is_lost_is_split_at_once():
    machine = window(chunk_size=40)
    part, *_ = machine.asks()
    machine.lost(part)
    (part,) = machine.asks()
    machine.lost(part)
    one, other, *_ = machine.asks()
    machine.lost(other)
    machine.lost(one)
    ranges = [(part.request.start, part.request.stop) for part in machine.asks()]
    assert ranges == [(n, n + 1) for n in range(10)]


def test_a_single_position_is_tried_apart_every_other_time_and_never_given_up():
    machine = window(chunk_size=1)
    part, *_ = machine.asks()
    found = []
    for _ in range(100):
        machine.lost(part)
        (part,) = machine.asks()
        found.append(part.is_trial)
    assert found[: TRY_AFTER + 3] == [False] * (TRY_AFTER - 1) + [True, False, True, False]
    machine.arrived(part, 1)


def deaths_until_found(lethal, num_actors=3, chunk_size=32):
    """How many actors end before the first of these positions has been tried, where each ends whoever reads it.

    Actors read what they are sent in order, one position after the other in turns, and are back at once.
    """
    machine = window(tuple(range(num_actors)), n=512, stop=512, chunk_size=chunk_size)
    order = order_of(512, shuffle="none")
    queues = {actor: [] for actor in range(num_actors)}
    deaths = 0
    while deaths < 1000:
        while not machine.head:
            if machine.num_open:
                machine.release()
            for part in machine.asks():
                queues[part.actor].append(part)
        for part in machine.asks():
            queues[part.actor].append(part)
        for queue in queues.values():
            if not queue:
                continue
            part = queue.pop(0)
            ends = lethal.intersection(part.request.select(order)[0].tolist())
            if not ends:
                machine.arrived(part, 1)
            elif part.is_trial:
                assert ends == {min(lethal)}
                return deaths
            else:
                deaths += 1
                machine.lost(part)
                for other in queue:
                    machine.lost(other, was_read=False)
                queue.clear()
    raise AssertionError("it is never found")


@pytest.mark.parametrize("lethal", [{40}, {40, 43, 44}, {40, 75, 110}, {40, 43, 44, 75, 110, 140, 170, 200}])
def test_while_what_ends_actors_is_looked_for_nothing_else_ends_many(lethal):
    deaths = deaths_until_found(lethal)
    assert deaths <= deaths_until_found({40}) + 2 * (len(lethal) - 1), deaths


def test_events_of_parts_that_are_not_in_flight_are_refused():
    machine = window()
    first, second, *_ = machine.asks()
    machine.arrived(first, 1)
    machine.lost(second)
    again = replace(second, attempt=1)
    for event in (machine.lost, lambda part: machine.arrived(part, 1)):
        for part in (first, second, again):  # which has arrived, was lost, and waits to be asked for
            with pytest.raises(AssertionError):
                event(part)
    with pytest.raises(AssertionError):
        machine.release()
    assert machine.asks()[0] == again
    machine.arrived(again, 1)
    machine.release()
    assert machine.head_range == (8, 16)
    with pytest.raises(AssertionError):
        machine.arrived(first, 1)


def test_two_chunks_are_open_while_the_size_of_elements_is_unknown_then_as_many_as_fit():
    machine = window(stop=None, max_nbytes=100)  # 8 positions of 20 bytes in 2 parts: 20 bytes a chunk
    assert {part.chunk for part in machine.asks()} == {0, 1}
    complete_head(machine)
    assert machine.asks() == []
    machine.release()
    assert {part.chunk for part in machine.asks()} == {2, 3, 4, 5}  # 1 to 5 are 5 x 20 bytes
    assert machine.nbytes == 100


def test_no_more_is_opened_than_is_allowed_now():
    machine = window(stop=None, max_nbytes=200)
    machine.asks()
    complete_head(machine)
    machine.release()
    machine.allowed = 0.5
    machine.asks()
    assert machine.nbytes == 100
    machine.allowed = 0.2
    complete_head(machine)
    machine.release()
    assert machine.asks() == []
    machine.allowed = 2.0
    machine.asks()
    assert machine.nbytes == 320, "no more than 16 chunks"


def test_those_who_share_actors_cut_alike_though_they_learn_of_others_at_other_times():
    cuts = []
    for allowed in ([1.0] * 60, [1.0, 0.5, 0.5] + [0.3] * 57):
        order, wanted = order_of(10**9), Wanted(sharing=Sharing(2))
        scheduler = RecordScheduler(order, order.partitioning(64), start=0, stop=None, wanted=wanted)
        machine = Window(scheduler, max_nbytes=2**24, num_sharing=2)
        machine.reassign((7, 8))
        found = []
        for machine.allowed in allowed:
            machine.asks()
            found.append(machine.head_range)
            complete_head(machine, (machine.head_range[1] - machine.head_range[0]) * 2048)
            machine.release()
        cuts.append({stop - start for start, stop in found[-20:]})
    assert cuts[0] == cuts[1]
    assert len(cuts[0]) == 1


@pytest.mark.parametrize("name", ["global", "none", "block"])
def test_every_position_is_read_once_where_partitions_become_more(name):
    n = 9_001
    order = order_of(n, shuffle=name, **({"block_size": 64} if name == "block" else {}))
    scheduler = RecordScheduler(order, order.partitioning(7), start=0, stop=3 * n)
    machine, found = Window(scheduler, chunk_size=4_000, max_nbytes=BIG), []
    for actors in itertools.cycle([range(4), range(80), range(100, 105)]):
        machine.reassign(actors)
        sent = machine.asks()
        if not sent:
            break
        found += [part.request.select(order)[0] for part in sent]
        machine.lost(sent[-1])  # is asked again of who is there, also where it was cut into fewer
        machine.reassign(range(500, 650))
        [again] = [part for part in machine.asks() if part.attempt]
        assert again.request == sent[-1].request
        assert again.actor in range(500, 650)
        while machine.num_open:
            complete_head(machine)
            machine.release()
    assert machine.is_finished
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(3 * n))


@pytest.mark.parametrize(("num_trainers", "num_chunks"), [(1, 16), (2, 8), (8, 3)])
def test_what_trainers_have_in_line_before_one_another_is_bounded(num_trainers, num_chunks):
    rows = TrainerPositions(0, None, TrainerRows(8, share_of_rank(0, num_trainers)))
    machine = window(n=10**9, stop=None, rows=rows)
    machine.asks()
    complete_head(machine)
    machine.release()
    machine.asks()
    assert machine.num_open == num_chunks


def test_chunks_grow_by_four_until_a_block_is_worth_its_overhead():
    machine = window((0,), n=10**9, stop=None, chunk_size=None)
    # DEPTH are open at once while they grow, so a new size is seen that many releases later
    sizes = [len(positions) for positions, _ in turned(machine, 60, nbytes=1000)]
    assert sizes[:2] == [FIRST_CHUNK_RECORDS] * 2  # the second was opened before anything was known
    assert all(b <= 4 * a for a, b in itertools.pairwise(sizes))
    assert sizes[-1] == TARGET_BLOCK_NBYTES // 1000


@pytest.mark.parametrize(
    ("size", "per_position", "read_s", "num_actors", "max_nbytes", "wanted"),
    [
        (256, 64.0, 0.0, 1, BIG, 1024),  # growth
        (10**6, 64.0, 0.0, 1, BIG, MAX_PART_RECORDS),  # tiny records: bounded by time
        (10**6, 64.0, 0.0, 3, BIG, 3 * MAX_PART_RECORDS),
        (10**6, 1e6, 0.0, 2, BIG, 50),  # 24 MiB for each of two actors
        (10**6, 1e6, 0.0, 2, 16 * 10**6, 4),  # a quarter of the window
        (10**6, 1e9, 0.0, 2, BIG, 1),  # elements larger than a block come alone
        (1, 0.0, 0.0, 1, BIG, 4),  # everything was filtered
        (1, 1.0, 0.0, 1, 1, 1),
        (64, 64.0, 0.001, 2, BIG, 256),  # 64 ms: grow
        (64, 64.0, 0.01, 2, BIG, 100),  # a second
        (64, 64.0, 0.1, 2, BIG, 10),  # 6 seconds: shrink
        (64, 64.0, 5.0, 2, BIG, 1),
    ],
)
def test_the_next_chunk_size_by_bytes_and_seconds(size, per_position, read_s, num_actors, max_nbytes, wanted):
    assert next_chunk_size(size, per_position, read_s, num_actors=num_actors, max_nbytes=max_nbytes) == wanted


def sizes_of(machine, count, nbytes, read_s):
    """Positions in each of the next chunks, where a position has so many bytes and takes so long."""
    return [len(positions) for positions, _ in turned(machine, count, nbytes, read_s)]


def test_slow_transforms_with_tiny_results_get_chunks_of_two_seconds_of_two_actors():
    machine = window(n=10**9, stop=None, chunk_size=None)
    assert sizes_of(machine, 30, nbytes=8, read_s=0.05)[:2] == [16, 16]
    assert sizes_of(machine, 1, nbytes=8, read_s=0.05) == [40]


def test_what_a_request_takes_beside_its_records_keeps_no_chunk_small():
    order = order_of(10**9, shuffle="global")
    machine = Window(RecordScheduler(order, order.partitioning(1), start=0, stop=None), max_nbytes=BIG)
    machine.reassign(range(500))
    sizes, num_parts = [], 0
    for _ in range(16):
        machine.asks()
        sizes.append(len(range(*machine.head_range)))
        num_parts += len(machine.head)
        num_records = sizes[-1] / len(machine.head)
        complete_head(machine, int(100 * num_records), 0.002 + 0.001 * num_records)
        machine.release()
    assert sizes[:2] == [16, 16]
    assert 400_000 < sizes[-1] < 520_000  # a second for each: 0.002 + 998 * 0.001
    assert num_parts < 10 * 500 + 2 * 16 + 3 * 64 + 256  # few are asked for the small ones


@pytest.mark.parametrize(("num_actors", "read_s"), [(16, 0.5), (1500, 0.75)])
def test_what_trainers_read_for_one_chunk_takes_four_seconds_or_what_asking_for_it_costs(num_actors, read_s):
    machine = over(
        order_of(10**12, shuffle="global"), TrainerPositions(0, None, TrainerRows(1024, share_of_rank(0, 8)))
    )
    machine.reassign(range(num_actors))
    size = 0.0
    for _ in range(16):
        machine.asks()
        start, stop = machine.head_range
        size = (stop - start) / 8 / num_actors
        complete_head(machine, int(100 * size), 0.001 * size)
        machine.release()
    assert 0.001 * size == pytest.approx(read_s, rel=0.1)


def counted_of(rows):
    """How many of some positions are this trainer's."""
    return lambda positions: int(rows.contain(np.arange(positions.start, positions.stop)).sum())


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_positions_of_other_trainers_say_nothing_of_what_a_record_takes(rank):
    """The first positions are the first trainer's of eight: chunks of them bring the others nothing, in no time."""
    rows = TrainerPositions(0, None, TrainerRows(1024, share_of_rank(rank, 8)))
    mine = counted_of(rows)
    found = turned(over(order_of(10**9), rows), 40, nbytes=4096, read_s=0.01, mine=mine)
    read_s = [0.01 * mine(positions) / len(parts) for positions, parts in found]
    assert 0 < read_s[0] <= 0.16, "16 rows of its own"
    assert 0.1 < max(read_s) <= 0.65, "a second at most, and what 128 rows of its own take"


def test_chunks_that_trainers_share_meet_wherever_each_began():
    def chunks(start, chunk_size):
        wanted = Wanted(sharing=Sharing(2, "all"))
        scheduler = RecordScheduler(order_of(10_000), PARTITIONING, start=start, stop=9_000, wanted=wanted)
        machine = Window(scheduler, chunk_size=chunk_size, max_nbytes=BIG)
        machine.reassign((7, 8))
        found = set()
        while not machine.is_finished:
            assert all(part.request.wanted == wanted for part in machine.asks())
            first, last = machine.head_range
            complete_head(machine, nbytes=50_000 * (last - first))  # 100 KB for a position: chunks of 335 at most
            found.add(machine.head_range)
            machine.release()
        return found

    for chunk_size in (None, 60):
        from_start, from_within = chunks(0, chunk_size), chunks(1234, chunk_size)
        assert from_start != from_within
        assert {chunk for chunk in from_start if chunk[0] >= 4000} == {
            chunk for chunk in from_within if chunk[0] >= 4000
        }


# The bound

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize("num_drivers", [1, 2, 3, 8, 256])
def test_drivers_have_together_no_more_than_was_given(num_drivers):
    each = Bound(GIB).of_each(64, num_drivers)
    assert GIB - num_drivers < each * num_drivers <= GIB
    assert Bound(10).of_each(4, 256) == 1, "nobody starves"


def test_without_a_number_the_bound_follows_the_actors_and_leaves_most_of_every_store_free():
    free = Bound(None)
    assert free.of_each(1) == free.of_each(4) == DEFAULT_MAX_NBYTES
    assert free.of_each(64) == free.of_each(64, 32) == 64 * 96 * MIB
    assert Bound(None, 5 * GIB, 50 * GIB).of_each(64) == 2 * GIB, "the driver's own host holds what has come"
    assert Bound(None, 5 * GIB, 50 * GIB).of_each(64, 40) == GIB // 2, "all hosts together hold what is read"
    assert Bound(None, 0.0, 0.0).of_each(64) == DEFAULT_MAX_NBYTES, "the cluster does not report its stores"


def test_an_allowance_is_of_what_one_driver_had_with_the_actors_at_the_beginning():
    assert Bound(GIB).of_each(64, 4) / Bound(GIB).of_each(8) == 0.25
    assert Bound(None).of_each(64, 4) / Bound(None).of_each(8) == 8.0, "it grows with the actors"


@pytest.mark.parametrize("steps", [12_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_a_random_scheduler_finds_no_loss_no_repetition_and_no_overrun(steps):
    schedules(steps)


def test_after_reassigning_new_chunks_go_to_new_owners_and_parts_in_flight_stay():
    machine = window()
    asked = machine.asks()
    machine.reassign((5, 6))
    for part in asked:
        machine.arrived(part, 1)
    machine.release()
    opened = machine.asks()
    assert {part.actor for part in opened} == {5, 6}
    assert [p.request.partitions for p in opened if p.chunk == 2] == [(0, 2), (1, 3)]
