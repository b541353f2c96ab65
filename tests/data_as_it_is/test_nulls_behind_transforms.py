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
from PIL import Image

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


class Late:
    def filter(self, element):
        return (element["age"] or 45) >= 40


class OddPositions:
    def map_with_index(self, position, element):
        return {"age": element["age"] if position % 2 else 0}


class ByChance:
    def random_map(self, element, rng):
        return {**element, "keep": bool(rng.random() < 0.5)}


class Kept:
    def filter(self, element):
        return element["keep"]


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
    "first rows dropped": ([Late()], lambda rows: list(filter(Late().filter, rows)), {"age", "lat", "lon", "s"}),
    "at some positions": (
        [OddPositions()],
        lambda rows: [OddPositions().map_with_index(i, row) for i, row in enumerate(rows)],
        {"age"},
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


def source_of(kind, tmp_path, transforms, table=TABLE, **settings):
    text = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    settings = {"transforms": transforms, "num_epochs": 1, **settings}
    if kind == "parquet":
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=7)
        return load(tmp_path / "x.parquet", **settings)
    if kind == "json lines":
        (tmp_path / "x.jsonl").write_text(text)
        return load(tmp_path / "x.jsonl", **settings)
    if kind == "compressed":
        (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return load(tmp_path / "x.jsonl.gz", **settings)
    dataset = datasets.Dataset(table)
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


@pytest.mark.parametrize("seed", range(5))
def test_a_filter_by_chance_hides_no_null(seed, tmp_path):
    batches = list(pipeline(source_of("parquet", tmp_path, [ByChance(), Kept()], seed=seed), 2))
    assert kinds(batches)["age"] == {"O"}
    assert {row["age"] for row in rows(batches)} <= {row["age"] for row in ROWS}


def test_a_null_in_an_array_and_two_nulls_together_are_found(tmp_path):
    table = pa.table(
        {"a": [None if i % 13 == 12 else i for i in range(40)], "b": [i if i % 26 else None for i in range(40)]}
    )
    given = source_of("parquet", tmp_path, [lambda row: {"v": np.array([row["a"], row["b"]])}], table=table)
    assert [row["v"] for row in rows(pipeline(given, 1))] == [[row["a"], row["b"]] for row in table.to_pylist()]
    either = [lambda row: {"v": row["b"] if row["a"] is None else row["a"]}]
    table = table.set_column(1, "b", pa.array([None if i == 25 else i for i in range(40)]))
    found = rows(pipeline(source_of("parquet", tmp_path, either, table=table), 1))
    assert found == [{"v": None if i == 25 else i} for i in range(40)]


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
    assert "on_null={'age': 0} in the source's config puts a value there" in caplog.text
    with pytest.raises(RecordError, match=r"x\.parquet\[5\].*older raised TypeError"):
        rows(pipeline(source))
    skipping = source_of("parquet", tmp_path, [older], on_error="skip")
    assert rows(pipeline(skipping)) == [{"age": row["age"] + 1} for row in ROWS if row["age"] is not None]


@pytest.mark.parametrize("kind", ["parquet", "json lines", "dataset", "stream"])
def test_a_null_of_text_is_tried_as_well_and_nothing_that_is_never_null(kind, tmp_path, caplog):
    nulls._warn_of_failure.cache_clear()
    texts = [
        {"text": None if i == 40 else "a b", "user": {"name": "c", "at": None if i % 3 else {"x": i}}}
        for i in range(50)
    ]
    transforms = [lambda row: {"n": len(row["text"].split()) + len(row["user"]["name"])}]
    given = source_of(kind, tmp_path, transforms, table=pa.Table.from_pylist(texts))
    told = [line.partition(" makes")[0] for line in caplog.messages]
    count = " (1 nulls in 50 rows)" if kind == "parquet" else ""
    assert told == [f"a null in field text{count}"]
    assert "'NoneType' object has no attribute 'split'. on_null={'text': ''} in the source's config puts" in caplog.text
    with pytest.raises(RecordError, match=r"\[40\]"):
        rows(pipeline(given))


def test_the_remedy_is_of_the_type_and_names_may_have_dots(tmp_path, caplog):
    nulls._warn_of_nulls.cache_clear()
    table = pa.table({"is.ok": [True, None], "s": [{"a.b": 1, "c": 1}, {"a.b": None, "c": 2}]})
    given = source_of("parquet", tmp_path, [lambda row: row], table=table)
    assert "is.ok (1 nulls in 2 rows), s.a.b (1 nulls in 2 rows). on_null={'is.ok': False} in" in caplog.text
    assert rows(pipeline(given)) == table.to_pylist()
    fill = {"is.ok": False, "s.a.b": 7}
    filled = source_of("parquet", tmp_path, [lambda row: row], table=table, on_null=fill)
    assert rows(pipeline(filled)) == [
        {"is.ok": True, "s": {"a.b": 1, "c": 1}},
        {"is.ok": False, "s": {"a.b": 7, "c": 2}},
    ]


@pytest.mark.parametrize("is_stream", [False, True])
def test_pictures_of_several_sizes_change_no_other_field(is_stream):
    pictures = [Image.new("RGB", (8 if i < 17 else i, 8)) for i in range(20)]
    columns = {"image": pictures, "f": [None if i == 12 else i / 2 for i in range(20)]}
    features = datasets.Features({"image": datasets.Image(), "f": datasets.Value("float32")})
    dataset = datasets.Dataset.from_dict(columns, features)
    batches = pipeline(from_hf(dataset.to_iterable_dataset() if is_stream else dataset), 4)
    found = [next(iter(batches)) for _ in range(4)]
    assert [value for batch in found for value in batch["f"]] == columns["f"][:16]
    assert {batch["f"].dtype for batch in found} == {np.dtype(object)}
    with pytest.raises(RecordError, match=r"\[17\].*'image' has shape"):
        next(iter(batches))


def test_a_transform_that_cannot_run_here_is_left_to_those_that_read(tmp_path, caplog):
    def elsewhere(element):
        raise MemoryError("this host has no model")

    source_of("parquet", tmp_path, [elsewhere])
    assert not caplog.messages
