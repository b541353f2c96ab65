"""What was read once is not read again, and nothing else changes."""

import pickle

import numpy as np
import pytest

from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.cache import CachedReader
from datarax_ray.read.stream import Reader, ReaderTraits
from tests.data import record


class Counting(Reader):
    """A reader that notes what is asked of it."""

    traits, num_records, mean_nbytes = ReaderTraits(RuntimeError), 10, 7

    def __init__(self):
        self.asked, self.closed = [], 0

    def read(self, records):
        self.asked.append(records.tolist())
        if 9 in self.asked[-1]:
            raise RuntimeError("record 9 is broken")
        return [f"r{i}" for i in records.tolist()]

    def locate(self, index):
        return f"f[{index}]"

    def fingerprint(self):
        return {"digest": "x"}

    def close(self):
        self.closed += 1


def test_only_what_is_missing_is_read_once_and_sorted():
    inner = Counting()
    cached = CachedReader(inner)
    assert cached.read(np.array([5, 2, 5])) == ["r5", "r2", "r5"]
    assert cached.read(np.array([2, 3, 5])) == ["r2", "r3", "r5"]
    assert cached.read(np.array([5, 2, 3])) == ["r5", "r2", "r3"]
    assert cached.read(np.array([], np.int64)) == []
    assert inner.asked == [[2, 5], [3]]


def test_clearing_and_closing_forget():
    inner = Counting()
    cached = CachedReader(inner)
    for forget in (cached.clear, cached.close):
        cached.read(np.array([1]))
        forget()
    cached.read(np.array([1]))
    assert inner.asked == [[1]] * 3
    assert inner.closed == 1


def test_a_broken_record_stays_broken_and_spoils_no_other():
    cached = CachedReader(Counting())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="record 9"):
            cached.read(np.array([8, 9]))
    assert cached.read(np.array([8])) == ["r8"]


def test_it_is_the_same_data_and_is_pickled_without_its_records(files):
    plain = ArrayRecordReader.of(files)
    cached = CachedReader(plain)
    empty = len(pickle.dumps(cached))
    assert list(cached.read(np.arange(120)[::-1])) == [record(i) for i in range(120)][::-1]
    assert (cached.num_records, cached.mean_nbytes) == (plain.num_records, plain.mean_nbytes)
    assert cached.fingerprint() == plain.fingerprint()
    assert cached.locate(9) == plain.locate(9)
    assert len(pickle.dumps(cached)) == empty
    assert list(pickle.loads(pickle.dumps(cached)).read(np.array([3]))) == [record(3)]
    cached.close()


class Records(Reader):
    """A reader of records made by a function of their index."""

    traits, num_records, mean_nbytes = ReaderTraits(RuntimeError), 1000, 16

    def __init__(self, make):
        self.make, self.num_read = make, 0

    def read(self, records):
        self.num_read += len(records)
        return [self.make(record) for record in records.tolist()]


def fixed(record):
    return np.array([record, -record]).tobytes()


def of_many_sizes(record):
    return bytes([record % 251]) * (record % 7)


def fixed_at_first(record):
    return fixed(record) if record % 100 else b"other"


def elements(record):
    return {"x": np.array([record]), "name": f"n{record}"}


def plain(value):
    return {"x": value["x"].tolist(), "name": value["name"]} if isinstance(value, dict) else value


@pytest.mark.parametrize("make", [fixed, of_many_sizes, fixed_at_first, elements])
@pytest.mark.parametrize("max_nbytes", [None, 1, 5_000, 20_000])
def test_records_of_any_kind_and_any_bound_are_those_of_the_reader(make, max_nbytes):
    rng = np.random.default_rng(0)
    reader = Records(make)
    cached = CachedReader(reader, max_nbytes)
    for epoch in range(4):
        mine = rng.permutation(1000)[: 700 if epoch < 2 else 1000]
        mine = np.concatenate([mine, mine[:30]])  # some twice
        for asked in np.array_split(mine, 9):
            found = cached.read_at(np.full(len(asked), 1000 * epoch), asked)
            assert [plain(value) for value in found] == [plain(make(record)) for record in asked.tolist()]
            for value in found:
                if isinstance(value, dict):
                    value["x"][0] = 5000  # the caller's own
    counts = cached.counts()
    assert max_nbytes is None or counts["kept_nbytes"] <= max_nbytes
    assert counts["num_from_storage"] >= reader.num_read
    if max_nbytes is None:
        assert (counts["num_kept"], reader.num_read) == (1000, 1000)


def test_as_much_of_each_epoch_comes_from_memory_as_fits():
    reader = Records(fixed)
    cached = CachedReader(reader, max_nbytes=300 * (16 + 20))
    rng = np.random.default_rng(1)
    for epoch in range(3):
        for asked in np.array_split(rng.permutation(1000), 7):
            cached.read_at(np.full(len(asked), 1000 * epoch), asked)
    assert cached.counts() == {
        "num_kept": 300,
        "kept_nbytes": 300 * (16 + 20),
        "num_from_memory": 2 * 300,
        "num_from_storage": 1000 + 2 * 700,
    }


@pytest.mark.parametrize("make", [fixed, elements])
def test_what_another_actor_has_now_makes_room(make):
    """Records [0, 300) move away, and [600, 900) come."""
    reader = Records(make)
    size = 36 if make is fixed else 8 + len("n000") + 20
    cached = CachedReader(reader, max_nbytes=size * 620)
    for epoch in range(6):
        mine = np.arange(0, 600) if epoch < 2 else np.arange(300, 900)
        cached.read_at(np.full(len(mine), 1000 * epoch), mine)
        reader.num_read, num_read = 0, reader.num_read
    assert num_read == 0, "all that it owns now is kept"
    assert cached.counts()["num_kept"] == 600
