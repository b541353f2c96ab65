"""The description of a stream that is read lane by lane, and what an actor does with its tickets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.interleaved import EPOCH_POSITIONS, Cursor, LaneOrder, LaneTicket
from datarax_ray.plan.packing import Documents
from datarax_ray.plan.state import Extra
from datarax_ray.read.block import Block, block_of, transformed
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.transforms import Call, OnError, Progress, drops_alike, steps
from datarax_ray.read.errors import RecordError, message_of
from datarax_ray.read.formats.arrow.column_types import settle
from datarax_ray.read.identity.code import code_fingerprint
from datarax_ray.read.skipped_records import ledger_of
from datarax_ray.read.stream import MAX_NAMES, MAX_RUN_RECORDS, check_settings, on_error_setting
from datarax_ray.read.streams.open_shards import LaneReader, LiveLanes, Portion
from datarax_ray.read.streams.rows import Pick, gather


@dataclass(frozen=True)
class LaneEnd:
    """Where a lane stands behind a ticket. length: of the lane in this epoch, None where its end was not met."""

    lane: int
    cursor: Cursor
    length: int | None


@dataclass(frozen=True)
class LaneBlock(Block):
    """A block, with where the lanes that it was read from stand behind it."""

    lanes: tuple[LaneEnd, ...] = ()


@dataclass(frozen=True)
class StreamDescription:
    """What a stream of lanes is made of; see Description for num_epochs, transforms, on_error and the ledger's options.

    What is broken in a way that the lane cannot be read on is an error also with on_error="skip".
    max_actors: those that read it at the same time, each a lane; None for all. No part of the stream.
    """

    reader: LaneReader
    order: LaneOrder
    num_epochs: int = -1
    transforms: tuple[Any, ...] = ()
    on_error: OnError = "raise"
    max_skipped: int | None = None
    skipped_path: str | None = None
    max_actors: int | None = None
    _transforms: dict[str, Any] = field(init=False, repr=False, compare=False)
    _live: LiveLanes = field(init=False, repr=False, compare=False)

    run_records = MAX_RUN_RECORDS  # nothing is known of the size of elements before they are read
    may_drop = True  # whether a position has an element is known only when the lanes were read

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_epochs", check_settings(self.num_epochs, self.on_error))
        ledger_of(self)
        for step in steps(self.transforms):
            if step.kind == "decode":
                raise TypeError(
                    f"transform {step.name} decodes stored records, and this stream gives elements; map them"
                )
        object.__setattr__(self, "_transforms", code_fingerprint(self.transforms))
        object.__setattr__(self, "_live", LiveLanes(self.reader, self.order))

    @property
    def stop(self) -> int | None:
        """The position after the last, None for an endless stream."""
        return None if self.num_epochs == -1 else self.num_epochs * EPOCH_POSITIONS

    @property
    def may_repeat(self) -> bool:
        """Whether some positions may give several elements, so that batches may end inside one."""
        return any(step.kind == "flat_map" for step in steps(self.transforms))

    def drops_alike(self, is_packed: bool) -> bool:
        """See transforms.drops_alike."""
        return drops_alike(steps(self.transforms), self.on_error, is_packed)

    @property
    def num_records(self) -> int:
        """Raises: TypeError, which is what has no length in Python."""
        raise TypeError("a stream has no length before it is read to its end, so no len(); iterate it")

    @property
    def about(self) -> str:
        """What it is a stream of, in a few words for people."""
        shuffle = "window" if self.order.is_shuffled else "none"
        return f"num_lanes={self.order.num_lanes}, shuffle={shuffle!r}"

    def read(self, ticket: LaneTicket) -> Block:
        """The elements that the ticket asks for, by position. The same block wherever and whenever it is read."""
        return _read_lanes(self, self._live, ticket)

    def broken(self, ticket: LaneTicket, ended: str) -> Block:
        """A block that fails at the ticket's start, whatever on_error says: what ended the process may be the lane."""
        epoch, first = divmod(ticket.start, EPOCH_POSITIONS)
        ((lane, _),) = ticket.lanes
        ordinal = self.order.count_before(int(self.order.places(epoch)[lane]), first)
        error = ChildProcessError(f"every process that reads it ends: {ended}")
        failure = _end(self, lane, ordinal, ticket.start, error)
        return LaneBlock(np.empty(0, np.int64), None, failure=failure, failure_position=ticket.start)

    def names(self, ticket: LaneTicket) -> list[str]:
        """Some of the lanes that the ticket asks for."""
        return [self.reader.locate(lane, 0).rpartition("[")[0] for lane, _ in ticket.lanes[:MAX_NAMES]]

    def read_at(self, start: int, stop: int, extra: Extra | None = None) -> list[Any]:
        """Raises: TypeError."""
        raise TypeError("a stream has no random access: iterate it, or take a batch from where it stands (get_batch)")

    def close(self) -> None:
        """Close what is open; reading opens it again."""
        self._live.close()
        self.reader.close()

    def settings(self) -> dict[str, Any]:
        """What the stream of elements depends on, in plain values of constant size; see plan.fingerprint."""
        order: dict[str, Any] = {
            "shuffle": "window" if self.order.is_shuffled else "none",
            "seed": self.order.seed,
            "num_epochs": self.num_epochs,
            "turn_size": self.order.turn_size,
        }
        if self.order.is_shuffled:
            order["window_size"] = self.order.window_size
        return {
            "files": self.reader.fingerprint(),
            "order": order,
            "transforms": self._transforms,
            "on_error": on_error_setting(self.on_error),
        }


