"""materialize: a stream's first transforms run once, and what they make written, so that a run may go on from there."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from datarax_ray.feed.source import source_under
from datarax_ray.plan.arguments import named_arguments
from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.formats.materialized.written import KEY, component_path
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.read.streams.materialized import MaterializedStream
from datarax_ray.read.streams.mixture import MixtureStream
from datarax_ray.read.written_whole import written_whole
from datarax_ray.write.formats import ArrayRecordFormat
from datarax_ray.write.materializing import Materializing, leading
from datarax_ray.write.shards import FIRST, folder_of, mean_nbytes_of, num_shards_for, write_dataset
from datarax_ray.write.statistics import Statistics
from datarax_ray.write.statistics_page import page, summary

REPORT = "report.html"


@dataclass(frozen=True)
class Component:
    """What was written of a source, or of one component of a mixture.

    path: its folder.
    written, live: the names of the transforms that were run, and of those behind them, which run when it is read.
    statistics: of what was written.
    """

    path: str
    written: tuple[str, ...]
    live: tuple[str, ...]
    num_shards: int
    nbytes: int
    statistics: Statistics

    @property
    def said(self) -> str:
        """What ran, and what runs live, in a line."""
        live = f"; live: {', '.join(self.live)}" if self.live else ""
        return f"ran once: {', '.join(self.written)}{live}"

    def __str__(self) -> str:
        return f"{self.path}: {self.said}\n{summary(self.statistics)}; {self.nbytes / 1e6:,.1f} MB"


@dataclass(frozen=True)
class Materialized:
    """What materialize wrote. components: of a mixture, one for each of its components, in their order; else one."""

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
        return "\n".join([*map(str, self.components), f"the page is {os.path.join(self.path, REPORT)}"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's, for what a cell ends with."""
        printer.text(str(self))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "path": self.path,
            "num_records": self.num_records,
            "nbytes": self.nbytes,
            "components": [
                {
                    "path": each.path,
                    "written": list(each.written),
                    "live": list(each.live),
                    "num_shards": each.num_shards,
                    "nbytes": each.nbytes,
                    "statistics": each.statistics.to_json(),
                }
                for each in self.components
            ],
        }


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
    """Run a source's first transforms once on every record, and write what they make, with a page of statistics.

    MaterializedSource(source, path) is the same stream, read from there: with the same batches, and states that fit
    both, so that a run may change over in the middle of an epoch. What is written is of each record, so order, epochs,
    actors and trainers may be any. Transforms that draw random numbers or are told the position run live, and so do all
    behind the first of them; stages and packing always do. A record that a filter leaves out stays so; one that gives
    several elements (flat_map) keeps them; one that on_error lets pass is told of again where it is read.

    source: an indexed source, a mixture of such, each of whose components goes to a folder of its own, or a Pipeline or
        RaySource over one.
    path: a folder, which all hosts see.
    num_transforms: how many to run; None for all up to the first that runs live.
    num_actors: Ray tasks that write at the same time; 0 for this process, without Ray, None for one per CPU of the
        cluster but one.
    num_shards: files, of each component; None for some of 256 MiB.
    group_size: records that are compressed together.
    overwrite: begin anew in a folder that holds something else of this function.
    console: where the progress is shown; None for nowhere.

    The statistics are by field: counts, moments, lengths, and how often each value comes where these are few. They
    stand in dataset.json for each shard, in what this returns, and in report.html, which any browser shows.

    The same call goes on where one was interrupted, and the bytes are the same for any number of actors.

    Raises: ValueError where no transform can be run once, or one that can stands behind one that cannot; TypeError for
    a source without an index (a stream of shards), and for a value that cannot be written; RecordError for a record
    that fails, unless on_error lets it pass; OSError where the folder cannot be written.

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
    stream = _described(source)
    write = functools.partial(
        _write,
        num_transforms=num_transforms,
        num_actors=num_actors,
        num_shards=num_shards,
        group_size=group_size,
        overwrite=overwrite,
        console=console,
    )
    components = _components(stream, os.fspath(path))
    for _, each in components:  # of all before the first is written
        leading(each, num_transforms)
    done = Materialized(os.fspath(path), tuple(write(each, where) for where, each in components))
    _write_page(done)
    return done


def _write_page(done: Materialized) -> None:
    """The page in the folder, which has its name once it is whole."""
    names = [os.path.relpath(each.path, done.path) for each in done.components]
    parts = [
        ("" if name == "." else name, each.said, each.statistics)
        for name, each in zip(names, done.components, strict=True)
    ]
    with written_whole(Path(done.path, REPORT)) as part:
        part.write_text(page(f"materialised: {Path(done.path).name}", parts), encoding="utf-8")


def _described(source: Any) -> Any:
    source = source_under(source)
    describe = getattr(source, "describe", None)
    if not callable(describe):
        raise TypeError(f"materialize takes a source, or a Pipeline over one, got {shown(source)}")
    return describe()


def _components(stream: Any, path: str) -> list[tuple[str, IndexedStream]]:
    """The streams of records, and the folder of each."""
    if isinstance(stream, MixtureStream):
        parts = (_components(each, component_path(path, index)) for index, each in enumerate(stream.components))
        return [found for part in parts for found in part]
    if isinstance(stream, MaterializedStream):
        raise TypeError(f"this source is read from what was materialised; give the live one ({path} is another folder)")
    if not isinstance(stream, IndexedStream):
        raise TypeError(
            f"materialize writes what becomes of each record, and a {type(stream).__name__} has none by number: it is "
            "read forwards, by shards. Convert its data (`datarax-ray convert`), or read it by an eager source "
            "(from_hf(..., eager=True))"
        )
    return [(path, stream)]


def _write(
    stream: IndexedStream,
    path: str,
    *,
    num_transforms: int | None,
    num_actors: int | None,
    num_shards: int | None,
    group_size: int,
    overwrite: bool,
    console: Console | None,
) -> Component:
    count = leading(stream, num_transforms)
    run = Materializing.of(stream, count)
    if not num_shards:
        num_shards = num_shards_for(run.num_records, mean_nbytes_of(run(0, min(FIRST, run.num_records))))
    manifest = write_dataset(
        run,
        run.num_records,
        Path(path),
        ArrayRecordFormat(group_size),
        made_from={KEY: run.written().to_json()},
        num_shards=num_shards,
        num_actors=num_actors,
        overwrite=overwrite,
        console=console,
        title="materialize",
    )
    said: list[Mapping[str, Any]] = [shard.said["statistics"] for shard in manifest.shards]
    names = [step.name for step in stream.steps]
    return Component(
        path,
        tuple(names[:count]),
        tuple(names[count:]),
        len(manifest.shards),
        manifest.nbytes,
        functools.reduce(operator.add, map(Statistics.from_json, said), Statistics()),
    )
