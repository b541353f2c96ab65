"""Pipeline.stats: what was handed out, and what reading it went into, in one process and with actors."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import datasets
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datarax_ray import Pipeline, RaySource, load
from datarax_ray.actors.recovery import counts_of
from datarax_ray.sources import (
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.tars import write_tar


class DropNone:
    def filter(self, element: Any) -> bool:
        return True


def wait(element: Any) -> Any:
    time.sleep(0.002)
    return element


def slow() -> RandomAccessSource:
    data = {"x": np.arange(200)}
    return RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data, transforms=[wait])


def test_of_a_stream_of_shards_rows_are_counted_and_not_positions() -> None:
    stream = datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset(num_shards=2)
    source = HFStreamingSource(HFStreamingConfig(name="own", split="train", num_epochs=3), dataset=stream)
    with Pipeline(source=source, batch_size=10) as pipeline:
        assert sum(len(batch["x"]) for batch in pipeline) == 60
        assert (pipeline.stats().num_batches, pipeline.stats().num_records) == (6, 60)


def test_the_epoch_is_named_and_the_first_is_one() -> None:
    stream = datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset(num_shards=2)
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=2), {"x": np.arange(20)})
    for each in (source, HFStreamingSource(HFStreamingConfig(name="own", split="train", num_epochs=2), dataset=stream)):
        with Pipeline(source=each, batch_size=4) as pipeline:
            behind = 4 if each is source else 5  # where a stream's epoch ends is known only in the next
            assert [pipeline.stats().epoch for _ in pipeline] == [1] * behind + [2] * (10 - behind)
            assert "; in epoch 2\n" in str(pipeline.stats())
    assert Pipeline(source=MixtureSource([source]), batch_size=4).stats().epoch is None


class DropNine:
    def filter(self, element: Any) -> bool:
        return bool(element["x"] % 10 == 0)


class Twice:
    max_fan_out = 2

    def flat_map(self, element: Any) -> list[Any]:
        return [element, element]


def broken_in_part(element: Any) -> Any:
    if element["x"] % 4 == 0:
        raise ValueError("broken")
    return element


@pytest.mark.parametrize(
    ("transforms", "options", "num_records"),
    [
        ([DropNine()], {}, 100),
        ([DropNine()], {"drop_remainder": True}, 90),
        ([DropNine()], {"pad_remainder": True}, 100),
        ([Twice()], {}, 2000),
        ([broken_in_part], {}, 750),
    ],
)
@pytest.mark.parametrize("process_count", [1, 2])
def test_records_are_the_rows_that_all_trainers_get(
    transforms: Any, options: Any, num_records: int, process_count: int
) -> None:
    config = RandomAccessSourceConfig(num_epochs=1, on_error="skip", max_skipped=None)
    source = RandomAccessSource(config, {"x": np.arange(1000)}, transforms=transforms)
    with Pipeline(source=source, batch_size=30, process_index=0, process_count=process_count, **options) as pipeline:
        for _ in pipeline:
            pass
        assert pipeline.stats().num_records == num_records


@pytest.mark.parametrize("num_actors", [0, 2])
def test_the_slow_transform_is_named(ray_local: None, num_actors: int, tmp_path: Path) -> None:
    source: Any = RaySource(slow(), num_actors=num_actors, num_cpus=0.5) if num_actors else slow()
    with Pipeline(source=source, batch_size=20) as pipeline:
        assert [len(batch["x"]) for batch in pipeline] == [20] * 10
        stats = pipeline.stats()
        pipeline.timeline(tmp_path / "run.html")
    shown = re.findall("<title>(actor .|reads): .*wait [0-9.]+ s", (tmp_path / "run.html").read_text())
    assert shown == (["actor 0", "actor 1"] if num_actors else ["reads"])
    assert (stats.num_batches, stats.num_records, stats.num_actors) == (10, 200, num_actors)
    assert sum(work.num_elements for work in stats.actors.values()) == (200 if num_actors else 0)
    assert max(stats.reading, key=stats.reading.__getitem__) == "wait"
    assert 0.4 <= stats.reading["wait"] <= (stats.first_s + stats.elapsed_s) * max(1, num_actors)
    assert set(stats.making) == {"waiting", "assembling", "placing"}
    assert "wait" in str(stats)


def scale(element: Any) -> Any:
    return element | {"x": element["x"] * 2}


@pytest.mark.parametrize("batch_size", [1, 100])
def test_functions_of_one_element_that_follow_each_other_have_a_time_each(batch_size: int) -> None:
    """The sleeper's seconds are its own, whichever elements are timed; and of two with one name each is told."""
    config = RandomAccessSourceConfig(num_epochs=1)
    data = {"x": np.arange(100)}
    transforms = [scale, wait, DropNine(), Twice(), scale]
    source = RandomAccessSource(config, data, transforms=transforms)
    with Pipeline(source=source, batch_size=batch_size) as pipeline:
        assert sum(len(batch["x"]) for batch in pipeline) == 40
        stats = pipeline.stats()
    assert {"scale [0]", "wait", "DropNine", "Twice", "scale [4]"} <= stats.reading.keys()
    assert stats.reading["wait"] > 0.9 * 100 * 0.002
    assert stats.reading["scale [0]"] < 0.1 * stats.reading["wait"]


def test_batches_of_a_scan_count() -> None:
    with Pipeline(source=slow(), batch_size=20) as pipeline:
        pipeline.scan(lambda batch: jnp.sum(batch["x"]), length=4)
        next(iter(pipeline))
        assert (pipeline.stats().num_batches, pipeline.stats().num_records) == (5, 100)


def test_what_storage_takes_is_told_apart_from_parsing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 50)
    write_tar(tmp_path / "a.tar", [(f"{index}.txt", b"text") for index in range(20)])
    parquet.write_table(pa.table({"x": list(range(20))}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.tar", "a.parquet"):
        with Pipeline(source=load(tmp_path / name), batch_size=10) as pipeline:
            next(iter(pipeline))
            reading = pipeline.stats().reading
        assert reading["storage"] > 0
        assert reading["reading"] > 0


@pytest.mark.parametrize("has_filter", [pytest.param(False, marks=pytest.mark.slow), True])
def test_of_two_trainers_that_share_actors_each_counts_its_part(ray_local: None, has_filter: bool) -> None:
    def trainer(index: int) -> Pipeline:
        transforms = [wait, DropNone()] if has_filter else [wait]
        source = RandomAccessSource(
            RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(400)}, transforms=transforms
        )
        shared = RaySource(source, num_actors=1, num_cpus=0.5, name=f"stats-{has_filter}")
        return Pipeline(source=shared, batch_size=20, process_index=index, process_count=2)

    pipelines = [trainer(0), trainer(1)]
    with pipelines[0], pipelines[1]:
        for _ in range(20):  # side by side, as trainers go
            assert [len(next(iter(pipeline))["x"]) for pipeline in pipelines] == [10, 10]
        stats = [pipeline.stats() for pipeline in pipelines]
    assert [(each.num_records, each.part) for each in stats] == [(400, 0.5)] * 2
    counted = [counts_of(each) for each in stats]
    assert sum(each["records",] for each in counted) == 400
    # in both what was read is counted once: two halves of the same blocks, or each the blocks of its own rows
    name = next(name for name in stats[0].reading if name.startswith("wait"))
    first, second = (each.reading[name] for each in stats)
    assert (first == second) == has_filter
    assert sum(each["actors", name] for each in counted) == (first if has_filter else first + second)
