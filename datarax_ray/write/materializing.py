"""Runs the first transforms of a stream on every record of its source, and gives the records to store."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datarax_ray.plan.orders.kinds import FileOrder
from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.transforms import OnError, Step
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.materialized.records import Failed, encoded, encoded_rows, record_of
from datarax_ray.read.formats.materialized.written import Written, origins_of
from datarax_ray.read.streams.indexed import IndexedStream, run_of
from datarax_ray.write.statistics import Statistics, fields_of_columns, fields_of_elements

# These give a different result for a record at each of its positions.
_RANDOM = {
    "random_map": "draws random numbers for each position",
    "map_with_index": "is told the position",
}


def leading(stream: IndexedStream, num_transforms: int | None = None) -> int:
    """How many of the stream's first transforms run once, on each record; at most num_transforms.

    Raises: ValueError where there is none, where num_transforms includes one that must run live, and, without
    num_transforms, for a transform that could run once but follows one that must run live.
    """
    steps = stream.steps
    live = next((step for step in steps if _why_live(step)), None)
    most = len(steps) if live is None else live.index
    if num_transforms is None:
        behind = [step.name for step in steps[most:] if not _why_live(step)]
        if live is not None and most and behind:
            raise ValueError(
                f"transform {live.name} {_why_live(live)}, so it runs live, and so does all behind it: "
                f"{', '.join(behind)}. Move these before it, or say that the first {most} are to be written: "
                f"num_transforms={most}"
            )
        num_transforms = most
    if num_transforms > most:
        if live is None:
            raise ValueError(f"num_transforms={num_transforms}, and the source has {most} transforms")
        raise ValueError(
            f"num_transforms={num_transforms}, and transform {live.index} ({live.name}) {_why_live(live)}: "
            f"its result for a record differs in every epoch. Give at most {most}; it then runs live"
        )
    if num_transforms < 1:
        first = f": the first, {live.name}, {_why_live(live)}" if live is not None else ""
        raise ValueError(f"there is no transform to run once{first}; the source's own files are as good")
    return num_transforms


def _why_live(step: Step) -> str:
    return _RANDOM.get(step.kind, "")


@dataclass(frozen=True)
class Materializing:
    """The first transforms of a stream, to run on all records of its source. Picklable.

    stream: with these transforms alone, in file order, and with failures skipped where on_error may skip them.
    transforms: the names and code of these.
    """

    stream: IndexedStream
    transforms: Mapping[str, Any]

    @classmethod
    def of(cls, stream: IndexedStream, num_transforms: int) -> Materializing:
        """Raises: ValueError for records that depend on their positions, or lie on some nodes alone."""
        if hasattr(stream.reader, "read_at") and not getattr(stream.reader, "keeps_records", False):
            raise ValueError("this source makes its elements of positions, so there is nothing to write for a record")
        if stream.homes is not None:
            raise ValueError(
                "the files lie on some nodes alone (files_on_nodes); copy them to where all nodes have them"
            )
        on_error: OnError = "raise" if stream.on_error == "raise" else "skip"
        order = FileOrder(stream.order.num_records, stream.order.seed)
        first = stream.transforms[:num_transforms]
        run = replace(stream, order=order, num_epochs=1, transforms=first, on_error=on_error)
        return cls(run, code_digests(first))

    @property
    def num_records(self) -> int:
        """Of the source."""
        return self.stream.order.num_records

    def written(self) -> Written:
        """What a stream must match to be read from the written files."""
        files = self.stream.reader.fingerprint()
        return Written(self.num_records, len(self.stream.transforms), files, self.transforms)

    def __call__(self, start: int, stop: int) -> Generator[bytes, None, dict[str, Any]]:
        """The stored record of each of the records [start, stop); see write.shards.ReadRun.

        The records are read in the same small runs by any actor, so the statistics are the same as well.
        """
        statistics = Statistics()
        size = run_of(self.stream.reader)
        for first in range(start, stop, size):
            stored, piece = self._stored(np.arange(first, min(first + size, stop)))
            yield from stored
            statistics += piece
        origins = origins_of(map(self.stream.locate, range(start, stop)), start)
        return {"statistics": statistics.to_json(), "origins": list(map(list, origins))}

    def _stored(self, records: np.ndarray) -> tuple[list[bytes], Statistics]:
        """The stored record of each of these consecutive records, and the statistics of all."""
        progress, columns = self.stream._elements(records, records)
        if progress.failure is not None:
            raise progress.failure
        positions: list[int] = np.asarray(progress.positions).tolist()
        try:
            if columns is None:
                found = list(map(encoded, progress.elements))
                fields = fields_of_elements(progress.elements)
            else:
                found = encoded_rows(columns, len(positions))
                fields = fields_of_columns(columns)
        except UnwritableError as error:
            error.add_note(f"among the records from {self.stream.locate(int(records[0]))} on")
            raise
        ordinals: Sequence[int] = progress.ordinals or [0] * len(positions)
        elements: dict[int, list[tuple[int, bytes]]] = {}
        for position, ordinal, data in zip(positions, ordinals, found, strict=True):
            elements.setdefault(position, []).append((ordinal, data))
        failed: dict[int, list[Failed]] = {}
        for skip in progress.skipped:
            failed.setdefault(skip.position, []).append(Failed(skip.where, skip.reason))
        numbers = records.tolist()
        stored = [record_of(elements.get(number, ()), failed.get(number, ())) for number in numbers]
        num_empty = len(numbers) - len(elements)
        return stored, Statistics(len(numbers), len(positions), num_empty, len(progress.skipped), fields)
