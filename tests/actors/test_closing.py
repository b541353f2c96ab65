"""A source can be closed at any moment, and no actor, process or object is left.

The streams have no end, and what is waited for does not come: to close one that waited for either would not return.
"""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datarax_ray import RaySource
from datarax_ray.actors import pool as pool_module
from datarax_ray.actors.actor_set import ActorSet
from datarax_ray.feed.stream import StreamOptions
from tests.clusters import living_actors, store_in_use
from tests.data import array_records
from tests.waiting import until, until_all_run

pytestmark = pytest.mark.usefixtures("ray_local")
STORE_NBYTES = 200 * 2**20  # of ray_local


class Slowly:
    """20 ms and as many bytes as wanted for an element."""

    def __init__(self, nbytes=16):
        self.nbytes = nbytes

    def map(self, stored):
        time.sleep(0.02)
        return {"noise": np.zeros(self.nbytes, np.uint8)}


def make(files, nbytes=16):
    return array_records(files, Slowly(nbytes), num_epochs=-1)


def distribute(source, num_actors=2, **options):
    return RaySource(source, num_actors=num_actors, num_cpus=0.5, **options)


def pids(*sources):
    return [stats["pid"] for source in sources for stats in source.stats().values()]


def close(*sources):
    for source in sources:
        source.close()


@pytest.fixture
def nothing_left():
    """What there was before is all that there is after."""
    assert until(lambda: store_in_use() == 0)
    known = set()
    yield known.update
    until(lambda: living_actors() == {}, 60)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in known), 60)
    until(lambda: store_in_use() == 0)


def test_between_batches_and_while_one_is_waited_for(files, nothing_left):
    for number in (0, 2, 4):
        source = distribute(make(files), 1)
        stream = source.batches(0, StreamOptions(8))
        for _ in range(number - 1):
            next(stream)
        nothing_left(pids(source) if number else ())
        timer = threading.Timer(0.05 * number, source.close)
        timer.start()
        if number == 4:
            with pytest.raises(RuntimeError, match="this RaySource is closed"):
                list(stream)
        timer.join()
        close(source)
        stream.close()
        del source, stream


def while_it_waits(source, then=lambda: None):
    """Close it once `then` has returned, while another thread waits for a batch."""
    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(list, source.batches(0, StreamOptions(8)))
        then()
        close(source)
        with pytest.raises(RuntimeError, match="this RaySource is closed"):
            reading.result(60)


@pytest.mark.parametrize("name", [None, "none_yet"])
def test_while_no_actor_runs_yet(files, nothing_left, name):
    while_it_waits(distribute(make(files), resources={"nowhere": 1}, name=name))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_while_an_actor_is_gone(files, nothing_left, number):
    source = distribute(make(files), chunk_size=20)
    until_all_run(source)
    nothing_left(pids(source))

    def lose():
        until(lambda: all(stats["num_blocks"] for stats in source.stats().values()))
        os.kill(pids(source)[1], number)
        if number == signal.SIGKILL:
            until(lambda: source._actors._set.actors[1].state.loss)

    while_it_waits(source, lose)


@pytest.mark.parametrize(("module", "name"), [(pool_module, "InFlight"), (ActorSet, "tend")])
def test_by_a_signal_while_a_request_is_sent_or_actors_are_looked_after(files, nothing_left, monkeypatch, module, name):
    source = distribute(make(files), 1)
    stream = source.batches(0, StreamOptions(8))
    next(stream)
    nothing_left(pids(source))
    before, found = signal.signal(signal.SIGUSR1, lambda *_: source.close()), getattr(module, name)

    def interrupted(*given, **options):
        signal.raise_signal(signal.SIGUSR1)
        return found(*given, **options)

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(RuntimeError, match="this RaySource is closed"):
        list(stream)
    signal.signal(signal.SIGUSR1, before)


def test_while_actors_are_added_and_partitions_move(files, nothing_left):
    source = distribute(make(files), chunk_size=20)
    until_all_run(source)

    def change():
        source.add_actors(2)
        source.rebalance()
        source.remove_actors(1)
        nothing_left(pids(source))

    while_it_waits(source, change)


def test_with_a_window_larger_than_the_store(files, nothing_left):
    source = distribute(make(files, nbytes=2**21), chunk_size=30, max_nbytes=3 * STORE_NBYTES)
    stream = source.batches(0, StreamOptions(8))
    for _ in range(4):
        next(stream)  # the size of an element is known, and the window opens
    nothing_left(pids(source))
    until(lambda source=source: sum(stats["nbytes"] for stats in source.stats().values()) > 1.5 * STORE_NBYTES)
    close(source)
    stream.close()
    del source, stream


def test_shared_actors_end_with_the_last_that_reads_with_them(files, nothing_left):
    sources = [distribute(make(files), name="shared") for _ in range(3)]
    for source in sources:
        until_all_run(source)
    streams = [source.batches(0, StreamOptions(8)) for source in sources]
    for stream in streams:
        next(stream)
    assert len(set(pids(*sources))) == 2
    nothing_left(pids(sources[0]))
    before = pids(sources[1])
    close(*sources[:2])
    next(streams[2])
    assert pids(sources[2]) == before
    assert sources[2].recoveries.counts == {}
    assert sources[2].remove_actors(1) == (1,)
    until(lambda: [*living_actors()] == before[:1])
    close(sources[2])
    del stream, streams


def test_shared_actors_outlive_the_source_that_started_them(files: list[Path], nothing_left: Any) -> None:
    first, last = sources = [distribute(make(files), name="outlived") for _ in range(2)]
    for source in sources:
        until_all_run(source)
    before = pids(last)
    nothing_left(before)
    stream = last.batches(0, StreamOptions(8))
    next(stream)
    close(first)
    del first, source, sources
    gc.collect()  # of what refers to each other: Ray would end an actor with the handle that it was started by
    for _ in range(20):
        next(stream)
        assert pids(last) == before
    assert last.recoveries.counts == {}
    close(last)
    stream.close()
