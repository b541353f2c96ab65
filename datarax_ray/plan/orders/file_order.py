"""The order of the files: record p mod N at position p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, EpochOrder, Partitioning, RunRecords
from datarax_ray.plan.runs import ranges


@dataclass(frozen=True)
class FileOrder(EpochOrder):
    """Records as they are stored, epoch after epoch. The seed orders nothing.

    >>> FileOrder(num_records=3).records(np.arange(7)).tolist()
    [0, 1, 2, 0, 1, 2, 0]
    """

    shuffle: ClassVar[str] = "none"
    is_shuffled: ClassVar[bool] = False

    def permuted(self, offsets: Indices, seed: int) -> Indices:
        return offsets

    def records(self, positions: Indices) -> Indices:
        positions = np.asarray(positions, np.int64)
        if not positions.size:
            return positions
        first, last = int(positions[0]) // self.num_records, int(positions[-1]) // self.num_records
        # a division is ten times a subtraction
        return positions - first * self.num_records if first == last else positions % self.num_records

    def settings(self) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "seed": self.seed}

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """Consecutive runs, or groups, to different partitions, or one actor would work while the rest wait.

        >>> FileOrder(num_records=10_000).partitioning(64).num_partitions
        1024
        """
        assert isinstance(run_records, int)
        return Partitioning(max(1, run_records), MAX_NUM_PARTITIONS, by_group=self.groups is not None)

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """Exactly those of the runs that it crosses.

        >>> FileOrder(num_records=10).touched(Partitioning(run_records=4, num_partitions=3), start=2, stop=6)
        [0, 1]
        """
        is_whole = stop - start >= self.num_records
        spans = [(0, self.num_records - 1)] if is_whole else [span for _, *span in self.in_epochs(start, stop)]
        found = []
        for span in spans:
            ends = np.array(span)
            runs = self.groups.of(ends) if partitioning.by_group and self.groups else ends // partitioning.run_records
            first, last = runs.tolist()
            found.append(np.arange(first, min(last + 1, first + partitioning.num_partitions)))
        touched: list[int] = np.unique(np.concatenate(found) % partitioning.num_partitions).tolist()
        return touched

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        """Run by run, of which there are many fewer than positions. None for a whole epoch and more."""
        if stop - start >= self.num_records:
            return None
        owned = np.zeros(partitioning.num_partitions, bool)
        owned[list(partitions)] = True
        groups, size = self.groups if partitioning.by_group else None, partitioning.run_records
        positions, records = [], []
        for epoch, *ends in self.in_epochs(start, stop):
            first, last = (groups.of(np.array(ends)) if groups else np.array(ends) // size).tolist()
            runs = np.arange(first, last + 1)
            runs = runs[owned[runs % partitioning.num_partitions]]
            begins, stops = (
                (groups.starts[runs], groups.starts[runs + 1]) if groups else (runs * size, (runs + 1) * size)
            )
            begins = np.maximum(begins, ends[0])
            records.append(ranges(begins, np.minimum(stops, ends[1] + 1) - begins))
            positions.append(records[-1] + epoch * self.num_records)
        return np.concatenate(positions), np.concatenate(records)
