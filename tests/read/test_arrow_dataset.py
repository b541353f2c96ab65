"""DatasetReader gives, column-wise, what `datasets` itself gives row by row, for every kind of column."""

import datetime
import decimal
import pickle
import random

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from datasets import Array2D, ClassLabel, Features, Json, List, Value

from datarax_ray.read.elements.columns import leaves, spec, unstack
from datarax_ray.read.formats.hugging_face.dataset import DatasetReader


def dataset_of(kind):
    feature, value, _ = KINDS[kind]
    return datasets.Dataset.from_dict({"x": [value(i) for i in range(7)]}, features=Features({"x": feature}))


datasets.disable_progress_bars()

DAY = datetime.datetime(2024, 1, 31, 12, 30, 5)

# kind: the feature, a value for each of 7 rows, what it is as a column (None: a dict of columns)
KINDS = {
    "int64 beyond 32 bits": (Value("int64"), lambda i: 2**40 + i, ("int64", ())),
    "float16": (Value("float16"), lambda i: i / 2, ("float16", ())),
    "bool": (Value("bool"), lambda i: i % 2 == 0, ("bool", ())),
    "class label": (ClassLabel(names=["a", "b"]), lambda i: i % 2, ("int64", ())),
    "list of one length": (List(Value("float32")), lambda i: [i, 2.0], ("float32", (2,))),
    "fixed list": (List(Value("int64"), length=2), lambda i: [i, -i], ("int64", (2,))),
    "list of lists": (List(List(Value("uint8"))), lambda i: [[i, 1], [2, 3], [4, 5]], ("uint8", (3, 2))),
    "Array2D": (Array2D((2, 3), "int32"), lambda i: [[i, 1, 2], [3, 4, 5]], ("int32", (2, 3))),
    "Array2D of any length": (Array2D((None, 1), "int32"), lambda i: [[j] for j in range(i + 1)], ("object", ())),
    "ragged list": (List(Value("int64")), lambda i: list(range(i)), ("object", ())),
    "list of strings": (List(Value("string")), lambda i: ["a", "b"], ("object", ())),
    "string": (Value("string"), lambda i: f"s{i}é", ("object", ())),
    "bytes": (Value("binary"), lambda i: bytes([i, 0]), ("object", ())),
    "string or None": (Value("string"), lambda i: None if i == 2 else "s", ("object", ())),
    "float or None": (Value("float32"), lambda i: None if i == 2 else i / 2, ("object", ())),
    "list or None": (List(Value("int32")), lambda i: None if i == 2 else [i], ("object", ())),
    "None": (Value("null"), lambda i: None, ("object", ())),
    "decimal": (Value("decimal128(9, 2)"), lambda i: decimal.Decimal(i) / 4, ("object", ())),
    "timestamp": (Value("timestamp[us]"), lambda i: DAY.replace(hour=i), ("datetime64[us]", ())),
    "date": (Value("date32"), lambda i: DAY.date().replace(day=i + 1), ("datetime64[D]", ())),
    "duration": (Value("duration[ms]"), lambda i: datetime.timedelta(seconds=i), ("timedelta64[ms]", ())),
    "dict": ({"a": Value("int32"), "s": Value("string")}, lambda i: {"a": i, "s": str(i)}, None),
    "dict of an array": ({"a": Array2D((1, 2), "int32")}, lambda i: {"a": [[i, i]]}, None),
    "nested dict": ({"a": {"b": List(Value("int8"))}}, lambda i: {"a": {"b": [i, i]}}, None),
    "dict with None": ({"a": Value("int32")}, lambda i: {"a": None if i == 2 else i}, None),
    "dict or None": ({"a": Value("int32")}, lambda i: None if i == 2 else {"a": i}, ("object", ())),
    "dict in a dict or None": (
        {"a": {"b": Value("int32")}},
        lambda i: {"a": None if i == 2 else {"b": i}},
        ("object", ()),
    ),
    "list of dicts": ([{"a": Value("int32")}], lambda i: [{"a": i}] * (i % 3), ("object", ())),
    "json": (Json(), lambda i: {"any": [i, None, "x"]} if i % 2 else i, ("object", ())),
}


