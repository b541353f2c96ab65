"""A state that a signal's handler or another thread takes while steps run is one of those between two batches."""

import json
import signal
import sys
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from datarax_ray import Pipeline
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import Squares

N = 60


class OneToThree:
    """Records of three, two and one elements, and some that fail: position, offset and count all move."""

    def flat_map(self, element):
        if element["index"] % 7 == 0:
            raise ValueError("a multiple of seven")
        return [{"index": element["index"], "copy": copy} for copy in range(element["index"] % 3 + 1)]


def source():
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=2, on_error="skip")
    return RandomAccessSource(config, Squares(N), transforms=[OneToThree()])


def pipeline():
    return Pipeline(source=source(), batch_size=3, prefetch=0)


@contextmanager
def taken_by_a_signal(take):
    """What `take` gave, after half a millisecond of work since the last time: by the clock, a busy machine would give
    all time to the handler.
    """
    found = []

    def handle(*_):
        found.append(json.dumps(take()))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)

    before = signal.signal(signal.SIGVTALRM, handle)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def taken_by_a_thread(take):
    found = []
    is_over = threading.Event()

    def run():
        while not is_over.is_set():
            found.append(json.dumps(take()))

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


TAKERS = pytest.mark.parametrize("taken", [taken_by_a_signal, taken_by_a_thread])


@TAKERS
def test_a_pipelines_is(taken):
    going = pipeline()
    whole = {json.dumps(going.get_state())} | {json.dumps(going.get_state()) for _ in going}
    with taken(lambda: going.get_state()) as found:
        for _ in range(12):
            going.seek(0)
            for _ in going:
                pass
    assert len(found) > 20
    assert not set(found) - whole


def indices(batch):
    return batch["index"]


@TAKERS
def test_between_two_scans_it_is(taken):
    going = pipeline()
    whole = {json.dumps(going.get_state())}
    for _ in range(8):
        going.scan(indices, length=3)
        whole.add(json.dumps(going.get_state()))
    with taken(lambda: going.get_state()) as found:
        for _ in range(6):
            going.seek(0)
            for _ in range(8):
                going.scan(indices, length=3)
    assert not set(found) - whole


@TAKERS
def test_a_sources_is(taken: Any) -> None:
    """And taking it moves nothing: a source's variables are written one after the other."""
    want = [int(element["index"]) for element in source()]
    calm = source()
    whole = {json.dumps(calm.get_state()["position"])} | {json.dumps(calm.get_state()["position"]) for _ in calm}
    for _ in range(6):
        going = source()
        with taken(lambda going=going: going.get_state()["position"]) as found:
            assert [int(element["index"]) for element in going] == want
        assert not set(found) - whole
