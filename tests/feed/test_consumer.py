"""The consumer by value: what was handed out, whatever goes wrong, goes elsewhere, or comes twice. No JAX, no file but
the list of skipped records."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from datarax_ray.feed.consumer import Consumed, Consumer, LazySession
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.position import ONE_TO_ONE
from datarax_ray.plan.state import StreamState
from datarax_ray.read.errors import Skipped, SkippedError
from datarax_ray.read.skipped_records import SkipOptions

BAD = {4, 5, 13, 16}
N = 17


def at(position):
    return StreamState(position)


def skips(lo, hi):
    return tuple(Skipped(f"file[{p}]", p, "broken") for p in range(lo, hi) if p in BAD)


class Stream:
    """Batches of three positions, (first, last), of which the broken ones are left out.

    drop_remainder: the last, which is short, is not given. before: called with the position of each before it is made.
    """

    def __init__(self, *, drop_remainder=False, before=lambda position: None):
        self._drop_remainder = drop_remainder
        self._before = before
        self.begun: list[int] = []
        self.num_closed = 0

    def begin(self, consumed):
        self.begun.append(consumed.state.position)
        return LazySession(self._deliveries(consumed))

    def _deliveries(self, consumed):
        try:
            start = consumed.state.position
            while start < N and not (self._drop_remainder and start + 3 > N):
                self._before(start)
                stop = min(start + 3, N)
                consumed = consumed.then(at(stop), skips(start, stop))
                yield (start, stop), consumed
                start = stop
            yield None, consumed.then(consumed.state, skips(start, N), is_end=True)
        finally:
            self.num_closed += 1


class Recorded:
    """A consumer with a list in a file; `take` takes of a stream."""

    def __init__(self, path=None, max_skipped=None):
        self.path = path
        self.consumer = Consumer(SkipOptions(max_skipped, None if path is None else str(path)))

    def take(self, stream, key="batches", finish=None):
        return self.consumer.take(key, stream.begin, finish)

    def rest(self, stream, **options):
        found = []
        while True:
            try:
                found.append(self.take(stream, **options))
            except StopIteration:
                return found

    @property
    def told(self):
        """Skipped records: how many, those listed, those in the file."""
        listed = [skip.position for skip in self.consumer.skipped]
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        return self.consumer.consumed.num_reported, listed, [json.loads(line)["position"] for line in lines]


def told(*positions):
    return len(positions), list(positions), list(positions)


WHOLE = [(0, 3), (3, 6), (6, 9), (9, 12), (12, 15), (15, 17)]


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path / "skipped.jsonl")


def test_what_was_handed_out_moves_with_each_batch_and_tells_of_what_it_leaves_out(recorded):
    stream = Stream()
    assert recorded.consumer.consumed == Consumed(at(0))
    assert recorded.take(stream) == (0, 3)
    assert recorded.consumer.consumed == Consumed(at(3))
    assert recorded.take(stream) == (3, 6)
    assert recorded.consumer.consumed == Consumed(at(6), 0, skips(3, 6))
    assert recorded.told == told(4, 5)
    assert recorded.rest(stream) == WHOLE[2:]
    assert recorded.told == told(4, 5, 13, 16)
    assert (stream.begun, stream.num_closed) == ([0], 1)


@pytest.mark.parametrize("fails", ["in the stream", "in what is still to be done"])
def test_after_a_failure_the_same_batch_comes_again_and_what_was_told_stays(recorded, fails):
    broken = []

    def fail(place):
        if broken and place in (6, (6, 9)):
            raise broken[0]
        return place

    stream = Stream(before=fail) if fails == "in the stream" else Stream()
    finish = None if fails == "in the stream" else fail
    assert [recorded.take(stream, finish=finish) for _ in range(2)] == WHOLE[:2]
    before = recorded.consumer.consumed
    broken.append(OSError("away"))
    for _ in range(3):
        with pytest.raises(OSError, match="away"):
            recorded.take(stream, finish=finish)
        assert recorded.consumer.consumed.state == before.state
        assert recorded.told == told(4, 5)
    assert stream.num_closed == len(stream.begun) == 3
    broken.clear()
    assert recorded.rest(stream, finish=finish) == WHOLE[2:]
    assert recorded.told == told(4, 5, 13, 16)


def test_more_skipped_records_than_allowed_stop_before_the_batch(tmp_path):
    recorded = Recorded(tmp_path / "skipped.jsonl", max_skipped=2)
    stream = Stream()
    for _ in range(2):
        with pytest.raises(SkippedError, match="3 records could not be read, more than max_skipped=2"):
            recorded.rest(stream)
        assert (recorded.consumer.consumed.state, recorded.told) == (at(12), told(4, 5))


def test_a_file_that_cannot_be_written_keeps_the_batch_for_later(recorded):
    assert recorded.path is not None
    stream = Stream()
    recorded.take(stream)
    recorded.path.mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            recorded.take(stream)
        assert recorded.consumer.consumed == Consumed(at(3))
    recorded.path.rmdir()
    assert recorded.rest(stream) == WHOLE[1:]
    assert recorded.told == told(4, 5, 13, 16)


def test_what_the_end_brings_behind_the_state_is_counted_once_and_is_not_in_the_state(recorded):
    """As where a short last batch is dropped: who goes on from the state meets these again."""
    stream = Stream(drop_remainder=True)
    assert recorded.rest(stream) == WHOLE[:-1]
    assert recorded.told == told(4, 5, 13, 16)
    saved = recorded.consumer.consumed.to_json({}, Kind.order)
    assert (saved["position"], saved["statistics"]) == (15, {"num_skipped": 3})
    assert recorded.rest(stream) == []
    recorded.consumer.go_to(Consumed.from_json(saved, Kind(), {}))
    for _ in range(2):
        assert recorded.rest(stream) == []
        assert recorded.consumer.consumed.num_reported == 4
        assert recorded.told[2] == [4, 5, 13, 16]


def test_one_by_one_with_the_state_after_each_or_dropped_in_the_middle_each_skip_is_told_once(recorded):
    stream = Stream()
    while True:
        try:
            recorded.take(stream)
        except StopIteration:
            break
        recorded.consumer.end()  # the session ends, as where a source is closed; the place stays
    assert stream.begun == [0, 3, 6, 9, 12, 15, 17]
    assert recorded.told == told(4, 5, 13, 16)


def test_going_elsewhere_counts_and_lists_anew_and_strikes_out_what_comes_again(recorded):
    stream = Stream()
    recorded.rest(stream)
    recorded.consumer.go_to(Consumed(at(6), num_before=2))
    assert (recorded.consumer.consumed.num_reported, recorded.consumer.skipped) == (2, [])
    assert recorded.take(stream) == (6, 9)
    assert recorded.told == (2, [], [4, 5])
    assert recorded.rest(stream) == WHOLE[3:]
    assert recorded.told == (4, [13, 16], [4, 5, 13, 16])


def elsewhere_by_a_handler(consumer):
    """What a signal's handler does in the thread that takes."""
    consumer.go_to(Consumed(at(9)))


