"""Reads samples of tar files by global index: of each run of them in a file, the bytes at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats.file_spans import RecordsInFiles
from datarax_ray.read.formats.webdataset.shards import KEY, Shard, find_shards, samples

_END = bytes(1024)  # ends a tar


class BrokenSampleError(ValueError):
    """The bytes of a sample are there, and its members cannot be told apart."""


class WebDatasetReader(RecordsInFiles):
    """The samples of many tar files; see RecordsInFiles.

    A sample is a dict of its key, as "__key__", and the bytes of each of its members, by extension.
    """

    broken: type[Exception] = BrokenSampleError

    def __init__(self, filesystem: Any, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        super().__init__(
            {"filesystem": filesystem, "shards": self.shards},
            self.shards,
            (len(shard.spans) for shard in self.shards),
            lambda shard: (len(shard.spans), shard.names),
        )

    @classmethod
    def of(cls, paths: Any, *, filesystem: Any = None) -> WebDatasetReader:
        """Index everything that `paths` names, in parallel; see shards.find_shards."""
        return cls(*find_shards(paths, filesystem))

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a sample, on average."""
        return sum(int((shard.spans[:, 1] - shard.spans[:, 0]).sum()) for shard in self.shards) // self.num_records

    def read(self, records: Indices) -> list[dict[str, Any]]:
        """The sample at each index, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenSampleError; OSError where a file is gone or its storage fails; ValueError where it is no longer
        the file that was indexed.
        """
        found: list[dict[str, Any]] = []
        parts, where = self._by_file(records)
        for index, numbers in parts:
            stored = self._spans.read(index, self.shards[index].spans[numbers])
            found += [self._sample(index, number, part) for number, part in zip(numbers.tolist(), stored, strict=True)]
        if len(where) == len(found):
            return [found[place] for place in where]
        return [dict(found[place]) for place in where]  # each is its reader's own

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
