"""The benchmark runs: at toy size, to see that everyone delivers the same records. No time is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import ingest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    directory: Path = tmp_path_factory.mktemp("benchmark")
    file = directory / "found.json"
    options = ["--records", "640", "--repeats", "1", "--kinds", "tokens", "--actors", "2", "--quick", "--identify"]
    ingest.main([*options, "--cache-dir", str(directory), "--json", str(file)])
    return json.loads(file.read_text())


def test_every_competitor_delivers_each_record_once(found: dict) -> None:
    came = {run["competitor"]: sorted(run["deliveries"][0]["identities"]) for run in found["runs"]}
    assert list(came) == [
        "raw",
        "raw+decode",
        "grain.DataLoader",
        "grain.MapDataset",
        "in-process",
        "RaySource",
    ]
    assert came == {competitor: list(range(640)) for competitor in came}


def test_the_file_says_what_was_measured_where(found: dict) -> None:
    assert found.keys() == {"version", "machine", "options", "results", "runs", "grids", "verdicts"}
    assert found["machine"].keys() >= {"cpu", "num_cpus", "memory_nbytes", "python", "versions", "load_average"}
    for result in found["results"]:
        assert result.keys() >= {"kind", "competitor", "workers", "name", "rate", "rates", "cpu_us", "first_batch_s"}
    assert found["results"][-1]["notes"]["actor_max_rss_nbytes"] > 0
