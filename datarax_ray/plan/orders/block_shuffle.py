"""The block shuffle: permute blocks of records over the epoch, then the records within each window of blocks.

Files whose records are stored in groups are read a whole group at a time so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import MAX_NUM_PARTITIONS, EpochOrder, Partitioning, RunRecords
from datarax_ray.plan.orders.owned_positions import Span, ranges
from datarax_ray.plan.orders.record_groups import EpochGroups, slots

# Blocks whose records are mixed with one another, unless an order says otherwise. 64 blocks of 256 records are 16,384
# records: a batch of 1,024 holds records of nearly all of them, and a window of 4 KB records is the 64 MiB that a few
# actors have in flight anyway.
WINDOW_BLOCKS = 64
# Stored bytes of a window whose blocks are small: some tens of MiB once decoded, more than caches and less than memory.
_SMALL_WINDOW_NBYTES = 8 * 2**20
# Likewise of one whose blocks are so large that fewer than WINDOW_BLOCKS must do: all of it is in memory, decoded.
_LARGE_WINDOW_NBYTES = 256 * 2**20
# Between the seeds of windows: odd, and far from the 1 that lies between the seeds of epochs.
_WINDOW_STRIDE = 0x9E3779B1


def blocks_in_window(block_size: int, record_nbytes: int) -> int:
    """Blocks that are mixed with one another, where blocks are the groups of files: 8 MiB of them as they are stored,
    at least 64; fewer only where these are more than 256 MiB.

    Small ones are a power of four of records, or somewhat less: the cipher takes four times as long for one more.

    >>> [blocks_in_window(*sizes) for sizes in ((256, 24), (256, 4096), (256, 150_000), (10**6, 4096))]
    [1024, 64, 6, 1]
    """
    most = max(1, _SMALL_WINDOW_NBYTES // max(1, record_nbytes))
    small = 4 ** ((most.bit_length() - 1) // 2) // block_size
    large = _LARGE_WINDOW_NBYTES // max(1, block_size * record_nbytes)
    return max(1, small, min(WINDOW_BLOCKS, large))


@dataclass(frozen=True)
class BlockShuffle(EpochOrder):
    """Blocks in a permuted order, and their records mixed within windows of window_blocks blocks.

    block_size: records in a block, the files' group size; where the order has groups these are the blocks, and it is 1.

    >>> BlockShuffle(6, seed=1, block_size=2, window_blocks=2).records(np.arange(6)).tolist()
    [0, 4, 1, 5, 2, 3]
    """

    block_size: int = 1
    window_blocks: int = WINDOW_BLOCKS

    shuffle: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("block_size", "window_blocks"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.groups is not None and self.block_size != 1:
            raise ValueError(
                f"groups are the blocks where there are any, and block_size is 1 then, got {self.block_size}"
            )
        if self.rounds == 4:
            raise ValueError("rounds=4 is for Grain's order, and Grain has no block order; use rounds=8 (the default)")

    def settings(self) -> dict[str, Any]:
        return {
            "shuffle": self.shuffle,
            "seed": self.seed,
            "rounds": self.rounds,
            "block_size": self.block_size if self.groups is None else self.groups.digest,
            "window_blocks": self.window_blocks,
        }

    def partitioning(self, run_records: RunRecords) -> Partitioning:
        """The blocks are the runs, so that one actor reads the whole of one."""
        return Partitioning(self.block_size, MAX_NUM_PARTITIONS, by_group=self.groups is not None)

    def permuted(self, offsets: Indices, seed: int) -> Indices:
        """Mixed within their windows, then put where their window's blocks are from."""
        if self.groups is not None:
            table = slots(self.groups, seed, self.rounds)
            return table.records(self._mix(offsets, table.windows(self.window_blocks), seed))
        window = self.window_blocks * self.block_size
        first, last = int(offsets[0]) // window, int(offsets[-1]) // window
        begins = np.minimum(np.arange(first, last + 2) * window, self.num_records)
        return self._permute_blocks(self._mix(offsets, begins, seed, first), seed)

    def _mix(self, offsets: Indices, begins: Indices, seed: int, number: int = 0) -> Indices:
        """Ascending offsets permuted within their windows [begins[i], begins[i + 1]); the first has this number."""
        mixed = np.empty_like(offsets)
        first, last = np.searchsorted(begins, offsets[[0, -1]], side="right") - 1
        cuts = np.searchsorted(offsets, begins[first : last + 2])
        for index, start, stop in zip(range(int(first), int(last) + 1), cuts, cuts[1:], strict=False):
            begin, size = int(begins[index]), int(begins[index + 1] - begins[index])
            inner = _window_seed(seed, number + index)
            mixed[start:stop] = begin + cipher.permute(
                offsets[start:stop] - begin, size, seed=inner, rounds=self.rounds
            )
        return mixed

    def _permute_blocks(self, offsets: Indices, seed: int) -> Indices:
        """Where an offset is when blocks are permuted and keep their records in order.

        Slot j of the epoch holds block permute(j). All blocks have block_size records but the last of the data, which
        stands in some slot: behind that slot, offsets lie `missing` records further on than slots of one size would.
        """
        num_blocks = -(-self.num_records // self.block_size)
        missing = num_blocks * self.block_size - self.num_records
        short = int(cipher.invert(np.array([num_blocks - 1]), num_blocks, seed=seed, rounds=self.rounds)[0])
        end_of_short = (short + 1) * self.block_size - missing
        places, within = np.divmod(np.where(offsets < end_of_short, offsets, offsets + missing), self.block_size)
        return cipher.permute(places, num_blocks, seed=seed, rounds=self.rounds) * self.block_size + within

    def _windows(self, start: int, stop: int) -> Iterator[tuple[int, EpochGroups, int, int]]:
        """The windows [lo, hi) of groups that [start, stop) touches: (epoch, its groups, lo, hi) for each epoch."""
        assert self.groups is not None
        for epoch, *ends in self.in_epochs(start, stop):
            table = slots(self.groups, self.epoch_seed(epoch), self.rounds)
            lo, last = np.searchsorted(table.windows(self.window_blocks), ends, side="right").tolist()
            yield epoch, table, lo - 1, last

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """Those of all groups of the windows; all partitions where blocks are of one size."""
        if self.groups is None:
            return super().touched(partitioning, start, stop)
        size = self.window_blocks
        groups = np.concatenate([table.order[lo * size : hi * size] for _, table, lo, hi in self._windows(start, stop)])
        touched: list[int] = np.unique(groups % partitioning.num_partitions).tolist()
        return touched

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        groups, size = self.groups, self.window_blocks
        if groups is None:
            return None

        def held_in(span: Span) -> tuple[Indices, Indices]:
            table, first = slots(groups, span.seed, self.rounds), span.number * size
            window = np.arange(first, min(first + size, len(groups)))
            mine = window[np.isin(table.order[window] % partitioning.num_partitions, partitions)]
            sizes = table.begins[mine + 1] - table.begins[mine]
            before = ranges(table.begins[mine], sizes)
            places, records = before - table.begins[first], before + np.repeat(table.shift[mine], sizes)
            seed = _window_seed(span.seed, span.number)
            return cipher.invert(places, span.size, seed=seed, rounds=self.rounds), records

        spans = []
        for epoch, table, lo, hi in self._windows(start, stop):
            begins = table.windows(size)[lo : hi + 1].tolist()
            for number, (begin, end) in enumerate(itertools.pairwise(begins), lo):
                spans.append(Span(epoch * self.num_records + begin, end - begin, self.epoch_seed(epoch), number))
        share = partitioning.share_of(partitions)
        return self._owned.find((partitioning, partitions), share, start, stop, spans, held_in)


def _window_seed(seed: int, number: int) -> int:
    """What mixes the window of this number, in an epoch with this seed."""
    return (seed + (number + 1) * _WINDOW_STRIDE) % 2**32
