"""One policy from Arrow to NumPy: the same table is the same columns from Parquet, as a dataset, and as a stream."""

import datetime as dt
import decimal
import json
import re

import datasets
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datarax_ray.feed.stream import StreamOptions, batches
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.state import StreamState
from datarax_ray.read.errors import RecordError
from datarax_ray.sources import (
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    JSONLinesSource,
    JSONLinesSourceConfig,
    ParquetSource,
    ParquetSourceConfig,
)
from tests.tables import ray_tensors

DAY = dt.datetime(2020, 1, 2, 3, 4, 5)
NAT, NO = np.datetime64("NaT", "us"), np.timedelta64("NaT", "us")
INTS = pa.list_(pa.int32())


def array(dtype, *rows):
    return np.array(rows, dtype)


def objects(*rows):
    return np.fromiter(rows, object, len(rows))


# What is stored, and its column. Rows of ragged lists are int32 arrays.
KINDS = {
    "int8": (pa.array([1, -2, 3], pa.int8()), array("int8", 1, -2, 3)),
    "uint64": (pa.array([1, 2, 2**64 - 1], pa.uint64()), array("uint64", 1, 2, 2**64 - 1)),
    "float16": (pa.array([np.float16(0.5)] * 3), array("float16", 0.5, 0.5, 0.5)),
    "float64": (pa.array([0.5, 1e300, 2]), array("float64", 0.5, 1e300, 2)),
    "bool": (pa.array([True, False, True]), array("bool", True, False, True)),
    "int or null": (pa.array([1, None, 3], pa.int8()), objects(1, None, 3)),
    "float or null": (pa.array([0.5, None, 1.0]), objects(0.5, None, 1.0)),
    "bool or null": (pa.array([True, None, False]), objects(True, None, False)),
    "timestamp": (pa.array([DAY, None, DAY], pa.timestamp("us")), array("datetime64[us]", DAY, NAT, DAY)),
    "time zone": (
        pa.array([DAY, None, DAY], pa.timestamp("us", "Europe/Berlin")),
        array("datetime64[us]", DAY, NAT, DAY),
    ),
    "date": (pa.array([DAY.date(), None, DAY.date()]), array("datetime64[D]", DAY.date(), NAT, DAY.date())),
    "duration": (pa.array([dt.timedelta(1), None], pa.duration("us")), array("timedelta64[us]", dt.timedelta(1), NO)),
    "time": (pa.array([dt.time(0, 1), None], pa.time64("us")), array("timedelta64[us]", dt.timedelta(minutes=1), NO)),
    "fixed-size list": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), array("int32", [1, 2], [3, 4])),
    "list of one length": (pa.array([[1, 2], [3, 4]], INTS), array("int32", [1, 2], [3, 4])),
    "large list of one length": (pa.array([[1], [3]], pa.large_list(pa.int32())), array("int32", [1], [3])),
    "nested list of one length": (pa.array([[[1], [2]]] * 2, pa.list_(INTS)), array("int32", *[[[1], [2]]] * 2)),
    "ragged list": (pa.array([[1, 2], [3], []], INTS), objects(*(np.array(v, "int32") for v in ([1, 2], [3], [])))),
    "ragged bools": (pa.array([[True], [False, True]]), objects(np.array([True]), np.array([False, True]))),
    "list or null": (pa.array([[1, 2], None], INTS), objects(np.array([1, 2], "int32"), None)),
    "fixed-size list or null": (
        pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        objects(np.array([1, 2], "int32"), None),
    ),
    "nested ragged list": (pa.array([[[1], [2]], [[3]], []]), objects([[1], [2]], [[3]], [])),
    "null in a list": (pa.array([[1, None], [2, 3]]), objects([1, None], [2, 3])),
    "string": (pa.array(["a", None, "é"]), objects("a", None, "é")),
    "large string": (pa.array(["a", None, "é"], pa.large_string()), objects("a", None, "é")),
    "bytes": (pa.array([b"a", None, b""]), objects(b"a", None, b"")),
    "bytes of one length": (pa.array([b"ab", None], pa.binary(2)), objects(b"ab", None)),
    "decimal": (pa.array([decimal.Decimal("1.5"), None]), objects(decimal.Decimal("1.5"), None)),
    "dictionary of strings": (pa.array(["u", None, "u"]).dictionary_encode(), objects("u", None, "u")),
    "dictionary of numbers": (pa.array([7, 8, 7]).dictionary_encode(), array("int64", 7, 8, 7)),
    "list of strings": (pa.array([["a"], [], None]), objects(["a"], [], None)),
    "list of structs": (pa.array([[{"y": 1}], []]), objects([{"y": 1}], [])),
    "list of times": (pa.array([[DAY], [DAY]]), objects([DAY], [DAY])),
    "null": (pa.nulls(2), objects(None, None)),
    "struct": (
        pa.array([{"a": 1, "b": {"c": "x", "l": [1, 2]}}, {"a": 2, "b": {"c": None, "l": [3, 4]}}]),
        {"a": array("int64", 1, 2), "b": {"c": objects("x", None), "l": array("int64", [1, 2], [3, 4])}},
    ),
    "null in a struct": (pa.array([{"a": 1}, {"a": None}]), {"a": objects(1, None)}),
    "struct or null": (pa.array([{"a": 1, "s": "x"}, None]), objects({"a": 1, "s": "x"}, None)),
}  # fmt: skip


