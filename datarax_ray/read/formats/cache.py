"""A reader that keeps records in memory: later epochs do not touch the files."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.columns import nbytes_of
from datarax_ray.read.elements.owning import copied
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.laps import lap
from datarax_ray.read.stream import Reader, ReaderTraits

# What a record takes beside its bytes: where it is (4), which it is, and when it was asked for last (8 each).
_BESIDE_NBYTES = 20
# Or Linux refuses an index that is larger than the machine's memory. mmap has the name from Python 3.13 on.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
_GROWTH = 8  # an eighth more each time: the kernel moves pages of a large array, and copies nothing


def cached(reader: Reader, max_nbytes: int | None = None) -> Reader:
    """The reader with a memory: its own where it has one, else a CachedReader.

    max_nbytes: of what is kept in a process, None for no bound.
    """
    if reader.traits.caches_itself:
        return reader.cached(max_nbytes or sys.maxsize)
    return CachedReader(reader, max_nbytes)


class CachedReader(Reader):
    """Another reader's records, kept as they are stored, as far as max_nbytes of them go; see KeptRecords.

    Every record that it gives is the caller's own, as a transform could change it. In an actor they are the records of
    its partitions, so the cluster's memory holds the dataset once. The cache is not pickled, and no part of a
    fingerprint.
    """

    def __init__(self, reader: Reader, max_nbytes: int | None = None) -> None:
        self._reader = reader
        self.max_nbytes = max_nbytes
        self._lock = ThreadLock()  # of what is kept; pipelines over one source read in threads of their own
        self._counts = {"num_from_memory": 0, "num_from_storage": 0}
        self.clear()

    @property
    def num_records(self) -> int:
        return self._reader.num_records

    @property
    def mean_nbytes(self) -> int:
        return self._reader.mean_nbytes

    @property
    def traits(self) -> ReaderTraits:
        return replace(self._reader.traits, keeps_records=True, keeps_groups=False)

    def expect(self, records: Indices) -> None:
        with self._lock:
            missing = np.unique(records[self._kept.find(records) < 0])
        if len(missing):
            self._reader.expect(missing)

    def counts(self) -> dict[str, int]:
        """Counts and bytes of the kept records, and how many records came from memory and from storage so far."""
        kept = self._kept
        return {"num_kept": kept.num_records, "kept_nbytes": kept.nbytes, **self._counts}

    def read(self, records: Indices) -> Sequence[Any]:
        return self.read_at(np.zeros(len(records), np.int64), records)

    def read_at(self, positions: Indices, records: Indices, in_rows: bool = False) -> Sequence[Any]:
        epoch = int(positions[-1]) // self.num_records if len(positions) else 0
        kept = self._kept  # this one, also where another thread clears the reader meanwhile
        with self._lock, lap("memory"):
            slots = kept.find(records)
            is_kept = slots >= 0
            found = kept.take(slots[is_kept], epoch)
            missing, where = np.unique(records[~is_kept], return_inverse=True)
            self._counts["num_from_memory"] += len(found)
            self._counts["num_from_storage"] += len(where)
        if not len(missing):
            return found
        others = fixed(self._reader.read_rows(missing))
        with self._lock, lap("memory"):
            kept.add(missing, others, epoch)
            return merged(is_kept, found, others, where)

    def locate(self, record: int) -> str:
        return self._reader.locate(record)

    def origin(self, record: int) -> str:
        return self._reader.origin(record)

    def fingerprint(self) -> dict[str, Any]:
        return self._reader.fingerprint()

    def clear(self) -> None:
        self._kept = KeptRecords(self._reader.num_records, self.max_nbytes)

    def close(self) -> None:
        self.clear()
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedReader, (self._reader, self.max_nbytes)


class KeptRecords:
    """Records of one source, of which there are num_records. For one thread at a time.

    max_nbytes: of all records, None for no bound. An epoch reads every record once, so no choice of records finds more
    than fit. Records stay, except for those that were not read in this epoch or the one before: another actor has them
    now.
    """

    def __init__(self, num_records: int, max_nbytes: int | None = None) -> None:
        self._max_nbytes = sys.maxsize if max_nbytes is None else max_nbytes
        # Of each record of the source, its slot + 1, 0 for none. A page of zeros takes no memory until it is written to
        # and what one actor has lies in runs, so this is about 4 bytes for each record that is here. np.zeros asks for
        # pages of 2 MiB: of 10**9 records of which an actor has 1,000 it takes 1.9 GB, and this 4 MB.
        pages = mmap.mmap(-1, num_records * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        self._slots = np.frombuffer(pages, np.int32)
        self._records = np.empty(0, np.int64)  # by slot
        self._epochs = np.empty(0, np.int64)  # by slot: in which it was asked for last
        self._size = 0  # bytes of each record, where all are of one size
        self._rows = np.empty((0, 0), np.uint8)  # by slot, where they are
        self._values: list[Any] = []  # by slot, else
        self._used = 0  # slots that have or had a record
        self._free: list[int] = []  # of those, that have none
        self._dropped_in = -1
        self.num_records = self.nbytes = 0

    def find(self, records: Indices) -> Indices:
        """The slot of each record, -1 where it is not here."""
        return self._slots[records].astype(np.int64) - 1

    def take(self, slots: Indices, epoch: int) -> Sequence[Any]:
        """Copies of what is there: FixedRecords, or a list."""
        self._epochs[slots] = epoch
        if self._size:
            return FixedRecords(self._rows.take(slots, axis=0))
        return [copied(self._values[slot]) for slot in slots.tolist()]

    def add(self, records: Indices, values: Sequence[Any], epoch: int) -> None:
        """Keep these records, as far as there is room. records: distinct. values: see fixed."""
        new = np.flatnonzero(self._slots[records] == 0)  # another thread may have read some meanwhile
        if not len(new):
            return
        size = values.size if isinstance(values, FixedRecords) else 0
        if not self._used:
            self._size = size
        elif self._size and self._size != size:
            self._values = FixedRecords(self._rows).tolist()  # not of one size: each by itself from now on
            self._size, self._rows = 0, np.empty((0, 0), np.uint8)
        if self._size:
            ends = np.arange(1, len(new) + 1) * (self._size + _BESIDE_NBYTES)
        else:
            values = [values[index] for index in new.tolist()]
            ends = np.cumsum(np.array([nbytes_of(value) for value in values], np.int64) + _BESIDE_NBYTES)
        if ends[-1] > self._max_nbytes - self.nbytes:
            self._drop_stale(epoch)
        count = int(np.searchsorted(ends, self._max_nbytes - self.nbytes, "right"))
        if not count:
            self._size = self._size if self._used else 0  # nothing is here, of any size
            return
        slots, records = self._slots_for(count), records[new[:count]]
        self._slots[records] = slots + 1
        self._records[slots], self._epochs[slots] = records, epoch
        if self._size:
            assert isinstance(values, FixedRecords)
            self._rows[slots] = values.rows if count == len(values) else values.rows[new[:count]]
        else:
            for slot, value in zip(slots.tolist(), values, strict=False):
                self._values[slot] = value
        self.num_records += count
        self.nbytes += int(ends[count - 1])

    def _slots_for(self, count: int) -> Indices:
        """So many slots without a record, those first that had one."""
        again, self._free = self._free[:count], self._free[count:]
        first, self._used = self._used, self._used + count - len(again)
        if self._used > len(self._records):
            most = min(len(self._slots), self._max_nbytes // (self._size + _BESIDE_NBYTES))
            room = max(self._used, min(most, len(self._records) * (_GROWTH + 1) // _GROWTH))
            self._records.resize(room, refcheck=False)
            self._epochs.resize(room, refcheck=False)
            if not self._size:
                self._values += [None] * (room - len(self._values))
            elif len(self._rows):
                self._rows.resize((room, self._size), refcheck=False)
            else:
                self._rows = np.empty((room, self._size), np.uint8)
        return np.concatenate([np.array(again, np.int64), np.arange(first, self._used)])

    def _drop_stale(self, epoch: int) -> None:
        """Drop the records that were not read in this epoch or the one before; at most once an epoch."""
        if epoch <= self._dropped_in:
            return
        self._dropped_in = epoch
        has_record = np.ones(self._used, bool)
        has_record[self._free] = False
        stale = np.flatnonzero(has_record & (self._epochs[: self._used] < epoch - 1))
        self._slots[self._records[stale]] = 0
        self._free += stale.tolist()
        self.num_records -= len(stale)
        if self._size:
            self.nbytes -= len(stale) * (self._size + _BESIDE_NBYTES)
            return
        for slot in stale.tolist():
            self.nbytes -= nbytes_of(self._values[slot]) + _BESIDE_NBYTES
            self._values[slot] = None


def fixed(values: Sequence[Any]) -> Sequence[Any]:
    """Bytes of one size, not empty, as FixedRecords; any other records as they are."""
    if isinstance(values, FixedRecords) or not {bytes}.issuperset(map(type, values)):
        return values
    sizes = set(map(len, values)) - {0}
    if len(sizes) != 1 or not all(values):
        return values
    return FixedRecords(np.frombuffer(b"".join(values), np.uint8).reshape(len(values), sizes.pop()))


def merged(is_kept: np.ndarray, kept: Sequence[Any], others: Sequence[Any], where: Indices) -> Sequence[Any]:
    """The kept records, where is_kept, and copies of others[where] elsewhere."""
    if isinstance(others, FixedRecords):
        if not len(kept):
            return FixedRecords(others.rows.take(where, axis=0))
        if isinstance(kept, FixedRecords) and kept.size == others.size:
            found = np.empty((len(is_kept), others.size), np.uint8)
            found[is_kept], found[~is_kept] = kept.rows, others.rows[where]
            return FixedRecords(found)
        others = others.tolist()
    mine, rest = iter(kept), iter(where.tolist())
    return [next(mine) if has else copied(others[next(rest)]) for has in is_kept.tolist()]
