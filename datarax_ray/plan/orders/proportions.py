"""The part that each component of a mixture gives, beside the part that its weight asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.mixture import Mixture

# A component may take days for a pass: if so many records in a row gave nothing, a person is told.
_EARLY = 10_000
# Constant weights repeat the order of components after the sum of the weights: to look it up takes a tenth of `place`.
_MAX_TABLE = 2**16


@dataclass(frozen=True)
class Share:
    """The positions that its weight gives a component, and the elements there, behind filters and broken records.

    With weights_by, the part of all sizes that its weight asks for, and the sizes of its elements.
    """

    num_positions: int = 0
    num_elements: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.num_positions + other.num_positions, self.num_elements + other.num_elements)


class Proportions:
    """Counts the elements of each component from a position on, and finds components that give none.

    pass_sizes: the records in one pass of each component. droppers: what may drop them, for people.
    is_exact: each position gives one element, so nothing needs to be counted.
    is_strict: a component that gives nothing in a whole pass is an error.
    counted: what is counted, for people.
    """

    def __init__(
        self,
        mixture: Mixture,
        start: int,
        pass_sizes: Sequence[int],
        droppers: Sequence[Sequence[str]],
        *,
        is_exact: bool,
        is_strict: bool,
        counted: str = "elements",
    ) -> None:
        self.is_exact, self.counted = is_exact, counted
        self._mixture, self._stop = mixture, start
        self._before = mixture.counts(start)
        self._pass_sizes, self._droppers, self._is_strict = pass_sizes, droppers, is_strict
        self._elements = np.zeros(len(self._before), np.int64)
        self._told: set[int] = set()
        self._sizes: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None  # by weight, and given
        size = sum(mixture.stretches[0].weights) if len(mixture.stretches) == 1 else 0
        self._table = mixture.place(np.arange(size))[0] if not is_exact and 0 < size <= _MAX_TABLE else None

    def add(self, stop: int, positions: Iterable[Indices]) -> None:
        """Event: the elements before `stop` are known, the new ones at these positions, int64 (k,) each."""
        self._stop = max(self._stop, stop)
        for each in positions:
            table = self._table
            components = self._mixture.place(each)[0] if table is None else table[each % len(table)]
            self._elements += np.bincount(components, minlength=len(self._elements))

    def give(self, weights: Sequence[int], sizes: Sequence[int]) -> None:
        """Event: the components gave elements of these sizes, by these weights, which count from now on."""
        wanted, given = self._sizes or (np.zeros(len(sizes)), np.zeros(len(sizes), np.int64))
        self._sizes = wanted + sum(sizes) * np.asarray(weights) / sum(weights), given + sizes

    def shares(self) -> tuple[Share, ...]:
        """The counts so far, of each component."""
        if self._sizes is not None:
            wanted, given = self._sizes
            return tuple(map(Share, np.rint(wanted).astype(np.int64).tolist(), given.tolist()))
        due = self._due(self._stop)
        return tuple(map(Share, due, due if self.is_exact else self._elements.tolist()))

    def empty(self, stop: int) -> Iterator[str]:
        """A line for each component that gives nothing up to this position, once.

        Raises: RuntimeError for a whole pass without an element, where is_strict.
        """
        if self.is_exact or self._elements.all():
            return
        for index, due in enumerate(self._due(stop)):
            if self._elements[index] or due < min(_EARLY, size := self._pass_sizes[index]):
                continue
            whole = f", a whole pass of its {size:,} records" if due >= size else ""
            said = (
                f"component {index} of the mixture gave no element at {due:,} positions{whole}: "
                f"{', or '.join([*self._droppers[index], 'all of it was amended away'])}"
            )
            if self._is_strict and whole:
                raise RuntimeError(f"{said}. MixtureSource(strict=False) goes on without it")
            if index not in self._told:
                self._told.add(index)
                yield f"{said}. The others go on without it; MixtureSource(strict=True) makes a whole pass an error"

    def _due(self, stop: int) -> list[int]:
        return [now - before for now, before in zip(self._mixture.counts(stop), self._before, strict=True)]