@dataclass
class _Piece:
    """What a ticket gets of one lane. sources: where each row is in the lane, as stored."""

    lane: int
    positions: Indices
    sources: Indices
    portions: list[Portion]

    def picks(self, places: Indices) -> Iterator[Pick]:
        """Its rows, portion by portion, put in these places."""
        for portion in self.portions:
            inside = (self.sources >= portion.start) & (self.sources < portion.stop)
            yield Pick(portion.rows, self.sources[inside] - portion.start, places[inside])


def _read_lanes(description: StreamDescription, live_lanes: LiveLanes, ticket: LaneTicket) -> Block:
    order = description.order
    epoch, first = divmod(ticket.start, EPOCH_POSITIONS)
    last = first + ticket.stop - ticket.start
    places = order.places(epoch)
    pieces: list[_Piece] = []
    ends: list[LaneEnd] = []
    failures: list[RecordError] = []
    for lane, cursor in ticket.lanes:
        place = int(places[lane])
        start, stop = order.count_before(place, first), order.count_before(place, last)
        length = live_lanes.length(epoch, lane)
        if length is not None and length <= start:
            ends.append(LaneEnd(lane, cursor, length))
            continue
        live = live_lanes.find(epoch, lane, start, cursor)
        sources, portions = live.take(stop)
        positions = order.positions(epoch, place, np.arange(start, start + len(sources)))
        pieces.append(_Piece(lane, positions, sources, portions))
        ends.append(LaneEnd(lane, live.cursor, live.length))
        if live.failure is not None:
            position = int(order.positions(epoch, place, np.array([live.ordinal]))[0])
            failures.append(_end(description, lane, live.ordinal, position, live.failure))
        live_lanes.put_back(live)
    block = _block(description, pieces, ticket.documents)
    failures += [block.failure] if isinstance(block.failure, RecordError) else []
    failure = min(failures, key=lambda error: error.position, default=None)
    return LaneBlock(
        block.positions,
        block.columns,
        block.skipped,
        failure,
        0 if failure is None else failure.position,
        block.lengths,
        lanes=tuple(ends),
    )


def _block(description: StreamDescription, pieces: list[_Piece], documents: Documents | None) -> Block:
    """The rows of all lanes in the order of their positions, through the transforms."""
    positions = np.concatenate([np.empty(0, np.int64), *(piece.positions for piece in pieces)])
    by_position = np.argsort(positions, kind="stable")
    places = np.empty_like(by_position)
    places[by_position] = np.arange(len(positions))
    ends = np.cumsum([len(piece.positions) for piece in pieces])
    picks = [
        pick
        for piece, end in zip(pieces, ends, strict=True)
        for pick in piece.picks(places[end - len(piece.positions) : end])
    ]
    rows = gather(picks, len(positions))
    positions = positions[by_position]

    def locate(position: int) -> str:  # asked only for what failed
        piece = next(piece for piece in pieces if position in piece.positions)
        return description.reader.locate(piece.lane, int(piece.sources[np.searchsorted(piece.positions, position)]))

    is_table = isinstance(rows, Mapping)
    loose = description.reader.loose(rows) if is_table else {}
    elements: Any = rows
    if is_table:
        elements = [dict(zip(loose, row, strict=True)) for row in zip(*loose.values(), strict=True)]
    progress = Progress(elements, positions.tolist(), positions.tolist(), on_error=description.on_error, locate=locate)
    if (decode := description.reader.decode) is not None:
        progress.elements = [decode(element) for element in progress.elements]  # all of them, before the first is due
        progress.run([Call(lambda decoded, *_: decoded(), "decoding")])
    columns = _settled(progress, rows, positions, loose) if is_table else None
    return block_of(
        progress, transformed(progress, columns, steps(description.transforms), description.order.seed), documents
    )


def _settled(progress: Progress, rows: Columns, positions: Indices, loose: Mapping[str, Any]) -> Columns:
    """The columns of what was decoded; None where pictures differ in size, and these are elements."""
    if not loose or not progress.elements:
        return rows if not loose else None
    kept = np.isin(positions, progress.positions)
    columns = {name: column[kept] for name, column in rows.items() if name not in loose}
    found = settle(columns, {name: [element[name] for element in progress.elements] for name in loose})
    if isinstance(found, Mapping):
        return found
    progress.elements = found
    return None


def _end(description: StreamDescription, lane: int, ordinal: int, position: int, error: BaseException) -> RecordError:
    """Why the lane gives nothing from here on."""
    where = description.reader.locate(lane, ordinal)
    failure = RecordError.of(where, position, f"reading raised {type(error).__name__}: {message_of(error)}", error)
    if description.on_error != "raise":
        failure.add_note(
            "The lane cannot be read on behind this, so on_error has no say in it. What a map or a filter inside the "
            "dataset raises can be left out where it is one of the transforms instead."
        )
    return failure
