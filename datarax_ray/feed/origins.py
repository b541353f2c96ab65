"""Origins: the file and record of each row of any batch, after the fact, straight from the order.

Nothing is logged while a model trains: a stream is a function of its settings, so any of its batches can be made again,
or only be located.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from datarax_ray.feed.batches import HostBatch, Pieces
from datarax_ray.feed.stream import StreamOptions, batches, places
from datarax_ray.plan.amendments import yields_from
from datarax_ray.plan.arguments import whole
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.packing import DocumentSpec, Packing
from datarax_ray.plan.position import CountedBatches
from datarax_ray.plan.state import StreamState
from datarax_ray.read.stream import Stream
from datarax_ray.read.streams.merged import MergedStream, Merger
from datarax_ray.read.streams.mixture import component_name

# Gives the batches of a stream from a state on: Source.batches.
Batches = Callable[[StreamState, StreamOptions], Generator[HostBatch, None, object]]
_COUNTED = "; batches are counted from 0"


class NoBatchError(IndexError):
    """The stream ends before the batch. Commands report it; any other IndexError comes from somebody's code."""


class Origin(NamedTuple):
    """Where a row of a global batch came from, or a piece of a packed row.

    row: of the global batch.
    record: its file and number, as errors name them.
    position: of the record in the stream.
    offset: elements of the record before this one, behind a flat_map; tokens or documents before, in packed rows.
    places: [start, stop) of the piece in the packed row; None where rows are elements.
    """

    row: int
    record: str
    position: int
    offset: int = 0
    places: tuple[int, int] | None = None


def origins(description: Stream, start: StreamState, options: StreamOptions, step: int) -> list[Origin]:
    """The origins of all rows of the batch `step` batches behind `start`, of all trainers, by row.

    Reads nothing where every position gives one row; else the stream from `start` to that batch, in this process.

    Raises: NoBatchError where the stream ends before the batch; TypeError, ValueError for an invalid step.
    """
    step = whole("step", step, _COUNTED, least=0)
    if rows_are_positions(description, options, start):
        positions = _positions(description, start, options, step)
        records = description.locations(np.arange(positions.start, positions.stop, dtype=np.int64), start)
        return [Origin(row, *of) for row, of in enumerate(zip(records, positions, strict=True))]
    read = partial(batches, description, None)
    (batch,) = replayed(description, read, start, options, step, step + 1)
    return origins_in(batch, description, start, options)


def origins_in(batch: HostBatch, description: Stream, start: StreamState, options: StreamOptions) -> list[Origin]:
    """The origins of all rows of a batch behind `start`, by row."""
    if batch.pieces is not None:
        assert isinstance(options.packing, Packing)
        records = _locations(description, batch.pieces.position, start, options.packing.documents)
        return sorted(_of_pieces(batch.pieces, records, options.packing.seq_len), key=lambda of: (of.row, of.places))
    documents = None if options.packing is None else options.packing.documents
    records = _locations(description, batch.positions, start, documents)
    ordinals = np.zeros(batch.num_rows, np.int64) if batch.ordinals is None else batch.ordinals
    rows = zip(records, batch.positions.tolist(), ordinals.tolist(), strict=True)
    return [Origin(row, *of) for row, of in enumerate(rows)]


def _locations(
    description: Stream, positions: Indices, start: StreamState, documents: DocumentSpec | None
) -> list[str]:
    """The file and record of each position; a merged mixture is read once more, from `start` on."""
    if not isinstance(description, MergedStream):
        return description.locations(positions, start)
    found: dict[int, str] = {}
    own: dict[int, list[tuple[Indices, Indices]]] = {}
    with closing(places(description, start, documents)) as all_places:
        for taken in all_places:
            for index, at, its in taken:
                is_asked = np.isin(at, positions)
                own.setdefault(index, []).append((at[is_asked], its[is_asked]))
            if max(at[-1] for _, at, _ in taken) >= positions.max(initial=-1):
                break
    begins = Merger(description.order, start, None).states
    for index, each in own.items():
        at, its = (np.concatenate(part) for part in zip(*each, strict=True))
        names = _locations(description.components[index], its, begins[index], documents)
        found |= {place: f"{component_name(index)}: {name}" for place, name in zip(at.tolist(), names, strict=True)}
    return [found[position] for position in positions.tolist()]


def replayed(
    description: Stream, read: Batches, start: StreamState, options: StreamOptions, first: int, stop: int
) -> Generator[HostBatch, None, None]:
    """The batches [first, stop) behind `start`, with the rows of all trainers; fewer where the stream ends.

    Begins with the first batch where every position gives one row; else reads and drops the batches before it.

    Raises: TypeError, ValueError for invalid steps; NoBatchError where the stream ends before the first batch. The
    iterator raises it where the end is known only by reading.
    """
    first, stop = (whole(name, step, _COUNTED, least=0) for name, step in (("first", first), ("stop", stop)))
    if stop <= first:
        raise ValueError(f"steps [{first}, {stop}) are none")
    number = 0
    if rows_are_positions(description, options, start):
        start, number = start._replace(position=_positions(description, start, options, first).start), first
    return _between(
        partial(read, start, replace(options, process_index=0, process_count=1, share=None)), number, first, stop
    )


def _between(
    read: Callable[[], Generator[HostBatch, None, object]], number: int, first: int, stop: int
) -> Generator[HostBatch, None, None]:
    """The batches [first, stop) of a stream. number: of the first batch that is read."""
    with closing(read()) as found:
        for batch in found:
            if number >= first:
                yield batch
            number += 1
            if number == stop:
                return
    if number <= first:
        raise _no_step(first, number)


def rows_are_positions(description: Stream, options: StreamOptions, start: StreamState) -> bool:
    """Whether every position from `start` on gives one row, in order: then batches are found without reading."""
    return options.packing is None and rows_are_counted(description, options, start)


def rows_are_counted(description: Stream, options: StreamOptions, start: StreamState) -> bool:
    """Whether every position from `start` on gives one row: then batches can be counted without reading."""
    yields = yields_from(description.yields, start.amendments, start.position)
    return not isinstance(options.packing, Packing) and yields.is_one_to_one


def _positions(description: Stream, start: StreamState, options: StreamOptions, step: int) -> range:
    """The positions of a batch, where every position gives one row."""
    counted = CountedBatches(start.position, description.stop, options.batch_size, options.drop_remainder)
    if not (found := counted.positions(step)):
        raise _no_step(step, counted.num_batches or 0)
    return found


def _no_step(step: int, count: int) -> NoBatchError:
    return NoBatchError(f"there is no batch {step}: from there on the stream has {count}, counted from 0")


def _of_pieces(pieces: Pieces, records: list[str], seq_len: int) -> Iterator[Origin]:
    """The pieces, cut where rows end."""
    columns = pieces.start, pieces.size, pieces.position, pieces.units
    for record, start, size, position, units in zip(records, *(column.tolist() for column in columns), strict=True):
        at = start
        while at < start + size:
            row, place = divmod(at, seq_len)
            end = min(start + size, (row + 1) * seq_len)
            yield Origin(row, record, position, units + at - start, (place, place + end - at))
            at = end
