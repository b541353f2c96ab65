"""Turns by size: the components of a mixture whose weights share out tokens, or whatever else elements have sizes in.

The next element is of the component that gave least for its weight: the smallest given / weight, of equals the first
one. Elements stay whole, so a component is ahead of its share by less than one of its elements, and behind by less than
its share of one element of each other component. Nothing but the sizes of earlier elements decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

# Of products in int64; where they may be larger, Python's integers take ten times as long.
_MAX_INT64 = 2**62


def next_components(weights: Sequence[int], given: Sequence[int], sizes: Sequence[Indices]) -> tuple[Indices, int]:
    """The components of the next elements, int64 (k,), and the component that is due behind them and has no element.

    sizes: int64 (n,), of the elements of each component that are there, in order.

    >>> next_components((2, 1), (0, 0), [np.array([3, 3, 3]), np.array([4])])
    (array([0, 1, 0, 0]), 1)
    """
    begins = {c: _begins(weights, given, c, sizes[c]) for c, weight in enumerate(weights) if weight}
    end, last = min((int(each[-1]), c) for c, each in begins.items())
    keys = {c: each[: np.searchsorted(each[:-1], end, "right" if c <= last else "left")] for c, each in begins.items()}
    components = np.concatenate([np.full(len(each), c) for c, each in keys.items()])
    return components[np.argsort(np.concatenate(list(keys.values())), kind="stable")], last


def given_then(weights: Sequence[int], given: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """What each gave, with so much more, less whole rounds (of `weight` each), which change no turn and keep it small.

    >>> given_then((3, 1), (1, 0), (9, 5))
    (1, 2)
    """
    total = [a + b for a, b in zip(given, more, strict=True)]
    rounds = min(each // weight for each, weight in zip(total, weights, strict=True) if weight)
    return tuple(each - rounds * weight if weight else 0 for each, weight in zip(total, weights, strict=True))


def _scale(weights: Sequence[int], index: int) -> int:
    """given times this compares as given / weight does."""
    return math.lcm(*filter(None, weights)) // weights[index]


def _begins(weights: Sequence[int], given: Sequence[int], index: int, sizes: Indices) -> Any:
    """given / weight, scaled, before each element of a component and behind the last: integers (n + 1,)."""
    scale = _scale(weights, index)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]) + given[index]
    return (before if int(before[-1]) * scale < _MAX_INT64 else before.astype(object)) * scale
