"""A request in, a block out: by value, whatever is read together."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.orders.order import Partitioning
from datarax_ray.plan.partitions import ReadRequest, assign, owners_in
from datarax_ray.read.block import Block
from datarax_ray.read.decode import DecodeRaw
from datarax_ray.read.elements.columns import leaves
from datarax_ray.read.errors import RecordError
from datarax_ray.read.stream import Reader, ReaderTraits
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.mixture import MixtureStream
from tests import oracle
from tests.data import AddNoise, DropThirds, FailAt, decode, record, stored_index


class Memory(Reader):
    """Records in memory; those given as broken cannot be read."""

    traits = ReaderTraits(RuntimeError)

    mean_nbytes = 20

    def __init__(self, records, broken=()):
        self.records, self.unreadable, self.calls = list(records), set(broken), 0

    @property
    def num_records(self):
        return len(self.records)

    def read(self, records):
        self.calls += 1
        if self.unreadable & set(records.tolist()):
            raise RuntimeError("checksum")
        return [self.records[i] for i in records.tolist()]

    def locate(self, index):
        return f"memory[{index}]"

    def fingerprint(self):
        return {"num_records": len(self.records)}

    def close(self):
        pass


def describe(n=20, transforms=(decode,), shuffle="none", broken=(), on_error="raise", seed=7, num_epochs=2):
    return IndexedStream(
        Memory(map(record, range(n)), broken), order_of(n, seed, shuffle), num_epochs, tuple(transforms), on_error
    )


@pytest.mark.parametrize("shuffle", ["none", "global"])
def test_a_block_is_the_plain_loops_rows(shuffle):
    transforms = [decode, AddNoise(), DropThirds()]
    block = describe(transforms=transforms, shuffle=shuffle).read(ReadRequest(3, 33))
    want = [
        (p, e)
        for p, e in oracle.elements(
            [record(i) for i in range(20)],
            seed=7 if shuffle == "global" else None,
            num_epochs=2,
            transforms=transforms,
            rng_seed=7,
        )
        if 3 <= p < 33
    ]
    assert block.positions.tolist() == [p for p, _ in want]
    assert block.positions.dtype == np.int64
    oracle.assert_same(block.columns, {key: [e[key] for _, e in want] for key in want[0][1]})
    assert (block.skipped, block.failure) == ((), None)


@given(
    st.integers(0, 30), st.integers(1, 30), st.integers(1, 5), st.integers(1, 6), st.sampled_from(["none", "global"])
)
def test_blocks_of_any_owners_are_together_the_whole_chunks(start, size, num_actors, run, shuffle):
    description = describe(transforms=[decode, AddNoise(), DropThirds()], shuffle=shuffle, num_epochs=4)
    partitioning = Partitioning(run, 4)
    owners = assign(partitioning, range(num_actors))
    requests = owners_in(description.order, partitioning, owners, start, start + size).values()
    rows = {}
    for partitions in requests:
        block = description.read(ReadRequest(start, start + size, partitioning, partitions))
        for row, position in enumerate(block.positions.tolist()):
            rows[position] = {path: array[row] for path, array in leaves(block.columns)}
    whole = description.read(ReadRequest(start, start + size))
    assert sorted(rows) == whole.positions.tolist()
    for row, position in enumerate(whole.positions.tolist()):
        for path, array in leaves(whole.columns):
            assert np.array_equal(rows[position][path], array[row])


def test_a_block_without_elements_has_no_columns():
    for block in (
        describe().read(ReadRequest(5, 5)),
        describe(transforms=[decode, FailAt(0)], on_error="skip").read(ReadRequest(0, 1)),
        describe(transforms=[DecodeRaw("int32", 5)]).read(ReadRequest(5, 5)),
    ):
        assert block.positions.tolist() == []
        assert block.columns is None
        assert block.nbytes == 0


def test_a_block_travels_with_its_failure():
    block = describe(transforms=[decode, FailAt(2)]).read(ReadRequest(0, 5))
    again = pickle.loads(pickle.dumps(block))
    assert again.positions.tolist() == [0, 1]
    assert str(again.failure) == str(block.failure)
    assert again.failure.position == 2
    assert again.failure.__notes__ == block.failure.__notes__
    assert again.nbytes == block.nbytes


def test_bytes_are_counted():
    assert Block(np.arange(2), {"x": np.zeros((2, 3), np.float32)}).nbytes == 24
    assert Block(np.arange(2), np.array([b"abc", b""], object)).nbytes == 3


def test_reading_and_transforming_failures_raise_the_first_position_in_elements():
    with pytest.raises(RecordError, match=r"memory\[4\] \(position 4\): transform FailAt raised ZeroDivisionError"):
        describe(transforms=[decode, FailAt(4)], broken=[6]).read_at(0, 10)
    with pytest.raises(RecordError, match=r"memory\[6\] \(position 6\): reading raised RuntimeError: checksum"):
        describe(transforms=[decode, FailAt(8)], broken=[6]).read_at(0, 10)


def test_skipping_lists_all_failures_by_position_with_what_went_wrong():
    description = describe(transforms=[decode, FailAt(2)], broken=[6, 4], on_error="skip")
    block = description.read(ReadRequest(0, 10))
    assert block.positions.tolist() == [0, 1, 3, 5, 7, 8, 9]
    assert [(s.where, s.position) for s in block.skipped] == [("memory[2]", 2), ("memory[4]", 4), ("memory[6]", 6)]
    assert ["reading" in s.reason for s in block.skipped] == [False, True, True]


@pytest.mark.parametrize("in_mixture", [False, True])
def test_a_record_that_ends_its_process_is_broken_without_being_read(in_mixture):
    place = r"memory\[4\] \(position 4, 4 of component 0\)" if in_mixture else r"memory\[4\] \(position 4\)"
    ended = rf"{place}: reading raised ChildProcessError: .* ends: SIGKILL"
    for on_error in ("raise", "skip", lambda error: "SIGKILL" in str(error)):
        description = component = describe(on_error=on_error)
        if in_mixture:
            description = MixtureStream((component,), (1,))
        block = description.read(ReadRequest(4, 5), "SIGKILL")
        assert component.reader.calls == 0
        assert block.positions.tolist() == []
        if on_error == "raise":
            assert block.failure_position == 4
            with pytest.raises(RecordError, match=ended):
                raise block.failure
        else:
            assert block.failure is None
            where = "component 0: memory[4]" if in_mixture else "memory[4]"
            assert [(skip.where, skip.position) for skip in block.skipped] == [(where, 4)]
    assert (
        describe().read(ReadRequest(4, 5, Partitioning(1, 2), (1,)), "SIGKILL").failure is None
    )  # it is another actor's


def test_a_missing_file_is_never_skipped():
    description = describe(on_error="skip")
    description.reader.read = lambda records: (_ for _ in ()).throw(FileNotFoundError("gone"))
    with pytest.raises(FileNotFoundError, match="gone"):
        description.read(ReadRequest(0, 3))


# Block decoders


def test_a_block_decoder_and_other_transforms_agree_with_decoding_alone():
    decoder = DecodeRaw("int32", 5)
    block = describe(transforms=[decoder, lambda e: {"sum": e["data"].sum()}]).read(ReadRequest(0, 20))
    assert block.columns["sum"].tolist() == [int(np.frombuffer(record(i), "<i4").sum()) for i in range(20)]
    elements = describe(transforms=[decoder]).read_at(4, 6)
    assert [e["data"].tolist() for e in elements] == [np.frombuffer(record(i), "<i4").tolist() for i in (4, 5)]


class Picky:
    """Decodes first bytes, except some."""

    def __init__(self, bad=(), result=None):
        self.bad, self.result = bad, result

    def decode(self, records):
        first = [r[0] for r in records]
        for value in first:
            if value in self.bad:
                raise ValueError(f"bad {value}")
        return {"x": np.array(first)} if self.result is None else self.result(first)


def test_a_record_that_does_not_decode_is_named_or_skipped():
    block = describe(transforms=[Picky(bad=[3])]).read(ReadRequest(0, 6))
    assert block.positions.tolist() == [0, 1, 2]
    assert str(block.failure) == "memory[3] (position 3): transform Picky raised ValueError: bad 3"
    block = describe(transforms=[Picky(bad=[3, 0])], on_error="skip").read(ReadRequest(0, 6))
    assert block.columns["x"].tolist() == [1, 2, 4, 5]
    assert [s.position for s in block.skipped] == [0, 3]
    block = describe(transforms=[Picky(bad=range(20))], on_error="skip").read(ReadRequest(0, 6))
    assert (block.columns, len(block.skipped)) == (None, 6)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda first: {"x": np.zeros(len(first) + 1)}, r"x has \d+ rows for \d+ records"),
        (lambda first: {}, "has no fields"),
        (lambda first: {"a": {}}, "has no fields"),
        (
            lambda first: {"x": first},
            "x is a list; decode gives NumPy arrays with a row for each record; np.asarray makes one of it",
        ),
        (lambda first: {"x": np.float32(1)}, "x is a float32; .* each record\n"),
        (lambda first: None, "transform Picky returned None; does it end without `return`"),
    ],
)
def test_a_decoder_that_gives_no_row_for_each_record_is_refused(result, message):
    with pytest.raises((ValueError, TypeError), match=message):
        describe(transforms=[Picky(result=result), lambda e: e]).read_at(0, 4)


def test_a_decoder_that_fails_only_on_many_says_so():
    def result(first):
        if len(first) > 1:
            raise ValueError("too many")
        return {"x": np.array(first)}

    block = describe(transforms=[Picky(result=result)]).read(ReadRequest(2, 6))
    assert str(block.failure) == (
        "memory[2] (position 2): transform Picky decodes this and the next 3 records alone, but not together; it "
        "raised ValueError: too many"
    )
    assert block.failure_position == 2


# Elements that do not stack


def test_ragged_elements_are_refused_with_where_both_are():
    def ragged(element):
        return {"x": element["values"][: 1 + (element["index"] >= 13)]}

    block = describe(transforms=[decode, ragged]).read(ReadRequest(10, 20))
    assert block.positions.tolist() == [10, 11, 12]
    assert block.columns["x"].shape == (3, 1)
    assert block.failure_position == 13
    assert str(block.failure).startswith(
        "memory[13] (position 13) differs from memory[10] (position 10): "
        "field 'x' has shape (1,) in one element, (2,) in another"
    )
    assert str(pickle.loads(pickle.dumps(block.failure))) == str(block.failure)


def test_a_transform_that_changes_its_element_in_place_changes_no_other_read():
    def spoil(element):
        element["values"] += 1
        return element

    def data(element):
        element["data"] += 1
        return element

    for transforms, key in (([decode, spoil], "values"), ([DecodeRaw("int32", 5), data], "data")):
        description = describe(transforms=transforms)
        first = description.read(ReadRequest(0, 20)).columns[key]
        again = description.read(ReadRequest(0, 20)).columns[key]
        assert first.tolist() == again.tolist() == [(np.frombuffer(record(i), "<i4") + 1).tolist() for i in range(20)]


class Halve:
    """A transform of whole columns that one element breaks; `broken` is its index, None for none."""

    def __init__(self, broken=None):
        self.broken = broken

    def map_columns(self, columns):
        if self.broken is not None and self.broken in columns["index"].tolist():
            raise ZeroDivisionError(f"no half of {self.broken}")
        return {"index": columns["index"], "half": columns["index"] / 2}


def test_a_failing_transform_of_columns_is_located_and_what_is_before_it_is_good():
    block = describe(transforms=[decode, stored_index, Halve(broken=2)]).read(ReadRequest(0, 4))
    assert block.columns["half"].tolist() == [0, 0.5]
    assert block.failure_position == 2
    assert "(position 2): transform Halve raised ZeroDivisionError: no half of 2" in str(block.failure)
    block = describe(transforms=[decode, stored_index, Halve(broken=2)], on_error="skip").read(ReadRequest(0, 4))
    assert block.columns["half"].tolist() == [0, 0.5, 1.5]
    assert [skip.position for skip in block.skipped] == [2]


@pytest.mark.parametrize(
    "mixes",
    [
        lambda index: index - index.mean(),
        lambda index: index[::-1],
        np.cumsum,
        lambda index: index.astype(np.int8) if len(index) < 3 else index,
        lambda index: np.random.default_rng().random(len(index)),
        lambda index: index / (len(index) - 1) if len(index) > 1 else [][1],
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_transform_of_columns_whose_rows_depend_on_each_other_is_refused(mixes, on_error):
    class Mixes:
        def map_columns(self, columns):
            return {"index": mixes(columns["index"])}

    block = describe(transforms=[decode, stored_index, Mixes()], on_error=on_error).read(ReadRequest(2, 6))
    assert (len(block.positions), block.skipped, block.failure_position) == (0, (), 2)
    assert re.search(r"Mixes maps row 3 of 4, and gives .* for that row alone.*of its own row", str(block.failure))


def test_a_transform_of_columns_may_round_otherwise_in_larger_arrays_and_is_tried_on_a_row_alone_now_and_then():
    sizes = []

    class Sum:
        def map_columns(self, columns):
            index = columns["index"]
            sizes.append(len(index))
            error = 1e-6 * len(index)
            names = np.array([str(i) for i in index])
            return {"sum": (index * 0.1 + error).astype(np.float32), "name": names, "list": names.astype(object)}

    stream = describe(transforms=[decode, stored_index, Sum()])
    for _ in range(5):
        block = stream.read(ReadRequest(8, 12))
        assert block.failure is None
        assert block.columns["name"].tolist() == ["8", "9", "10", "11"]
    assert sizes == [4, 1, 4, 1, 4, 4, 1, 4]


def test_a_transform_of_columns_that_mixes_rows_which_are_alike_at_first_is_refused_once_they_are_not():
    class LessMean:
        def map_columns(self, columns):
            label = columns["index"] // 8  # sorted by label
            return {"label": label - label.mean()}

    stream = describe(transforms=[decode, stored_index, LessMean()])
    assert stream.read(ReadRequest(0, 8)).failure is None
    assert "LessMean maps row 4 of 8" in str(stream.read(ReadRequest(5, 13)).failure)


def test_a_transform_of_columns_gives_a_row_for_each_row():
    class Short:
        def map_columns(self, columns):
            return {"index": columns["index"][1:]}

    block = describe(transforms=[decode, stored_index, Short()]).read(ReadRequest(0, 4))
    assert "index has 0 rows for 1 records" in str(block.failure)


@pytest.mark.parametrize("first", [{"a": 1.5}, {"b": "text"}])
def test_of_two_elements_that_do_not_fit_the_first_is_named_whichever_field_it_is(first):
    elements = [{"a": 1, "b": 2} for _ in range(8)]
    elements[5] |= {"b": "text"} if "a" in first else {"a": 1.5}
    elements[2] |= first
    description = IndexedStream(Memory(elements), order_of(8), num_epochs=1)
    block = description.read(ReadRequest(0, 8))
    assert block.positions.tolist() == [0, 1]
    assert isinstance(block.failure, RecordError)
    assert block.failure.position == 2
