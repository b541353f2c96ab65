"""`datarax-ray ingest` as it is used, on the 120 records of 20 bytes in 4 files that the fixture makes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.cli.conftest import environment

DECODER = "fields:index=int32;rest=int32:4"


def rows(stdout: str) -> dict[str, str]:
    """The report's first table: the first value by its name."""
    found = [re.split(r"\s{2,}", line.strip()) for line in stdout.splitlines() if line.strip()]
    return {row[0]: row[1] for row in found if len(row) > 1}


def number_of(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def test_in_one_process_it_counts_what_came(command, files):
    shown = command("ingest", *files, "--num-actors", 0, "--num-epochs", 2, "--batch-size", 50, "--decoder", DECODER)
    assert shown.returncode == 0, shown.stderr
    found = rows(shown.stdout)
    assert (found["records"], found["batches"], found["epochs"]) == ("240", "5", "2")
    seconds = number_of(found["time"])
    assert number_of(found["records/s"]) == pytest.approx(240 / seconds, rel=0.6)  # the time is rounded to 10 ms
    assert number_of(found["first batch after"]) <= seconds
    assert number_of(found["consumer waited"]) <= seconds
    assert "start" not in found
    assert shown.stderr == "ingest: 240 of 240 (100%), " + shown.stderr.split("(100%), ")[1]
    assert re.search(r"[\d,]+ records/s, [\d.,]+ MB/s\n$", shown.stderr)


def test_actors_read_the_same_and_are_listed(command, files, ray_local):
    address = ray.get_runtime_context().gcs_address
    shown = command("ingest", files[0].parent, "--num-actors", 2, "--num-epochs", 2, ray_address=address)
    assert shown.returncode == 0, shown.stderr
    assert rows(shown.stdout)["records"] == "240"
    assert number_of(rows(shown.stdout)["start"]) > 0
    actors = re.findall(r"^\s*(\d+)\s+([0-9a-f]{12})\s+(\d+)\s+(\d+) MiB\s+(\d+)", shown.stdout, re.MULTILINE)
    assert [int(actor[0]) for actor in actors] == [0, 1]
    assert len({actor[2] for actor in actors}) == 2
    assert 240 <= sum(int(actor[4]) for actor in actors) <= 480  # a late request is read by the other one, too


def test_it_stops_after_max_batches(command, files):
    shown = command("ingest", *files, "--num-actors", 0, "--batch-size", 10, "--max-batches", 3)
    found = rows(shown.stdout)
    assert (shown.returncode, found["records"], found["batches"], found["epochs"]) == (0, "30", "3", "0.25")
    assert "30 of 30 (100%)" in shown.stderr


@pytest.mark.parametrize(
    ("number", "num_actors", "status", "cause"),
    [
        pytest.param(signal.SIGINT, 0, 130, "Ctrl-C", marks=pytest.mark.slow),
        (signal.SIGTERM, 0, 143, "SIGTERM"),
        pytest.param(signal.SIGTERM, 1, 143, "SIGTERM", marks=pytest.mark.slow),  # a Ray of its own
    ],
)
def test_a_signal_ends_an_endless_stream_with_a_report(files, number, num_actors, status, cause):
    words = ["-m", "datarax_ray", "ingest", *map(str, files), "--num-actors", str(num_actors), "--num-epochs", "-1"]
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("ingest: "):  # the first line of progress: it runs
        assert process.poll() is None
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"stopped by {cause}" in stderr
    assert number_of(rows(stdout)["records"]) > 120
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--decoder", "raw:int32:4"], r"transform DecodeRaw raised ValueError: a record of 20 bytes is not the 16"),
        (["--seed", "-1"], r"seed must be in \[0, 2\*\*32\), got -1"),
        (["elsewhere-*.array_record"], "error: elsewhere-.*no file matches this glob"),
        ([__file__], "test_ingest.py is not a complete ArrayRecord file"),
    ],
)
def test_a_wrong_turn_is_one_clear_message(command, files, args, said):
    shown = command("ingest", *files, "--num-actors", 0, *args)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert re.search(said, shown.stderr), shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_broken_record_is_named_with_the_actor_that_met_it(command, files, tmp_path, ray_local):
    path = broken(files[3], tmp_path)
    shown = command("ingest", path, "--num-actors", 1, ray_address=ray.get_runtime_context().gcs_address)
    assert shown.returncode == 1
    assert re.search(rf"error: {re.escape(str(path))}\[\d+\] \(position \d+\): reading raised", shown.stderr)
    assert "in reader actor 0" in shown.stderr
    assert "Traceback" not in shown.stderr


def broken(path: Path, directory: Path) -> Path:
    """A copy with bytes changed in the middle of what it holds; its index, at the end, is whole."""
    stored = bytearray(path.read_bytes())
    end = stored.index(bytes(4096))  # data from the front, padding with zeros, the index at the end
    stored[end // 2] ^= 0xFF
    copy = directory / path.name
    copy.write_bytes(stored)
    return copy
