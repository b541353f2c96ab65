"""The benchmark runs: at toy size, to see that everyone delivers the same records. No time is looked at."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.benchmarks import (
    augmentations,
    batches,
    calls,
    checks,
    device_step,
    growth,
    hf_streams,
    ingest,
    lengths,
    mixtures,
    parquet,
    peers,
    remote_faults,
    remote_files,
    remote_parquet,
    remote_peers,
    remote_start,
    shuffle_quality,
    small_files,
    start,
    train_step,
    transport,
)


@pytest.mark.slow
def test_every_competitor_delivers_each_record_once(tmp_path: Path) -> None:
    options = ["--records", "640", "--repeats", "1", "--kinds", "tokens", "--actors", "2", "--quick", "--identify"]
    ingest.main([*options, "--cache-dir", str(tmp_path), "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    came = {run["competitor"]: sorted(run["deliveries"][0]["identities"]) for run in found["runs"]}
    assert list(came) == [
        "raw",
        "raw+decode",
        "grain.DataLoader",
        "grain.MapDataset",
        "Ray Data by hand",
        "in-process",
        "RaySource",
    ]
    assert came == {competitor: list(range(640)) for competitor in came}


def test_no_more_of_the_package_runs_for_a_batch_than_was_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    found = calls.main(["--list"])
    counts = [(sum(map(len, functions.values())), len(functions)) for functions in found]
    agreed = [(138, 44), (253, 51), (162, 40)]
    assert all(
        now <= most for row, limits in zip(counts, agreed, strict=True) for now, most in zip(row, limits, strict=True)
    )
    assert "feed/batches.py: " in capsys.readouterr().out


@pytest.mark.slow  # six processes
def test_what_a_batch_costs_is_told_beside_device_put(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = ["--sizes", "16,64", "--fields", "8", "--actors", "0,1", "--records", "4000", "--repeats", "1"]
    found = batches.main([*toy, "--seconds", "0.2", "--cache-dir", str(tmp_path)])
    assert [(row["actors"], row["rows"]) for row in found["rows"]] == [
        (-1, 16),
        (-1, 64),
        (0, 16),
        (0, 64),
        (1, 16),
        (1, 64),
    ]
    assert all(row["cpu_us"] > 0 for row in found["rows"])
    assert "small256, 8 fields, 1 actors, here: a batch " in capsys.readouterr().out


@pytest.mark.slow  # each run of a peer is a Ray of its own
def test_everyone_who_reads_parquet_delivers_each_row_once(tmp_path: Path) -> None:
    options = ["--rows", "640", "--repeats", "1", "--kinds", "text", "--quick", "--identify"]
    found = parquet.main([*options, "--cache-dir", str(tmp_path)])
    came = {(run["competitor"], run["setting"]["order"]): run["deliveries"] for run in found["runs"]}
    assert list(came) == [
        ("Ray Data", "any"),
        ("Ray Data", "local"),
        ("ParquetSource, RaySource", "file"),
        ("ParquetSource, RaySource", "block"),
        ("ParquetSource", "file"),
        ("ParquetSource", "block"),
    ]
    assert [sorted(runs[0]["identities"]) for runs in came.values()] == [list(range(640))] * 6
    assert came["ParquetSource", "file"][0]["identities"] == list(range(640))
    assert came["ParquetSource", "block"][0]["identities"] == came["ParquetSource, RaySource", "block"][0]["identities"]


def test_the_benchmark_of_streams_reads_what_datasets_reads() -> None:
    found = hf_streams.main(["--rows", "100", "--repeats", "1"])
    assert found.keys() == {"target", "small", "tokens"}
    assert all(rate > 0 for kind in hf_streams.KINDS for rate in found[kind].values())


@pytest.mark.slow  # `datasets` interleaves slowly
def test_mixtures_are_read_beside_their_components() -> None:
    found = mixtures.main(["--rows", "4000", "--repeats", "1"])
    assert {"datasets, interleaved", "a mixture of two streams", "a mixture of two indexed"} <= found.keys()
    assert all(min(costs) > 0 for costs in found.values())


@pytest.mark.slow  # two processes, one with Ray
def test_many_files_are_read_beside_few(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--files", "40", "--records", "400", "--repeats", "1", "--warmup", "0", "--seconds", "0.01"]
    assert small_files.main([*sizes, "--actors", "0"])[0] > 0
    said = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["one process, 20 files", "one process, 40 files", "one process"]


@pytest.mark.slow  # four processes, each with Ray
def test_a_start_is_measured_at_the_first_position_and_far_behind_it() -> None:
    found = start.main(["--files", "120", "--records", "2400", "--actors", "0", "--repeats", "1", "--settle", "0"])
    assert [line["what"] for line in found] == [what for what, _ in start.STARTS]
    assert all(line["records"] == 1024 and line["seconds"] > 0 for line in found)


@pytest.mark.slow
def test_a_description_grows_with_its_files_and_a_state_with_nothing() -> None:
    rows = growth.main(["--files", "100,1000", "--records", "1000", "--repeats", "1"])
    assert [row["records"] for row in rows] == [100_000, 1_000_000]
    assert rows[1]["driver_nbytes"] < 11 * rows[0]["driver_nbytes"]
    assert rows[1]["state_nbytes"] == rows[0]["state_nbytes"] < 100


def test_a_train_step_counts_the_batches_that_it_waits_for(tmp_path: Path) -> None:
    sizes = ["--records", "20000", "--step-ms", "1", "--data-ms", "1", "--warmup", "0", "--seconds", "0.2"]
    found = train_step.main([*sizes, "--cache-dir", str(tmp_path)])
    assert 0 < found["num_batches"] <= 200
    assert found["waits"] > 0
    assert found["longest_ms"] > 0


@pytest.mark.parametrize("kind", ["tokens", "jpeg"])
def test_a_step_on_the_device_is_fed_what_a_plain_loop_reads(tmp_path: Path, kind: str) -> None:
    sizes = ["--records", "60", "--batch", "8", "--actors", "0", "--width", "32", "--step-ms", "1", "--repeats", "1"]
    found = device_step.main([*sizes, "--kind", kind, "--seconds", "0.1", "--cache-dir", str(tmp_path)])
    assert found["num_batches"] > 2
    assert found["num_wrong"] == 0
    assert all(run["fed_2_s"] > 0 < run["alone_s"] for run in found["runs"])


@pytest.mark.slow
def test_files_behind_urls_cost_a_request_a_group_at_most_and_none_again() -> None:
    sizes = ["--groups", "8", "--rows", "600", "--epochs", "2", "--repeats", "1"]
    block, first, later = remote_files.main(["--delay-ms", "0", "--cap-mb", "1000", *sizes])
    assert block["requests"] <= (8 + 12) / 8
    assert first["requests"] <= 1
    assert later["requests"] <= 12 / 600


@pytest.mark.slow  # three kinds of files, each read twice
def test_streams_over_requests_that_fail_are_compared_and_their_waits_told() -> None:
    found = remote_faults.main(["--records", "4000", "--repeats", "1", "--delay-ms", "0"])
    assert [line["what"] for line in found] == [what for what, _, _ in remote_faults.WORKLOADS]
    assert all(line["longest_s"] > 0 for line in found)
    assert sum(line["failed"] for line in found) > 0


@pytest.mark.slow  # two starts in processes of their own
def test_starts_over_many_files_are_measured() -> None:
    first, later = remote_start.main(["--files", "12", "--delay-ms", "0", "--batch", "16"])
    assert first["requests"] > later["requests"] >= 12
    assert all(line["first_s"] > line["made_s"] > 0 for line in (first, later))


@pytest.mark.slow  # 24 MB of lines, six times
def test_rows_beside_broken_ones_all_come() -> None:
    rows, shards = 2600, 3
    *lines, folder = checks.main(["--rows", str(rows), "--shards", str(shards), "--repeats", "1"])
    for line in lines:
        *kind, harm = line["what"].split(", ")
        places = rows // checks.GROUP if kind[0] == "ArrayRecord" else rows
        lost = {"whole": 0, "13 broken": 13, "half of half broken": (places + 2) // 4}[harm] * rows // places
        assert line["num_rows"] == rows - lost, line
    assert len(lines) == 18
    assert folder["ratio"] > 0


def test_a_library_that_is_not_installed_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"datarax-ray\[images\]"):
        ingest.main(["--kinds", "jpeg"])


def test_peers_that_are_not_installed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.KINDS, "tiny", (64, 16, 600))
    found = peers.measured("ours", "tiny", str(tmp_path / "ours"), seconds=0.01, warmup=0)
    assert found["rate"] > 0
    for peer in ("streaming", "litdata"):
        if importlib.util.find_spec(peer) is None:
            with pytest.raises(ImportError):
                peers.measured(peer, "tiny", str(tmp_path / peer), seconds=0.01, warmup=0)


@pytest.mark.slow  # likewise
def test_parquet_behind_urls_is_read_beside_ray_data(tmp_path: Path) -> None:
    sizes = ["--rows", "4000", "--repeats", "1", "--delay-ms", "0", "--cache-dir", str(tmp_path)]
    found = remote_parquet.main(sizes)
    assert [line["competitor"] for line in found] == ["Ray Data", *["ParquetSource, RaySource"] * 2]
    assert all(line["seconds"] > 0 for line in found)


def test_the_global_shuffle_mixes_as_the_true_permutation_does_and_blocks_as_their_windows_say(tmp_path: Path) -> None:
    found = shuffle_quality.main(["--records", str(2**17), "--plot", str(tmp_path / "plot.svg")])
    true, shuffled = found[shuffle_quality.TRUE], found[shuffle_quality.GLOBAL]
    for measure, spread in {"travelled": 0.02, "neighbours": 0.3, "labels": 0.02, "runs": 0.02}.items():
        assert shuffled[measure] == pytest.approx(true[measure], rel=spread)
    group = shuffle_quality.GROUP
    for window in (4, 16, 64):
        of_blocks = found[f"blocks of {group}, windows of {window}"]
        assert of_blocks["neighbours"] == pytest.approx((group - 1) / (window * group - 1), rel=0.05)
        assert of_blocks["labels"] <= window
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 2 * len(shuffle_quality.WINDOWS)


@pytest.mark.slow  # a process for each to write and to read
def test_peers_read_the_same_pictures_of_the_same_server(tmp_path: Path) -> None:
    options = ["--pictures", "70", "--repeats", "1", "--delay-ms", "0", "--cache-dir", str(tmp_path)]
    found = {line["peer"]: line for line in remote_peers.main(options)}
    assert "ours" in found
    for line in found.values():
        assert line["requests"] >= 1
        assert 1.0 <= line["nbytes"] < 1.5  # the head and the tail are looked at first


def test_every_augmentation_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    found = augmentations.main(["--pictures", "2", "--repeats", "1"])
    assert list(found) == list(augmentations.OURS)
    assert all(len(of["datarax_ray"]) == 1 for of in found.values())
    assert "| `RandomCrop` |" in capsys.readouterr().out


@pytest.mark.slow  # a Ray of its own
def test_arrays_of_actors_that_read_nothing_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    transport.main(["--mib", "1", "--repeats", "1", "--seconds", "0.3"])
    copied, let_go = capsys.readouterr().out.splitlines()[-2:]
    assert "copied: " in copied
    assert "let go: " in let_go


def test_larger_pools_have_less_padding() -> None:
    shares = [share for share, _ in lengths.main(["--rows", "20000", "--repeats", "1"]).values()]
    assert shares == sorted(shares, reverse=True)