def test_what_raises_stop_iteration_is_no_end_of_the_stream(recorded):
    """Or a loop would be over with no word, as by a stage that calls next() on an iterator that has no more."""
    stream = Stream()
    assert recorded.take(stream) == WHOLE[0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StopIteration was raised where a batch was made: by a stage that"):
            recorded.take(stream, finish=lambda _: next(iter(())))
    assert recorded.consumer.consumed == Consumed(at(3))
    assert recorded.rest(stream) == WHOLE[1:]


def elsewhere_by_a_thread(consumer):
    thread = threading.Thread(target=elsewhere_by_a_handler, args=(consumer,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("move", [elsewhere_by_a_handler, elsewhere_by_a_thread])
def test_what_was_being_taken_where_the_stream_was_moved_meanwhile_is_refused(recorded, move):
    def before(position):
        if position == 3:
            move(recorded.consumer)

    stream = Stream(before=before)
    recorded.take(stream)
    with pytest.raises(RuntimeError, match="the stream goes on from elsewhere by now: another thread, or a signal's"):
        recorded.take(stream)
    assert recorded.consumer.consumed == Consumed(at(9))
    assert recorded.told == told()
    assert stream.num_closed == 1  # by the one who ran it
    assert recorded.rest(stream) == WHOLE[3:]


def test_a_handler_sees_whole_states_and_may_not_take_in_the_middle(recorded):
    seen, refused = [], []

    def before(position):
        seen.append(recorded.consumer.consumed.to_json({}, Kind.order)["position"])
        try:
            recorded.consumer.alone(lambda: recorded.take(stream))
        except RuntimeError as error:
            refused.append(str(error))

    stream = Stream(before=before)
    taken = [recorded.consumer.alone(lambda: recorded.take(stream)) for _ in WHOLE]
    assert taken == WHOLE
    assert seen == [0, 3, 6, 9, 12, 15]
    assert len(refused) == 6
    assert all("a signal's handler asked for a batch while the program" in message for message in refused)


def test_several_batches_are_handed_out_together_or_not_at_all(recorded):
    """As of a compiled loop, which may fail after it took them."""
    stream = Stream()
    for is_whole in (False, True):
        leg, session = recorded.consumer.opened("loop", stream.begin)
        taken = [session.next() for _ in range(5)]
        skipped = tuple(skip for _, consumed in taken for skip in consumed.skipped)
        recorded.consumer.check(leg, skipped)
        assert recorded.told == told()
        assert recorded.consumer.consumed == Consumed(at(0))
        if not is_whole:
            leg.fail()
        else:
            recorded.consumer.commit(leg, taken[-1][1], skipped)
    assert recorded.consumer.consumed == Consumed(at(15), 2, skips(12, 15))
    assert recorded.told == told(4, 5, 13)
    assert recorded.rest(stream, key="loop") == WHOLE[5:]


def test_the_first_record_of_a_kind_that_is_left_out_is_logged(recorded, caplog):
    with caplog.at_level(logging.WARNING):
        recorded.rest(Stream())
    assert caplog.messages == ["skipped file[4] (position 4): broken"]
    assert recorded.told == (4, [4, 5, 13, 16], [4, 5, 13, 16])


class Session:
    """One that makes its first batch elsewhere; notes how it is closed."""

    def __init__(self, error, *, is_waiting):
        self._error = error
        self.is_waiting = is_waiting
        self.closed: list[float | None] = []

    def next(self):
        raise self._error

    def close(self, timeout_s, then=None):
        self.closed.append(timeout_s)


@pytest.mark.parametrize(("is_waiting", "closed"), [(True, [0]), (False, [None])])
def test_what_interrupts_a_wait_does_not_wait_for_the_batch(is_waiting, closed):
    consumer, session = Consumer(), Session(KeyboardInterrupt(), is_waiting=is_waiting)
    with pytest.raises(KeyboardInterrupt):
        consumer.take("batches", lambda consumed: session)
    assert session.closed == closed


class Kind:
    """What reading a state needs of a description."""

    order = order_of(N)
    yields = ONE_TO_ONE


def test_a_state_is_read_as_it_was_written_with_its_count():
    consumed = Consumed(at(6), 1, skips(3, 6))
    saved = json.loads(json.dumps(consumed.to_json({"batch_size": 3}, Kind.order)))
    assert saved == {"version": 1, "position": 6, "settings": {"batch_size": 3}, "statistics": {"num_skipped": 3}}
    assert Consumed.from_json(saved, Kind(), {"batch_size": 3}) == Consumed(at(6), 3)
    with pytest.raises(DriftError, match="batch_size"):
        Consumed.from_json(saved, Kind(), {"batch_size": 4})
    with pytest.raises(ValueError, match="statistics must count skipped records, got {'num_skipped': -1}"):
        Consumed.from_json(saved | {"statistics": {"num_skipped": -1}}, Kind(), {"batch_size": 3})
