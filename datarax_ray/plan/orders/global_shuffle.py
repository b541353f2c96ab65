"""The global shuffle: every epoch is one permutation of all records, by the cipher."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, EpochOrder, Partitioning, RunRecords
from datarax_ray.plan.orders.owned_positions import Span, num_spans, strips


@dataclass(frozen=True)
class GlobalShuffle(EpochOrder):
    """Record shuffle(p mod N, seed = (seed + p div N) mod 2**32) at position p.

    rounds: 4 is Grain's order bit for bit, with its weak spots (a lag-1 correlation of 0.4 at a million records); it is
    refused where Grain's is no permutation.

    Source: Grain's IndexSampler and index_shuffle.

    >>> GlobalShuffle(num_records=5, seed=42).records(np.arange(10)).tolist()
    [1, 0, 2, 4, 3, 4, 2, 1, 3, 0]
    """

    shuffle: ClassVar[str] = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds == 4 and cipher.grain_is_broken_at(self.num_records):
            raise ValueError(
                f"rounds=4 is Grain's order, and at num_records={self.num_records} Grain's order gives one record "
                "twice and the last never. Use rounds=8 (the default); a stream that Grain began cannot go on here."
            )

    def permuted(self, offsets: Indices, seed: int) -> Indices:
        return cipher.permute(offsets, self.num_records, seed=seed, rounds=self.rounds)

    def settings(self) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "seed": self.seed, "rounds": self.rounds}

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """A partition is one large run: every chunk touches all of them anyway, and an actor has few files.

        >>> GlobalShuffle(num_records=10_000).partitioning(64)
        Partitioning(run_records=10, num_partitions=1000, by_group=False, is_dealt=False, components=())
        """
        run = math.ceil(self.num_records / MAX_NUM_PARTITIONS)
        return Partitioning(run, math.ceil(self.num_records / run), is_dealt=False)

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        n, run = self.num_records, partitioning.run_records
        share = partitioning.share_of(partitions)
        count = num_spans(n, share)
        if n <= cipher.TABLE_LIMIT or count is None:  # forwards is a lookup
            return None
        size = -(-n // count)

        def held_in(span: Span) -> tuple[Indices, Indices]:
            starts = np.minimum(np.array(partitions, np.int64) * run, n)  # each partition is one run; some have none
            first, held = span.number * size, []
            for records in strips(starts, np.minimum(starts + run, n) - starts):
                offsets = cipher.invert(records, n, seed=span.seed, rounds=self.rounds) - first
                inside = (offsets >= 0) & (offsets < span.size)
                held.append((offsets[inside], records[inside]))
            return np.concatenate([offsets for offsets, _ in held]), np.concatenate([records for _, records in held])

        spans = [
            Span(epoch * n + number * size, min(size, n - number * size), self.epoch_seed(epoch), number)
            for epoch, first, last in self.in_epochs(start, stop)
            for number in range(first // size, last // size + 1)
        ]
        return self._owned.find((partitioning, partitions), size * share, start, stop, spans, held_in)
