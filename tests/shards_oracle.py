"""A stream of shards again, as plain loops over single elements. Shares no code with datarax_ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests import oracle


def shards(num_shards: int, epoch: int, seed: int | None) -> list[int]:
    """The shards in the order of their turns, by Grain's own function; seed None for the order of the data."""
    return oracle.order(num_shards, epoch, seed)


def rotation(lengths: Sequence[int], turn_size: int, order: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """(shard, ordinal) of every element: shards take turns; who has nothing left is out."""
    given = [0] * len(lengths)
    live = list(range(len(lengths)) if order is None else order)
    out: list[tuple[int, int]] = []
    while live:
        for shard in list(live):
            for _ in range(turn_size):
                if given[shard] == lengths[shard]:
                    live.remove(shard)
                    break
                out.append((shard, given[shard]))
                given[shard] += 1
    return out


def window_order(length: int, window: int, *, seed: int, epoch: int, shard: int) -> list[int]:
    """The elements of a shard in the order of delivery: each window sorted by random numbers."""
    out: list[int] = []
    for number, first in enumerate(range(0, length, window)):
        size = min(window, length - first)
        bits = np.random.Philox(
            key=np.array([seed, 2**63], np.uint64), counter=np.array([0, number, shard, epoch], np.uint64)
        )
        keys = [int(bits.random_raw()) for _ in range(size)]
        out += [first + index for index in sorted(range(size), key=keys.__getitem__)]
    return out


def hugging_face(
    dataset: Any, num_epochs: int, *, turn_size: int, seed: int | None = None, window: int = 1
) -> Iterator[Any]:
    """The elements of an IterableDataset, by plain iteration of each of its shards. seed: None without shuffle."""
    count = dataset.num_shards
    for epoch in range(num_epochs):
        stored = []
        for shard in range(count):
            part = dataset.shard(count, shard)
            part.set_epoch(epoch)
            elements = list(part)
            if seed is not None:
                elements = [
                    elements[i] for i in window_order(len(elements), window, seed=seed, epoch=epoch, shard=shard)
                ]
            stored.append(elements)
        for shard, ordinal in rotation(list(map(len, stored)), turn_size, shards(count, epoch, seed)):
            yield stored[shard][ordinal]
