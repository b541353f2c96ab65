"""Record groups: records stored and read together, in groups of any sizes, and their permutation in an epoch.

Legend: group g is the records [starts[g], starts[g + 1]); slot j of an epoch holds group `order[j]`; slots follow one
another without a gap, so slot j is the offsets [begins[j], begins[j + 1]) of the epoch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices

_MAX_STEPS = 8  # each costs a look at every index


class RecordGroups:
    """Consecutive groups of records, each at least 1 record long. Equal where their sizes are; pickles.

    >>> groups = RecordGroups([3, 2])
    >>> groups.starts.tolist(), groups.of(np.array([0, 2, 3])).tolist()
    ([0, 3, 5], [0, 0, 1])
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        array = np.fromiter(sizes, np.int64)
        if not array.size or array.min() < 1:
            raise ValueError(f"groups hold at least one record each, got sizes {array[:10].tolist()}")
        self.starts: Indices = np.concatenate([[0], np.cumsum(array)])
        self._finder = _Finder(self.starts)
        # for states: there may be a million groups
        self.digest = hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_records(self) -> int:
        return int(self.starts[-1])

    def of(self, records: Indices) -> Indices:
        """The group of each record. records: int64 (k,), in [0, num_records)."""
        return self._finder.of(records)

    def merged(self, most: int) -> RecordGroups:
        """Merge neighbouring groups until at most `most` remain.

        >>> np.diff(RecordGroups([3, 2, 2, 1, 4]).merged(3).starts).tolist()
        [5, 3, 4]
        """
        count = -(-len(self) // most)
        return self if count == 1 else RecordGroups(np.diff(np.append(self.starts[:-1:count], self.starts[-1])))

    def times_decoded(self, block_size: int) -> float:
        """How often an epoch decodes a record, on average, where it reads blocks of this many records one by one.

        >>> [RecordGroups([4, 4]).times_decoded(block_size) for block_size in (8, 4, 3, 1)]
        [1.0, 1.0, 2.0, 4.0]
        """
        num_blocks = (self.starts[1:] - 1) // block_size - self.starts[:-1] // block_size + 1
        return int(np.diff(self.starts) @ num_blocks) / self.num_records

    def __reduce__(self) -> tuple[type[RecordGroups], tuple[Indices]]:
        return RecordGroups, (np.diff(self.starts),)  # the finder is rebuilt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordGroups) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"RecordGroups({len(self)} of {self.num_records} records, {self.digest})"


@dataclass(frozen=True)
class EpochGroups:
    """One epoch's permutation of the groups.

    order: int64 (g,).
    begins: int64 (g + 1,).
    shift: of slot to records.
    """

    order: Indices
    begins: Indices
    shift: Indices
    finder: _Finder

    def records(self, offsets: Indices) -> Indices:
        """The record at each offset of the epoch, where groups keep their records in order."""
        return offsets + self.shift[self.finder.of(offsets)]

    def windows(self, num_slots: int) -> Indices:
        """Where each window of so many slots begins, and the end of the last."""
        return np.append(self.begins[:-1:num_slots], self.begins[-1])


def slots(groups: RecordGroups, seed: int, rounds: int) -> EpochGroups:
    return (_few_slots if len(groups) <= _FEW else _many_slots)(groups, seed, rounds)


def _made_slots(groups: RecordGroups, seed: int, rounds: int) -> EpochGroups:
    order = cipher.permute(np.arange(len(groups)), len(groups), seed=seed, rounds=rounds)
    begins = np.concatenate([[0], np.cumsum(np.diff(groups.starts)[order])])
    return EpochGroups(order, begins, groups.starts[order] - begins[:-1], _Finder(begins))


# A table is 24 bytes a group, and chunks of a few epochs are in flight; of very few groups they span hundreds.
_FEW = 2**8
_few_slots = functools.lru_cache(maxsize=512)(_made_slots)
_many_slots = functools.lru_cache(maxsize=8)(_made_slots)


class _Finder:
    """Finds the run of each index: the first run of its bucket, or one of the few later ones in the bucket.

    For the random indices of a shuffle this takes a fifth of searchsorted's time, which mispredicts every branch.
    """

    def __init__(self, starts: Indices) -> None:
        self._starts = starts
        self._ends = starts[1:]
        self._bits = int(starts[-1] // (len(starts) - 1)).bit_length() - 1  # at most two buckets for each run
        num_buckets = (int(starts[-1]) >> self._bits) + 1
        self._first = self._search(np.arange(num_buckets + 1, dtype=np.int64) << self._bits)
        self._num_steps = int(np.diff(self._first).max())

    def of(self, indices: Indices) -> Indices:
        if self._num_steps > _MAX_STEPS:  # runs of very different lengths
            return self._search(indices)
        found = self._first[indices >> self._bits]
        for _ in range(self._num_steps):
            found += indices >= self._ends[found]
        return found

    def _search(self, indices: Indices) -> Indices:
        found: Indices = np.searchsorted(self._starts, indices, side="right") - 1
        return np.minimum(found, len(self._starts) - 2)
