"""`bench`: each way to read a format is measured, over real files; what is said follows from the figures, by value."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from datarax_ray.cli.bench import IN_BLOCKS, IN_ORDER, RAW, SHUFFLED, Measured, Request, advice, run
from tests.data import decode, record, write_file
from tests.tables import write_tables
from tests.tars import write_tar


def told(*paths: Any, as_json: bool = True, **options: Any) -> Any:
    out, err = (Console(file=io.StringIO(), width=200) for _ in range(2))
    run(Request(tuple(map(str, paths)), seconds=0.01, batch_size=4, **options), as_json, out, err)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return json.loads(text) if as_json else text


@pytest.mark.parametrize(
    ("group_size", "ways"), [(1, [RAW, IN_ORDER, SHUFFLED]), (4, [RAW, IN_ORDER, SHUFFLED, IN_BLOCKS])]
)
def test_files_of_groups_are_shuffled_in_blocks_as_well(tmp_path: Path, group_size: int, ways: list[str]) -> None:
    write_file(tmp_path / "a.array_record", map(record, range(40)), group_size)
    found = told(tmp_path / "a.array_record", transforms=(decode,))
    assert [way["name"] for way in found["ways"]] == ways
    assert all(way["num_records"] > 0 and way["records_per_s"] > 0 for way in found["ways"])
    assert "decode" not in found["ways"][0]["spent"]  # raw
    assert all("decode" in way["spent"] for way in found["ways"][1:])
    assert found["mean_nbytes"] > 0
    assert all(way["record_nbytes"] > 0 for way in found["ways"])
    assert found["advice"][-1].startswith("what a cluster of such actors would do: datarax-ray simulate --rate ")
    assert found["advice"][-1].endswith(" --need RATE, where RATE is what its trainers take, in records/s")


def test_other_formats_are_measured_too(tmp_path: Path) -> None:
    write_tables(tmp_path, (30, 20))
    assert len(told(tmp_path)["ways"]) == 3
    tar = write_tar(tmp_path / "a.tar", [(f"{index}.txt", b"text") for index in range(20)])
    assert [way["name"] for way in told(tar)["ways"]][-1] == IN_BLOCKS
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 50)
    text = told(tmp_path / "a.csv", as_json=False, target=1e9)
    assert "shuffled" in text
    assert "1,000,000,000 records/s take about" in text
    assert "--need 1e+09\n" in text


def of(rate: float, name: str, num_actors: int = 0, **spent: float) -> Measured:
    return Measured(name, int(rate), 1.0, spent, num_actors)


@pytest.mark.parametrize(
    ("ways", "target", "said"),
    [
        ({RAW: 900, IN_ORDER: 800, SHUFFLED: 100, IN_BLOCKS: 700}, None, "shuffle_block_size reads 7.0 times as fast"),
        ({RAW: 900, IN_ORDER: 800, SHUFFLED: 200}, None, "the shuffle reads at 25% of the rate of file order"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, None, "crop takes 80% of the time of shuffled"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, None, "one actor with a CPU of its own reads about 100 records/s"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, 900, "900 records/s take about 10 actors"),
        ({RAW: 900, IN_ORDER: 100, SHUFFLED: 100}, 50, "50 records/s take about 1 actor"),
        (
            {RAW: 900, IN_ORDER: 100, SHUFFLED: 100, "8 actors": 200},
            None,
            "8 actors read 2.0 times as fast as this proc",
        ),
    ],
)
def test_what_is_said_follows_from_the_figures(ways: dict[str, int], target: float | None, said: str) -> None:
    found = [of(rate, name, 8 if "actors" in name else 0, crop=0.8, reading=0.2) for name, rate in ways.items()]
    assert any(line.startswith(said) for line in advice(found, target)), advice(found, target)


def test_where_nothing_is_to_be_gained_only_the_rate_is_said() -> None:
    found = [of(100, RAW), of(95, IN_ORDER), of(90, SHUFFLED), of(99, IN_BLOCKS)]
    assert len(advice(found, None)) == 1
