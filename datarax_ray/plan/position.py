"""Arithmetic of positions.

A position is an index into the endless stream: epoch * num_records + offset. It never wraps (Python int, or int64).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import shown

# 2**64 over the golden ratio, odd, as a signed number: multiples of it are spread evenly (Knuth, TAOCP 6.4).
ID_STRIDE = np.int64(0x9E3779B97F4A7C15 - 2**64)
# Far beyond any stream, with room in an int64 for the sums and products that are made of positions.
MAX_POSITION = 2**62


@dataclass(frozen=True)
class Yields:
    """The number of elements at each position of a stream.

    is_one_to_one: every position gives one element, so batches can be counted in positions.
    may_repeat: some positions may give several elements, so a batch may end inside one position.
    """

    is_one_to_one: bool = True
    may_repeat: bool = False


ONE_TO_ONE = Yields()


def check_position(position: int) -> int:
    """The position, a plain int. Raises: TypeError where it is no integer; ValueError outside [0, 2**62]."""
    position = operator.index(position)
    if not 0 <= position <= MAX_POSITION:
        bound = "must not be negative" if position < 0 else "is at most 2**62"
        shown = position if abs(position) < 2**64 else f"an integer of {position.bit_length()} bits"
        raise ValueError(f"a position {bound}, got {shown}")
    return position


def is_count(value: Any) -> bool:
    """Whether a value of a saved state is a number of records, tokens and the like."""
    return type(value) is int and 0 <= value <= MAX_POSITION


@contextlib.contextmanager
def reading(part: str, plain: Any) -> Iterator[None]:
    """Turn errors of reading a part of a saved state into a ValueError that names the part.

    Values of the right shape are not checked: the state's checksum shows that they are those that were written.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"the state's {part} cannot be read: {shown(plain)}; the state is damaged, restore an earlier one"
        ) from error


def next_multiple(position: int, step: int) -> int:
    """The first multiple of `step` behind a position, at which chunks of streams with any beginning meet.

    >>> [next_multiple(position, 8) for position in (0, 7, 8)]
    [8, 8, 16]
    """
    return (position // step + 1) * step


def pieces(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """The range [start, stop) in `count` even pieces; fewer for a shorter range, and itself for an empty one.

    >>> pieces(10, 17, 3), pieces(0, 1, 3), pieces(0, 0, 3)
    ([(10, 12), (12, 14), (14, 17)], [(0, 1)], [(0, 0)])
    """
    count = max(1, min(count, stop - start))
    cuts = [start + index * (stop - start) // count for index in range(count + 1)]
    return list(itertools.pairwise(cuts))


def earliest(ends: Iterable[int | None]) -> int | None:
    """The first of these ends; None where there is none.

    >>> earliest([None, 7, 3]), earliest([None])
    (3, None)
    """
    return min((end for end in ends if end is not None), default=None)


@dataclass(frozen=True)
class CountedBatches:
    """The batches of `size` rows from a position on, where every position gives one row.

    stop: None for an endless stream.
    drops: whether a short last batch is dropped.

    >>> batches = CountedBatches(2, 10, size=3)
    >>> batches.num_batches, batches.positions(2), len(batches.positions(3))
    (3, range(8, 10), 0)
    """

    start: int
    stop: int | None
    size: int
    drops: bool = False

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None for an endless stream."""
        if self.stop is None:
            return None
        left = max(0, self.stop - self.start)
        return left // self.size if self.drops else -(-left // self.size)

    def positions(self, number: int) -> range:
        """The positions of a batch, counted from 0; an empty range where there is no such batch."""
        begin = self.start + number * self.size
        end = begin + self.size if self.stop is None else min(begin + self.size, self.stop)
        is_one = number >= 0 and not (self.drops and end - begin < self.size)
        return range(begin, end if is_one else begin)


def ordinals(positions: Indices) -> Indices:
    """The place of each position among its equals. positions: int64 (k,), ascending. Returns int64 (k,).

    >>> ordinals(np.array([3, 4, 4, 4, 7, 7])).tolist()
    [0, 0, 1, 2, 0, 1]
    """
    is_first = np.ones(len(positions), bool)
    is_first[1:] = positions[1:] != positions[:-1]
    index = np.arange(len(positions), dtype=np.int64)
    return index - np.maximum.accumulate(np.where(is_first, index, 0))


def element_ids(positions: Any, ordinals: Any) -> Any:
    """One number for each element, from its position and ordinal: the position itself where the ordinal is 0.

    Others are spread over all 64 bits, so that they meet no position. Both int64 (...), or None for ordinals of 0.
    """
    if ordinals is None:
        return positions
    with np.errstate(over="ignore"):
        return np.asarray(positions, np.int64) + np.asarray(ordinals, np.int64) * ID_STRIDE
