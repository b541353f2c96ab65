"""From elements to documents: what is joined, what is refused, and where."""

import numpy as np
import pytest

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.packing import DocumentSpec
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.plan.requests import Wanted
from datarax_ray.read.formats.random_access import ArraysReader, RandomAccessReader
from datarax_ray.read.streams.indexed import IndexedStream


def read(elements, documents, **options):
    reader = ArraysReader(elements) if isinstance(elements, dict) else RandomAccessReader(elements)
    description = IndexedStream(reader, order_of(reader.num_records), **options)
    return description.read(ReadRequest(0, reader.num_records, wanted=Wanted(documents=documents)))


def plain(block):
    return (
        block.positions.tolist(),
        block.lengths.tolist(),
        {name: column.tolist() for name, column in (block.columns or {}).items()},
    )


LISTS = [{"x": [1, 2, 3], "y": [0, 1, 0], "name": "a"}, {"x": [], "y": []}, {"x": [4], "y": [1]}]


def test_fields_are_laid_end_to_end_and_empty_documents_and_other_fields_left_out():
    block = read(LISTS, DocumentSpec(("x", "y")))
    assert plain(block) == ([0, 2], [3, 1], {"x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
    assert {column.dtype for column in block.columns.values()} == {np.dtype(np.int64)}
    assert plain(read([{"x": []}], DocumentSpec(("x",)))) == ([], [], {})


def test_a_longer_document_is_refused_cut_or_split():
    refused = read(LISTS, DocumentSpec(("x",), max_length=2))
    assert plain(refused) == ([], [], {})
    assert "[0] (position 0): packing raised ValueError: 'x' has 3 tokens, and a row has 2" in str(refused.failure)
    assert plain(read(LISTS, DocumentSpec(("x",), 2, "truncate"))) == ([0, 2], [2, 1], {"x": [1, 2, 4]})
    assert plain(read(LISTS, DocumentSpec(("x",), 2, "split"))) == ([0, 0, 2], [2, 1, 1], {"x": [1, 2, 3, 4]})
    skipped = read(LISTS, DocumentSpec(("x",), max_length=2), on_error="skip")
    assert plain(skipped) == ([2], [1], {"x": [4]})
    assert [skip.position for skip in skipped.skipped] == [0]


@pytest.mark.parametrize("limit", [None, 4, 5, 3])
@pytest.mark.parametrize("too_long", ["truncate", "split"])
def test_columns_of_documents_of_one_length_give_what_single_elements_give(limit, too_long):
    data = {"x": np.arange(24, dtype=np.int16).reshape(6, 4), "y": np.arange(48).reshape(6, 4, 2), "z": np.arange(6)}
    documents = DocumentSpec(("x", "y"), limit, too_long)
    rows = [{"x": data["x"][i], "y": data["y"][i]} for i in range(6)]
    assert plain(read(data, documents)) == plain(read(rows, documents))
    assert read(data, documents).columns["x"].dtype == np.int16


@pytest.mark.parametrize("sizes", [[3, 1, 4], [3, 0, 4], [2, 2, 2]])
@pytest.mark.parametrize("limit", [None, 4, 3])
@pytest.mark.parametrize("too_long", ["truncate", "split", "raise"])
def test_ragged_columns_of_documents_give_what_single_elements_give(sizes, limit, too_long):
    rows = [{"x": np.arange(size, dtype=np.int16), "y": np.arange(size) / 2} for size in sizes]
    data = {name: np.fromiter((row[name] for row in rows), object, 3) for name in ("x", "y")}
    documents = DocumentSpec(("x", "y"), limit, too_long)
    whole, alone = read(data, documents), read(rows, documents)
    assert plain(whole) == plain(alone)
    assert str(whole.failure).partition("[")[2] == str(alone.failure).partition("[")[2]
    for columns in (whole.columns, alone.columns):
        assert {name: column.dtype for name, column in columns.items()} == {"x": np.int16, "y": np.float64}


def test_fields_of_other_lengths_in_one_row_are_told_of_ragged_columns_too():
    data = {name: np.fromiter(map(np.arange, sizes), object, 2) for name, sizes in {"x": (2, 3), "y": (2, 1)}.items()}
    block = read(data, DocumentSpec(("x", "y")))
    assert plain(block) == ([0], [2], {"x": [0, 1], "y": [0, 1]})
    assert "one length in each element, got {'x': 3, 'y': 1}" in str(block.failure)


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"y": [1]}, r"ValueError: the element has no field 'x', only \['y'\]"),
        ({"xs": [1]}, r"the element has no field 'x', only \['xs'\]\. Did you mean 'xs'\?"),
        ({"x": [1], "y": [1, 2]}, r"one length in each element, got {'x': 1, 'y': 2}"),
        ({"x": b"ab", "y": [1, 2]}, "TypeError: 'x' is bytes, and packing joins numbers; make tokens of it"),
        ({"x": ["a"], "y": [1]}, "TypeError: 'x' is list, and packing joins numbers"),
        ({"x": 3, "y": [1]}, "ValueError: 'x' is a single value"),
        ([1], "TypeError: an element to pack is a dict, got list"),
    ],
)
def test_what_is_no_document_is_a_failure_of_its_record(element, message):
    block = read([LISTS[0], element], DocumentSpec(("x", "y")))
    assert block.positions.tolist() == [0]
    assert block.failure is not None
    with pytest.raises(ValueError, match=message):
        raise block.failure


def test_documents_of_another_dtype_end_the_block_before_them():
    block = read([{"x": np.arange(3, dtype=np.int32)}, {"x": np.arange(2)}], DocumentSpec(("x",)))
    assert block.positions.tolist() == [0]
    assert "field 'x' is int32 with rows of shape () in one document, int64 () in another" in str(block.failure)
