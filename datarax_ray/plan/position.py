"""Arithmetic of positions: chunks, batches, epochs, and the rows of a batch that one trainer takes.

A position is an index into the endless stream: epoch * num_records + offset. It never wraps (Python int, or int64).
Where a stream goes on is a position, and for some streams a rest: plain values, of constant size, that only the
stream's own kind understands (how much of one record was delivered, where each lane of a stream stands).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.cipher import Indices

Rest = Mapping[str, Any] | None


def trainer_rows(num_rows: int, process_index: int, process_count: int) -> tuple[int, int]:
    """Rows [lo, hi) of a batch of `num_rows` that one trainer takes: r * num_rows // T up to (r + 1) * num_rows // T.

    Concatenated by rank they are the batch. A short last batch is split as evenly as it can be.

    >>> [trainer_rows(8, r, 4) for r in range(4)]
    [(0, 2), (2, 4), (4, 6), (6, 8)]
    >>> [trainer_rows(3, r, 4) for r in range(4)]
    [(0, 0), (0, 1), (1, 2), (2, 3)]
    """
    return (
        process_index * num_rows // process_count,
        (process_index + 1) * num_rows // process_count,
    )


@dataclass(frozen=True)
class Rows:
    """The rows of every global batch that one trainer takes, as a rule about positions.

    It holds where no element is dropped: then batch k is the positions origin + [k * batch_size, (k + 1) * batch_size).

    origin: position of the first batch. stop: end of the stream, None if endless.
    """

    origin: int
    stop: int | None
    batch_size: int
    process_index: int
    process_count: int

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        """Which of the positions are this trainer's. positions: int64 (k,). Returns bool (k,)."""
        batch, row = np.divmod(positions - self.origin, self.batch_size)
        lo, hi = trainer_rows(self.batch_size, self.process_index, self.process_count)
        mine = (row >= lo) & (row < hi)
        if self.stop is not None:
            whole, remainder = divmod(self.stop - self.origin, self.batch_size)
            lo, hi = trainer_rows(remainder, self.process_index, self.process_count)
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
