"""Where a source comes to a Ray: what a plain script's terminal shows, and a cluster that does not answer."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray._private import services

from datarax_ray.actors import connection
from tests.ports import free_port
from tests.programs import knowing_no_ray

# As a user's first script: no logging set up, no Ray before, JAX used before Ray is started.
SCRIPT = """
import os, signal, sys
from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig

def source(num_records):
    elements = [{"index": index} for index in range(num_records)]
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), elements)

signal.signal(signal.SIGTERM, lambda *_: print("the program's own SIGTERM"))
Pipeline(source=source(8), batch_size=4).step()
with RaySource(source(1200), num_actors=int(sys.argv[1]), num_cpus=0.01) as distributed:
    print(f"actors {distributed.num_actors}")
    with Pipeline(source=distributed, batch_size=40) as pipeline:
        print(f"batches {sum(1 for _ in pipeline)}")
    signal.raise_signal(signal.SIGTERM)
held = []  # each for all cores, as training, validation and a test kept in one program
for _ in range(2):
    held.append(RaySource(source(8), num_actors=1, num_cpus=float(os.cpu_count())))
    print(f"beside {len(held)} {len(held[-1].get_batch(8)['index'])}")
"""


@pytest.mark.slow
def test_a_plain_script_is_told_of_the_start_and_sees_no_warning_of_forks(tmp_path):
    done = knowing_no_ray("-c", SCRIPT, 1, HOME=str(tmp_path), RAY_ADDRESS="local")
    assert done.returncode == 0, done.stderr
    started = done.stderr.index("Started a local Ray instance.")
    assert "starting a local Ray (RAY_ADDRESS=local), which takes" in done.stderr[:started]
    # what actors print comes in between, in the middle of a line too
    said = ("actors 1", "batches 30", "the program's own SIGTERM", "beside 1 8", "beside 2 8")
    assert [text for text in said if text not in done.stdout] == []  # and the cores of one machine are shared
    assert "SIGTERM received" not in done.stderr  # of Ray's handler in C++
    assert "os.fork" not in done.stderr


@pytest.mark.slow
def test_a_local_ray_is_given_no_more_actors_than_the_machine_is_good_for(tmp_path):
    done = knowing_no_ray("-c", SCRIPT, 10_000, HOME=str(tmp_path), RAY_ADDRESS="local")
    assert done.returncode == 0, done.stderr
    given = max(16, 4 * (os.cpu_count() or 1))
    assert f"actors {given}\n" in done.stdout
    assert "num_actors=10000 is too many for a local Ray" in done.stderr
    assert f"and {given} actors are started" in done.stderr
    assert "batches 30" in done.stdout


def test_a_cluster_that_does_not_answer_is_told_at_once_and_then_an_error_with_its_address(caplog):
    port = free_port()
    with pytest.raises(ConnectionError, match=f"no Ray cluster answers at 127.0.0.1:{port} .*RAY_ADDRESS=local"):
        connection._wait_for(f"127.0.0.1:{port}", "RAY_ADDRESS", answer_s=0.01, retry_s=0.02)
    assert len([r for r in caplog.records if r.message.startswith("no answer yet from the Ray cluster at 127.0")]) == 1


@pytest.mark.parametrize("address", ["garbage", "head", "head:port", "127.0.0.1:"])
def test_what_is_no_address_of_a_cluster_is_refused_by_name(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=f"RAY_ADDRESS={address} is no address of a Ray cluster. Give host:port"):
        connection.connect(1, 1.0)


def test_a_program_without_the_token_that_it_is_to_send_is_told_where_to_put_it(tmp_path):
    """Ray itself aborts. In a process of its own: one that has looked for a token keeps it."""
    with socket.create_server(("", 0)) as head:  # Ray puts this host's address in the place of 127.0.0.1
        given = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_ADDRESS": f"127.0.0.1:{head.getsockname()[1]}"}
        done = knowing_no_ray("-c", "from datarax_ray.actors.connection import connect; connect(1, 1.0)", **given)
    assert "ConnectionError: RAY_AUTH_MODE=token, and this program has no token: put the token" in done.stderr


def test_a_cluster_that_answers_is_not_waited_for(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection._wait_for(f"127.0.0.1:{server.getsockname()[1]}", "RAY_ADDRESS")
    assert not caplog.records


@pytest.mark.slow  # and other programs of this machine find it while it runs
def test_a_head_with_a_directory_of_its_own_is_found():
    """RaySource said "no cluster is running here", and started a local Ray beside it."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        port = free_port()
        options = ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}/own"]
        try:
            done = knowing_no_ray("-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", *options)
            assert done.returncode == 0, done.stderr
            program = "from datarax_ray.actors import connection as at; print(at.cluster_here()); at.connect(1, 1.0)"
            done = knowing_no_ray("-c", program)
            assert done.stdout.strip().endswith(f":{port}"), done.stderr
            assert "starting a local Ray" not in done.stderr
            done = knowing_no_ray("-m", "datarax_ray", "pool", "list")
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip() == "the cluster has no pool of reader actors"
        finally:
            for process in psutil.process_iter(["cmdline"]):
                if folder in " ".join(process.info["cmdline"] or []):
                    process.kill()


@pytest.mark.parametrize(
    ("last", "started", "others", "of_programs", "found"),
    [
        ("10.0.0.1:6379", ["10.0.0.1:6380"], [], False, "10.0.0.1:6379"),  # in Ray's own directory
        (None, ["10.0.0.1:6380"], ["10.0.0.1:7"], False, "10.0.0.1:6380"),  # with --temp-dir
        (None, ["10.0.0.1:6380"] * 2, [], False, "10.0.0.1:6380"),  # two nodes of one cluster
        (None, ["10.0.0.1:6380", "10.0.0.1:6381"], [], False, "several Rays run on this host: 10.0.0.1:6380, 10.0.0.1"),
        (None, [], ["10.0.0.1:7"], False, None),  # a Ray that ends with its program
        (None, [], ["10.0.0.1:7"], True, "10.0.0.1:7"),
        (None, [], [], True, None),
    ],
)
def test_there_is_one_way_to_find_a_cluster_here(
    last: str | None, started: list[str], others: list[str], of_programs: bool, found: str | None, monkeypatch: Any
) -> None:
    directories = {f"/tmp/ours-{index}": address for index, address in enumerate(started)}
    raylets = [*directories.items(), *(("/tmp/ray", address) for address in others)]
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda at: last if at is None else directories.get(str(at)))
    monkeypatch.setattr(connection, "_raylets", lambda: ({"temp_dir": Path(at), "gcs": gcs} for at, gcs in raylets))
    if found is not None and found.startswith("several"):
        with pytest.raises(ConnectionError, match=found):
            connection.cluster_here(of_programs=of_programs)
    else:
        assert connection.cluster_here(of_programs=of_programs) == found
    monkeypatch.setenv("RAY_TMPDIR", "/elsewhere")
    assert connection.cluster_here() == last
