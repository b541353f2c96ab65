"""Mutants of a file with records, read through what an actor reads with: reader, order, transforms, blocks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.block import Block
from datarax_ray.read.streams.indexed import IndexedStream
from tests.fuzz import outcomes
from tests.fuzz.mutations import MUTATIONS, Mutation, change

_ALLOWED = (ValueError, OSError)
_LIVE = "while read: "
_CHANGES = ("overwritten in place", "cut in place", "replaced", "deleted")


class FileTarget(ABC):
    """One file of a format, in a directory of its own; `check` may be called any number of times.

    A mutant is read from its beginning, or takes the place of the file after this was opened ("while read").
    """

    transforms: tuple[Any, ...] = ()
    shuffles: tuple[str, ...] = ("none",)
    steps: tuple[int, ...] = (7, 50)  # records of a request

    def __init__(self, path: Path, file: bytes, mutations: Mapping[str, Mutation]) -> None:
        self.path, self.file = path, file
        self.mutations: dict[str, Mutation] = MUTATIONS | dict(mutations)
        self.kinds = (*self.mutations, *(f"{_LIVE}{how}" for how in _CHANGES))

    @abstractmethod
    def open(self, path: str) -> Any:
        """A reader of the file."""

    @abstractmethod
    def wanted(self, mutation: str) -> Any:
        """The rows of the file on disk, which is a mutant of this kind, or "" for none; None where nobody knows."""

    @abstractmethod
    def wrong(self, mutation: str, how: str | None) -> str:
        """The outcome where other rows come. how: the file changed while it was read; None where it did not."""

    @abstractmethod
    def difference(self, block: Block, records: Sequence[int], wanted: Any) -> str:
        """The first row of a block that is not the wanted one, "" for none."""

    def cuts(self) -> Sequence[int]:
        """Sizes to which the file is cut while it is read."""
        return range(len(self.file))

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        how = kind.removeprefix(_LIVE) if kind.startswith(_LIVE) else None
        mutation = kind if how is None else rng.choice(list(self.mutations))
        mutant = self.mutations[mutation](self.file, rng)
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(mutant if how is None else self.file)
        try:
            reader = self.open(str(self.path))
        except Exception as error:
            return outcomes.refusal(error, str(self.path), _ALLOWED)
        try:
            wanted = self.wanted(mutation if how is None else "")
            wrong = outcomes.OTHER if wanted is None else self.wrong(mutation, how)
            if wanted is not None and reader.num_records != len(wanted):
                return wrong, f"{reader.num_records} records instead of {len(wanted)}"
            start = 0
            if how is not None:
                if start := rng.choice([0, 50]):
                    reader.read(np.arange(start))
                change(self.path, how, mutant, lambda: rng.choice(self.cuts()))
            return self._read(reader, start, rng, wanted, wrong)
        finally:
            reader.close()

    def _read(self, reader: Any, start: int, rng: random.Random, wanted: Any, wrong: str) -> tuple[str, str]:
        """The outcome of reading all records from `start` on, request by request."""
        count = reader.num_records
        order = order_of(count, rng.randrange(100), rng.choice(self.shuffles))
        stream = IndexedStream(reader, order, 1, self.transforms, rng.choice(["raise", "skip"]))
        step = rng.choice([*self.steps, count])
        stop = count if step > 1 else min(count, start + 40)
        failures = 0
        for at in range(start, stop, step):
            try:
                block = stream.read(ReadRequest(at, min(at + step, count)))
            except Exception as error:
                outcome = outcomes.refusal(error, str(self.path), _ALLOWED)
                if outcome[0] != outcomes.REFUSED:
                    return outcome
                failures += 1
                continue
            reasons = [*([str(block.failure)] if block.failure else []), *(skip.where for skip in block.skipped)]
            failures += len(reasons)
            if nameless := [reason for reason in reasons if str(self.path) not in reason]:
                return outcomes.NAMELESS, nameless[0][:300]
            if block.columns is None or wanted is None:
                continue
            if detail := self.difference(block, order.records(block.positions).tolist(), wanted):
                return wrong, detail
        return (outcomes.PARTIAL, "") if failures else (outcomes.UNHARMED, "")
