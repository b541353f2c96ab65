"""A reader that keeps in memory what it has read, so that later epochs do not touch the files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.kept_records import KeptRecords, fixed, merged
from datarax_ray.read.laps import lap
from datarax_ray.read.stream import Reader


def cached(reader: Reader, max_nbytes: int | None = None) -> Reader:
    """The reader with a memory: its own way to keep what it reads where it has one (`cached()`), else CachedReader.

    max_nbytes: of what is kept in a process, None for no bound.
    """
    keeping = getattr(reader, "cached", None)
    found: Reader = CachedReader(reader, max_nbytes) if keeping is None else keeping(max_nbytes or sys.maxsize)
    return found


class CachedReader:
    """Another reader's records, kept as they are stored, as far as max_nbytes of them go; see KeptRecords.

    What is given is the caller's own, as a transform could change it. In an actor they are the records of its
    partitions, so the cluster's memory holds the dataset once. The cache is not pickled, and no part of a fingerprint.
    """

    keeps_records = True

    def __init__(self, reader: Reader, max_nbytes: int | None = None) -> None:
        self._reader = reader
        self._max_nbytes = max_nbytes
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
    def is_managed(self) -> bool:
        return getattr(self._reader, "is_managed", False)

    @property
    def homes(self) -> Any:
        return getattr(self._reader, "homes", None)

    @property
    def broken(self) -> type[Exception]:
        return self._reader.broken

    @property
    def reads_ahead(self) -> bool:
        return getattr(self._reader, "reads_ahead", False)

    def expect(self, records: Indices) -> None:
        with self._lock:
            missing = np.unique(records[self._kept.find(records) < 0])
        if len(missing):
            self._reader.expect(missing)  # type: ignore[attr-defined]  # see reads_ahead

    def counts(self) -> dict[str, int]:
        """What is kept now, and how many records came from there so far, and how many did not."""
        kept = self._kept
        return {"num_kept": kept.num_records, "kept_nbytes": kept.nbytes, **self._counts}

    def read(self, records: Indices) -> Sequence[Any]:
        return self.read_at(np.zeros(len(records), np.int64), records)

    def read_at(self, positions: Indices, records: Indices) -> Sequence[Any]:
        """As read, for these positions of the stream, ascending."""
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
        others = fixed(getattr(self._reader, "read_rows", self._reader.read)(missing))
        with self._lock, lap("memory"):
            kept.add(missing, others, epoch)
            return merged(is_kept, found, others, where)

    def locate(self, record: int) -> str:
        return self._reader.locate(record)

    def fingerprint(self) -> dict[str, Any]:
        return self._reader.fingerprint()

    def clear(self) -> None:
        """Forget every record."""
        self._kept = KeptRecords(self._reader.num_records, self._max_nbytes)

    def close(self) -> None:
        self.clear()
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedReader, (self._reader, self._max_nbytes)
