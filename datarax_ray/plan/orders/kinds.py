"""The orders by the names that they have in configs and states."""

from __future__ import annotations

from typing import Any, Literal

from datarax_ray.plan.orders.block_shuffle import BlockShuffle
from datarax_ray.plan.orders.file_order import FileOrder
from datarax_ray.plan.orders.global_shuffle import GlobalShuffle
from datarax_ray.plan.orders.order import EpochOrder

Shuffle = Literal["none", "global", "block"]

# A new order is its file, and its class here.
KINDS: dict[str, type[EpochOrder]] = {kind.shuffle: kind for kind in (FileOrder, GlobalShuffle, BlockShuffle)}


def order_of(num_records: int, seed: int = 0, shuffle: Shuffle = "none", rounds: int = 8, **options: Any) -> EpochOrder:
    """The order of this name. options: what else it takes.

    >>> order_of(100, seed=7, shuffle="block", block_size=8).settings()["block_size"]
    8
    """
    if not isinstance(shuffle, str) or shuffle not in KINDS:
        *others, last = map(repr, KINDS)
        raise ValueError(f"shuffle must be {', '.join(others)} or {last}, got {shuffle!r}")
    return KINDS[shuffle](num_records, seed, rounds, **options)