def from_parquet(table, directory, transforms=(), is_counted=True):
    parquet.write_table(table, directory / "x.parquet", write_statistics=is_counted)
    return ParquetSource(ParquetSourceConfig(num_epochs=1), directory / "x.parquet", transforms=transforms)


def eager(table, _, transforms=()):
    return HFEagerSource(HFEagerConfig(), dataset=datasets.Dataset(table), transforms=transforms)


def stream(table, _, transforms=()):
    dataset = datasets.Dataset(table).to_iterable_dataset()
    return HFStreamingSource(HFStreamingConfig(), dataset=dataset, transforms=transforms)


def generated(table, _, transforms=()):
    """Elements one by one, as Python has them, with the types that are said."""
    dataset = datasets.IterableDataset.from_generator(
        table.to_pylist, features=datasets.Features.from_arrow_schema(table.schema)
    )
    return HFStreamingSource(HFStreamingConfig(), dataset=dataset, transforms=transforms)


TABLES = {"parquet": from_parquet, "eager": eager, "stream": stream}
SOURCES = TABLES | {"elements": generated}


def assert_same(got, want):
    if isinstance(want, dict):
        assert sorted(got) == sorted(want)
        for key in want:
            assert_same(got[key], want[key])
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype != object:
        np.testing.assert_array_equal(got, want)
        return
    for a, b in zip(got, want, strict=True):
        assert type(a) is type(b)
        if isinstance(b, np.ndarray):
            assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())
        else:
            assert a == b


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_is_the_same_from_every_source(kind, source, tmp_path):
    if (kind, source) == ("fixed-size list or null", "parquet") and int(pa.__version__.split(".")[0]) < 26:
        pytest.skip("pyarrow before 26 refuses to read such a file")
    values, want = KINDS[kind]
    made = SOURCES[source](pa.table({"x": values}), tmp_path)
    (batch,) = made.batches(0, StreamOptions(len(values)))  # as a Pipeline gets it: get_batch of eager gives jax.Arrays
    assert_same(batch.columns["x"], want)


@pytest.mark.parametrize("source", TABLES)
def test_a_tensor_of_ray_data_has_its_shape_and_a_state_of_flat_rows_is_refused(source, tmp_path):
    images = np.arange(5 * 60, dtype=np.uint8).reshape(5, 4, 5, 3)
    table = ray_tensors(x=images)
    flat = table.cast(pa.schema([("x", pa.large_list(pa.uint8()))]))
    made, before = TABLES[source](table, tmp_path), TABLES[source](flat, tmp_path)
    assert_same(np.asarray(before.get_batch(2)["x"]), images[:2].reshape(2, 60))
    state = before.get_state()
    made = TABLES[source](table, tmp_path)
    with pytest.raises(DriftError, match=r"files\.(schema|digest|columns)"):
        made.set_state(state)
    assert_same(np.asarray(made.get_batch(5)["x"]), images)


@pytest.mark.parametrize("source", TABLES)
def test_a_tensor_of_ray_data_that_is_null_is_none_beside_lists_of_its_shape(source, tmp_path):
    images = np.arange(2 * 6, dtype=np.uint8).reshape(2, 2, 3)
    (batch,) = TABLES[source](ray_tensors(x=[images[0], None, images[1]]), tmp_path).batches(0, StreamOptions(3))
    assert_same(batch.columns["x"], objects(images[0].tolist(), None, images[1].tolist()))


