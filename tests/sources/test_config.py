"""What sources and pipelines are made with, what their help says of it, and what is refused by its name."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flax import nnx

from datarax_ray.pipeline import Pipeline
from datarax_ray.plan.packing import ConcatThenSplit
from datarax_ray.read.decode import DecodeRaw
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    CSVSource,
    CSVSourceConfig,
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MDSSource,
    MDSSourceConfig,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
    TFDSSource,
    TFDSSourceConfig,
    TFRecordSource,
    TFRecordSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from tests.data import in_memory


class AddOne(nnx.Module):
    def __call__(self, batch):
        return {"x": batch["x"] + 1}


def test_shuffle_and_shuffle_files_are_two_names_of_one_field():
    config = ArrayRecordSourceConfig(shuffle=True)
    assert config == ArrayRecordSourceConfig(shuffle_files=True)
    assert (config.shuffle, config.shuffle_files) == (True, True)
    assert (ArrayRecordSourceConfig().shuffle, ArrayRecordSourceConfig().shuffle_files) == (False, False)
    assert replace(config, seed=7) == ArrayRecordSourceConfig(shuffle=True, shuffle_files=True, seed=7)
    assert ArrayRecordSourceConfig(shuffle=True, shuffle_block_size="auto").shuffle_block_size == "auto"
    assert HFEagerConfig(num_epochs=None).num_passes == HFStreamingConfig(num_epochs=None).num_passes == 1


@pytest.mark.parametrize(
    ("config", "field", "value", "message"),
    [
        (ArrayRecordSourceConfig, "rounds", "8", "rounds is a whole number, got '8'"),
        (ArrayRecordSourceConfig, "rounds", 3, "rounds must be even and at least 4, got 3"),
        (ArrayRecordSourceConfig, "seed", True, "seed is a whole number, got True"),
        (ArrayRecordSourceConfig, "seed", "7", "seed is a whole number, got '7'"),
        (ArrayRecordSourceConfig, "seed", -1, r"seed must be in \[0, 2\*\*32\), got -1"),
        (HFEagerConfig, "seed", 2**32, "got 4294967296"),
        (ArrayRecordSourceConfig, "num_epochs", 1.5, r"num_epochs is a whole number, got 1\.5"),
        (RandomAccessSourceConfig, "num_epochs", None, "num_epochs is a whole number, got None; -1 for endless"),
        (ArrayRecordSourceConfig, "num_epochs", 0, "num_epochs must be at least 1, or -1 for endless, got 0"),
        (HFStreamingConfig, "num_epochs", -5, "got -5"),
        (ArrayRecordSourceConfig, "cacheable_nbytes", 5, "needs cacheable=True, got 5, cacheable=False"),
        (ArrayRecordSourceConfig, "stochastic", True, "needs stream_name"),
        (ArrayRecordSourceConfig, "stream_name", "shuffle", "no use in a source that is not stochastic"),
        (ArrayRecordSourceConfig, "cache_nbytes", 10**9, "cache_nbytes=1000000000 limits a folder: give it too, as ca"),
        (ArrayRecordSourceConfig, "missing_shards", "skip", "missing_shards is 'error' or 'warn', got 'skip'"),
        (ArrayRecordSourceConfig, "shuffle", "no", "shuffle is True or False, got 'no'"),
        (HFEagerConfig, "shuffle", "false", "shuffle is True or False, got 'false'"),
        (HFStreamingConfig, "shuffle", 1000, "shuffle is True or False, got 1000"),
        (ParquetSourceConfig, "shuffle", "no", "shuffle is True or False, got 'no'"),
        (RandomAccessSourceConfig, "shuffle", "false", "shuffle is True or False, got 'false'"),
        (TFDSSourceConfig, "shuffle", 1000, "shuffle is True or False, got 1000"),
        (ArrayRecordSourceConfig, "shuffle_block_size", 2.5, "_size is a whole number, 'auto' or None, got 2.5"),
        (ArrayRecordSourceConfig, "shuffle_block_size", True, "_size is a whole number, 'auto' or None, got True"),
        (ArrayRecordSourceConfig, "shuffle_block_size", "Auto", "_size is a whole number, 'auto' or None, got 'Auto'"),
        (ArrayRecordSourceConfig, "shuffle_block_size", 0, "shuffle_block_size must be at least 1 and needs shuffle=T"),
        (TFRecordSourceConfig, "shuffle_block_size", 0, "shuffle_block_size must be at least 1"),
        (MDSSourceConfig, "shuffle_window", 0, "shuffle_window must be at least 1"),
        (WebDatasetSourceConfig, "shuffle_block_size", "4", "shuffle_block_size is a whole number, or None, got '4'"),
        (ParquetSourceConfig, "shuffle_block_size", "auto", "is a whole number, or None, got 'auto'"),
        (ParquetSourceConfig, "shuffle_window", "8", "shuffle_window is a whole number, or None, got '8'"),
        (
            ParquetSourceConfig,
            "on_null",
            [0],
            "on_null is .error., .host., a number, a text, or a dict of these by field",
        ),
        (ParquetSourceConfig, "on_null", {"x": None}, "on_null gives None for .*x.*; 'host' keeps such fields"),
        (ParquetSourceConfig, "schema", "loose", "schema is 'widen' or 'strict', got 'loose'"),
        (ParquetSourceConfig, "on_null", {3: 1}, "on_null is a dict by field, got {3: 1}"),
        (ParquetSourceConfig, "exclude_columns", [3], r"exclude_columns is a list of names, got \[3\]"),
        (CSVSourceConfig, "column_types", ["zip"], r"column_types is a dict by field, got \['zip'\]"),
        (CSVSourceConfig, "column_names", "abc", r"column_names is a list of names, got 'abc'; write \['abc'\]"),
        (WebDatasetSourceConfig, "fields", "txt", r"fields is a list of names, got 'txt'; write \['txt'\]"),
        (HFStreamingConfig, "host_keys", "text", r"host_keys is a list of names, got 'text'; write \['text'\]"),
        (HFStreamingConfig, "turn_size", 1.5, "turn_size is a whole number, got 1.5"),
        (HFStreamingConfig, "shuffle_buffer_size", None, "shuffle_buffer_size is a whole number, got None"),
        (HFStreamingConfig, "turn_size", 0, "turn_size must be at least 1, got 0"),
        (HFEagerConfig, "download_kwargs", "v1", "download_kwargs is a dict by argument, got 'v1'"),
        (ParquetSourceConfig, "on_error", "ignore", "on_error must be 'raise', 'skip' or a function.*got 'ignore'"),
        (ParquetSourceConfig, "max_skipped", "3", "max_skipped is a whole number, a share as 0.01, or None.*got '3'"),
        (ParquetSourceConfig, "max_skipped", -1, "max_skipped must be at least 0, or None for no limit, got -1"),
        (RandomAccessSourceConfig, "max_skipped", 1.5, "max_skipped=1.5 is no share of positions, from 0 to 1; a"),
        (RandomAccessSourceConfig, "max_skipped", float("nan"), "max_skipped=nan is no share"),
        (RandomAccessSourceConfig, "max_skipped", True, "a share as 0.01, or None for no limit, got True"),
        (ParquetSourceConfig, "max_skipped", 5, "max_skipped=5 needs on_error='skip' or a function"),
        (HFEagerConfig, "skipped_path", "a.jsonl", "skipped_path='a.jsonl' needs on_error='skip' or a f"),
        (ParquetSourceConfig, "batch_stats_fn", 3, "batch_stats_fn is a function of the data, got 3"),
    ],
)
def test_a_config_refuses_what_no_field_can_be_when_it_is_made(config, field, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        config(**{field: value}, **({"shuffle": True} if field.startswith("shuffle_") else {}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cacheable": True, "cacheable_nbytes": 0}, "must be at least 1"),
        ({"batch_stats_fn": len, "precomputed_stats": {}}, "not both"),
        ({"cache_dir": "cache", "cache_nbytes": 10**9}, "cache_dir='cache' is relative to nothing on other hosts"),
        ({"cache_dir": "~/cache", "cache_nbytes": -1}, "cache_nbytes must be at least 0, got -1"),
        ({"shuffle_block_size": "auto"}, "needs shuffle=True, got auto, shuffle=False"),
        ({"shuffle": False, "shuffle_files": True}, "shuffle=False and shuffle_files=True .* two names of one field"),
    ],
)
def test_a_config_refuses_fields_that_contradict_each_other(options, message):
    with pytest.raises(ValueError, match=message):
        ArrayRecordSourceConfig(**options)


def test_a_mistyped_field_is_told_with_the_nearest_name(tmp_path):
    rows = pa.table({"age": [1, 2], "address": [{"zip": 1}, {"zip": 2}]})
    path = tmp_path / "x.parquet"
    pq.write_table(rows, path)
    (tmp_path / "x.csv").write_text("age,name\n1,a\n2,b\n")

    def parquet(on_null):
        return ParquetSource(ParquetSourceConfig(on_null=on_null), path)

    cases = [
        (lambda: parquet({"aeg": -1}), r"on_null names \['aeg'\], .* Did you mean 'age'\?"),
        (lambda: parquet({"address.zpi": -1}), r"on_null names .* Did you mean 'address.zip'\?"),
        (lambda: ParquetSource(ParquetSourceConfig(), path, columns=["agee"]), "Did you mean 'age'"),
        (
            lambda: CSVSource(CSVSourceConfig(column_types={"naem": "string"}), tmp_path / "x.csv"),
            r"column_types names \['naem'\], .* Did you mean 'name'\?",
        ),
        (lambda: CSVSource(CSVSourceConfig(on_null={"naem": ""}), tmp_path / "x.csv"), "Did you mean 'name'"),
        (
            lambda: HFEagerSource(HFEagerConfig(include_keys=["agee"]), dataset=datasets.Dataset(rows)),
            "include_keys names .* Did you mean 'age'",
        ),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()
    assert len(parquet({"age": -1, "address.zip": 0, "address": "host"})) == 2


SOURCES = [
    *(ArrayRecordSourceModule, HFEagerSource, HFStreamingSource, MDSSource, MixtureSource, ParquetSource),
    *(RandomAccessSource, TFDSSource, TFRecordSource, WebDatasetSource, Pipeline),
]


@pytest.mark.parametrize(
    "source", [ArrayRecordSourceModule, CSVSource, ParquetSource, RandomAccessSource, WebDatasetSource]
)
@pytest.mark.parametrize("config", [HFEagerConfig(), ArrayRecordSourceConfig, {"seed": 7}])
def test_a_config_of_another_source_is_told_before_any_data_is_opened(source, config):
    with pytest.raises(TypeError, match=r"takes its config first, got .*\. Write \w+\(\w+\(seed=7, \.\.\.\)"):
        source(config, ["/nowhere"])


@pytest.mark.parametrize(
    ("source", "given", "call"),
    [
        (ParquetSource, "x.parquet", "ParquetSource(ParquetSourceConfig(seed=7, ...), paths)"),
        (ArrayRecordSourceModule, Path("/x"), "ArrayRecordSourceModule(ArrayRecordSourceConfig(seed=7, ...), paths)"),
        (RandomAccessSource, [1, 2], "RandomAccessSource(RandomAccessSourceConfig(seed=7, ...), data)"),
        (HFEagerSource, "mnist", "HFEagerSource(HFEagerConfig(seed=7, ...))"),
    ],
)
def test_a_source_without_its_config_says_that_it_comes_first_and_how_to_write_the_call(source, given, call):
    with pytest.raises(TypeError, match=f"takes its config first, got .*Write {re.escape(call)}"):
        source(given)


@pytest.mark.parametrize("source", SOURCES)
def test_help_says_what_a_class_is_made_of(source):
    found = inspect.signature(source)
    assert list(found.parameters) == list(inspect.signature(source.__init__).parameters)[1:]
    assert "rngs" in found.parameters or source is MixtureSource


@pytest.mark.parametrize("transform", [DecodeRaw("uint8", (9,)), json.loads])
def test_one_transform_is_taken_as_a_list_of_one(transform):
    source = in_memory([b'{"x": 10}'], transforms=transform)
    assert source.describe().transforms == (transform,)
    assert next(source) is not None


@pytest.mark.parametrize("stage", [lambda batch: {"x": batch["x"] + 1}, AddOne()])
def test_one_stage_is_taken_as_a_list_of_one(stage):
    source = in_memory({"x": np.arange(4)})
    with Pipeline(source=source, stages=stage, batch_size=4) as pipeline:
        assert pipeline.stages == [stage]
        assert pipeline.step()["x"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "normalize"}, "stages is one stage or a list of them, got 'normalize'"),
        ({"stages": 3}, "stages is one stage or a list of them, got 3"),
        ({"packing": ConcatThenSplit}, r"packing is a ConcatThenSplit\(seq_len, fields\) or .*, got <class"),
        ({"packing": True}, "packing is a ConcatThenSplit.*, got True"),
        ({"rngs": 0}, r"rngs is an nnx.Rngs, got 0; write nnx.Rngs\(0\)"),
        ({"source": RandomAccessSource}, "source is the class RandomAccessSource; give an instance"),
    ],
)
def test_a_pipeline_says_what_it_takes(options, message):
    source = in_memory({"x": np.arange(4)})
    with pytest.raises(TypeError, match=message):
        Pipeline(**{"source": source, "batch_size": 2} | options)
