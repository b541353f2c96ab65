"""File order, the global shuffle and the block shuffle, and every order by the name that it has in configs and states.

The block shuffle permutes blocks of records over the epoch, then the records within each window of blocks. Files that
store records in groups are then read a whole group at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders import cipher
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
from datarax_ray.plan.orders.record_groups import slots
from datarax_ray.plan.runs import ranges

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


# Blocks of a window by default. 64 blocks of 256 records are 16,384 records: a batch of 1,024 has records of nearly all
# blocks, and a window of 4 KB records is the 64 MiB that a few actors have in flight anyway.
WINDOW_BLOCKS = 64
# Stored bytes of a window of small blocks: some tens of MiB once decoded, more than caches and less than memory.
_SMALL_WINDOW_NBYTES = 8 * 2**20
# Stored bytes of a window of large blocks, of which fewer than WINDOW_BLOCKS must do: all are decoded in memory.
_LARGE_WINDOW_NBYTES = 256 * 2**20
# Smaller windows are mixed forwards, by the table: walking back into so few records takes as long.
_SMALL_WINDOW = 2**12
# Records of an owner in a span of windows: 13 ms to find, and 1 MiB to remember.
_HELD = 2**16
# Between the seeds of windows: odd, and far from the 1 that lies between the seeds of epochs.
_WINDOW_STRIDE = 0x9E3779B1


def blocks_in_window(block_size: int, record_nbytes: int) -> int:
    """Blocks of a window where blocks are the groups of files: 8 MiB stored, at least 64 blocks, but at most 256 MiB.

    Windows of small blocks have at most a power of four of records: the cipher takes four times as long for one more.

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

    block_size: records in a block, the files' group size; 1 where the order has groups, which are the blocks.

    >>> BlockShuffle(6, seed=1, block_size=2, window_blocks=2).records(np.arange(6)).tolist()
    [0, 4, 1, 5, 2, 3]
    """

    block_size: int = 1
    window_blocks: int = WINDOW_BLOCKS

    shuffle: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("block_size", "window_blocks"):
            whole(name, getattr(self, name), least=1)
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
        """The blocks are the runs, so one actor reads a whole block."""
        return Partitioning(self.block_size, MAX_NUM_PARTITIONS, by_group=self.groups is not None)

    def permuted(self, offsets: Indices, seed: int) -> Indices:
        """Mix offsets within windows, then go from slots to blocks."""
        first, last = self._windows_of(offsets[[0, -1]], seed).tolist()
        mixed = self._mix(offsets, self._begins(first, last, seed), seed, first)
        if self.groups is not None:
            return slots(self.groups, seed, self.rounds).records(mixed)
        return self._permute_blocks(mixed, seed)

    def _windows_of(self, offsets: Indices, seed: int) -> Indices:
        if self.groups is None:
            return offsets // (self.window_blocks * self.block_size)
        begins = slots(self.groups, seed, self.rounds).windows(self.window_blocks)
        return np.searchsorted(begins, offsets, side="right") - 1

    def _begins(self, first: int, last: int, seed: int) -> Indices:
        """The first offset of each window from first to last, and the end of the last."""
        if self.groups is None:
            window = self.window_blocks * self.block_size
            return np.minimum(np.arange(first, last + 2) * window, self.num_records)
        return slots(self.groups, seed, self.rounds).windows(self.window_blocks)[first : last + 2]

    def _mix(self, offsets: Indices, begins: Indices, seed: int, number: int) -> Indices:
        """Ascending offsets permuted within their windows [begins[i], begins[i + 1]); the first has this number."""
        mixed = np.empty_like(offsets)
        cuts = np.searchsorted(offsets, begins)
        for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
            begin, size = int(begins[index]), int(begins[index + 1] - begins[index])
            inner = _window_seed(seed, number + index)
            mixed[start:stop] = begin + cipher.permute(
                offsets[start:stop] - begin, size, seed=inner, rounds=self.rounds
            )
        return mixed

    def _permute_blocks(self, offsets: Indices, seed: int) -> Indices:
        """The record at each offset, where blocks of one size are permuted and keep their records in order."""
        num_blocks, missing, short = self._short(seed)
        end_of_short = (short + 1) * self.block_size - missing
        places, within = np.divmod(np.where(offsets < end_of_short, offsets, offsets + missing), self.block_size)
        return cipher.permute(places, num_blocks, seed=seed, rounds=self.rounds) * self.block_size + within

    def _short(self, seed: int) -> tuple[int, int, int]:
        """For blocks of one size: their number, the records missing in the last one, and the slot of the last one.

        Slot j of the epoch holds block permute(j). Behind the short block, offsets are `missing` less than otherwise.
        """
        num_blocks = -(-self.num_records // self.block_size)
        short = int(cipher.invert(np.array([num_blocks - 1]), num_blocks, seed=seed, rounds=self.rounds)[0])
        return num_blocks, num_blocks * self.block_size - self.num_records, short

    def _slots_in(self, begin: int, end: int, seed: int) -> tuple[Indices, Indices, Indices, Indices]:
        """Slots with offsets in [begin, end): block, begin, size and first record of each."""
        ends = np.array([begin, end - 1])
        if self.groups is not None:
            table = slots(self.groups, seed, self.rounds)
            first, last = table.finder.of(ends).tolist()
            begins, blocks = table.begins[first : last + 2], table.order[first : last + 1]
            return blocks, begins[:-1], np.diff(begins), begins[:-1] + table.shift[first : last + 1]
        (num_blocks, missing, short), size = self._short(seed), self.block_size
        first, last = ((ends + missing * (ends >= (short + 1) * size - missing)) // size).tolist()
        places = np.arange(first, last + 1)
        blocks = cipher.permute(places, num_blocks, seed=seed, rounds=self.rounds)
        return blocks, places * size - missing * (places > short), size - missing * (places == short), blocks * size

    def touched(self, partitioning: Partitioning, start: int, stop: int) -> Sequence[int]:
        """The partitions of all groups of the windows; all partitions for blocks of one size."""
        if self.groups is None:
            return super().touched(partitioning, start, stop)
        size, groups = self.window_blocks, []
        for epoch, *ends in self.in_epochs(start, stop):
            seed = self.epoch_seed(epoch)
            first, last = self._windows_of(np.array(ends), seed).tolist()
            groups.append(slots(self.groups, seed, self.rounds).order[first * size : (last + 1) * size])
        touched: list[int] = np.unique(np.concatenate(groups) % partitioning.num_partitions).tolist()
        return touched

    def owned_positions(
        self, partitioning: Partitioning, partitions: tuple[int, ...], start: int, stop: int
    ) -> tuple[Indices, Indices] | None:
        share = partitioning.share_of(partitions)
        block_size = self.num_records // len(self.groups) if self.groups else self.block_size
        window = min(self.window_blocks * block_size, self.num_records)
        if window < _SMALL_WINDOW or num_spans(window, share) != 1:  # else forwards, where a table serves a window
            return None
        most = max(1, int(_HELD / (window * share)))  # windows of a span

        def held_in(span: Span) -> tuple[Indices, Indices]:
            seed, first = span.seed, span.number * most
            begins = self._begins(first, first + most - 1, seed)
            begins = begins[: int(np.searchsorted(begins, self.num_records)) + 1]
            blocks, at, sizes, records = self._slots_in(int(begins[0]), int(begins[-1]), seed)
            mine = np.isin(blocks % partitioning.num_partitions, partitions)
            at, ends, records = at[mine], (at + sizes)[mine], records[mine]
            lo, hi = np.maximum(at, begins[0]), np.minimum(ends, begins[-1])
            offsets = ranges(lo, hi - lo)
            records = offsets + np.repeat(records - at, hi - lo)
            which = np.repeat(np.arange(len(begins) - 1), np.diff(np.searchsorted(offsets, begins)))
            seeds = [_window_seed(seed, number) for number in range(first, first + len(begins) - 1)]
            places = offsets - begins[which]
            places = cipher.invert_each(places, which, np.diff(begins), seeds, rounds=self.rounds)
            return places + begins[which] - begins[0], records

        spans = []
        for epoch, *ends in self.in_epochs(start, stop):
            seed = self.epoch_seed(epoch)
            first, last = (self._windows_of(np.array(ends), seed) // most).tolist()
            for number in range(first, last + 1):
                begins = self._begins(number * most, (number + 1) * most - 1, seed)
                begin, size = int(begins[0]), int(begins[-1] - begins[0])
                spans.append(Span(epoch * self.num_records + begin, size, seed, number))
        return self._owned.find((partitioning, partitions), most * window * share, start, stop, spans, held_in)


def _window_seed(seed: int, number: int) -> int:
    return (seed + (number + 1) * _WINDOW_STRIDE) % 2**32


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
