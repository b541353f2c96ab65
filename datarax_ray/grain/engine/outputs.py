"""From the blocks of consecutive chunks to a loader's outputs: elements, or results of batches of them.

Legend: an address is (position, offset, offset, ...). The first offset counts outputs given of that position. Another
offset counts outputs given of one batch, for a group of operations on batches with a flat_map. Each output comes with
the address after it. No batch is half full when an output is given, so no address holds a fill level.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias, cast

import numpy as np

from datarax_ray.grain.engine.stream import Elements
from datarax_ray.grain.engine.transform_chain import Item, Operation, expand
from datarax_ray.plan.amendments import Amendments
from datarax_ray.plan.position import ONE_TO_ONE, Yields, check_position, reading
from datarax_ray.plan.state import StreamState, check_rest
from datarax_ray.read.block import Block, first_failure
from datarax_ray.read.errors import RecordError

logger = logging.getLogger("datarax_ray")

Address: TypeAlias = tuple[int, ...]
Outputs = Iterator[tuple[Item, Address]]
Chunks = Generator[tuple[int, int, list[Block]], None, None]


@dataclass(frozen=True)
class Offsets:
    """The offsets of an address, in a StreamState; not all 0."""

    offsets: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        return {"offsets": list(self.offsets)}

    def at(self, position: int) -> None:
        """None: no output of another position was given."""


@dataclass(frozen=True)
class Addresses:
    """Reads and writes the addresses of one loader as states. num_offsets: in each address."""

    num_offsets: int

    yields: ClassVar[Yields] = ONE_TO_ONE  # the first of the offsets counts what a position gives

    @property
    def order(self) -> Self:
        return self

    def state(self, address: Address) -> StreamState:
        offsets = address[1:]
        return StreamState(address[0], 0, "elements", Offsets(offsets) if any(offsets) else None)

    def address(self, state: StreamState) -> Address:
        if state.extra is None:
            return (state.position, *[0] * self.num_offsets)
        return (state.position, *cast("Offsets", state.extra).offsets)

    def check(self, amendments: Amendments) -> None:
        """Raise ValueError for any amendment: a loader's outputs are Grain's."""
        if amendments:
            raise ValueError(f"a loader takes no amendments, and the state has {'; '.join(map(str, amendments))}")

    def extra_in(self, rest: Mapping[str, Any], state: StreamState, saved: Mapping[str, Any]) -> Offsets | None:
        """The offsets of a saved state. Raises: ValueError for another number than this loader's."""
        check_rest(rest, "offsets")
        with reading("offsets", rest.get("offsets")):
            offsets = tuple(map(check_position, rest.get("offsets", [0] * self.num_offsets)))
        if len(offsets) != self.num_offsets:
            raise ValueError(
                f"the state has {len(offsets)} offsets in its position, these operations have {self.num_offsets}: they "
                "have other FlatMaps. Restore the old operations, or start a new run."
            )
        return Offsets(offsets) if any(offsets) else None


@dataclass(frozen=True)
class Batching:
    """Every `size` consecutive items become one. function: of their data."""

    size: int
    drop_remainder: bool
    function: Callable[[list[Any]], Any]
    name: str


Group = tuple[Operation, ...]
Stages = Sequence[Batching | Group]


def depth(stages: Stages) -> int:
    """Numbers in an address: the position, its offset, and one for each group with a flat_map."""
    return 2 + sum(_has_flat_map(stage) for stage in stages if not isinstance(stage, Batching))


def outputs(chunks: Chunks, first: Group | None, stages: Stages, start: Address, *, quiet_after: int) -> Outputs:
    """The outputs of the stages from an address on, each with the address after it.

    first: operations on single elements to apply here, as outputs are asked for; None where blocks hold their results.
    quiet_after: positions without an output until a warning.

    Raises: RecordError for an element or batch that cannot be made, after everything before it.
    """
    watch = _Watch(start[0], quiet_after)
    runs, stages, used = _runs(chunks, watch), list(stages), 2
    items: Outputs
    if first is not None:
        records = (
            (run.item(row), (position + 1,))
            for run in runs
            for row, position in enumerate(run.positions[run.lo : run.hi].tolist(), start=run.lo)
        )
        items = _expanded(records, first, start[:1], start[1], is_counted=True)
    else:
        runs = _skip(runs, start)
        items = ((run.item(row), run.after(row)) for run in runs for row in range(run.lo, run.hi))
    for stage in stages:
        if isinstance(stage, Batching):
            items = _batches(items, stage)
        elif _has_flat_map(stage):
            items, used = _expanded(items, stage, start[:used], start[used], is_counted=True), used + 1
        else:
            items = _expanded(items, stage, start[:used], 0, is_counted=False)
    return watch.over(items)


class _Watch:
    """Warns when many positions give nothing. Grain would search for ever, and this stream is Grain's."""

    def __init__(self, start: int, quiet_after: int) -> None:
        self._since = start
        self._quiet_after = quiet_after

    def over(self, items: Outputs) -> Outputs:
        for item, after in items:
            self._since = after[0]
            yield item, after

    def read(self, stop: int) -> None:
        if stop - self._since >= self._quiet_after:
            logger.warning(
                "no output of the %d positions up to %d: the filters may drop everything, and the loader goes on",
                stop - self._since,
                stop,
            )
            self._since = stop


