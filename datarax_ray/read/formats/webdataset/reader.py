"""Reads samples of tar files by global index: of each run of them in a file, the bytes at once."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import digest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.file_spans import FileSpans
from datarax_ray.read.formats.webdataset.shards import KEY, Shard, find_shards, samples

_END = bytes(1024)  # ends a tar


class BrokenSampleError(ValueError):
    """The bytes of a sample are there, and its members cannot be told apart."""


class WebDatasetReader:
    """The samples of many tar files under one index, [0, num_records), in the order of the files.

    A sample is a dict of its key, as "__key__", and the bytes of each of its members, by extension. Pickles: the index
    travels, so that only the first reader walks over the headers. Several threads may read, and close.
    """

    broken: type[Exception] = BrokenSampleError

    def __init__(self, filesystem: Any, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self._filesystem = filesystem
        self._starts = np.cumsum([0, *(len(shard.spans) for shard in self.shards)])
        self._files = FileSpans(filesystem, self.shards)

    @classmethod
    def of(cls, paths: Any, *, filesystem: Any = None) -> WebDatasetReader:
        """Index everything that `paths` names, in parallel; see shards.find_shards."""
        return cls(*find_shards(paths, filesystem))

    @property
    def num_records(self) -> int:
        return int(self._starts[-1])

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a sample, on average."""
        return sum(int((shard.spans[:, 1] - shard.spans[:, 0]).sum()) for shard in self.shards) // self.num_records

    def read(self, records: Indices) -> list[dict[str, Any]]:
        """The sample at each index, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenSampleError; OSError where a file is gone or its storage fails; ValueError where it is no longer
        the file that was indexed.
        """
        wanted, where = np.unique(records, return_inverse=True)
        found: list[dict[str, Any]] = []
        bounds = np.searchsorted(wanted, self._starts)
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            numbers = wanted[bounds[index] : bounds[index + 1]] - self._starts[index]
            stored = self._files.read(index, self.shards[index].spans[numbers])
            found += [self._sample(index, number, part) for number, part in zip(numbers.tolist(), stored, strict=True)]
        if len(where) == len(wanted):
            return [found[place] for place in where.tolist()]
        return [dict(found[place]) for place in where.tolist()]  # each is its reader's own

    def locate(self, record: int) -> str:
        """Where a sample is, for people: "path[number in the file]"."""
        index = int(np.searchsorted(self._starts, record, side="right")) - 1
        return f"{self.shards[index].path}[{record - int(self._starts[index])}]"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories, sizes, counts, members, and some bytes of each file."""
        return {
            "num_files": len(self.shards),
            "num_records": self.num_records,
            "nbytes": sum(shard.nbytes for shard in self.shards),
            "digest": digest([[os.path.basename(s.path), s.nbytes, len(s.spans), s.names] for s in self.shards]),
            "content": digest([shard.content for shard in self.shards]),
        }

    def close(self) -> None:
        """Close every open file. Reading again opens them again."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"filesystem": self._filesystem, "shards": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _sample(self, index: int, number: int, stored: bytes) -> dict[str, Any]:
        shard = self.shards[index]
        where = f"{shard.path}[{number}], at byte {shard.spans[number, 0]}"
        try:
            found = list(samples(io.BytesIO(stored + _END), len(stored)))
        except ValueError as error:
            raise BrokenSampleError(f"{where}: {error}") from error
        if len(found) != 1:
            raise BrokenSampleError(f"{where}: there are {len(found)} samples where one was when it was indexed")
        members = found[0].members.items()
        return {
            KEY: found[0].key,
            **{name: stored[info.offset_data : info.offset_data + info.size] for name, info in members},
        }
