"""Which record Grain's samplers give for an index, over whole arrays of indices.

Source: grain._src.python.samplers (IndexSampler and its _ShardMapDataset), core.sharding.even_split.
"""

from __future__ import annotations

from dataclasses import dataclass

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.order import Order


def split(num_records: int, shard_index: int, shard_count: int, drop_remainder: bool) -> tuple[int, int]:
    """The records [start, stop) of one shard: num_records // shard_count of them.

    The first shards get one more each, as many as are left over; with drop_remainder these are in no shard.

    >>> [split(10, shard, 3, drop_remainder=False) for shard in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    >>> [split(10, shard, 3, drop_remainder=True) for shard in range(3)]
    [(0, 3), (3, 6), (6, 9)]
    """
    size, left_over = divmod(num_records, shard_count)
    if drop_remainder:
        left_over = 0
    start = size * shard_index + min(shard_index, left_over)
    return start, start + size + (shard_index < left_over)


@dataclass(frozen=True)
class Sampling:
    """`first + order((index // shard_count)-th position)`: one shard's consecutive records, in order or shuffled.

    A shuffle permutes inside the shard, by the same permutation in every shard of one size. order: of the shard's
    records, with Grain's 4 rounds where it is shuffled. seed: what random transforms are keyed by, with the index; None
    for none.

    >>> import numpy as np
    >>> from datarax_ray.plan.orders.global_shuffle import GlobalShuffle
    >>> shard = GlobalShuffle(num_records=4, seed=1, rounds=4)
    >>> Sampling(first=4, order=shard, shard_count=2).records(np.array([1, 3, 5, 7])).tolist()
    [5, 6, 7, 4]
    """

    order: Order
    first: int = 0
    shard_count: int = 1
    seed: int | None = None

    def records(self, indices: Indices) -> Indices:
        """The record at each index of the sampler. indices: int64 (k,), ascending, >= 0. Returns int64 (k,)."""
        return self.first + self.order.records(indices // self.shard_count)
