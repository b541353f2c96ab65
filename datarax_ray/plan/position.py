"""Arithmetic of positions: chunks, batches, epochs, and the rows of a batch that one trainer takes.

A position is an index into the endless stream: epoch * num_records + offset. It never wraps (Python int, or int64).
Where a stream goes on is a position, and for some streams a rest: plain values, of constant size, that only the
stream's own kind understands (how much of one record was delivered, where each lane of a stream stands).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.cipher import Indices

Rest = Mapping[str, Any] | None

# 2**64 over the golden ratio, odd, as a signed number: multiples of it are spread evenly (Knuth, TAOCP 6.4).
_ID_STRIDE = np.int64(0x9E3779B97F4A7C15 - 2**64)
# Far beyond any stream, with room in an int64 for the sums and products that are made of positions.
MAX_POSITION = 2**62


def check_position(position: int) -> int:
    """The position, a plain int. Raises: TypeError where it is no integer; ValueError outside [0, 2**62]."""
    position = operator.index(position)
    if not 0 <= position <= MAX_POSITION:
        bound = "must not be negative" if position < 0 else "is at most 2**62"
        shown = position if abs(position) < 2**64 else f"an integer of {position.bit_length()} bits"
        raise ValueError(f"a position {bound}, got {shown}")
    return position


def trainer_rows(num_rows: int, process_index: int, process_count: int, padded: int | None = None) -> tuple[int, int]:
    """Rows [lo, hi) of a batch of `num_rows` that one trainer takes: r * num_rows // T up to (r + 1) * num_rows // T.

    Concatenated by rank they are the batch. A short last batch is split as evenly as it can be; one that is to be
    padded at its end, to `padded` rows, is split as the padded one, so that the padding stands at the end of all.

    >>> [trainer_rows(8, r, 4) for r in range(4)]
    [(0, 2), (2, 4), (4, 6), (6, 8)]
    >>> [trainer_rows(3, r, 4) for r in range(4)]
    [(0, 0), (0, 1), (1, 2), (2, 3)]
    >>> [trainer_rows(3, r, 4, padded=8) for r in range(4)]
    [(0, 2), (2, 3), (3, 3), (3, 3)]
    """
    total = num_rows if padded is None else padded
    lo, hi = process_index * total // process_count, (process_index + 1) * total // process_count
    return min(lo, num_rows), min(hi, num_rows)


def next_multiple(position: int, step: int) -> int:
    """The first multiple of `step` behind a position: where chunks of streams that began elsewhere meet.

    >>> [next_multiple(position, 8) for position in (0, 7, 8)]
    [8, 8, 16]
    """
    return (position // step + 1) * step


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
        return np.asarray(positions, np.int64) + np.asarray(ordinals, np.int64) * _ID_STRIDE


def with_offset(rest: Rest, offset: int, name: str = "offset") -> Rest:
    """The rest of a stream, standing behind so much of the record at its position; None where nothing is left to say.

    >>> with_offset({"offset": 2, "origin": [1]}, 0)
    {'origin': [1]}
    """
    others = {key: value for key, value in (rest or {}).items() if key != name}
    return (others | {name: offset} if offset else others) or None


@dataclass(frozen=True)
class Rows:
    """The rows of every global batch that one trainer takes, as a rule about positions.

    It holds where no element is dropped: then batch k is the positions origin + [k * batch_size, (k + 1) * batch_size).

    origin: position of the first batch. stop: end of the stream, None if endless. is_padded: whether a short last batch
    is padded at its end, and cut as a full one.
    """

    origin: int
    stop: int | None
    batch_size: int
    process_index: int
    process_count: int
    is_padded: bool = False

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        """Which of the positions are this trainer's. positions: int64 (k,). Returns bool (k,).

        Of a last batch too short to have a row for it, a trainer is given one all the same: where the stream begins
        there, it must know what elements look like.
        """
        batch, row = np.divmod(positions - self.origin, self.batch_size)
        lo, hi = trainer_rows(self.batch_size, self.process_index, self.process_count)
        mine = (row >= lo) & (row < hi)
        if self.stop is not None:
            whole, remainder = divmod(self.stop - self.origin, self.batch_size)
            padded = self.batch_size if self.is_padded else None
            lo, hi = trainer_rows(remainder, self.process_index, self.process_count, padded)
            lo, hi = (0, 1) if lo == hi else (lo, hi)
            mine = np.where(batch < whole, mine, (row >= lo) & (row < hi))
        return mine


def check_trainers(batch_size: int, process_index: int, process_count: int) -> None:
    """Raise ValueError unless a global batch of `batch_size` splits evenly over `process_count` trainers."""
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index must be in [0, process_count={process_count}), got {process_index}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if batch_size % process_count:
        raise ValueError(
            f"batch_size={batch_size} is the global batch and does not divide over process_count={process_count} "
            f"trainers; use a multiple of {process_count}."
        )