def plain(value):
    """A NumPy value as `datasets` gives it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def a_feature(rng, depth=0):
    kind = rng.random() if depth < 3 else 1.0
    if kind < 0.2:
        return {f"k{i}": a_feature(rng, depth + 1) for i in range(rng.randint(1, 3))}
    if kind < 0.5:
        return List(a_feature(rng, depth + 1), length=rng.choice([-1, -1, -1, 2]))
    return rng.choice([Array2D((2, 2), "int32"), *map(Value, ("int8", "int64", "float32", "bool", "string", "binary"))])


def a_value(rng, feature, none, is_ragged):
    if isinstance(feature, Array2D):
        return [[rng.randint(0, 9)] * 2] * 2
    if rng.random() < none:
        return None
    if isinstance(feature, dict):
        return {key: a_value(rng, inner, none, is_ragged) for key, inner in feature.items()}
    if isinstance(feature, List):
        count = feature.length if feature.length != -1 else rng.randint(0, 3) if is_ragged else 2
        return [a_value(rng, feature.feature, none, is_ragged) for _ in range(count)]
    kinds = {"string": "ab", "binary": b"ab", "bool": rng.random() < 0.5, "float32": rng.randint(-8, 8) / 4}
    return kinds.get(feature.dtype, rng.randint(0, 100))


@pytest.mark.parametrize("seed", range(25))
def test_any_features_and_any_rows_are_what_datasets_gives_and_alike_in_every_block(seed):
    rng = random.Random(seed)
    features = Features({f"c{i}": a_feature(rng) for i in range(rng.randint(1, 3))})
    none, is_ragged, count = rng.choice([0, 0, 0.1]), rng.random() < 0.4, rng.randint(1, 30)
    rows = [{key: a_value(rng, feature, none, is_ragged) for key, feature in features.items()} for _ in range(count)]
    try:
        dataset = datasets.Dataset.from_list(rows, features=features)
        dataset = datasets.concatenate_datasets([dataset, dataset.select(range(rng.randint(1, count)))])
    except Exception as error:
        pytest.skip(f"datasets itself cannot make these: {error}")
    if rng.random() < 0.5:
        dataset = dataset.select([rng.randrange(len(dataset)) for _ in range(12)], keep_in_memory=True)
    reader = pickle.loads(pickle.dumps(DatasetReader(dataset, "d")))
    specs = []
    for _ in range(3):
        records = [rng.randrange(len(dataset)) for _ in range(rng.randint(1, 10))]
        columns = reader.read(np.array(records))
        specs.append(spec(columns))
        assert [plain(element) for element in unstack(columns, len(records))] == [dataset[row] for row in records]
    assert specs == specs[:1] * 3


def image(height, value):
    return PIL.Image.fromarray(np.full((height, 3, 3), value, np.uint8))


def test_images_are_decoded_to_arrays_of_elements():
    features = Features({"image": datasets.Image(), "label": Value("int64"), "pair": List(datasets.Image())})
    rows = [{"image": image(2, i), "label": i, "pair": [image(1, i), image(4, i)]} for i in range(5)]
    dataset = datasets.Dataset.from_list(rows, features=features)
    columns = DatasetReader(dataset, "d").read(np.array([3, 1]))
    assert isinstance(columns, dict)
    assert columns["image"].tolist() == [[[[3] * 3] * 3] * 2, [[[1] * 3] * 3] * 2]
    assert columns["label"].tolist() == [3, 1]
    assert [part.shape for part in columns["pair"][0]] == [(1, 3, 3), (4, 3, 3)]
    rows[1]["image"] = image(4, 1)  # of two sizes: elements, for a transform that resizes
    found = DatasetReader(datasets.Dataset.from_list(rows, features=features), "d").read(np.array([3, 1]))
    assert [element["image"].shape for element in found] == [(2, 3, 3), (4, 3, 3)]
    undecoded = DatasetReader(dataset.remove_columns("pair").cast_column("image", datasets.Image(decode=False)), "d")
    assert {type(value) for value in undecoded.read(np.arange(2))["image"]["bytes"]} == {bytes}


def test_selected_shuffled_and_filtered_rows_are_read_by_their_own_index():
    dataset = datasets.Dataset.from_dict({"x": list(range(40)), "y": [None, 1] * 20})
    mapped = dataset.shuffle(seed=1).filter(lambda row: row["y"] is not None).select(range(3, 18))
    columns = DatasetReader(mapped, "d").read(np.array([14, 0, 7]))
    assert columns["x"].tolist() == [mapped[14]["x"], mapped[0]["x"], mapped[7]["x"]]
    assert columns["y"].dtype == np.int64  # the rows with None are not among them


@pytest.mark.parametrize(("saved", "is_joined"), [(1, True), (300, False)], indirect=["saved"])
def test_rows_of_many_batches_come_in_the_order_asked(saved, is_joined):
    dataset = datasets.load_from_disk(saved)
    assert (dataset.data.nbytes < 300_000) is is_joined  # 100 KB for each of the batches that rows are taken from
    for mapped in (dataset, dataset.select(range(4999, -1, -1))):
        reader = DatasetReader(mapped, "d")
        for records in (
            np.arange(900, 2100),
            np.array([4999, 0, 1, 2, 2500, 0]),
            np.random.default_rng(0).permutation(5000),
        ):
            columns, want = reader.read(records), mapped[records]
            assert {key: column.tolist() for key, column in columns.items()} == {key: want[key] for key in columns}


def test_rows_of_more_text_than_arrow_joins_are_read():
    """25 million short texts, 2.4 GB, were they not the same thousand again and again."""
    batch = pa.record_batch({"text": [f"{index:>96}" for index in range(1000)]})
    table = pa.Table.from_batches([batch] * 25_000)
    assert table.nbytes > 2**31
    reader = DatasetReader(datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="texts"), "texts")
    rows = np.arange(0, table.num_rows, 777)
    assert [int(text) for text in reader.read(rows)["text"]] == (rows % 1000).tolist()


def test_a_format_s_columns_are_kept_and_its_type_is_not():
    dataset = datasets.Dataset.from_dict({"x": [1, 2], "y": [3, 4]}).with_format("pandas", columns=["y"])
    columns = DatasetReader(dataset, "d").read(np.arange(2))
    assert list(columns) == ["y"]
    assert columns["y"].tolist() == [3, 4]


@pytest.fixture
def saved(tmp_path, request):
    """A folder of six Arrow batches. param: how long the texts are, in words."""
    text = getattr(request, "param", 1) * "text "
    rows = {"x": list(range(5000)), "s": [f"{text}{i}" for i in range(5000)], "v": [[i, i] for i in range(5000)]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved", num_shards=3)
    return tmp_path / "saved"


def test_mapped_files_travel_as_their_paths(saved):
    dataset = datasets.load_from_disk(saved)
    for mapped in (dataset, dataset.select_columns(["x", "s"]), dataset.select(range(100, 4000))):
        reader = DatasetReader(mapped, "d")
        stored = pickle.dumps(reader)
        assert len(stored) < 5000
        again = pickle.loads(stored)
        records = np.array([99, 7, 3000])
        for (_, got), (_, want) in zip(leaves(again.read(records)), leaves(reader.read(records)), strict=True):
            assert got.tolist() == want.tolist()


def test_a_mapped_file_that_is_gone_says_what_nodes_need(saved):
    stored = pickle.dumps(DatasetReader(datasets.load_from_disk(saved), "d"))
    for path in saved.glob("*.arrow"):
        path.rename(path.with_suffix(".moved"))
    with pytest.raises(FileNotFoundError, match=r"\.arrow") as info:
        pickle.loads(stored).read(np.arange(2))
    assert "every node must have under this path" in info.value.__notes__[0]


def test_tables_in_memory_travel_as_their_buffers():
    dataset = datasets.Dataset.from_dict({"x": np.arange(100_000)})
    buffers = []
    stored = pickle.dumps(DatasetReader(dataset, "d"), protocol=5, buffer_callback=buffers.append)
    assert len(stored) < 5000
    assert sum(buffer.raw().nbytes for buffer in buffers) >= 800_000
    assert pickle.loads(stored, buffers=buffers).read(np.array([77]))["x"].tolist() == [77]
    assert pickle.loads(pickle.dumps(DatasetReader(dataset, "d"))).read(np.array([77]))["x"].tolist() == [77]


def test_of_a_part_of_a_table_in_memory_only_the_part_travels():
    whole = datasets.Dataset.from_dict({"x": np.arange(100_000), "s": [str(i) for i in range(100_000)]})
    joined = datasets.concatenate_datasets([whole, whole])
    for part in (whole.select(range(50_000, 50_010)), joined.select(range(99_995, 100_005)), whole.shuffle(seed=0)):
        stored = pickle.dumps(DatasetReader(part.select(range(10)), "d"))
        if part.num_rows == 10:
            assert len(stored) < 10_000
        assert pickle.loads(stored).read(np.arange(10))["s"].tolist() == part[:10]["s"]


def test_the_fingerprint_is_the_data_s_however_it_was_loaded(saved, tmp_path):
    def fingerprint(dataset):
        return DatasetReader(dataset, "any").fingerprint()

    mapped = datasets.load_from_disk(saved)
    same = fingerprint(mapped)
    mapped.to_parquet(tmp_path / "x.parquet")
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), cache_dir=str(tmp_path))["train"]
    assert fingerprint(loaded) == fingerprint(datasets.Dataset.from_list(mapped.to_list())) == same
    for other in (
        mapped.select(range(4999)),
        mapped.rename_column("x", "z"),
        mapped.remove_columns("s"),
        mapped.shuffle(seed=0),
        mapped.select(range(4999, -1, -1)),
        mapped.map(lambda row: {"x": row["x"] + 1}),
        mapped.cast_column("x", Value("int32")),
    ):
        assert fingerprint(other) != same


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ([1, 2], TypeError, "a dataset is a datasets.Dataset, got list"),
        (datasets.Dataset.from_dict({"x": []}), ValueError, "there are 0 records in d; a stream needs at least one"),
        (
            datasets.Dataset.from_list([{}]),
            ValueError,
            "d has no columns; an element needs at least one field|0 records",
        ),
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})}),
            TypeError,
            r"d is a dict of the splits \['train'\]; give one of them",
        ),
        (
            datasets.Dataset.from_dict({"x": [1]}).to_iterable_dataset(),
            TypeError,
            "d is an IterableDataset, .* use HFStreamingSource",
        ),
        (
            datasets.Dataset.from_dict({"x": [1]}).with_transform(lambda batch: batch),
            ValueError,
            r"d runs a function whenever it is read \(set_transform\).*pass transforms=",
        ),
        (
            datasets.Dataset.from_dict({"sound": [{"bytes": b"", "path": None}]}).cast_column(
                "sound", datasets.Audio()
            ),
            ValueError,
            r"column 'sound' is of the feature Audio.*cast_column\('sound', Audio\(decode=False\)\).*leave it out",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(dataset, error, message):
    with pytest.raises(error, match=message):
        DatasetReader(dataset, "d")


def test_images_without_pillow_are_refused(monkeypatch):
    rows = {"image": [{"bytes": b"", "path": None}]}
    dataset = datasets.Dataset.from_dict(rows, features=Features({"image": datasets.Image()}))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match="column 'image' holds images.*pip install pillow"):
        DatasetReader(dataset, "d")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6], [3, 4], [5], [6, 2, 2, 0]])
def test_every_kind_of_column_is_what_datasets_gives(kind, rows):
    dataset = dataset_of(kind)
    columns = DatasetReader(dataset, "d").read(np.array(rows))
    assert isinstance(columns, dict)
    assert [plain(element) for element in unstack(columns, len(rows))] == [dataset[row] for row in rows]
    if KINDS[kind][2] is not None:
        assert (str(columns["x"].dtype), columns["x"].shape[1:]) == KINDS[kind][2]
    else:
        assert isinstance(columns["x"], dict)
