"""The order: the pure function from a position in the endless stream to the record that stands there."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from datarax_ray.plan import cipher
from datarax_ray.plan.cipher import Indices

Shuffle = Literal["none", "global"]


@dataclass(frozen=True)
class Order:
    """Which record stands at each position: `shuffle(p mod N, seed = (seed + p div N) mod 2**32)`.

    num_records: N, records in one epoch, at least 1.
    seed: 32 bits; epoch e is shuffled by seed + e. Without shuffle it orders nothing (random transforms use it).
    shuffle: "none" is the order of the files; "global" is one permutation of all records per epoch.
    rounds: of the cipher, even. 8 by default; 4 is Grain's order bit for bit, with its weak spots (a lag-1
        correlation of 0.4 at a million records), and is refused where Grain's is no permutation.

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

    def __post_init__(self) -> None:
        for name in ("num_records", "seed", "rounds"):  # plain ints: NumPy's overflow, and are not JSON
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.shuffle not in ("none", "global"):
            raise ValueError(f"shuffle must be 'none' or 'global', got {self.shuffle!r}")
        cipher.check(self.num_records, seed=self.seed, rounds=self.rounds)
        if self.shuffle == "global" and self.rounds == 4 and cipher.grain_is_broken_at(self.num_records):
            raise ValueError(
                f"rounds=4 is Grain's order, and at num_records={self.num_records} Grain's order gives one record "
                "twice and the last never. Use rounds=8 (the default); a stream that Grain began cannot go on here."
            )

    def records(self, positions: Indices) -> Indices:
        """The record at each position. positions: int64 (k,), ascending, >= 0. Returns int64 (k,), in [0, N)."""
        epochs, offsets = np.divmod(np.asarray(positions, np.int64), self.num_records)
        if self.shuffle == "none" or not offsets.size:
            return offsets
        records = np.empty_like(offsets)
        bounds = np.flatnonzero(np.diff(epochs)) + 1
        for start, stop in zip([0, *bounds], [*bounds, offsets.size], strict=True):
            seed = (self.seed + int(epochs[start])) % 2**32
            records[start:stop] = cipher.permute(offsets[start:stop], self.num_records, seed=seed, rounds=self.rounds)
        return records
