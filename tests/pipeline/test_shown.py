"""What a pipeline and its source say of themselves: how many batches there are, and one line of what they read."""

import inspect
import re

import grain
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datarax_ray
from datarax_ray import (
    ParquetSource,
    ParquetSourceConfig,
    Pipeline,
    RandomAccessSource,
    RandomAccessSourceConfig,
    RaySource,
)
from datarax_ray.actors.recovery import Recoveries
from datarax_ray.read.formats.random_access import RandomAccessReader


def make(num_epochs=1, transforms=(), **options):
    source = RandomAccessSource(
        RandomAccessSourceConfig(num_epochs=num_epochs), {"x": np.arange(10)}, transforms=transforms
    )
    return Pipeline(source=source, **({"batch_size": 4} | options))


@pytest.mark.parametrize("num_epochs", [1, 3])
@pytest.mark.parametrize("options", [{}, {"drop_remainder": True}, {"pad_remainder": True}, {"batch_size": 5}])
def test_len_is_the_number_of_batches_that_a_for_from_the_beginning_gives(num_epochs, options):
    pipeline = make(num_epochs, **options)
    assert len(pipeline) == pipeline.num_batches == len(list(iter(pipeline)))
    assert len(pipeline) == pipeline.num_batches  # it counts from the beginning, wherever the pipeline stands


class Even:
    def filter(self, element):
        return bool(element["x"] % 2 == 0)


def test_where_nobody_knows_how_many_batches_there_are_len_says_why():
    with pytest.raises(TypeError, match=r"the stream is endless \(num_epochs=-1\)"):
        len(make(-1))
    filtered = make(transforms=Even())
    with pytest.raises(TypeError, match="known only by reading: there are filters"):
        len(filtered)
    assert filtered
    assert [len(batch["x"]) for batch in list(filtered)] == [4, 1]  # list asks for len, and goes on without


def test_each_is_shown_in_one_line_that_says_what_it_reads(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    source = ParquetSource(ParquetSourceConfig(shuffle=True, num_epochs=2, seed=7), str(tmp_path / "x.parquet"))
    said = f"ParquetSource(paths='{tmp_path}/x.parquet', num_records=2, shuffle=True, seed=7, num_epochs=2)"
    assert repr(source) == said
    assert repr(Pipeline(source=source, batch_size=2)) == (f"Pipeline({said}, num_stages=0, batch_size=2, position=0)")
    assert repr(make().source) == (
        "RandomAccessSource(data=['x'], num_records=10, shuffle=False, seed=42, num_epochs=1)"
    )
    assert repr(make(-1).source).endswith("seed=42, num_epochs=-1 (endless))")
    assert str(source) == said
    assert str(Pipeline(source=source, batch_size=2)).startswith(f"Pipeline({said}, ")
    assert repr(Recoveries()) == "Recoveries(num_lost=0, num_retried=0, counts={})"


@pytest.mark.parametrize("name", ["load", *(name for name in datarax_ray.__all__ if name.endswith("Config"))])
def test_the_help_of_load_and_of_each_config_tells_of_every_argument(name):
    called = getattr(datarax_ray, name)
    told = re.findall(r"^([a-z]\w*(?:, \w+)*): ", inspect.getdoc(called) or "", re.MULTILINE)
    names = [each for those in told for each in those.split(", ")]
    assert sorted(names) == sorted(inspect.signature(called).parameters)


def test_a_config_is_shown_as_the_call_that_makes_it():
    assert repr(ParquetSourceConfig()) == "ParquetSourceConfig()"
    config = ParquetSourceConfig(shuffle=True, num_epochs=2, on_null={"x": 0})
    assert repr(config) == "ParquetSourceConfig(num_epochs=2, shuffle=True, on_null={'x': 0})"
    assert repr(ParquetSourceConfig(seed=1000, num_epochs=-1)) == "ParquetSourceConfig(seed=1000)"
    shown = repr(RandomAccessSourceConfig(precomputed_stats={"mean": np.arange(1000).reshape(-1, 2)}))
    assert len(shown) < 400
    assert "\n" not in shown


def test_a_loop_that_gets_no_batch_as_the_remainder_is_dropped_says_so(caplog):
    small = make(batch_size=11, drop_remainder=True)
    assert list(iter(small)) == []
    assert "got no batch: fewer elements than batch_size=11 were left" in caplog.text
    caplog.clear()
    assert len(list(iter(make(batch_size=10, drop_remainder=True)))) == 1
    assert caplog.text == ""


def numbers():
    yield from range(9)


@pytest.mark.parametrize("make", [lambda each: Pipeline(source=each, batch_size=1), RaySource, RandomAccessReader])
@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (grain.MapDataset.range(9).to_iter_dataset(), r"from_hf\(datasets\.IterableDataset\.from_generator\(function"),
        (numbers(), r"from_hf\(datasets\.IterableDataset\.from_generator\(function\)\).*list\("),
        (numbers, r"from_hf\(datasets\.IterableDataset\.from_generator\(function\)\).*list\("),
    ],
)
def test_what_gives_elements_by_itself_is_told_with_what_to_do(make, given, remedy):
    with pytest.raises(TypeError, match=rf"{remedy}.*RandomAccessSource\(RandomAccessSourceConfig\(num_epochs=1\), d"):
        make(given)


def test_a_path_in_the_place_of_a_source_is_told_what_makes_one():
    with pytest.raises(TypeError, match=r"got list; RandomAccessSource\(RandomAccessSourceConfig\(num_epochs=1\), d"):
        Pipeline(source=[1, 2, 3], batch_size=1)
    with pytest.raises(TypeError, match=r"got str; load\(paths\) makes one of files"):
        Pipeline(source="a.csv", batch_size=2)
    with pytest.raises(TypeError, match=r"got str; load\('a.csv', num_actors=...\) makes both of files"):
        RaySource("a.csv")