def test_a_stream_of_files_whose_tensors_differ_in_shape_is_an_error_and_no_mixture(tmp_path):
    """`datasets` takes both for lists of 24 numbers."""
    parts = [datasets.Dataset(ray_tensors(x=np.zeros((300, *shape)))) for shape in ((4, 6), (6, 4))]
    dataset = datasets.concatenate_datasets([part.to_iterable_dataset() for part in parts])
    made = HFStreamingSource(HFStreamingConfig(), dataset=dataset)
    with pytest.raises(RecordError, match=r"field 'x' is read as .*\[6\]>\[4\], .* a list here has another length"):
        list(made)


@pytest.mark.parametrize("source", ["parquet", "eager"])
def test_a_map_is_a_list_of_pairs_where_it_can_be_read(source, tmp_path):
    table = pa.table({"x": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8()))})
    if source == "eager":
        with pytest.raises(ValueError, match="map<string, int8> does not have a datasets dtype"):
            eager(table, tmp_path)
    else:
        assert_same(from_parquet(table, tmp_path).get_batch(2)["x"], objects([("k", 1)], None))


class WithOne:
    """Changes one field and leaves the others."""

    def map(self, element):
        return element | {"one": 1}


@pytest.mark.parametrize("source", SOURCES)
def test_ragged_rows_that_a_transform_leaves_alone_stay_on_the_host(source, tmp_path):
    rows = [[1, 2], [3, 4], [5], None]  # of one length in the first batch of two
    made = SOURCES[source](pa.table({"x": pa.array(rows, INTS)}), tmp_path, [WithOne()])
    batches = [made.get_batch(2)["x"], made.get_batch(2)["x"]]
    assert [batch.dtype for batch in batches] == [object, object]
    assert [None if row is None else row.tolist() for batch in batches for row in batch] == rows


@pytest.mark.parametrize("source", SOURCES)
def test_a_ragged_row_that_a_transform_makes_anew_is_an_array_like_any_other(source, tmp_path):
    table = pa.table({"x": pa.array([[1, 2], [3], [5, 6, 7]], INTS)})
    first = SOURCES[source](table, tmp_path, [lambda element: {"x": element["x"][:1]}]).get_batch(3)
    assert_same(first["x"], array("int32", [1], [3], [5]))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("rows", [[[1], [3, 4], [5, 6], [7]], [[1, 2], [3, 4], [5]]], ids=["padded", "left"])
def test_a_ragged_row_left_alone_beside_one_made_anew_is_an_error_whatever_is_read_together(rows, source, tmp_path):
    """A chunk of which all rows are left is a ragged column, and one with any that is made anew was a dense one."""
    length = len(rows[0])

    def padded(element):
        x = element["x"]
        return {"x": np.pad(x, (0, 2 - len(x))) if len(x) < 2 else x}

    description = SOURCES[source](pa.table({"x": pa.array(rows, INTS)}), tmp_path, [padded]).describe()
    good = 1 if length == 1 else 2  # as many as are of the first's kind
    for chunk_size in (1, 2, 3, 4):
        found = batches(description, None, StreamState(), StreamOptions(1, chunk_size=chunk_size))
        given = []
        with pytest.raises(ValueError, match=r"x.*(PadTo|every row)"):
            given.extend(found)
        assert len(given) == good, chunk_size


@pytest.mark.parametrize("source", ["parquet", "stream", "elements"])
@pytest.mark.parametrize(
    ("rows", "later"),
    [([[1, 2]] * 300, [3]), ([1] * 300, None), ([{"a": 1}] * 300, {"a": None}), ([{"a": "b"}] * 300, None)],
    ids=["list", "number", "struct", "null struct"],
)
def test_a_row_unlike_the_first_is_an_error_with_the_remedy(rows, later, source, tmp_path):
    rows = rows[:80] if source == "elements" else rows  # their first 64 decide, of a table 256
    table = pa.table({"x": pa.array([*rows, later])})
    if source != "parquet":
        made, remedy = SOURCES[source](table, tmp_path), "name the column in host_keys"
    elif isinstance(later, list):  # the footer says that they are not of one length
        assert [row.tolist() for row in from_parquet(table, tmp_path).get_batch(301)["x"]] == [*rows, later]
        return
    else:  # a footer that counts them tells of the nulls
        made, remedy = from_parquet(table, tmp_path, is_counted=False), r"on_null=\{'x(\.a)?': (value|'host')\}"
    with pytest.raises(ValueError, match=remedy):
        list(made.batches(0, StreamOptions(64)))


