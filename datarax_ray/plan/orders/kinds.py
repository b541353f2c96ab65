"""File order, the global shuffle, and every order by the name that it has in configs and states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.block_shuffle import BlockShuffle
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import (
    MAX_NUM_PARTITIONS,
    EpochOrder,
    Partitioning,
    RunRecords,
    Span,
    num_spans,
    strips,
)
from datarax_ray.plan.position import ranges

Shuffle = Literal["none", "global", "block"]


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
        """Neighbouring runs, or groups, in different partitions, or one actor would work while the rest wait.

        >>> FileOrder(num_records=10_000).partitioning(64).num_partitions
        1024
        """
        assert isinstance(run_records, int)
        return Partitioning(max(1, run_records), MAX_NUM_PARTITIONS, by_group=self.groups is not None)

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """Exactly the partitions of the runs that the chunk crosses.

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
        """Found run by run: there are many fewer runs than positions. None for a whole epoch and more."""
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


@dataclass(frozen=True)
class GlobalShuffle(EpochOrder):
    """Record shuffle(p mod N, seed = (seed + p div N) mod 2**32) at position p.

    rounds: 4 gives Grain's order bit for bit, with its lag-1 correlation of 0.4 at a million records, and is refused
        where Grain's order is no permutation.

    Source: Grain's IndexSampler and index_shuffle.

    >>> GlobalShuffle(num_records=5, seed=42).records(np.arange(10)).tolist()
    [1, 0, 2, 4, 3, 4, 2, 1, 3, 0]
    """

    shuffle: ClassVar[str] = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds == 4 and cipher.grain_is_broken_at(self.num_records):
            raise ValueError(
                f"rounds=4 is Grain's order, which at num_records={self.num_records} gives one record twice and the "
                "last never. Use rounds=8 (the default); a stream that Grain began cannot go on here."
            )

    def permuted(self, offsets: Indices, seed: int) -> Indices:
        return cipher.permute(offsets, self.num_records, seed=seed, rounds=self.rounds)

    def settings(self) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "seed": self.seed, "rounds": self.rounds}

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """A partition is one large run: every chunk touches all partitions, and an actor opens few files.

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


# A new order is a class, and its name here.
KINDS: dict[str, type[EpochOrder]] = {kind.shuffle: kind for kind in (FileOrder, GlobalShuffle, BlockShuffle)}


def order_of(num_records: int, seed: int = 0, shuffle: Shuffle = "none", rounds: int = 8, **options: Any) -> EpochOrder:
    """The order of this name. options: further arguments of the order.

    >>> order_of(100, seed=7, shuffle="block", block_size=8).settings()["block_size"]
    8
    """
    if not isinstance(shuffle, str) or shuffle not in KINDS:
        *others, last = map(repr, KINDS)
        raise ValueError(f"shuffle must be {', '.join(others)} or {last}, got {shuffle!r}")
    return KINDS[shuffle](num_records, seed, rounds, **options)
