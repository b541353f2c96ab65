"""Records that end whoever reads them are found alone; killers from outside change nothing."""

import contextlib
import os
import random
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.read.errors import RecordError
from tests.data import AddNoise, array_records, decode, noise_of, write_files
from tests.waiting import until_all_run


class Slowly:
    """Three milliseconds for each element, so that the stream lasts."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.003)
        return element


pytestmark = pytest.mark.usefixtures("ray_local")


def make(paths, transforms, **config):
    return array_records(paths, *transforms, **{"num_epochs": 1} | config)


class EndProcess:
    """At one element: ends its process in this way; in the process that has made it (the test's) it raises."""

    def __init__(self, index, how):
        self.index = index
        self.how = how
        self.pid = os.getpid()

    def map(self, element):
        if element["index"] == self.index:
            if os.getpid() == self.pid:
                raise ZeroDivisionError("it would end its process")
            if self.how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        return element

    def fingerprint(self):
        return "EndProcess"


def collect(batches, got):
    for batch in batches:
        got += noise_of([batch])


def test_a_record_that_ends_whoever_reads_it_is_named_alone_after_what_is_before_it(files):
    source = make(files, [decode, EndProcess(57, "exit"), AddNoise()])
    before = []
    with pytest.raises(RecordError) as plain:
        collect(source.batches(0, StreamOptions(4)), before)
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=16) as distributed:
        got = []
        with pytest.raises(RecordError, match=r"part-00003\S*\[37\] \(position \d+\).*exit status 3") as told:
            collect(distributed.batches(0, StreamOptions(4)), got)
        assert distributed.recoveries.counts["restarted"] >= 2
    assert got == before
    assert told.value.position == plain.value.position


class Hang:
    """Never returns from one element, in another process than the one that has made it."""

    def __init__(self, index):
        self.index = index
        self.pid = os.getpid()

    def map(self, element):
        if element["index"] == self.index and os.getpid() != self.pid:
            threading.Event().wait()
        return element


@pytest.mark.slow  # six times request_timeout_s, and what Ray takes to end an actor
def test_a_record_that_never_returns_is_found_alone(files):
    source = make(files, [decode, Hang(57), AddNoise()], shuffle_files=False)
    with (
        RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=40, request_timeout_s=5.0) as distributed,
        pytest.raises(RecordError, match=r"\[37\] \(position 57\).*it took longer than request_timeout_s=5"),
    ):
        noise_of(distributed.batches(0, StreamOptions(4)))


class Silence:
    """At one element, in another process than the one that has made it, it answers nobody any more.

    how: "holds" the interpreter's lock in a call without end; "forks" a process that lives on, and ends: what it forked
    keeps the connection open by whose end Ray would hear of that.
    """

    def __init__(self, index, how):
        self.index = index
        self.how = how
        self.pid = os.getpid()

    def map(self, element):
        if element["index"] == self.index and os.getpid() != self.pid:
            if self.how == "holds":
                re.match(r"(a+)+$", "a" * 60 + "b")
            elif os.fork() == 0:
                time.sleep(120)
            os._exit(4)
        return element


IMPATIENT = Thresholds(quiet_s=0.5, answer_s=2.0, silent_s=2.0)


@pytest.mark.slow  # what Ray takes to end an actor, six times
@pytest.mark.parametrize(("how", "why"), [("holds", "it took longer than request_timeout_s=5"), ("forks", "status 4")])
def test_a_record_that_silences_whoever_reads_it_is_found_alone(files, how, why):
    source = make(files, [decode, Silence(57, how), AddNoise()], shuffle_files=False)
    with (
        RaySource(
            source, num_actors=2, num_cpus=0.5, chunk_size=8, request_timeout_s=5.0, thresholds=IMPATIENT
        ) as distributed,
        pytest.raises(RecordError, match=rf"\[37\] \(position 57\).*{why}"),
    ):
        noise_of(distributed.batches(0, StreamOptions(4)))


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it lasts until the actors have had the time to read between two deaths
def test_killing_one_actor_after_the_other_without_end_changes_nothing(tmp_path: Path) -> None:
    paths = write_files(tmp_path, (400, 300, 300))
    source = make(paths, [decode, Slowly(), AddNoise()], num_epochs=2)
    want = noise_of(source.batches(0, StreamOptions(32)))
    done = threading.Event()

    with RaySource(source, num_actors=3, num_cpus=0.5, chunk_size=2000) as distributed:
        until_all_run(distributed)
        actors = distributed._actors._set.actors

        def kill() -> None:
            chance = random.Random(0)
            while not done.wait(0.5):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actors[chance.randrange(3)].state.process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            got = noise_of(distributed.batches(0, StreamOptions(32)))
        finally:
            done.set()
            killer.join()
        assert sum(distributed.recoveries.counts.values()) > 1  # how many, the speed of the machine says
    assert got == want


@pytest.mark.slow  # as many deaths as the one before
def test_a_record_that_ends_whoever_reads_it_may_be_left_out_like_any_other(files: list[Path]) -> None:
    source = make(files, [decode, EndProcess(57, "kill"), AddNoise()], on_error="skip")
    want = noise_of(source.batches(0, StreamOptions(8)))
    # of a part of few positions it is found in fewer deaths; the test above has many
    with RaySource(source, num_actors=2, num_cpus=0.5, chunk_size=6) as distributed:
        got = list(distributed.batches(0, StreamOptions(8)))
        again = list(distributed.batches(got[2].stop, StreamOptions(8)))  # as a program that resumes
    assert noise_of(got) == want
    assert noise_of(again) == want[3:]
    (skip,) = [skip for batch in got for skip in batch.skipped]
    assert skip.where.endswith("part-00003.array_record[37]")
    assert "SIGKILL" in skip.reason
