"""What was read once is not read again, and nothing else changes."""

import pickle

import numpy as np
import pytest

from datarax_ray.read.formats.array_record import ArrayRecordReader
from datarax_ray.read.formats.cache import CachedReader
from tests.data import record


class Counting:
    """A reader that notes what is asked of it."""

    num_records, mean_nbytes = 10, 7

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
    assert cached.read(np.arange(120)[::-1]) == [record(i) for i in range(120)][::-1]
    assert (cached.num_records, cached.mean_nbytes) == (plain.num_records, plain.mean_nbytes)
    assert cached.fingerprint() == plain.fingerprint()
    assert cached.locate(9) == plain.locate(9)
    assert len(pickle.dumps(cached)) == empty
    assert pickle.loads(pickle.dumps(cached)).read(np.array([3])) == [record(3)]
    cached.close()
