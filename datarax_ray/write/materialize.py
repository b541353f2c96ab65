"""materialize: run the first transforms of a stream once and write the result, so that a run can read it instead."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from datarax_ray.feed.source import source_under
from datarax_ray.plan.arguments import named_arguments
from datarax_ray.plan.orders.kinds import FileOrder
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.code_digests import code_digests
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.progress import Progress
from datarax_ray.read.elements.transforms import OnError
from datarax_ray.read.errors import UnwritableError
from datarax_ray.read.formats.materialized.records import (
    KEY,
    Failed,
    Written,
    component_path,
    encoded,
    encoded_rows,
    record_of,
)
from datarax_ray.read.formats.origins import origins_of
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.materialized import MaterializedStream
from datarax_ray.read.streams.mixture import MixtureStream
from datarax_ray.write.formats import ArrayRecordFormat
from datarax_ray.write.shards import NUM_FIRST, folder_of, mean_nbytes_of, num_shards_for, write_dataset
from datarax_ray.write.statistics import Statistics

# Transforms that give a different result for a record at each of its positions.
_LIVE = {"random_map": "draws random numbers for each position", "map_with_index": "is told the position"}


@dataclass(frozen=True)
class Component:
    """The written part of a source, or of one component of a mixture.

    path: its folder.
    written, live: the names of the transforms that ran, and of the others, which run when the folder is read.
    statistics: of the written elements.
    """

    path: str
    written: tuple[str, ...]
    live: tuple[str, ...]
    num_shards: int
    nbytes: int
    statistics: Statistics

    def __str__(self) -> str:
        live = f"; live: {', '.join(self.live)}" if self.live else ""
        return f"{self.path}: ran once: {', '.join(self.written)}{live}\n{self.statistics}; {self.nbytes / 1e6:,.1f} MB"


@dataclass(frozen=True)
class Materialized:
    """The result of materialize. components: one for each component of a mixture, in their order; else one."""

    path: str
    components: tuple[Component, ...]

    @property
    def num_records(self) -> int:
        """Of the source."""
        return sum(each.statistics.num_records for each in self.components)

    @property
    def nbytes(self) -> int:
        """On the disk."""
        return sum(each.nbytes for each in self.components)

    def __str__(self) -> str:
        return "\n".join(map(str, self.components))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        components = [asdict(each) | {"statistics": each.statistics.to_json()} for each in self.components]
        return {"path": self.path, "num_records": self.num_records, "nbytes": self.nbytes, "components": components}


@named_arguments
def materialize(
    source: Any,
    path: str | os.PathLike[str],
    *,
    num_transforms: int | None = None,
    num_actors: int | None = 0,
    num_shards: int | None = None,
    group_size: int = 1,
    overwrite: bool = False,
    console: Console | None = None,
) -> Materialized:
    """Run a source's first transforms once on every record, and write the result.

    MaterializedSource(source, path) reads the same stream from the folder: batches are the same, and states of both
    sources fit both, so a run may change over in the middle of an epoch. The folder holds the result of every record,
    for any order, number of epochs, actors and trainers. The first transform that draws random numbers or receives the
    position runs live, and so do all later transforms, stages and packing. A filtered record stays filtered, a record
    keeps its several elements (flat_map), and a record that on_error skips is reported again when the folder is read.

    source: an indexed source, a mixture of indexed sources (every component gets its own folder), or a Pipeline or
        RaySource over one.
    path: a folder that all hosts see.
    num_transforms: transforms to run; None for all before the first live one.
    num_actors: Ray tasks that write at the same time; 0 for this process, without Ray; None for one per CPU of the
        cluster but one.
    num_shards: files of each component; None for files of some 256 MiB.
    group_size: records that are compressed together.
    overwrite: start again in a folder that this function wrote with other settings.
    console: shows the progress; None for no progress.

    The statistics of a field are counts, moments, lengths, and the number of times of every value, if values are few.
    dataset.json has the statistics of every shard; the result of this function has the sums.

    The same call continues an interrupted call, and the bytes are the same for any number of actors.

    Raises: ValueError where no transform can run once, or a live transform stands before another; TypeError for a
    source without an index (a stream of shards), and for a value that cannot be written; RecordError for a failing
    record, unless on_error skips it; OSError where the folder cannot be written.

    >>> import tempfile
    >>> import numpy as np
    >>> from datarax_ray import MaterializedSource, RandomAccessSource, RandomAccessSourceConfig
    >>> def square(element):
    ...     return {"y": element["x"] ** 2}
    >>> source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)}, transforms=[square])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = materialize(source, folder)
    ...     MaterializedSource(source, folder).get_batch(3)
    {'y': array([0, 1, 4])}
    """
    folder_of(path)
    source = source_under(source)
    if not callable(getattr(source, "describe", None)):
        raise TypeError(f"materialize takes a source, or a Pipeline over one, got {shown(source)}")
    streams = _components(source.describe(), os.fspath(path))
    counts = [leading(stream, num_transforms) for _, stream in streams]  # of all, before the first is written
    components = []
    for (folder, stream), count in zip(streams, counts, strict=True):
        run = Materializing.of(stream, count)
        mean_nbytes = 0.0 if num_shards else mean_nbytes_of(run(0, min(NUM_FIRST, run.num_records)))
        manifest = write_dataset(
            run,
            run.num_records,
            folder,
            ArrayRecordFormat(group_size),
            made_from={KEY: run.written().to_json()},
            num_shards=num_shards or num_shards_for(run.num_records, mean_nbytes),
            num_actors=num_actors,
            overwrite=overwrite,
            console=console,
            title="materialize",
        )
        notes: list[Mapping[str, Any]] = [shard.said["statistics"] for shard in manifest.shards]
        statistics = functools.reduce(operator.add, map(Statistics.from_json, notes), Statistics())
        names = tuple(step.name for step in stream.steps)
        written, live = names[:count], names[count:]
        components.append(Component(folder, written, live, len(manifest.shards), manifest.nbytes, statistics))
    return Materialized(os.fspath(path), tuple(components))


def _components(stream: Any, path: str) -> list[tuple[str, IndexedStream]]:
    if isinstance(stream, MixtureStream):
        parts = (_components(each, component_path(path, index)) for index, each in enumerate(stream.components))
        return [found for part in parts for found in part]
    if isinstance(stream, MaterializedStream):
        raise TypeError(f"this source reads a materialised folder; give the live source ({path} is another folder)")
    if not isinstance(stream, IndexedStream):
        raise TypeError(
            f"materialize writes a result for each record, and a {type(stream).__name__} has no record by number: it "
            "is read forwards, by shards. Convert its data (`datarax-ray convert`), or read it by an eager source "
            "(from_hf(..., eager=True))"
        )
    return [(path, stream)]


def leading(stream: IndexedStream, num_transforms: int | None = None) -> int:
    """How many of the stream's first transforms run once, on each record; at most num_transforms.

    Raises: ValueError where there is none, where num_transforms includes one that must run live, and, without
    num_transforms, for a transform that could run once but follows one that must run live.
    """
    steps = stream.steps
    live = next((step for step in steps if step.kind in _LIVE), None)
    most = len(steps) if live is None else live.index
    why = "" if live is None else f": transform {live.name} {_LIVE[live.kind]}"
    behind = [step.name for step in steps[most:] if step.kind not in _LIVE]
    if num_transforms is None and most and behind:
        raise ValueError(
            f"{', '.join(behind)} could run once, and would run live{why}, and all behind it run live as well. Move "
            f"these before it, or write the first {most} alone: num_transforms={most}"
        )
    count = most if num_transforms is None else num_transforms
    if count > most:
        raise ValueError(f"num_transforms={count}, and {most} at most can run once{why}")
    if count < 1:
        raise ValueError(f"there is no transform to run once{why}; the source's own files are as good")
    return count


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
        for records, progress, columns in self.stream.in_runs(start, stop):
            yield from self._stored(records.tolist(), progress, columns)
            statistics += Statistics.of(len(records), progress, columns)
        origins = origins_of(self.stream.reader, range(start, stop))
        return {"statistics": statistics.to_json(), "origins": origins}

    def _stored(self, records: list[int], progress: Progress, columns: Columns) -> list[bytes]:
        if progress.failure is not None:
            raise progress.failure
        positions: list[int] = np.asarray(progress.positions).tolist()
        try:
            found = list(map(encoded, progress.elements)) if columns is None else encoded_rows(columns, len(positions))
        except UnwritableError as error:
            error.add_note(f"among the records from {self.stream.locate(records[0])} on")
            raise
        ordinals: Sequence[int] = progress.ordinals or [0] * len(positions)
        elements: dict[int, list[tuple[int, bytes]]] = {}
        for position, ordinal, data in zip(positions, ordinals, found, strict=True):
            elements.setdefault(position, []).append((ordinal, data))
        failed: dict[int, list[Failed]] = {}
        for skip in progress.skipped:
            failed.setdefault(skip.position, []).append(Failed(skip.where, skip.reason))
        return [record_of(elements.get(record, ()), failed.get(record, ())) for record in records]
