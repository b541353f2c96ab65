"""Digits-shaped ArrayRecord files, and a real Ray head with token authentication that leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from tests.ports import free_ports

CLUSTER = Path(__file__).parents[2] / "cluster"
sys.path.insert(0, str(CLUSTER))  # as for `python job.py`, which finds the files beside it

_MARK = "DATARAX_RAY_TEST_HEAD"  # in the environment of the head, and so of every process that comes from it


def write_digits(directory: Path, sizes: tuple[int, ...]) -> list[bytes]:
    """Write one file for each size; all records in the order of the files: image uint8 (8, 8), label uint8."""
    directory.mkdir()
    random = np.random.default_rng(0)
    records = [random.integers(0, 17, 64, np.uint8).tobytes() + random.bytes(1) for _ in range(sum(sizes))]
    records = [record[:64] + bytes([record[64] % 10]) for record in records]
    rest = iter(records)
    for index, size in enumerate(sizes):
        writer = ArrayRecordWriter(str(directory / f"digits-{index}.array_record"), "group_size:1")
        for _ in range(size):
            writer.write(next(rest))
        writer.close()
    return records


@pytest.fixture(scope="session")
def digits_writer() -> Callable[[Path, tuple[int, ...]], list[bytes]]:
    return write_digits


def until(condition: Callable[[], Any], what: str, timeout_s: float = 120.0, every_s: float = 0.02) -> Any:
    """The condition's first true value. Other processes give no event to wait on, so this looks again and again."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {timeout_s:.0f} s"
        time.sleep(every_s)
    return value


@dataclass(frozen=True)
class Head:
    """A running head. env: what a client of it needs; holds the path of the token, not the token."""

    address: str
    token: str
    env: dict[str, str]

    def request(self, path: str, *, token: str | None, method: str = "GET") -> Any:
        """What the job server answers. Raises: urllib.error.HTTPError for a refusal."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.address + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def submit(self, *arguments: str, script: Path = CLUSTER / "submit.sh") -> subprocess.CompletedProcess[str]:
        """Run submit.sh as a user would; output holds stdout and stderr."""
        command = [script, "--address", self.address, "--python", sys.executable, *arguments]
        return subprocess.run(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
        )

    def begins(self, process: subprocess.Popen[bytes], output: Path) -> bool:
        """Whether it starts, as it says there, and its job server answers; or ends."""

        def is_ready() -> bool:
            try:
                return (
                    "Ray runtime started" in output.read_text() and self.request("/api/jobs/", token=self.token) == []
                )
            except OSError:  # not listening yet
                return False

        until(lambda: process.poll() is not None or is_ready(), "the start of a head")
        return process.poll() is None

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until(condition, what)

    def until_told(self, condition: Callable[[], Any], what: str) -> Any:
        """Likewise of what the head is asked for: every answer costs it CPU that the job would have."""
        return until(condition, what, every_s=0.25)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # Not pytest's tmp_path: Ray puts UNIX sockets in there, whose paths are limited to 107 characters.
    temp = Path(tempfile.mkdtemp(prefix="dr-", dir="/tmp"))
    mark = uuid.uuid4().hex
    token = uuid.uuid4().hex
    (temp / "token").write_text(token)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(temp / "token"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "RAY_prestart_worker_first_driver": "0",  # as in tests/conftest.py
        "RAY_worker_niceness": "0",
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            process, running, output = _begin(temp / str(len(started)), token, env | {_MARK: mark})
            started.append(process)
            if running.begins(process, output):
                break
            # on a busy machine Ray may give up a start of its own by itself
            assert "timed out during startup" in output.read_text(), output.read_text()
            assert len(started) < 3, output.read_text()
            _end(process, mark)
        yield running
    finally:
        for process in started:
            _end(process, mark)
        shutil.rmtree(temp, ignore_errors=True)


def _begin(temp: Path, token: str, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], Head, Path]:
    """`ray start`, how to reach the head once it is there, and the file with what it says."""
    temp.mkdir()
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = ["ray", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=4"]
    # Only the dashboard can be kept on loopback: Ray replaces a loopback --node-ip-address by the host's own address.
    command += ["--dashboard-host=127.0.0.1", f"--object-store-memory={100 * 2**20}", "--labels=role=cpu"]
    command += ["--no-monitor"]  # nobody wants it to grow
    command += [f"--temp-dir={temp / 'ray'}", *(f"--{name}={port}" for name, port in ports.items())]
    output = temp / "head.log"
    with output.open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    return process, Head(f"http://127.0.0.1:{ports['dashboard-port']}", token, env), output


# All that `ray start` would otherwise put at a fixed number, where another cluster on this machine may be.
_PORTS = (
    "port",
    "dashboard-port",
    "ray-client-server-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill every process that comes from this head, and see that none is left.

    SIGKILL at once: on SIGTERM `ray start --block` takes 10 s while a job runs, and leaves what its processes made.
    """
    ours: set[tuple[int, int]] = set()

    def none_left() -> bool:
        process.poll()  # reaps it
        alive = {(pid, started): parent for pid, parent, started in _processes()}
        ours.update(key for key in alive if key[0] == process.pid or _is_marked(key[0], mark))
        # Ray's agents write their titles over their environment; those are found as children of ours.
        while more := {key for key, parent in alive.items() if parent in {pid for pid, _ in ours}} - ours:
            ours.update(more)
        left = ours & alive.keys()
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(none_left, "the end of the head's processes", 20)


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent's pid, start time) of each process that is not a zombie; with the start time a pid is unique."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            state, parent, *rest = entry.read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(entry.parent.name), int(parent), int(rest[17])


def _is_marked(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
