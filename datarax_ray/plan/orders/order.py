"""The order: the pure function from a position in the endless stream to the record that stands there."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from datarax_ray.plan.orders import cipher
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups, slots
from datarax_ray.plan.state import StreamState, refuse_rest

Shuffle = Literal["none", "global", "block"]

# Blocks whose records are mixed with one another, unless an order says otherwise. 64 blocks of 256 records are 16,384
# records: a batch of 1,024 holds records of nearly all of them, and a window of 4 KB records is the 64 MiB that a few
# actors have in flight anyway.
WINDOW_BLOCKS = 64
# Between the seeds of windows: odd, and far from the 1 that lies between the seeds of epochs.
_WINDOW_STRIDE = 0x9E3779B1


@dataclass(frozen=True)
class Order:
    """Which record stands at each position: `shuffle(p mod N, seed = (seed + p div N) mod 2**32)`.

    num_records: N, records in one epoch, at least 1.
    seed: 32 bits; epoch e is shuffled by seed + e. Without shuffle it orders nothing (random transforms use it).
    shuffle: "none" is the order of the files; "global" is one permutation of all records per epoch; "block" permutes
        blocks of block_size consecutive records, then the records within each window of window_blocks blocks: files
        whose records are stored in groups are read a whole group at a time.
    block_size: records in a block, for "block"; the files' group size. Else 1.
    rounds: of the cipher, even. 8 by default; 4 is Grain's order bit for bit, with its weak spots (a lag-1
        correlation of 0.4 at a million records), and is refused where Grain's is no permutation.
    groups: where records are stored in groups of different sizes (row groups), those; for "block" they are the blocks,
        and block_size is 1. No other order depends on them.
    window_blocks: blocks in a window, for "block".

    Source: Grain's IndexSampler and index_shuffle.

    >>> Order(num_records=5, seed=42, shuffle="global").records(np.arange(10)).tolist()
    [1, 0, 2, 4, 3, 4, 2, 1, 3, 0]
    >>> Order(num_records=3).records(np.arange(7)).tolist()
    [0, 1, 2, 0, 1, 2, 0]
    """

    num_records: int
    seed: int = 0
    shuffle: Shuffle = "none"
    rounds: int = 8
    block_size: int = 1
    groups: RecordGroups | None = None
    window_blocks: int = WINDOW_BLOCKS

    may_differ: ClassVar[tuple[str, ...]] = ()  # see StatefulOrder

    def __post_init__(self) -> None:
        # plain ints: NumPy's overflow, and are not JSON
        for name in ("num_records", "seed", "rounds", "block_size", "window_blocks"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.shuffle not in ("none", "global", "block"):
            raise ValueError(f"shuffle must be 'none', 'global' or 'block', got {self.shuffle!r}")
        if self.block_size < 1 or (self.block_size > 1 and self.shuffle != "block"):
            raise ValueError(f"block_size must be at least 1, and 1 unless shuffle is 'block', got {self.block_size}")
        if self.window_blocks < 1:
            raise ValueError(f"window_blocks must be at least 1, got {self.window_blocks}")
        if self.groups is not None and (self.groups.num_records != self.num_records or self.block_size != 1):
            raise ValueError(
                f"groups of {self.groups.num_records} records in all and block_size={self.block_size} do not fit "
                f"num_records={self.num_records}; groups cover every record, and block_size is 1 then"
            )
        if self.shuffle == "block" and self.rounds == 4:
            raise ValueError("rounds=4 is for Grain's order, and Grain has no block order; use rounds=8 (the default)")
        cipher.check(self.num_records, seed=self.seed, rounds=self.rounds)
        if self.shuffle == "global" and self.rounds == 4 and cipher.grain_is_broken_at(self.num_records):
            raise ValueError(
                f"rounds=4 is Grain's order, and at num_records={self.num_records} Grain's order gives one record "
                "twice and the last never. Use rounds=8 (the default); a stream that Grain began cannot go on here."
            )

    @property
    def shortest_epoch(self) -> int:
        """Positions between two permutations; sys.maxsize where nothing is permuted."""
        return sys.maxsize if self.shuffle == "none" else self.num_records

    @property
    def cycle(self) -> int:
        """So many positions hold every record, from the beginning of an epoch on."""
        return self.num_records

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> None:
        """None: a position is all. Raises: ValueError where the state says more."""
        refuse_rest(rest)

    def records(self, positions: Indices) -> Indices:
        """The record at each position. positions: int64 (k,), ascending, >= 0. Returns int64 (k,), in [0, N)."""
        positions = np.asarray(positions, np.int64)
        if not positions.size:
            return positions
        first, last = int(positions[0]) // self.num_records, int(positions[-1]) // self.num_records
        if self.shuffle == "none":
            within = first * self.num_records  # a division is ten times a subtraction
            return positions - within if first == last else positions % self.num_records
        order = self._blocks if self.shuffle == "block" else self._permute
        records = np.empty_like(positions)
        cuts = np.searchsorted(positions, np.arange(first, last + 2) * self.num_records)
        for epoch, start, stop in zip(range(first, last + 1), cuts, cuts[1:], strict=False):
            if start < stop:
                offsets = positions[start:stop] - epoch * self.num_records
                records[start:stop] = order(offsets, (self.seed + epoch) % 2**32)
        return records

    def groups_in(self, start: int, stop: int) -> Indices:
        """The groups that the positions [start, stop) take records of, and perhaps others of their windows; distinct.

        For an order with groups, and "none" or "block".
        """
        assert self.groups is not None
        found: list[Indices] = []
        for epoch in range(start // self.num_records, -(-stop // self.num_records)):
            first = max(start - epoch * self.num_records, 0)
            last = min(stop - epoch * self.num_records, self.num_records) - 1
            if self.shuffle == "none":
                lo, hi = self.groups.of(np.array([first, last]))
                found.append(np.arange(lo, hi + 1))
                continue
            table = slots(self.groups, (self.seed + epoch) % 2**32, self.rounds)
            windows = table.windows(self.window_blocks)
            lo, hi = np.searchsorted(windows, [first, last], side="right") - 1
            found.append(table.order[lo * self.window_blocks : (hi + 1) * self.window_blocks])
        return np.unique(np.concatenate(found))

    def window_seed(self, seed: int, number: int) -> int:
        """The seed that mixes the window of this number, in an epoch with this seed."""
        return (seed + (number + 1) * _WINDOW_STRIDE) % 2**32

    def _permute(self, offsets: Indices, seed: int) -> Indices:
        return cipher.permute(offsets, self.num_records, seed=seed, rounds=self.rounds)

    def _blocks(self, offsets: Indices, seed: int) -> Indices:
        """Ascending offsets of one epoch: mixed within their windows, then put where their window's blocks are from."""
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
            inner = self.window_seed(seed, number + index)
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
        slots, within = np.divmod(np.where(offsets < end_of_short, offsets, offsets + missing), self.block_size)
        return cipher.permute(slots, num_blocks, seed=seed, rounds=self.rounds) * self.block_size + within
