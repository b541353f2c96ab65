"""A reader that keeps in memory what it has read, so that later epochs do not touch the files."""

from __future__ import annotations

from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.elements.owning import copied
from datarax_ray.read.stream import Reader


def cached(reader: Reader) -> Reader:
    """The reader with a memory: its own way to keep what it reads where it has one (`cached()`), else CachedReader."""
    keeping = getattr(reader, "cached", None)
    found: Reader = CachedReader(reader) if keeping is None else keeping()
    return found


class CachedReader:
    """Another reader's records, kept as they are stored; the cache grows up to all the records that are asked for.

    Those that a transform could change are given as copies. In an actor they are the records of its partitions, so the
    cluster's memory holds the dataset once. The cache is not pickled, and no part of a fingerprint.
    """

    keeps_records = True

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._records: dict[int, Any] = {}

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
        if missing := _missing(records.tolist(), self._records):
            self._reader.expect(np.array(missing, np.int64))  # type: ignore[attr-defined]  # see reads_ahead

    def read(self, records: Indices) -> list[Any]:
        wanted = records.tolist()
        kept = self._records  # this one, also where another thread clears the reader meanwhile
        missing = _missing(wanted, kept)
        if missing:
            found = self._reader.read(np.array(missing, np.int64))
            kept.update(zip(missing, found, strict=True))
        return [copied(kept[record]) for record in wanted]

    def locate(self, record: int) -> str:
        return self._reader.locate(record)

    def fingerprint(self) -> dict[str, Any]:
        return self._reader.fingerprint()

    def clear(self) -> None:
        """Forget every record."""
        self._records = {}

    def close(self) -> None:
        self.clear()
        self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_reader": self._reader, "_records": {}}


def _missing(wanted: list[int], kept: dict[int, Any]) -> list[int]:
    return sorted({record for record in wanted if record not in kept})
