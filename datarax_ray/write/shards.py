"""Writes a dataset as shards, runs of records in file order, on this host or on the hosts of a cluster.

A shard is a pure function of the data, so any host may write a shard, more than once. A host writes under a name that
readers skip, and syncs the file to the disk. The process that collects the shards renames the file and notes the whole
shard. So no run leaves half a file, and the next run continues with the missing shards.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.position import pieces
from datarax_ray.read.errors import FULL
from datarax_ray.read.file_contents import head_and_content
from datarax_ray.read.formats.origins import index_of, write_index
from datarax_ray.record_progress import RecordProgress
from datarax_ray.write.formats import Format
from datarax_ray.write.manifest import Manifest, Shard, Unfinished, unfinished

SHARD_NBYTES = 256 * 2**20
NUM_FIRST = 256  # records that decide the size of a record, and the types of columns

Advance = Callable[[int], None]


class ReadRun(Protocol):
    """Reads a run of records, [start, stop). Picklable; gives the same items wherever and whenever it is called.

    An item is bytes or a pyarrow table, as the format writes them. The generator returns a dict of plain JSON values
    for the shard's note, or None. Its "origins", runs of Origin, become the index beside the shard; see
    read.formats.origins.
    """

    def __call__(self, start: int, stop: int) -> Iterator[Any]: ...


def num_shards_for(num_records: int, mean_nbytes: float) -> int:
    """How many shards hold some 256 MiB each.

    >>> num_shards_for(1_000_000, 4096)
    16
    """
    return max(1, -int(-num_records * mean_nbytes // SHARD_NBYTES))


def mean_nbytes_of(items: Iterable[Any]) -> float:
    """The mean size of a record in these items, before compression."""
    num_records, nbytes = 0, 0
    for item in items:
        num_records += 1 if isinstance(item, bytes) else item.num_rows
        nbytes += len(item) if isinstance(item, bytes) else item.nbytes
    return nbytes / max(1, num_records)


def folder_of(destination: str | os.PathLike[str]) -> Path:
    """The folder to write to, absolute.

    Raises: ValueError for a URL, also for one that Path has shortened; NotADirectoryError for a file.
    """
    named = os.fspath(destination)
    if ":/" in named:
        url = re.sub(":/+", "://", named, count=1)
        raise ValueError(
            f"{url} is a URL, and datasets are written to folders: write to one, and copy it, or mount the bucket"
        )
    if os.path.isfile(named):
        raise NotADirectoryError(f"{named} is a file, and datasets are written to folders: name another one")
    return Path(named).absolute()


@dataclass(frozen=True)
class _Task:
    folder: Path
    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Written:
    """A whole shard. parts: present names, which readers skip, with the final ones. host: the writer, for people."""

    parts: Mapping[str, str]
    shard: Shard
    host: str


def write_dataset(
    read: ReadRun,
    num_records: int,
    destination: str | os.PathLike[str],
    format: Format,
    *,
    made_from: Mapping[str, Any],
    num_shards: int,
    num_actors: int | None = 0,
    overwrite: bool = False,
    console: Console | None = None,
    title: str = "write",
) -> Manifest:
    """Write the records [0, num_records) as `num_shards` files into a folder, and `dataset.json` last.

    The bytes are the same for any number of actors. Shards of an interrupted run over the same data and settings are
    kept, and only the missing ones are written. A finished folder stays unchanged.

    made_from: plain values that identify the data and its conversion; different values are a different dataset.
    num_actors: Ray tasks that write at the same time, to a folder that all hosts see; 0 for this process, without Ray;
        None for one per CPU of the cluster but one.
    overwrite: start again, and replace earlier files of this function.
    console: shows the progress; None for no progress.

    Raises: ValueError for a folder with other data, with the differences; OSError at once where the folder cannot be
    written; errors of `read`. Finished shards stay, and the same call continues from them.
    """
    folder = folder_of(destination)
    if num_actors is not None:
        whole("num_actors", num_actors, least=0)
    cuts = pieces(0, num_records, whole("num_shards", num_shards, least=1))
    names = [f"data-{k:05d}-of-{len(cuts):05d}.{format.suffix}" for k in range(len(cuts))]
    settings = {
        "format": format.settings(),
        "made_from": dict(made_from),
        "source_records": num_records,
        "num_shards": len(cuts),
    }
    with unfinished(folder, settings, names, overwrite=overwrite) as notes:
        done = {shard.name: shard for shard in notes.kept}
        tasks = [_Task(folder, name, *cut) for name, cut in zip(names, cuts, strict=True) if name not in done]
        try:
            with RecordProgress(console or Console(quiet=True), title, num_records) as progress:
                progress.advance(sum(shard.stop - shard.start for shard in notes.kept))
                for shard in _written(partial(write_shard, read, format), tasks, num_actors, notes, progress):
                    done[shard.name] = shard
        except BaseException as end:
            if isinstance(end, OSError) and end.errno in FULL:
                end.add_note("make room there first, or write to another folder")
            end.add_note(
                f"{len(done)} of {len(names)} shards are finished in {folder}, and stay; the same call or command "
                "continues from them"
            )
            raise
        manifest = Manifest(settings, tuple(done[name] for name in names))
        if tasks or Manifest.read(folder) is None:
            notes.finish(manifest)
    return manifest


def _written(
    write: Callable[[_Task, Advance], _Written],
    tasks: Sequence[_Task],
    num_actors: int | None,
    notes: Unfinished,
    progress: RecordProgress,
) -> Iterator[Shard]:
    """The shards, each once it has its name and is noted."""
    if not tasks:
        return
    results: Generator[tuple[int, _Written], None, None]
    if num_actors == 0:
        results = ((index, write(task, progress.advance)) for index, task in enumerate(tasks))
    else:
        from datarax_ray.actors.hosts import on_hosts  # here, as this process alone must do without Ray

        # records of a shard that another host writes count once the shard is there
        results = on_hosts(lambda task: write(task, lambda count: None), tasks, num_actors)
    with contextlib.closing(results):
        for index, written in results:
            task = tasks[index]
            for part, name in written.parts.items():  # the shard last: then its index is there
                if not (task.folder / part).exists():
                    raise FileNotFoundError(
                        f"{task.folder} is not the same folder on all hosts: {written.host} wrote {part} there, "
                        f"and {socket.gethostname()} does not see it. Write to a folder that all hosts share, or with "
                        "num_actors=0 here alone"
                    )
                os.replace(task.folder / part, task.folder / name)
            notes.add(written.shard)
            progress.advance(task.stop - task.start - (written.shard.num_records if num_actors == 0 else 0))
            yield written.shard


def write_shard(read: ReadRun, format: Format, task: _Task, advance: Advance) -> _Written:
    """Write one shard under a name that readers skip. An error of reading or writing leaves no file.

    advance: is called with the number of records that were written since the last call.
    """
    part, index = (task.folder / f".{name}.{secrets.token_hex(4)}.part" for name in (task.name, index_of(task.name)))
    if not task.folder.is_dir():
        raise FileNotFoundError(
            f"{task.folder} is not there on {socket.gethostname()}; write to a folder that all hosts share"
        )
    try:
        count, said = _fill(part, read(task.start, task.stop), format, advance)
        nbytes, content = part.stat().st_size, head_and_content(str(part))[1]
        origins = said.pop("origins", ()) if isinstance(said, dict) else ()
        parts = {part.name: task.name}
        if origins:
            write_index(index, origins, nbytes, content)
            parts = {index.name: str(index_of(task.name)), **parts}
        for name in parts:
            with (task.folder / name).open("rb") as file:
                os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
        raise
    shard = Shard(task.name, task.start, task.stop, count, nbytes, content, said or None)
    return _Written(parts, shard, socket.gethostname())


def _fill(part: Path, items: Iterator[Any], format: Format, advance: Advance) -> tuple[int, Any]:
    """Write the items. Returns the number of records, and the value of the reader."""
    writer = format.open(part)
    count = 0
    try:
        with contextlib.closing(items) if isinstance(items, Generator) else contextlib.nullcontext():
            while True:
                try:
                    item = next(items)
                except StopIteration as end:
                    said = end.value
                    break
                written = writer.write(item)
                count += written
                advance(written)
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return count, said
