"""Pools that are resized from outside of their program, and that follow their cluster; on real nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from datarax_ray import RaySource
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.cli import pool as pool_command
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.cli.screens import answer, screen
from tests.data import Squares, array_records, enlarge, write_files
from tests.resume import assert_equal
from tests.waiting import until, until_all_run

NAMESPACE = "resizing"
SOON = Thresholds(ask_head_s=0.2)


@pytest.fixture
def command(cluster):
    """command(*args): `datarax-ray pool` with these, in another process."""

    def run(*args):
        words = [sys.executable, "-m", "datarax_ray", "pool", *map(str, args), "--address", cluster.address]
        environment = os.environ | {"COLUMNS": "300"}
        return subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment, check=False)

    return run


@pytest.fixture
def pool(cluster):
    """pool(*args): what `datarax-ray pool ... --json` prints."""

    def run(what, *args):
        commands = {"list": pool_command.list_pools, "resize": pool_command.resize}
        commands[what](*args, cluster.address, shown := screen(as_json=True))
        return json.loads(answer(shown))

    return run


@pytest.fixture
def module(tmp_path):
    return array_records(write_files(tmp_path, [40, 25]), seed=3, num_epochs=-1)


@pytest.mark.slow
def test_a_job_that_runs_is_resized_from_outside_and_its_stream_stays(command, pool, module):
    with RaySource(module, num_actors=1, num_cpus=0.1, thresholds=SOON) as source:
        got = [source.get_batch(8) for _ in range(3)]
        listed = until(lambda: [each for each in pool("list", None) if each["drivers"] and each["num_running"] == 1])
        assert [each["name"] for each in listed] == [source.pool_name]
        done = command("resize", source.pool_name, 3, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["num_actors"], told["asked"]["by"], told["program"]) == (3, "person", "1")
        assert source.num_actors == 3
        until_all_run(source)
        got += [source.get_batch(8) for _ in range(3)]
        until(lambda: sum(pool("list", source.pool_name)[0]["hosts"].values()) == 3)
        assert "asked for it" in source.recoveries.last[-1].reason
        assert "3 of 3 reader actors run\n  its program asks for 1\n" in command("list", source.pool_name).stdout
        assert command("resize", source.pool_name, "auto").stdout.startswith(f"{source.pool_name}: 3 -> 1 reader")
        got += [source.get_batch(8) for _ in range(2)]
        state = source.get_state()
    assert [each["name"] for each in pool("list", None)] == []
    assert_equal(got, [module.get_batch(8) for _ in got])
    assert state["position"] == 64
    done = command("resize", "nobody", 3)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: no pool is named 'nobody' here; the names are: none" in done.stderr


class Asked:
    """The positions that a source has asked its actors for."""

    def __init__(self, source, patch):
        self.positions: set[int] = set()
        self._send = source._actors.send
        patch.setattr(source._actors, "send", self._note)

    def _note(self, part):
        self.positions.update(range(part.request.start, part.request.stop))
        return self._send(part)


def test_drivers_of_a_shared_pool_have_together_no_more_in_flight_than_one(pool, monkeypatch):
    large = RandomAccessSource(RandomAccessSourceConfig(), Squares(10**6), transforms=[enlarge])
    options = {"num_actors": 2, "num_cpus": 0.1, "name": "bound", "thresholds": SOON}
    with (
        RaySource(large, max_nbytes=8 * 2**20, **options) as one,
        RaySource(large, max_nbytes=8 * 2**20, **options) as two,
    ):
        until(lambda: [len(each["drivers"]) for each in pool("list", None)] == [2])
        until(lambda: [each["max_nbytes"] for each in pool("list", "bound")[0]["drivers"]] == [4 * 2**20] * 2)
        asked = [Asked(source, monkeypatch) for source in (one, two)]
        for _ in range(30):
            for source in (one, two):
                source.get_batch(8)
        in_flight = [len(each.positions) - 240 for each in asked]
    assert 2**16 * sum(in_flight) <= 8 * 2**20
    assert min(in_flight) > 0, "and each has some"


def test_a_head_that_hangs_holds_nobody_up(cluster, module):
    """Neither the stream, nor who closes a source."""
    with RaySource(module, num_actors=1, num_cpus=0.1, thresholds=SOON) as source:
        source.get_batch(8)
        head = cluster.head_node.all_processes["gcs_server"][0].process
        os.kill(head.pid, signal.SIGSTOP)
        try:
            done = threading.Event()

            def read():
                for _ in range(5):
                    source.get_batch(8)
                    time.sleep(0.3)
                done.set()

            threading.Thread(target=read, daemon=True).start()
            assert done.wait(60)
        finally:
            os.kill(head.pid, signal.SIGCONT)
        source.get_batch(8)
