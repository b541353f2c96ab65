"""Threads and signal handlers that use one pipeline at once: each call is before another or after it, or an error."""

from __future__ import annotations

import signal
import threading

import pytest

from datarax_ray import Pipeline
from datarax_ray.sources import MixtureSource, RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares, stored_index

N = 10**6
FAR = N // 2


def pipeline(data):
    return Pipeline(source=RandomAccessSource(RandomAccessSourceConfig(), data), batch_size=1, on_host=True)


@pytest.mark.usefixtures("switching")
def test_a_seek_holds_whatever_another_thread_is_taking():
    """Its batch, of the place before, must not bring the pipeline back there."""
    going = pipeline(Squares(N))
    is_over = threading.Event()

    def take():
        while not is_over.is_set():
            try:
                going.step()
            except RuntimeError:  # the seek came while it waited
                continue

    thread = threading.Thread(target=take)
    thread.start()
    try:
        for count in range(150):
            place = FAR * (count % 2)
            going.seek(place)
            (index,) = going.step()["index"]
            assert place <= index < place + FAR
    finally:
        is_over.set()
        thread.join()


class Interrupting(Squares):
    """Sends the main thread a signal in the middle of a read, and goes on once it was handled."""

    def __init__(self, n, handled):
        super().__init__(n)
        self.handled = handled

    def __getitem__(self, index):
        if index == 20 and not self.handled.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            assert self.handled.wait(20)
        return super().__getitem__(index)


def test_a_handler_that_asks_for_a_batch_in_the_middle_of_a_step_is_refused_and_the_step_goes_on():
    """It would wait for a step that goes on when the handler is over."""
    handled, said = threading.Event(), []
    going = pipeline(Interrupting(40, handled))

    def handle(*_):
        try:
            going.step()
        except RuntimeError as error:
            said.append(str(error))
        handled.set()

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        assert [int(going.step()["index"][0]) for _ in range(40)] == list(range(40))
    finally:
        signal.signal(signal.SIGUSR2, before)
    (message,) = said
    assert message.startswith("a signal's handler asked for a batch")


class Alone:
    """A transform that says whether a second thread came into it while a first one was in it."""

    def __init__(self):
        self.entered, self.met = threading.Event(), threading.Event()
        self.inside: list[None] = []

    def map(self, element):
        if self.inside:
            self.met.set()
        self.inside.append(None)
        if not self.entered.is_set():
            self.entered.set()
            self.met.wait(0.5)
        self.inside.pop()
        return element

    def fingerprint(self):
        return "alone"


class SquaresAlone(Squares):
    """As of a file that is read where it stands."""

    def __init__(self, alone):
        super().__init__(N)
        self.alone = alone

    def __getitem__(self, index):
        return self.alone.map(super().__getitem__(index))


def squares(*transforms, seed=0, data=None):
    given = Squares(N) if data is None else data
    return RandomAccessSource(RandomAccessSourceConfig(seed=seed), given, transforms=transforms)


OTHERS = ["another source", "its copy", "its method", "its data", "a component", "a mixture with others"]


@pytest.mark.parametrize("other", OTHERS)
def test_a_transform_or_data_that_two_sources_have_are_used_by_one_thread_at_a_time(other):
    """As of training and evaluation: one with a scratch array, or an open file, would give either the other's rows."""
    alone = Alone()
    one = squares(alone)
    if other == "another source":
        two = squares(stored_index, alone, seed=1)
    elif other == "its copy":
        two = one.copy()
    elif other == "its method":
        one, two = squares(alone.map), squares(stored_index, alone.map)
    elif other == "its data":
        data = SquaresAlone(alone)
        one, two = squares(data=data), squares(stored_index, data=data, seed=1)
    elif other == "a component":
        two = MixtureSource([one, squares()], weights=[1, 1])
    else:
        one, two = MixtureSource([squares(), one]), MixtureSource([squares(), MixtureSource([squares(alone)])])
    with Pipeline(source=one, batch_size=4) as first, Pipeline(source=two, batch_size=4) as second:
        alone.entered.clear()  # data are looked at where a source is made
        thread = threading.Thread(target=first.step)
        thread.start()
        assert alone.entered.wait(60.0)
        second.step()
        thread.join()
    assert not alone.met.is_set()


def test_a_transform_that_takes_from_another_pipeline_does_not_wait_for_it_for_ever():
    """That one reads in a thread of its own, and has other transforms."""
    with pipeline(Squares(N)) as others:

        def beside(element):
            return element | {"other": others.step()["index"][0]}

        with Pipeline(source=squares(beside), batch_size=4, on_host=True) as going:
            first, *others_taken = going.step()["other"].tolist()
            assert others_taken == [first + 1, first + 2, first + 3]
