"""The intake: what is asked of the blocks of a chunk before they become batches. Are they alike? What failed, where?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import Columns, FieldSpec, Path, leaves, map_leaves, odd_one, spec
from datarax_ray.read.errors import Skipped


class Intake:
    """Takes the blocks of chunks in order; remembers what elements look like, and which records were skipped."""

    def __init__(self) -> None:
        self._spec: dict[Path, FieldSpec] = {}
        self.like: Columns = None  # zero rows of the columns seen first, to make buffers from; None before
        self._skipped: list[Skipped] = []

    def take(self, stop: int, blocks: Sequence[Block]) -> tuple[list[Block], int, Exception | None]:
        """The blocks of a chunk up to `stop` that hold elements, where the chunk fails (stop if nowhere), and why.

        What is before a failure is good, and the same for any number of actors; blocks may hold elements behind it.
        """
        for block in blocks:
            self._skipped += block.skipped
        failures = [(block.failure_position, block.failure) for block in blocks if block.failure is not None]
        # in the order of their elements, so that which of two kinds is the odd one does not depend on the actors
        found = sorted((b for b in blocks if len(b.positions)), key=lambda b: int(b.positions[0]))
        failures += [(int(block.positions[0]), odd) for block in found if (odd := self._oddity(block)) is not None]
        failed_at, failure = min(failures, key=lambda pair: pair[0], default=(stop, None))
        return [block for block in found if block.positions[0] < failed_at], failed_at, failure

    def skipped_before(self, stop: int) -> tuple[Skipped, ...]:
        """The broken records before this position that were not asked for yet."""
        told = tuple(skip for skip in self.left_over if skip.position < stop)
        self._skipped = [skip for skip in self._skipped if skip.position >= stop]
        return told

    @property
    def left_over(self) -> tuple[Skipped, ...]:
        """Broken records that were not asked for yet."""
        return tuple(sorted(self._skipped, key=lambda skip: skip.position))

    def _oddity(self, block: Block) -> Exception | None:
        """What is wrong with a block that has not the fields, shapes and dtypes of the first one."""
        if not self._spec:
            self._spec = dict(leaves(spec(block.columns)))
            self.like = map_leaves(lambda array: np.empty((0, *array.shape[1:]), array.dtype), block.columns)
        return odd_one(self._spec, block.columns, int(block.positions[0]))
