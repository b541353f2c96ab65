"""A stream of which the first transforms were run once, and what they made is read in place of the source's records.

What is written is of each record, not of each position: so order, epochs, random transforms and states are those of the
live stream, and so is every batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.block import transformed
from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.progress import Call, Progress
from datarax_ray.read.elements.row_digests import first_difference
from datarax_ray.read.formats.cache import CachedReader, cached
from datarax_ray.read.formats.materialized.records import (
    ELEMENT,
    ROW,
    Written,
    columns_of,
    component_path,
    opened,
    parts_of,
    value_of,
)
from datarax_ray.read.laps import lap
from datarax_ray.read.streams.indexed import IndexedStream, names_of, read_records
from datarax_ray.read.streams.mixture import MixtureStream

logger = logging.getLogger("datarax_ray")

_MAX_COMPARED = 8  # elements, where code changed since they were written
_READING = "reading what materialize wrote"
_SINGLE = (bytes([ELEMENT]), bytes([ROW]))


@dataclass(frozen=True)
class MaterializedStream(IndexedStream):
    """What the live stream is, with a reader of the files in which its elements are; see ElementStream.

    transforms: all of the live stream's; written.num_transforms of them are not run again.
    """

    written: Written = field(kw_only=True)
    files: Mapping[str, Any] = field(kw_only=True)  # the fingerprint of the live stream's

    @classmethod
    def of(cls, live: IndexedStream, reader: Any, written: Written, where: str) -> MaterializedStream:
        """The live stream, with its elements read by this reader. where: the folder, for people.

        Raises: DriftError where others were written.
        """
        files = live.reader.fingerprint()
        code = code_digests(live.transforms[: written.num_transforms])
        changed = written.check({"files": files, "transforms": code}, where)
        if isinstance(live.reader, CachedReader):
            reader = cached(reader, live.reader.max_nbytes)
        given = live.order, live.num_epochs, live.transforms, live.on_error, live.first_yields
        found = cls(reader, *given, as_objects=live.as_objects, written=written, files=files)
        if changed:
            _compare(live, found, where)
            names = ", ".join(changed)
            logger.warning(
                "%s: the code of %s changed since it was written; its first elements are the same", where, names
            )
        return found

    def locate(self, record: int) -> str:
        """The place of the original record where known, else the place of the written element."""
        return self.reader.origin(record) or self.reader.locate(record)

    name = locate  # of the live stream

    def names(self, request: ReadRequest) -> list[str]:
        return names_of(request.select(self.order)[1], self.reader.locate)

    def settings(self) -> dict[str, Any]:
        """Those of the live stream."""
        return super().settings() | {"files": self.files}

    def _elements(self, positions: Indices, records: Indices, ended: str = "") -> tuple[Progress, Columns]:
        done, todo = self.steps[: self.written.num_transforms], self.steps[self.written.num_transforms :]
        progress, _ = read_records(self.reader, positions, records, self.on_error, ended, in_rows=True)
        with lap("reading"):
            columns = _decoded(progress, are_last=not todo and not self.as_objects)
        progress.locate = self.locate  # failures from here on name the live record
        progress.gave_several = any(step.kind == "flat_map" for step in done)
        return progress, transformed(progress, columns, todo, self.order.seed, self.as_objects)


def _compare(live: IndexedStream, found: MaterializedStream, where: str) -> None:
    """Raise DriftError unless both give the same elements at the first positions."""
    positions = np.arange(min(_MAX_COMPARED, live.order.num_records))
    blocks = [each.block_at(positions, each.order.records(positions), None) for each in (live, found)]
    one, other = ([block.columns] if len(block.positions) else [] for block in blocks)
    if difference := first_difference(iter(one), iter(other)):
        fields = ", ".join(difference.fields) or "number of elements"
        raise DriftError(
            f"{where} was written by other transforms: made again, element {difference.row} has another {fields}. "
            "Materialize the source anew, to another folder"
        )


def _decoded(progress: Progress, are_last: bool) -> Columns:
    """Decode the written elements: columns where they were written as columns, or stack; else None.

    are_last: whether elements may become columns here: no transform follows, and none is None for a null.
    """
    columns = columns_of(progress.elements, are_last)
    if columns is None and any(record[:1] not in _SINGLE for record in progress.elements):
        progress.run([Call(lambda record, *_: parts_of(record), _READING, "flat_map")])
        _settle(progress)
        columns = columns_of(progress.elements, are_last)
    if columns is not None:
        progress.elements = []
        return columns
    try:
        progress.elements = list(map(value_of, progress.elements))  # they are nobody else's
    except ValueError:  # each by itself, to tell which one
        progress.run([Call(lambda record, *_: value_of(record), _READING)])
    return None


def _settle(progress: Progress) -> None:
    """Take what failed when it was written for a failure now, as on_error says, and elements for what they are."""
    parts, kept = progress.elements, []
    for index, (ordinal, *failed) in enumerate(parts):
        if ordinal is not None:
            kept.append(index)
        else:
            where, reason = failed
            if not progress.record_failure(index, where, reason, ValueError("it failed so when it was materialised")):
                break
    progress.elements = [parts[index][1] for index in kept]
    progress.ordinals = [parts[index][0] for index in kept]
    progress.positions = [progress.positions[index] for index in kept]
    progress.records = [progress.records[index] for index in kept]
    progress.end_before_failure()


def materialized(stream: Any, path: str) -> Any:
    """The stream, read from its written elements; each component of a mixture has a folder of its own.

    Raises: TypeError for a stream that is not of records; else as MaterializedSource.
    """
    if isinstance(stream, MixtureStream):
        parts = (materialized(each, component_path(path, index)) for index, each in enumerate(stream.components))
        return replace(stream, components=tuple(parts))
    return MaterializedStream.of(stream, *opened(path), path)
