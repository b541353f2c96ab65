"""Faults of actors, on real ones: frozen, hung, slow, dying, added and removed; each is one recovery and no change."""

import itertools
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray

from datarax_ray import RaySource
from datarax_ray.actors import actor_set as actor_set_module
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.actors.reader_actor import ReaderActor
from datarax_ray.feed.stream import StreamOptions
from tests.data import AddNoise, DropThirds, array_records, decode, noise_of
from tests.waiting import until, until_all_run

TRANSFORMS = (decode, AddNoise(), DropThirds())
TIMEOUTS = ("start_timeout_s", "request_timeout_s", "stall_after_s")

pytestmark = pytest.mark.usefixtures("ray_local")


def make(paths, transforms=TRANSFORMS, **config):
    return array_records(paths, *transforms, **{"num_epochs": 6} | config)


def ray_source(source, num_actors, **options):
    return RaySource(source, num_actors=num_actors, num_cpus=0.5, **options)


def pids(source):
    return {index: stats["pid"] for index, stats in source.stats().items()}


def test_a_lost_actor_is_told_when_it_is_lost_and_counted(files, caplog):
    with ray_source(make(files, num_epochs=-1), 2, chunk_size=5) as source:
        until_all_run(source)
        assert (source.num_running, source.num_actors, source.recoveries.num_lost) == (2, 2, 0)
        stream = source.batches(0, StreamOptions(8))
        killed = pids(source)[1]
        os.kill(killed, signal.SIGKILL)
        until(lambda: next(stream) and source.recoveries.num_lost)
        assert re.search(
            rf"reader actor 1 \(pid {killed} on node \w+\) is lost, 1 of 2 still run: \w+Error", caplog.text
        )
        until_all_run(source)
        assert "num_actors=2, num_running=2" in repr(source)
        assert (source.recoveries.num_lost, source.recoveries.counts.total()) == (1, 1)


def test_an_actor_whose_next_process_answers_before_its_loss_is_seen_is_told_as_restarted(files):
    want = noise_of(make(files).batches(0, StreamOptions(8)))
    with ray_source(make(files), 2, chunk_size=10) as source:
        stream = source.batches(0, StreamOptions(8))
        got = noise_of(itertools.islice(stream, 3))
        killed = pids(source)[1]
        os.kill(killed, signal.SIGKILL)
        until(lambda: pids(source).get(1, killed) != killed)
        # nobody looks at what it was sent meanwhile; after a silence it is asked whether it is there, and the next is
        until(lambda: source._actors.actors() and source._actors._set.actors[1].state.process.pid != killed)
        (recovery,) = source.recoveries.last
        got += noise_of(stream)
        assert source.recoveries.counts == {"restarted": 1}
    assert (recovery.kind, recovery.actor) == ("restarted", 1)
    assert "another process" in recovery.reason
    assert got == want


class SleepOnce:
    """Hangs at one element, until a file is there; the file is made by whoever hangs first."""

    def __init__(self, path):
        self.path = path

    def map(self, element):
        if element["index"] == 13 and not self.path.exists():
            self.path.touch()
            threading.Event().wait()
        return element