@dataclass(frozen=True)
class _Run:
    """Rows [lo, hi) of a block, which follow each other in the stream."""

    block: Block
    lo: int
    hi: int

    @property
    def positions(self) -> np.ndarray:
        return self.block.positions

    def item(self, row: int) -> Item:
        """One element, with its index and generator if they travel with it."""
        elements: Elements = self.block.columns
        data = elements.values.values[row]
        if elements.indices is None or elements.rngs is None:
            return Item(0, None, data)
        return Item(int(elements.indices[row]), elements.rngs.values[row], data)

    def after(self, row: int) -> Address:
        """The address after a row: in its position, unless the block has no more rows of this position."""
        position = int(self.positions[row])
        is_cut = self.block.failure is not None and self.block.failure_position == position
        if self.positions[-1] == position and not is_cut:
            past = row + 1 == len(self.positions)
        else:
            past = row + 1 < len(self.positions) and self.positions[row + 1] != position
        if past:
            return position + 1, 0
        return position, row + 1 - int(np.searchsorted(self.positions, position))


def _runs(chunks: Chunks, watch: _Watch) -> Iterator[_Run]:
    """The rows of all blocks by position. Raises: the first failure, after all earlier rows."""
    try:
        for _, stop, blocks in chunks:
            failed_at, failure = first_failure(blocks, stop)
            kept = [block for block in blocks if len(block.positions)]
            yield from _merged(kept, failed_at)
            if failure is not None:
                raise failure
            kept.clear()
            watch.read(stop)
    finally:
        chunks.close()


def _merged(blocks: Sequence[Block], failed_at: int) -> Iterator[_Run]:
    """Runs of rows in stream order. Blocks hold disjoint positions, so a run lies side by side in its block.

    A failed position has rows only of a flat_map, from before the failure.
    """
    if not blocks:
        return
    positions = np.concatenate([block.positions for block in blocks])
    owners = np.repeat(np.arange(len(blocks)), [len(block.positions) for block in blocks])
    owners = owners[np.argsort(positions, kind="stable")][: int(np.count_nonzero(positions <= failed_at))]
    cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    rows = [0] * len(blocks)
    for lo, hi in itertools.pairwise(cuts):
        if lo < hi:
            owner = int(owners[lo])
            yield _Run(blocks[owner], rows[owner], rows[owner] + hi - lo)
            rows[owner] += hi - lo


def _skip(runs: Iterator[_Run], start: Address) -> Iterator[_Run]:
    """The runs, without the outputs of the first position that the address counts."""
    position, offset = start[:2]
    for run in runs:
        if offset and run.positions[run.lo] == position:
            given = min(offset, run.hi - run.lo)
            offset -= given
            run = replace(run, lo=run.lo + given)
        if run.lo < run.hi:
            yield run


def _batches(items: Outputs, stage: Batching) -> Outputs:
    """Batches in the order of the items; one has the index and generator of its last item, as in Grain."""
    held: list[Item] = []
    addresses: list[Address] = []
    for item, after in items:
        held.append(item)
        addresses = [*addresses[:1], after]
        if len(held) == stage.size:
            yield _batch(held, addresses, stage)
            held, addresses = [], []
    if held and not stage.drop_remainder:
        yield _batch(held, addresses, stage)


def _batch(held: list[Item], addresses: list[Address], stage: Batching) -> tuple[Item, Address]:
    try:
        data = stage.function([item.data for item in held])
    except Exception as error:
        first, last = _position(addresses[0]), _position(addresses[-1])
        reason = f"{stage.name} raised {type(error).__name__}: {error}"
        raise RecordError.of(_say_range(first, last, len(held)), first, reason, error) from error
    return replace(held[-1], data=data), addresses[-1]


def _expanded(
    items: Iterable[tuple[Item, Address]], group: Group, before: Address, skip: int, *, is_counted: bool
) -> Outputs:
    """The outputs of a group of operations for each item.

    before: the address at which the first item begins.
    skip: outputs of the first item that were given.
    is_counted: addresses count the outputs of an item.
    """
    for item, after in items:
        made, error = expand(group, item)
        for number, output in enumerate(made[skip:], start=skip + 1):
            is_last = number == len(made) and error is None
            if not is_counted:
                yield output, after
            else:
                yield output, (*after, 0) if is_last else (*before, number)
        if error is not None:
            where = _say_range(before[0], _position(after), None)
            raise RecordError.of(where, before[0], error.reason, error.error) from error.error
        before, skip = after, 0


def _position(after: Address) -> int:
    return after[0] if any(after[1:]) else after[0] - 1


def _say_range(first: int, last: int, count: int | None) -> str:
    what = "the element" if count is None else f"a batch of {count} elements"
    return f"{what} of position {first}" if first >= last else f"{what} of positions {first} to {last}"


def _has_flat_map(group: Group) -> bool:
    return any(operation.kind == "flat_map" for operation in group)
