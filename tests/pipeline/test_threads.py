"""Threads and signal handlers that use one pipeline at once: each call is before another or after it, or an error."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from datarax_ray import Pipeline
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares

N = 10**6
FAR = N // 2


def pipeline(data: Any) -> Pipeline:
    return Pipeline(source=RandomAccessSource(RandomAccessSourceConfig(), data), batch_size=1, on_host=True)


@pytest.mark.usefixtures("switching")
def test_a_seek_holds_whatever_another_thread_is_taking() -> None:
    """Its batch, of the place before, must not bring the pipeline back there."""
    going = pipeline(Squares(N))
    is_over = threading.Event()

    def take() -> None:
        while not is_over.is_set():
            try:
                going.step()
            except RuntimeError:  # the seek came while it waited
                continue

    thread = threading.Thread(target=take)
    thread.start()
    try:
        for count in range(400):
            place = FAR * (count % 2)
            going.seek(place)
            (index,) = going.step()["index"]
            assert place <= index < place + FAR
    finally:
        is_over.set()
        thread.join()


class Interrupting(Squares):
    """Sends the main thread a signal in the middle of a read, and goes on once it was handled."""

    def __init__(self, n: int, handled: threading.Event) -> None:
        super().__init__(n)
        self.handled = handled

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 20 and not self.handled.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            assert self.handled.wait(20)
        return super().__getitem__(index)


def test_a_handler_that_asks_for_a_batch_in_the_middle_of_a_step_is_refused_and_the_step_goes_on() -> None:
    """It would wait for a step that goes on when the handler is over."""
    handled, said = threading.Event(), []
    going = pipeline(Interrupting(40, handled))

    def handle(*_: Any) -> None:
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