def test_an_actor_that_hangs_at_a_request_is_ended_and_the_request_sent_again(files, tmp_path):
    transforms = [decode, SleepOnce(tmp_path / "hung"), AddNoise()]
    (tmp_path / "hung").touch()
    want = noise_of(make(files, transforms).batches(0, StreamOptions(8)))
    options = {"request_timeout_s": 6.0, "thresholds": Thresholds(quiet_s=0.5)}
    # one alone: of two the other would be asked for what this one is late with, and the stream end before the timeout
    with ray_source(make(files, transforms), 1, chunk_size=10, **options) as source:
        next(source.batches(0, StreamOptions(100)))  # the first read in a process imports, which is no hang
        before = set(pids(source).values())
        (tmp_path / "hung").unlink()
        assert noise_of(source.batches(0, StreamOptions(8))) == want
        until_all_run(source)
        assert set(source.recoveries.counts) == {"hung"}
        assert "longer than the 6 s that request_timeout_s" in source.recoveries.last[0].reason
        assert before - set(pids(source).values())


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        *((name, -1.0, "ValueError: {} must be more than 0, got -1.0") for name in TIMEOUTS),
        *((name, 0.0, "ValueError: {} must be more than 0, got 0.0") for name in TIMEOUTS),
        *((name, 0, "ValueError: {} must be at least 1.*got 0") for name in ("num_actors", "chunk_size", "max_nbytes")),
        ("num_actors", -2, "ValueError: {} must be at least 1.*got -2"),
        ("num_cpus", "1", "TypeError: {} is a number, got '1'"),
        ("request_timeout_s", "10", "TypeError: {} is a number, got '10'"),
        ("max_nbytes", "1GB", "TypeError: {} is a whole number, got '1GB', in bytes"),
        ("memory", "1GB", "TypeError: {} is a whole number, got '1GB', in bytes"),
        ("name", 3, "TypeError: {} is a text, .* got 3"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(files, option, value, error):
    with pytest.raises((ValueError, TypeError)) as raised:
        RaySource(make(files), **{option: value})
    assert re.match(error.format(option), f"{type(raised.value).__name__}: {raised.value}")


class FullDisk(ReaderActor):
    def __init__(self, index):
        raise OSError("there is no space left on this host")


def test_actors_that_cannot_start_are_an_error_with_the_reason(files, monkeypatch):
    remote = ray.remote(concurrency_groups={"control": 1, "sample": 1})(FullDisk)
    monkeypatch.setattr(actor_set_module, "remote_class", lambda: remote)
    with (
        ray_source(make(files), 1, thresholds=Thresholds(max_backoff_s=0.1)) as source,
        pytest.raises(RuntimeError, match=r"no reader actor can start, each was tried \d times.*no space left on this"),
    ):
        next(source.batches(0, StreamOptions(8)))


def test_actors_join_and_leave_a_running_stream(files, caplog):
    caplog.set_level("INFO", "datarax_ray")
    want = noise_of(make(files, num_epochs=12).batches(0, StreamOptions(4)))
    with ray_source(make(files, num_epochs=12), 2, chunk_size=10) as source:
        stream = source.batches(0, StreamOptions(4))
        got = noise_of(itertools.islice(stream, 5))
        assert source.add_actors(2) == (2, 3)
        until_all_run(source)
        worked = set()
        while len(worked) < 4 and len(got) < len(want) // 2:  # what was in flight before was asked of the first two
            got += noise_of(itertools.islice(stream, 20))
            worked = {index for index, stats in source.stats().items() if stats["num_blocks"]}
        assert worked == {0, 1, 2, 3}
        assert source.remove_actors(3) == (1, 2, 3)
        assert source.num_actors == 1
        got += noise_of(itertools.islice(stream, 20))
        source.rebalance()
        assert list(source.stats()) == [0]
        got += noise_of(stream)
        with pytest.raises(ValueError, match="removing 1 of 1 actors would leave none"):
            source.remove_actors(1)
        with pytest.raises(ValueError, match="num_actors must be at least 1, got 0"):
            source.add_actors(0)
        assert source.recoveries.counts == {"resized": 2}
        said = ["2 -> 4; they were added", "4 -> 1; they were removed"]
        assert [event.reason for event in source.recoveries.last] == said
        assert [f"reader actors: {each}" in caplog.messages for each in said] == [True, True]
    assert got == want


def test_a_long_wait_says_for_whom_and_what(files, tmp_path, caplog):
    waits = SleepOnce(tmp_path / "hung")
    with ray_source(make(files, [decode, waits], shuffle_files=False), 1, chunk_size=8, stall_after_s=1.0) as source:
        stream = source.batches(0, StreamOptions(8))
        next(stream)
        with ThreadPoolExecutor(1) as executor:
            rest = executor.submit(list, stream)
            wanted = r"waited \d s for actor 0: positions \[8, 16\) of \S*part-00001\S*, \S*part-00002"
            until(lambda: any(re.search(wanted, message) for message in caplog.messages))
            source.close()
            with pytest.raises(RuntimeError, match="this RaySource is closed"):
                rest.result()
    assert any(re.search(wanted, event.reason) for event in source.recoveries.last)
    assert set(source.recoveries.counts) == {"stalled"}
