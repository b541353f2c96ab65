"""The rows of every global batch that one trainer takes, by its rank or by its devices in a mesh.

Legend: a part is one of `num_parts` equal pieces of a batch's rows.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.runs import Pairs, num_rows_of, rows_of, within


@dataclass(frozen=True)
class Share:
    """One trainer's parts of every batch, of `num_parts` equal parts.

    parts: ascending, at least one; of a rank its own, of a process in a mesh the parts of its devices.
    num_equal: processes of the mesh with exactly these parts.
    counted_elsewhere: parts that count in the digest of another process.
    """

    num_parts: int = 1
    parts: tuple[int, ...] = (0,)
    num_equal: int = 1
    counted_elsewhere: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[int, ...]:
        """The parts that count in this trainer's digest; over all trainers every part counts once."""
        return tuple(part for part in self.parts if part not in self.counted_elsewhere)

    @property
    def part(self) -> float:
        """Fraction of every batch. Processes with equal parts divide theirs, so all fractions sum to 1."""
        return len(self.parts) / self.num_parts / self.num_equal


WHOLE = Share()


def share_of_rank(process_index: int, process_count: int) -> Share:
    """The share of one trainer among several that divide batches by rank. Raises: ValueError for another rank."""
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index must be in [0, process_count={process_count}), got {process_index}")
    return Share(process_count, (process_index,))


def shares_of(held: Mapping[int, Collection[int]], num_parts: int) -> dict[int, Share]:
    """The share of each process of a mesh, by the parts that its devices hold.

    A part of several processes counts in the digests of those with the same parts as the first of them.

    >>> [share.counted for share in shares_of({0: {0, 1}, 1: {1, 2}, 2: {0, 1}, 3: {0, 2}}, 3).values()]
    [(0, 1), (2,), (0, 1), ()]
    """
    processes: dict[tuple[int, ...], list[int]] = {}
    for process in sorted(held):
        processes.setdefault(tuple(sorted(held[process])), []).append(process)
    shares: dict[int, Share] = {}
    counted: set[int] = set()
    for parts, equal in processes.items():
        shares |= dict.fromkeys(equal, Share(num_parts, parts, len(equal), tuple(sorted(counted.intersection(parts)))))
        counted.update(parts)
    return dict(sorted(shares.items()))


@dataclass(frozen=True)
class TrainerRows:
    """One trainer's rows of every batch of a stream.

    batch_size: rows of the global batch; its parts are equal.
    is_padded: a short last batch is padded at its end, and divided as a full batch.
    """

    batch_size: int
    share: Share = WHOLE
    is_padded: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    @functools.cached_property
    def full(self) -> Pairs:
        return self.of(self.batch_size)

    def of(self, num_rows: int, parts: tuple[int, ...] | None = None) -> Pairs:
        """The runs [lo, hi) of a batch of so many rows.

        Part j of P is the rows from j * num_rows // P up to (j + 1) * num_rows // P. parts: None for the trainer's.

        >>> TrainerRows(8, Share(4, (1,))).of(8), TrainerRows(8, Share(4, (1,))).of(3)
        (((2, 4),), ((0, 1),))
        >>> TrainerRows(8, Share(4, (0, 2, 3))).of(8)
        ((0, 2), (4, 8))
        >>> TrainerRows(8, Share(4, (0, 2, 3)), is_padded=True).of(5)
        ((0, 2), (4, 5))
        """
        total, num_parts = self.batch_size if self.is_padded else num_rows, self.share.num_parts
        ranges: list[tuple[int, int]] = []
        for part in self.share.parts if parts is None else parts:
            lo, hi = (min(at * total // num_parts, num_rows) for at in (part, part + 1))
            if ranges and ranges[-1][1] == lo:
                lo = ranges.pop()[0]
            if lo < hi:
                ranges.append((lo, hi))
        return tuple(ranges)

    def counted(self, num_rows: int) -> Pairs:
        """The rows that count in this trainer's digest; all are in `of`."""
        return self.of(num_rows, self.share.counted)


def rows_of_rank(batch_size: int, process_index: int, process_count: int, is_padded: bool = False) -> TrainerRows:
    """The rows of one trainer among several that divide batches by rank. Raises: ValueError where they cannot."""
    rows = TrainerRows(batch_size, share_of_rank(process_index, process_count), is_padded)
    if batch_size % process_count:
        raise ValueError(
            f"batch_size={batch_size} is the global batch and does not divide over process_count={process_count} "
            f"trainers; use a multiple of {process_count}."
        )
    return rows


@dataclass(frozen=True)
class TrainerPositions:
    """One trainer's positions, in a stream with one element at every position.

    Batch k is the positions origin + [k * batch_size, (k + 1) * batch_size).

    origin: position of the first batch. stop: end of the stream, None if endless.
    """

    origin: int
    stop: int | None
    rows: TrainerRows

    @property
    def share(self) -> float:
        return num_rows_of(self.rows.full) / self.rows.batch_size

    def contain(self, positions: Indices) -> NDArray[np.bool_]:
        """Which of the positions are this trainer's. positions: int64 (k,). Returns bool (k,).

        A last batch that is too short for this trainer gives it the first row, to know the fields by.
        """
        batch, row = np.divmod(positions - self.origin, self.rows.batch_size)
        mine = within(self.rows.full, row)
        if self.stop is not None:
            whole, remainder = divmod(self.stop - self.origin, self.rows.batch_size)
            mine = np.where(batch < whole, mine, within(self.rows.of(remainder) or ((0, 1),), row))
        return mine

    def positions_in(self, start: int, stop: int) -> Indices:
        """This trainer's positions in [start, stop), int64 (k,), ascending; other positions cost nothing.

        >>> TrainerPositions(0, 15, TrainerRows(8, share_of_rank(2, 4))).positions_in(5, 15).tolist()
        [5, 11, 12]
        """
        size = self.rows.batch_size
        tail = stop if self.stop is None else min(stop, self.stop - (self.stop - self.origin) % size)
        batches = np.arange(start - (start - self.origin) % size, tail, size, dtype=np.int64)
        whole = (batches[:, None] + rows_of(self.rows.full)).reshape(-1)
        short = np.arange(max(start, tail), stop, dtype=np.int64)
        return np.concatenate([whole[slice(*np.searchsorted(whole, (start, tail)))], short[self.contain(short)]])

    def first_from(self, position: int) -> int:
        """The first position of this trainer from here on; `position` itself where the stream has none.

        >>> rows = TrainerPositions(0, 15, TrainerRows(8, share_of_rank(2, 4)))
        >>> [rows.first_from(position) for position in (0, 4, 5, 6, 12, 13)]
        [4, 4, 5, 11, 12, 13]
        """
        size = self.rows.batch_size
        begin = position - (position - self.origin) % size
        for start in (begin, begin + size):
            num_rows = size if self.stop is None else min(size, self.stop - start)
            for lo, hi in (self.rows.of(num_rows) or ((0, 1),)) if num_rows > 0 else ():  # as `contain`
                if start + hi > position:
                    return max(position, start + lo)
        return position
