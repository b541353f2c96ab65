"""Columns with nulls, and transforms of single elements: each block has one dtype, whichever rows stand together.

A filter over a table with a few missing numbers is the first thing that people write, and blocks without a null would
be arrays of numbers, those with one lists of objects.
"""

import gzip
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax_ray import MaterializedSource, load, materialize
from datarax_ray.feed import nulls
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import HFEagerConfig, HFEagerSource, from_hf
from tests.data_as_it_is.streams import assert_gives, pipeline, rows

ROWS = [
    {
        "age": None if i % 13 == 5 else i,
        "lat": None if i % 10 == 9 else i / 2,
        "lon": None if i % 10 == 9 else -i / 2,
        "s": None if i % 17 == 11 else {"u": i},
        "text": "a" * (i % 4),
    }
    for i in range(60)
]
TABLE = pa.Table.from_pylist(ROWS)


class Long:
    def filter(self, element):
        return len(element["text"]) > 1


class Known:
    def filter(self, element):
        return element["age"] is not None


class Twice:
    def flat_map(self, element):
        return [{"age": element["age"]}, {"age": None if element["age"] is None else -element["age"]}]


class Doubled:
    def map_columns(self, columns):
        return {
            "lat": np.array([None if x is None else 2 * x for x in columns["lat"]], object),
            "text": columns["text"],
        }


def renamed(element):
    return {"years": element["age"], "text": element["text"]}


def filled(element):
    return {"age": element["age"] or 0, "text": element["text"]}


def place(element):
    at = None if element["lat"] is None else element["lat"] + element["lon"]
    return {"at": at, "inner": {"u": element["s"] and element["s"]["u"]}}


# Transforms, the same as a plain loop, and the fields on the host.
WAYS = {
    "filter": ([Long()], lambda rows: [row for row in rows if len(row["text"]) > 1], {"age", "lat", "lon", "s"}),
    "map": ([renamed], lambda rows: list(map(renamed, rows)), {"years"}),
    "filled in": ([filled], lambda rows: list(map(filled, rows)), set()),
    "left out": (
        [Known(), lambda element: {"age": element["age"]}],
        lambda rows: [{"age": row["age"]} for row in rows if row["age"] is not None],
        set(),
    ),
    "several": ([Twice()], lambda rows: [each for row in rows for each in Twice().flat_map(row)], {"age"}),
    "nulls together, and in a struct": ([place], lambda rows: list(map(place, rows)), {"at", "inner.u"}),
    "columns behind elements": (
        [Long(), Doubled()],
        lambda rows: [
            {"lat": None if row["lat"] is None else 2 * row["lat"], "text": row["text"]}
            for row in rows
            if len(row["text"]) > 1
        ],
        {"lat"},
    ),
}
FORMATS = ("parquet", "json lines", "compressed", "dataset", "shuffled never", "stream", "elements")


def source_of(kind, tmp_path, transforms, **settings):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    settings = {"transforms": transforms, "num_epochs": 1, **settings}
    if kind == "parquet":
        pq.write_table(TABLE, tmp_path / "x.parquet", row_group_size=7)
        return load(tmp_path / "x.parquet", **settings)
    if kind == "json lines":
        (tmp_path / "x.jsonl").write_text(text)
        return load(tmp_path / "x.jsonl", **settings)
    if kind == "compressed":
        (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return load(tmp_path / "x.jsonl.gz", **settings)
    dataset = datasets.Dataset(TABLE)
    if kind == "dataset":
        return from_hf(dataset, **settings)
    if kind == "shuffled never":
        return HFEagerSource(HFEagerConfig(num_epochs=1), dataset=dataset, transforms=transforms)
    found = dataset.to_iterable_dataset(num_shards=1)
    return from_hf(found if kind == "stream" else found.map(dict), **settings)


def kinds(batches):
    """The dtype of each field, by its path; several if batches differ."""
    found: dict[str, set[str]] = {}
    for batch in batches:
        for name, column in batch.items():
            inner = column if isinstance(column, dict) else {"": column}
            for key, array in inner.items():
                found.setdefault(f"{name}.{key}".rstrip("."), set()).add(np.asarray(array).dtype.kind)
    return found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_the_elements_are_those_of_a_plain_loop_and_each_field_has_one_dtype(way, kind, tmp_path):
    transforms, loop, on_host = WAYS[way]
    assert_gives(lambda: source_of(kind, tmp_path, transforms), loop(ROWS))
    found = kinds(pipeline(source_of(kind, tmp_path, transforms), 3))
    assert all(len(each) == 1 for each in found.values())
    assert {name for name, each in found.items() if each == {"O"}} - {"text"} == on_host


@pytest.mark.parametrize("kind", ["parquet", "stream"])
def test_actors_have_them_as_one_process_has(kind, tmp_path, ray_local):
    for way in ("filter", "nulls together, and in a struct"):
        transforms, loop, _ = WAYS[way]
        assert_gives(lambda todo=transforms: source_of(kind, tmp_path, todo), loop(ROWS), num_actors=2)


@pytest.mark.parametrize("way", ["filter", "map", "several", "columns behind elements"])
def test_what_is_materialized_has_the_types_of_the_live_stream(way, tmp_path):
    transforms, loop, on_host = WAYS[way]
    live = source_of("parquet", tmp_path, transforms)
    materialize(live, tmp_path / "written")
    written = MaterializedSource(live, tmp_path / "written")
    found = kinds(pipeline(written, 3))
    assert {name for name, each in found.items() if each == {"O"}} - {"text"} == on_host
    assert rows(pipeline(written, 3)) == loop(ROWS)


def test_what_becomes_of_nulls_is_told_at_the_start(tmp_path, caplog):
    nulls._warn_of_nulls.cache_clear()
    for settings in ({}, {"on_null": "host"}, {"on_null": {"age": 0}}):
        caplog.clear()
        source_of("parquet", tmp_path, [renamed], **settings)
        told = [line for line in caplog.messages if "with nulls" in line]
        want = "objects with None, also behind transform renamed: age (5 nulls in 60 rows). on_null={'age': 0} in"
        assert [want in line for line in told] == ([] if settings else [True])
    caplog.clear()
    source_of("parquet", tmp_path, [filled])
    assert not caplog.messages


def test_a_transform_that_takes_no_null_is_told_at_the_start_with_its_error(tmp_path, caplog):
    nulls._warn_of_failure.cache_clear()

    def older(element):
        return {"age": element["age"] + 1}

    source = source_of("parquet", tmp_path, [older])
    assert "a null in field age (5 nulls in 60 rows) makes its row a broken record" in caplog.text
    assert "older raised TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'" in caplog.text
    assert "on_null={'age': 0} in the source's config has a value there" in caplog.text
    with pytest.raises(RecordError, match=r"x\.parquet\[5\].*older raised TypeError"):
        rows(pipeline(source))
    skipping = source_of("parquet", tmp_path, [older], on_error="skip")
    assert rows(pipeline(skipping)) == [{"age": row["age"] + 1} for row in ROWS if row["age"] is not None]


def test_a_transform_that_cannot_run_here_is_left_to_those_that_read(tmp_path, caplog):
    def elsewhere(element):
        raise MemoryError("this host has no model")

    source_of("parquet", tmp_path, [elsewhere])
    assert not caplog.messages
