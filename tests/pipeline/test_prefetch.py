"""prefetch_to_device: the same batches, ahead of use, with the state of what was consumed."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Generator

import jax
import numpy as np
import pytest
from flax import nnx

from datarax_ray import Pipeline
from datarax_ray.pipeline import prefetch_to_device
from datarax_ray.read import background
from datarax_ray.read.background import BackgroundIterator, Cancelled
from tests.data import AddNoise, DropThirds, array_records, decode
from tests.resume import assert_equal, on_host
from tests.waiting import until

SIZES = pytest.mark.parametrize("size", [0, 1, 2, 5])


TRANSFORMS = (decode, AddNoise(), DropThirds())


def make(files, transforms=TRANSFORMS, **config):
    return Pipeline(source=array_records(files, *transforms, **config), batch_size=30, rngs=nnx.Rngs(0))


def host_batch(index):
    return {"x": np.full(3, index, np.int32), "deep": {"y": np.array([index / 2])}, "name": np.array(["a"], object)}


class Counting:
    """Numbers from a position on; remembers what it gave, and says when it gave `number`."""

    def __init__(self, count, signal_at=-1, fail_at=-1):
        self.count, self.signal_at, self.fail_at = count, signal_at, fail_at
        self.position = 0
        self.given: list[int] = []
        self.signal = threading.Event()
        self.is_closed = False

    def __iter__(self):
        while self.position < self.count:
            if self.position == self.fail_at:
                raise ZeroDivisionError(f"at {self.position}")
            self.given.append(self.position)
            self.position += 1
            if self.position == self.signal_at:
                self.signal.set()
            yield {"x": np.array([self.position - 1])}

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]

    def close(self):
        self.is_closed = True


def numbers(batches):
    return [int(batch["x"][0]) for batch in batches]


class TestBatches:
    @SIZES
    def test_they_are_the_iterables_with_numbers_on_the_device(self, size):
        batches = list(prefetch_to_device([host_batch(i) for i in range(7)], size))
        assert [batch["x"].tolist() for batch in batches] == [[i] * 3 for i in range(7)]
        assert [batch["deep"]["y"].tolist() for batch in batches] == [[i / 2] for i in range(7)]
        assert isinstance(batches[0]["x"], jax.Array)
        assert batches[0]["deep"]["y"].dtype == np.float32
        assert isinstance(batches[0]["name"], np.ndarray)
        assert batches[0]["name"].tolist() == ["a"]

    @SIZES
    def test_size_of_them_are_made_while_one_is_in_use(self, size):
        counting = Counting(100, signal_at=1 + size)
        with prefetch_to_device(counting, size) as batches:
            assert numbers([next(batches)]) == [0]
            assert counting.signal.wait(10)
        assert counting.given == list(range(1 + size))

    def test_a_second_loop_goes_on_and_after_the_end_begins_anew(self):
        batches = prefetch_to_device([host_batch(i) for i in range(4)])
        assert next(iter(batches))["x"][0] == 0
        assert numbers(batches) == [1, 2, 3]
        with pytest.raises(StopIteration):
            next(batches)
        assert numbers(batches) == [0, 1, 2, 3]

    def test_a_generator_does_as_well(self):
        with prefetch_to_device(host_batch(i) for i in range(3)) as batches:
            assert numbers([next(batches)]) == [0]
        assert numbers(prefetch_to_device(host_batch(i) for i in range(3))) == [0, 1, 2]

    def test_a_negative_size_is_refused(self):
        with pytest.raises(ValueError, match="size must be at least 0, got -1"):
            prefetch_to_device([], -1)


class TestState:
    @SIZES
    def test_of_a_pipeline_it_is_that_of_what_was_consumed_and_resumes(self, files, size):
        plain = make(files)
        want, states = [], [json.dumps(plain.get_state())]
        for batch in plain:
            want.append(on_host(batch))
            states.append(json.dumps(plain.get_state()))
        with prefetch_to_device(make(files), size) as batches:
            found = [json.dumps(batches.get_state())]
            got = []
            for batch in batches:
                got.append(on_host(batch))
                found.append(json.dumps(batches.get_state()))
            assert_equal(got, want)
            assert found == states
            for number, state in enumerate(states):  # backwards and forwards, dropping what is ahead
                batches.set_state(json.loads(state))
                assert json.dumps(batches.get_state()) == state
                assert_equal([on_host(next(batches)) for _ in want[number : number + 1]], want[number : number + 1])

    def test_set_state_drops_what_was_ahead(self):
        counting = Counting(10, signal_at=4)
        with prefetch_to_device(counting, 3) as batches:
            next(batches)
            assert counting.signal.wait(10)
            assert batches.get_state() == {"position": 1}
            batches.set_state({"position": 7})
            assert numbers(batches) == [7, 8, 9]
            assert batches.get_state() == {"position": 10}

    @SIZES
    def test_one_that_is_refused_moves_nothing(self, size, files):
        want = [on_host(batch) for batch in make(files)]
        batches = prefetch_to_device(make(files), size)
        assert_equal([on_host(next(batches))], want[:1])
        state = batches.get_state()
        for _ in range(2):
            with pytest.raises(ValueError, match="it has no version"):
                batches.set_state({"step": 7})
        assert batches.get_state() == state
        assert_equal([on_host(batch) for batch in batches], want[1:])
        with pytest.raises(ValueError, match="it has no version"):
            batches.set_state({"step": 7})
        assert next(batches, None) is None

    def test_an_iterable_without_one_says_so(self):
        batches = prefetch_to_device([host_batch(0)])
        with pytest.raises(TypeError, match="list has no get_state, so there is no state to resume from"):
            batches.get_state()
        with pytest.raises(TypeError, match="list has no set_state"):
            batches.set_state({})
        assert numbers(batches) == [0]


class TestErrors:
    @SIZES
    def test_one_comes_in_its_place_again_and_again_until_a_state_is_set(self, size):
        batches = prefetch_to_device(counting := Counting(6, fail_at=3), size)
        assert numbers(next(batches) for _ in range(3)) == [0, 1, 2]
        for _ in range(2):  # neither the end nor a new beginning
            with pytest.raises(ZeroDivisionError, match="at 3"):
                next(iter(batches))
        assert batches.get_state() == {"position": 3}
        counting.fail_at = -1
        batches.set_state(batches.get_state())
        assert numbers(batches) == [3, 4, 5]


class TestInterrupts:
    @pytest.mark.parametrize("size", [0, 1, 3])
    def test_at_whatever_step_one_comes_no_batch_is_lost_or_comes_twice_and_nobody_waits_for_ever(self, size):
        """A handler raises between any two steps of the thread that asks; the one that makes batches goes on."""
        given = ({"number": np.array([index], object)} for index in range(10**6))  # on the host, where all is
        batches = prefetch_to_device(given, size)
        found, is_armed = [next(batches)["number"][0]], False
        draw = random.Random(size)

        def interrupt(*_):
            if is_armed:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(300):
                batch = None
                try:
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, 10 ** draw.uniform(-5, -2.7))
                    for batch in batches:  # what comes is had in one step
                        found.append(batch["number"][0])
                except KeyboardInterrupt:
                    is_armed = False
                if batch is not None and batch["number"][0] != found[-1]:
                    found.append(batch["number"][0])
            assert found == list(range(len(found)))
            closing = threading.Thread(target=batches.close, daemon=True)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class TestClosing:
    def test_it_closes_the_iterable_and_ends_the_thread(self, files):
        before = set(threading.enumerate())
        counting = Counting(100)
        with prefetch_to_device(counting, 3) as batches:
            next(batches)
        assert counting.is_closed
        with prefetch_to_device(make(files, num_epochs=-1), 3) as batches:
            next(batches)
            assert set(threading.enumerate()) - before
        assert not set(threading.enumerate()) - before

    def test_one_that_is_dropped_without_it_ends_the_thread_too(self):
        before = set(threading.enumerate())
        batches = prefetch_to_device(Counting(100), 3)
        next(batches)
        assert set(threading.enumerate()) - before
        del batches
        until(lambda: not set(threading.enumerate()) - before)

    @SIZES
    def test_who_asks_of_one_that_another_thread_closes_is_told_and_does_not_wait_for_ever(self, size):
        ahead = BackgroundIterator((number for number in range(100)), size)
        assert ahead.next() == 0
        ahead.close(None)
        told = []

        def ask():
            try:
                for _ in range(size + 1):  # what is made already may be had
                    ahead.next()
            except BaseException as error:
                told.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        assert [type(error) for error in told] == [RuntimeError]
        assert "was closed, by another thread or a signal" in str(told[0])

    def test_afterwards_it_gives_nothing_until_it_is_told_where(self):
        batches = prefetch_to_device(Counting(10), 3)
        next(batches)
        batches.close()
        with pytest.raises(RuntimeError, match="the prefetcher is closed, and what it made ahead is gone"):
            next(batches)
        batches.set_state(batches.get_state())
        assert numbers(batches) == list(range(1, 10))


class TestGroups:
    """Items at hand are handed over together; what is given, and in what order, does not change."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background, "_GROUP_S", 1000.0)

    @staticmethod
    def made(
        count: list[int], ahead: int, *, fails_at: int | None = None, at_hand: int = 20
    ) -> BackgroundIterator[int]:
        """Items 0 to 19, of which those below `at_hand` are at hand."""
        cancelled = Cancelled()

        def items() -> Generator[int, None, None]:
            for number in range(20):
                if number == fails_at:
                    raise ValueError(f"at {number}")
                count.append(number)
                cancelled.is_next_at_hand = number + 1 < at_hand
                yield number

        return BackgroundIterator(items(), ahead, cancelled)

    @pytest.mark.parametrize(("ahead", "at_hand"), [(0, 20), (1, 0), (1, 5), (2, 20), (5, 20)])
    def test_items_come_in_order_then_the_error_that_ended_them(self, ahead: int, at_hand: int) -> None:
        items = self.made([], ahead, fails_at=13, at_hand=at_hand)
        assert [items.next() for _ in range(13)] == list(range(13))
        with pytest.raises(ValueError, match="at 13"):
            items.next()
        assert items.close(10)

    def test_none_is_made_before_it_is_asked_for_where_none_is_wanted_ahead(self) -> None:
        items = self.made(count := [], 0)
        assert [(items.next(), len(count)) for _ in range(3)] == [(0, 1), (1, 2), (2, 3)]
        items.close(10)

    def test_no_group_is_begun_while_as_many_are_made_as_are_wanted_ahead(self) -> None:
        items = self.made(count := [], 1)
        assert (items.next(), len(count)) == (0, 16)
        assert (items.next(), len(count)) == (1, 16)
        assert [items.next() for _ in range(8)] == list(range(2, 10))
        items.close(10)

    def test_what_is_not_at_hand_keeps_no_item_waiting(self) -> None:
        items = self.made(count := [], 1, at_hand=3)
        assert (items.next(), count[:3]) == (0, [0, 1, 2])
        assert [items.next() for _ in range(4)] == [1, 2, 3, 4]
        until(lambda: len(count) == 6)
        items.close(10)
        assert len(count) == 6

    def test_the_end_of_the_items_is_the_end(self) -> None:
        items = self.made([], 2)
        assert [items.next() for _ in range(20)] == list(range(20))
        with pytest.raises(RuntimeError, match="the stream has ended before"):
            items.next()
