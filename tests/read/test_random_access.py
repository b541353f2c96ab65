"""What is taken for a data source, and what only looks like one."""

import traceback

import datasets
import grain
import jax.numpy as jnp
import numpy as np
import pandas as pd
import PIL.Image
import pyarrow as pa
import pytest

from datarax_ray import Pipeline
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from tests.data import in_memory


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (pa.array([2**53 + 1, None, 3]), "fill its nulls"),
        (pa.chunked_array([[2**53 + 1, None, 3]]), "fill its nulls"),
        (pd.Series([2**53 + 1, None, 3], dtype="Int64"), r"fillna\(0\) of pandas"),
        (pd.array([2**53 + 1, None, 3], dtype="UInt64"), "fill its nulls"),
    ],
)
def test_integers_that_nulls_would_make_other_numbers_are_refused(column, remedy):
    with pytest.raises(ValueError, match=rf"the column 'x' holds integers and nulls, .*{remedy}"):
        in_memory({"x": column}, num_epochs=-1)


@pytest.mark.parametrize("column", [{1, 2}, "ab", {1: 2}.values(), 3], ids=lambda column: type(column).__name__)
def test_what_is_no_array_is_named(column):
    said = rf"'a.x' is a {type(column).__name__}, no array or list .*list\(...\) makes one"
    with pytest.raises(TypeError, match=said):
        in_memory({"a": {"x": column}}, num_epochs=-1)


def test_other_columns_of_tables_are_arrays():
    columns = {"a": pa.array([2**60, 3]), "b": pd.Series([1, 2]), "c": pa.array([1, None]), "d": pa.array([0.5, None])}
    (first, second) = in_memory(columns)
    assert [int(first["a"]), int(second["b"]), float(first["c"])] == [2**60, 2, 1.0]
    assert np.isnan([second["c"], second["d"]]).all()


FRAME = pd.DataFrame(np.arange(12).reshape(4, 3))  # columns 0, 1, 2: they would be taken for its rows


class Frame(pd.DataFrame):
    """As GeoPandas has it."""


class Forgetful:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        {"x": index}  # noqa: B018


@pytest.mark.parametrize(("data", "record"), [(Forgetful(), 0), ([None, None], 0), (["a", None], 1)])
def test_an_element_of_none_is_refused_where_no_transform_makes_another_of_it(data, record):
    config = RandomAccessSourceConfig(num_epochs=1)
    said = rf"{record}\] \(position {record}\).*: the element is None; where it is None"
    with pytest.raises(RecordError, match=said):
        Pipeline(source=RandomAccessSource(config, data), batch_size=2).step()
    made = RandomAccessSource(config, data, transforms=lambda element: {"is_none": element is None})
    assert made.get_batch(2)["is_none"].tolist() == [element is None for element in (data[0], data[1])]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"x": np.arange(3), "y": np.arange(4)}, ValueError, "must have one length, got .*'x': 3, 'y': 4"),
        ({}, ValueError, "got no arrays"),
        ({"x": np.zeros((0, 3))}, ValueError, "have no rows"),
        ({"x": np.float32(3)}, TypeError, "'x' is a float32, no array or list with a row for each element"),
        ({0: "a", 1: "b"}, TypeError, "a dict holds arrays by name, and 0 is no str; .* give a list"),
        ({"x": [[1], [2, 3]]}, ValueError, r"the list 'x' holds rows of several shapes.*\[\{'x': row\} for row"),
        (iter([1, 2]), TypeError, "list_iterator has not"),
        ([], ValueError, "0 records in list"),
        ("data/*.parquet", TypeError, r"'data/\*\.parquet' is text, .* of a path load\(path, \.\.\.\) makes"),
        (np.array(3), TypeError, r"array\(3\) is one value and has no rows; give an array or list with a row for each"),
        (jnp.array(3), TypeError, r"Array\(3, .*\) is one value and has no rows"),
        (np.array({"a"}), TypeError, r"array\(\{'a'\}, dtype=object\) is one value and has no rows"),
        (Forgetful, TypeError, "data is the class Forgetful; give an instance of it"),
        (FRAME, TypeError, "an index of a pandas.DataFrame gives no row; give its columns"),
        (Frame(FRAME), TypeError, "an index of a pandas.DataFrame gives no row; give its columns"),
        (pd.Series([10, 11, 12], index=[2, 0, 1]), TypeError, "an index of a pandas.Series gives no row; give its c"),
        (pa.table({"x": [1, 2]}), TypeError, "an index of a pyarrow.Table gives no row; give its columns"),
        (pa.record_batch({"x": [1, 2]}), TypeError, "an index of a pyarrow.RecordBatch gives no row; give its columns"),
    ],
)
def test_what_is_no_data_source_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        in_memory(data, num_epochs=-1)


def content(data):
    return RandomAccessReader(data).fingerprint()["content"]


