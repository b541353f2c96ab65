"""Writes a dataset as shards: runs of records in file order, on this host or on those of a cluster.

A shard is a pure function of what is read, so any host may write it, and again. It is written under a name that nobody
reads, brought to the disk, and gets its own name by whoever collects them, who then notes that it is whole: nothing
that ends a run leaves half a file, and the next one goes on with the shards that are not noted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from datarax_ray.plan.arguments import whole
from datarax_ray.plan.position import pieces
from datarax_ray.read.elements.columns import nbytes_of
from datarax_ray.read.errors import FULL
from datarax_ray.read.identity.contents import head_and_content
from datarax_ray.record_progress import RecordProgress
from datarax_ray.write.formats import Format
from datarax_ray.write.manifest import Manifest, Shard, Unfinished, unfinished

SHARD_NBYTES = 256 * 2**20
FIRST = 256  # records that tell how large one is, and what columns are
_TELL_S = 0.5  # between two words of one shard on how far it is

Tell = Callable[[int], None]


class ReadRun(Protocol):
    """What reads a run of records, [start, stop): picklable, and the same items wherever and whenever it is called.

    An item is what the format writes: bytes, an element, a pyarrow table. What the generator returns is noted with the
    shard: a plain value of JSON, or None.
    """

    def __call__(self, start: int, stop: int) -> Iterator[Any]: ...


def num_shards_for(num_records: int, mean_nbytes: float) -> int:
    """How many shards hold some 256 MiB each.

    >>> num_shards_for(1_000_000, 4096)
    16
    """
    return max(1, -int(-num_records * mean_nbytes // SHARD_NBYTES))


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


def mean_nbytes_of(items: Iterable[Any]) -> float:
    """The size of a record as it is written, before compression, by those that the first ones gave."""
    sizes: list[float] = []
    for item in items:
        rows = getattr(item, "num_rows", None)
        sizes += [nbytes_of(item)] if rows is None else [item.nbytes / max(1, rows)] * rows
    return sum(sizes) / max(1, len(sizes))


@dataclass(frozen=True)
class _Task:
    """One shard to write. name: that it will have. folder: of all."""

    folder: Path
    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Written:
    """A shard under the name that nobody reads, whole. host: that wrote it, for people."""

    part: str
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
    """Write the records [0, num_records) as `num_shards` files into a folder, with `dataset.json`, which comes last.

    The bytes are the same for any number of actors. Where the folder has shards of an interrupted run over the same
    data with the same settings, these are kept, and only the others are read; a folder that is finished is left as it
    is.

    made_from: what identifies what is read, and what is made of it, in plain values; another one is another dataset.
    num_actors: hosts' processes that write at the same time, as Ray tasks; 0 for this process, without Ray, and None
        for one per CPU of the cluster but one. The folder is one that all hosts see.
    overwrite: begin anew, whatever was written there by this function.
    console: where the progress is shown; None for nowhere.

    Raises: ValueError for a folder that holds something else, with what differs; OSError where it cannot be written,
    at once; what reading raises. What is finished by then stays, and the same call goes on from it.
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
        todo = [_Task(folder, name, *cut) for name, cut in zip(names, cuts, strict=True) if name not in done]
        try:
            with RecordProgress(console or Console(quiet=True), title, num_records) as progress:
                progress.advance(sum(shard.stop - shard.start for shard in notes.kept))
                for shard in _written(read, format, todo, num_actors, notes, progress):
                    done[shard.name] = shard
        except BaseException as end:
            if isinstance(end, OSError) and end.errno in FULL:
                end.add_note("make room there first, or write to another folder")
            end.add_note(
                f"{len(done)} of {len(names)} shards are finished in {folder}, and stay; the same again goes on from "
                "them"
            )
            raise
        manifest = Manifest(settings, tuple(done[name] for name in names))
        if todo or Manifest.read(folder) is None:
            notes.finish(manifest)
    return manifest


def _written(
    read: ReadRun,
    format: Format,
    todo: Sequence[_Task],
    num_actors: int | None,
    notes: Unfinished,
    progress: RecordProgress,
) -> Iterator[Shard]:
    """The shards, each once it has its name and is noted."""
    told: dict[int, int] = {}  # of records, by the number of the task

    def tell(counts: Mapping[int, int]) -> None:
        more = {index: count for index, count in counts.items() if count > told.get(index, 0)}  # a task may begin again
        progress.advance(sum(count - told.get(index, 0) for index, count in more.items()))
        told.update(more)

    write = partial(write_shard, read, format)
    if num_actors == 0:
        found = _one_by_one(write, todo, tell)
    elif todo:
        from datarax_ray.actors.outside.tasks import on_hosts  # in here: this process alone must do where no Ray is

        found = on_hosts(write, todo, num_actors, tell)
    else:
        return
    with contextlib.closing(found):
        for index, written in found:
            task = todo[index]
            shard = _named(task, written)
            notes.add(shard)
            tell({index: task.stop - task.start})
            yield shard


def _one_by_one(
    write: Callable[[_Task, Tell], _Written], todo: Sequence[_Task], tell: Callable[[Mapping[int, int]], None]
) -> Generator[tuple[int, _Written], None, None]:
    for index, task in enumerate(todo):

        def told(count: int, index: int = index) -> None:
            tell({index: count})

        yield index, write(task, told)


def _named(task: _Task, written: _Written) -> Shard:
    """Give a whole file its name."""
    part = task.folder / written.part
    if not part.exists():
        raise FileNotFoundError(
            f"{task.folder} is not the same folder on all hosts: {written.host} wrote {written.part} there, and it is "
            f"not on {socket.gethostname()}. Write to a folder that all hosts share, or with num_actors=0 here alone"
        )
    os.replace(part, task.folder / task.name)
    return written.shard


def write_shard(read: ReadRun, format: Format, task: _Task, tell: Tell) -> _Written:
    """Write one shard under a name that nobody reads. Raises: what reading and writing raise; then there is no file."""
    part = task.folder / f".{task.name}.{secrets.token_hex(4)}.part"
    if not task.folder.is_dir():
        raise FileNotFoundError(
            f"{task.folder} is not there on {socket.gethostname()}; write to a folder that all hosts share"
        )
    try:
        count, said = _fill(read, format, task, part, tell)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        nbytes, content = part.stat().st_size, head_and_content(str(part))[1]
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    shard = Shard(task.name, task.start, task.stop, count, nbytes, content, said)
    return _Written(part.name, shard, socket.gethostname())


def _fill(read: ReadRun, format: Format, task: _Task, part: Path, tell: Tell) -> tuple[int, Any]:
    """Write what the run gives; how many records that were, and what reading said of them."""
    writer = format.open(part)
    count, told_at = 0, time.monotonic()
    items = iter(read(task.start, task.stop))
    try:
        with contextlib.closing(items) if isinstance(items, Generator) else contextlib.nullcontext():
            while True:
                try:
                    item = next(items)
                except StopIteration as end:
                    said = end.value
                    break
                count += writer.write(item)
                if time.monotonic() - told_at > _TELL_S:
                    tell(count)
                    told_at = time.monotonic()
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return count, said
