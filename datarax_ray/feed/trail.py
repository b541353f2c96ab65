"""The trail: the last rows that were consumed, until a state records evidence of them; and the check of a resume.

Indexed streams make any of their rows again. Streams of shards make those that a resume reads anyway, behind the
cursors of their state; where there are none, the first rows of the stream stand for them.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np

from datarax_ray.feed.batches import HostBatch
from datarax_ray.feed.flow import Pool
from datarax_ray.feed.stream import StreamOptions, chunks
from datarax_ray.plan.evidence import BEGIN, MAX_ROWS, Evidence, RowsDigested
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.state import StatefulOrder, StreamState
from datarax_ray.read.elements.rows_consumed import Part, Parts, digested, first_of, of_blocks, recent, rows_of
from datarax_ray.read.stream import Stream

logger = logging.getLogger("datarax_ray")

_SINCE = "since the checkpoint was written"


@dataclass(frozen=True)
class Trail:
    """The rows that were consumed last. All trails are equal: they do not say where a stream stands.

    parts: the last rows. first: rows of the first batch, where this process read it; are_first: its first ones.
    saved: the evidence of the state that was restored, until it is followed by rows of this process.
    changed: names of transforms and stages whose code is not that of the restored state.
    """

    parts: Parts = field(default=(), compare=False)
    first: Parts = field(default=(), compare=False)
    saved: Evidence | None = field(default=None, compare=False)
    changed: tuple[str, ...] = field(default=(), compare=False)
    are_first: bool = field(default=False, compare=False)

    @property
    def is_unverified(self) -> bool:
        """Whether a state was restored, and no row was consumed since."""
        return self.saved is not None and not self.parts

    def then(self, batch: HostBatch, state: StreamState, *, is_written: bool, most: int = MAX_ROWS) -> Trail:
        """The trail behind one more batch.

        state: before the batch. is_written: whether the batch's owner may write to its arrays. most: rows to keep of
        the batch.
        """
        parts: Parts = () if batch.documents is None else (batch.documents,)
        if batch.pieces is None and batch.in_order and len(batch.positions):
            count = min(batch.last_run or len(batch.positions), most)
            parts = (rows_of(batch.positions, batch.ordinals, batch.columns, is_written=is_written, most=count),)
            older = self.parts if batch.last_run == 0 and not parts[0].is_cut else ()
            for each in reversed(older):
                if count >= MAX_ROWS:
                    break
                parts, count = (each, *parts), count + len(each.positions)
        if not parts:
            return self
        first, are_first = self.first, self.are_first
        if state.position == state.offset == 0:
            are_first = batch.documents is None and batch.last_run == 0  # else some are of other trainers
            first = (first_of(batch.positions, batch.ordinals, batch.columns),) if are_first else parts[-1:]
        return Trail(parts, first, self.saved, are_first=are_first)

    def evidence(self, state: StreamState, order: StatefulOrder) -> Evidence | None:
        """What a state records. None where nothing was consumed, or nothing that could be made again."""
        rows = _before(state, self.parts)
        rows = recent(rows, state.position)
        begin = bisect_left(rows.positions, True, key=lambda position: order.earlier(state, int(position)) is not None)
        if begin < len(rows):
            return Evidence.of(rows.part(begin, len(rows)))
        if len(rows := _before(state, self.first).part(0, MAX_ROWS)):
            return Evidence.of(rows, are_first=self.are_first)
        saved = self.saved
        is_made = saved is not None and (saved.start == BEGIN or order.earlier(state, saved.start[0]) is not None)
        return saved if is_made else None


def _before(state: StreamState, parts: Parts) -> RowsDigested:
    """The rows consumed before this state. The last part may hold later elements, handed out one by one."""
    rows = digested(parts)
    count = int(np.searchsorted(rows.positions, state.position))
    if state.offset and state.unit == "elements":
        count += int(np.searchsorted(rows.ordinals[rows.positions == state.position], state.offset))
    return rows.part(0, count)


def verify(description: Stream, pool: Pool | None, state: StreamState, trail: Trail, options: StreamOptions) -> None:
    """Make the rows of a restored state again, and compare. trail: unverified. options: of the stream.

    Raises: DriftError where a row differs, with its file, record and field; what reading raises.
    """
    saved, changed = trail.saved, ", ".join(trail.changed)
    assert saved is not None
    begin = description.order.earlier(state, saved.start[0])
    stop: int | None = state.position + (state.offset > 0)
    if begin is None and saved.start == BEGIN:  # the first rows of a stream
        begin, stop = StreamState(amendments=state.amendments), description.stop
    if begin is None:
        return  # these rows cannot be made from this state
    options = replace(options, batch_size=saved.num_rows, stop=stop)
    rows, failure = _made_again(description, pool, begin, saved, options)
    if failure is not None and len(rows) < saved.num_rows:  # one by one where rows do not stack
        rows, failure = _made_again(description, pool, begin, saved, replace(options, chunk_size=1))
        if failure is not None and len(rows) < saved.num_rows:
            raise failure
    other = saved.differing(rows)
    if other is None:
        if changed:
            logger.warning("the code of %s changed %s; its last %d rows are the same", changed, _SINCE, saved.num_rows)
        return
    where = "the rows"
    if other.row < len(rows):
        position = rows.positions[other.row : other.row + 1]
        where = f"position {position[0]}"
        with contextlib.suppress(Exception):  # of a merged mixture, nobody knows before it is read
            where = f"{description.locations(position, begin)[0]} (position {position[0]})"
    code = f" The code of {changed} changed {_SINCE}." if changed else ""
    raise DriftError(
        "the checkpoint belongs to another stream: its last rows are not the same any more, so the remaining batches "
        f"would not be either.\n  {where}: {other.difference}.\nSomething that they are made of changed {_SINCE}: the "
        f"data, a transform or a value that it reads, a library, or the environment.{code} Restore it, or pass "
        "allow_drift=('rows',) to continue with the new rows."
    )


def _made_again(
    description: Stream, pool: Pool | None, begin: StreamState, saved: Evidence, options: StreamOptions
) -> tuple[RowsDigested, Exception | None]:
    """The rows of the evidence, as far as the stream gives them, and what fails."""
    parts: list[Part] = []
    failure: Exception | None = None
    with contextlib.closing(chunks(description, pool, begin, options)) as stream:
        for _, _, blocks in stream:
            failure = next((block.failure for block in blocks if block.failure is not None), None)
            parts += of_blocks(blocks)
            if failure is not None or sum(len(part.positions) for part in parts) >= saved.num_rows + saved.start[1]:
                break
    rows = digested(parts)
    places = zip(rows.positions.tolist(), rows.ordinals.tolist(), strict=True)
    first = next((at for at, place in enumerate(places) if place >= saved.start), len(rows))
    return rows.part(first, first + saved.num_rows), failure