NULLS = pa.table({"x": [*range(1000), None, *range(1001, 1010)]})
LINES = "".join(f'{{"x": {n}, "pad": "{"y" * 5000}"}}\n' for n in range(1000))  # more than the first block


def unlike(kind, folder, on_error):
    """1,010 rows of which number 1,000 has no place in the column that the first ones decide."""
    if kind == "parquet":
        parquet.write_table(NULLS, folder / "x.parquet", row_group_size=50, write_statistics=False)
        return ParquetSource(ParquetSourceConfig(num_epochs=1, on_error=on_error), folder / "x.parquet")
    last = "null" if kind == "json null" else "[1, 2]"
    first = LINES if kind == "json null" else re.sub(r'"x": (\d+)', r'"x": [\1]', LINES)
    rest = "".join(f'{{"x": {n if kind == "json null" else [n]}, "pad": ""}}\n' for n in range(1001, 1010))
    (folder / "x.jsonl").write_text(f'{first}{{"x": {last}, "pad": ""}}\n{rest}')
    return JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, on_error=on_error), folder / "x.jsonl")


@pytest.mark.parametrize("kind", ["parquet", "json null", "json lists"])
@pytest.mark.parametrize("batch_size", [10, 250])
def test_a_row_unlike_the_first_is_the_error_of_that_row_after_all_before_it(kind, batch_size, tmp_path):
    """The others of its group have a place: they come before it, whatever is read at a time; skipping leaves them."""
    made = unlike(kind, tmp_path, "raise")
    given = []
    for _ in range(1000 // batch_size):
        given += np.asarray(made.get_batch(batch_size)["x"]).tolist()
    with pytest.raises(RecordError, match=r"x\.\w+\[1000\] .*position 1000.*on_null="):
        made.get_batch(batch_size)
    wanted = [[n] if kind == "json lists" else n for n in range(1010)]
    assert given == wanted[:1000]
    kept = unlike(kind, tmp_path, "skip")
    assert np.concatenate([batch["x"] for batch in iter(lambda: kept.get_batch(batch_size), {})]).tolist() == [
        *wanted[:1000],
        *wanted[1001:],
    ]
    assert [skipped.position for skipped in kept.skipped] == [1000]


@pytest.mark.parametrize("kind", ["parquet", "json lines"])
def test_a_struct_that_is_null_late_breaks_its_row_or_stays_as_it_is(kind, tmp_path):
    rows = [*[{"a": "b", "c": {"d": "e"}}] * 300, None, {"a": None, "c": None}, None]

    def source(on_null):
        if kind == "parquet":
            parquet.write_table(pa.table({"x": rows}), tmp_path / "x.parquet")
            return ParquetSource(ParquetSourceConfig(num_epochs=1, on_null=on_null), tmp_path / "x.parquet")
        lines = [json.dumps({"x": row, "pad": "y" * 20_000}) for row in rows]
        # where no row is looked at for types: behind the first 4 MiB, and before the last 16 KiB
        (tmp_path / "x.jsonl").write_text("\n".join([*lines[:-1], "{}", *lines[:5]]))
        return JSONLinesSource(JSONLinesSourceConfig(num_epochs=1, on_null=on_null), tmp_path / "x.jsonl")

    for fill, field in ((None, "x"), ({"x.a": "?"}, "x.c")):
        made = source(fill)
        assert made.get_batch(300)["x"]["c"]["d"].tolist() == ["e"] * 300
        said = rf"field '{field}' \(struct\) is null, and a dict of columns .* on_null={{'{field}': 'host'}} to have"
        with pytest.raises(RecordError, match=said):
            made.get_batch(1)
    assert source({"x": "host"}).get_batch(303)["x"].tolist() == rows
    inner = source({"x.c": "host", "x.a": "?"}).get_batch(303)["x"]
    assert inner["c"].tolist()[299:] == [{"d": "e"}, None, None, None]
    assert inner["a"].tolist()[299:] == ["b", "?", "?", "?"]
    outer = source({"x.c.d": "?"})
    assert outer.get_batch(303)["x"]["c"]["d"].tolist()[299:] == ["e", "?", "?", "?"]