def test_hugging_face_datasets_are_told_apart_by_their_rows():
    """Their repr names features and the number of rows: two halves of a table have the same."""
    numbers = datasets.Dataset.from_dict({"x": list(range(100)), "deep": [[[[[[i]]]]] for i in range(100)]})
    low, high = numbers.select(range(50)), numbers.select(range(50, 100))
    assert repr(low) == repr(high)
    others = [
        high,
        low.shuffle(1),
        low.map(lambda row: {"deep": [[[[[row["x"] + 1]]]]]}),
        low.with_format("numpy"),
        low.with_format(columns=["x"]),
    ]
    assert len({content(data) for data in (low, *others)}) == 6


def test_the_fingerprint_of_a_hugging_face_dataset_is_that_of_its_data_wherever_it_lies(tmp_path):
    """That of `datasets` itself is another one for every load of data that lies in memory."""
    rows = {"x": [0.5, None], "text": ["a", "b"], "ids": [[1], [2, 3]], "stored": [b"1", b"2"]}
    data = datasets.Dataset.from_dict(rows)
    data.save_to_disk(tmp_path / "saved")
    joined = datasets.concatenate_datasets([data.select([1]), data.select([0])]).select([1, 0])
    assert content(datasets.load_from_disk(tmp_path / "saved")) == content(joined) == content(data)
    found = set()
    for place in ("here", "there"):
        image = tmp_path / place / "0.png"
        image.parent.mkdir()
        PIL.Image.new("L", (2, 2)).save(image)
        found.add(content(datasets.Dataset.from_dict({"image": [str(image)]}).cast_column("image", datasets.Image())))
    assert len(found) == 1


def test_the_fingerprint_of_a_hugging_face_dataset_reads_few_large_rows_and_runs_no_transform():
    called = []
    data = datasets.Dataset.from_dict({"x": [[float(i)] * 10_000 for i in range(300)]}).with_transform(called.append)
    assert content(data) == content(data)
    assert called == []


class Doubled(datasets.Dataset):
    """A user's own kind of dataset."""

    def __getitem__(self, key):
        row = super().__getitem__(key)
        return {"x": 2 * row["x"]}

    def __getitems__(self, keys):
        return [self[key] for key in keys]


def test_a_users_subclass_of_a_hugging_face_dataset_is_not_destroyed_when_it_was_read():
    plain = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    data = Doubled(plain.data, info=plain.info, split=plain.split, fingerprint=plain._fingerprint)
    source = in_memory(data)
    assert [element["x"] for element in source] == [2, 4, 6]
    source.close()
    assert data[2] == {"x": 6}


def test_a_dict_of_splits_is_refused_since_they_would_become_fields():
    data = datasets.Dataset.from_dict({"x": [1, 2]})
    for splits in (datasets.DatasetDict(test=data, train=data), {"test": data, "train": data}):
        with pytest.raises(TypeError, match=r"'test' is a Hugging Face dataset, no array.*\['test', 'train'\]"):
            in_memory(splits, num_epochs=-1)
    with pytest.raises(TypeError, match="'train' is a Hugging Face dataset"):
        in_memory(datasets.IterableDatasetDict(train=data.to_iterable_dataset()), num_epochs=-1)


def test_a_structured_array_is_refused_with_what_has_its_fields():
    config = RandomAccessSourceConfig(num_epochs=1)
    data = np.array([(1, 0.5), (2, 1.5)], [("a", int), ("b", float)])
    with pytest.raises(TypeError, match=r"fields \['a', 'b'\], no dict; give its fields, {name: data\[name\]"):
        RandomAccessSource(config, data)
    rows = RandomAccessSource(config, {name: data[name] for name in data.dtype.names}).get_batch(2)
    assert (rows["a"].tolist(), rows["b"].tolist()) == ([1, 2], [0.5, 1.5])


def test_a_dataset_that_repeats_without_an_end_is_told_to_say_its_epochs_here():
    config, data = RandomAccessSourceConfig(num_epochs=1), grain.MapDataset.range(3).repeat()
    with pytest.raises(ValueError, match=r"RepeatMapDataset.* 9,223,.* leave its \.repeat\(\) out, .* say num_epochs"):
        RandomAccessSource(config, data)
    with pytest.raises(RecordError, match=r"first transform, an object .* return element is not None"):
        RandomAccessSource(config, data.filter(bool)[:3]).get_batch(3)
    with pytest.raises(RecordError) as raised:
        RandomAccessSource(config, data.filter(bool)[:3], transforms=[abs]).get_batch(3)
    assert "return element is not None" in "".join(traceback.format_exception(raised.value))
    with pytest.raises(RecordError, match="returned None; does it end without `return`") as raised:
        RandomAccessSource(config, {"x": np.arange(3)}, transforms=[lambda _: None]).get_batch(3)
    assert "Grain" not in "".join(traceback.format_exception(raised.value))
