"""`dataset.json`: the shards of a written folder, and their settings. The file is renamed into place last.

Until then the writing process holds a lock on `dataset.json.unfinished`. This file has lines of JSON: the settings
first, then a note for every whole shard. The next run continues from these notes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from datarax_ray.plan.fingerprint import changes
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.file_contents import head_and_content
from datarax_ray.read.formats.inspecting import FINISHED, SHARD, UNFINISHED
from datarax_ray.read.formats.origins import INDEX, index_of
from datarax_ray.read.lines import written_whole

VERSION = 1
_PART = re.compile(r"\.(data-\d{5,}-of-\d{5,}\.\w+|_origins-\d{5,}-of-\d{5,}|dataset\.json)\.[0-9a-f]+\.part")
_MAX_LISTED = 5


@dataclass(frozen=True)
class Shard:
    """One file. start, stop: its run of source records. num_records: in the file.

    content: a digest of some of its bytes (read.file_contents).
    said: the plain value that the reader of the run returned; None for nothing.
    """

    name: str
    start: int
    stop: int
    num_records: int
    nbytes: int
    content: str
    said: Any = None


@dataclass(frozen=True)
class Manifest:
    """The content of a folder. settings: the data and its conversion, in plain values. shards: the whole ones."""

    settings: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @property
    def num_records(self) -> int:
        return sum(shard.num_records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `dataset.json`."""
        return {
            "version": VERSION,
            **self.settings,
            "num_records": self.num_records,
            "nbytes": self.nbytes,
            "shards": [asdict(shard) for shard in self.shards],
        }

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in `dataset.json`; None without that file. Raises: ValueError for a file of another kind."""
        path = folder / FINISHED
        try:
            found = json.loads(path.read_bytes())
            if found.pop("version") != VERSION:
                raise ValueError("it is of another version")
            shards = tuple(Shard(**shard) for shard in found.pop("shards"))
            return cls({key: found[key] for key in found if key not in ("num_records", "nbytes")}, shards)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} was not written by this version, or is damaged: {error}") from error


class Unfinished:
    """The notes of the writing process. kept: whole shards of a former run."""

    def __init__(self, folder: Path, file: IO[str], settings: Mapping[str, Any], kept: Iterable[Shard]) -> None:
        self._folder = folder
        self._file = file
        self.kept = tuple(kept)
        file.seek(0)
        file.truncate()
        self._write({"version": VERSION, **settings}, *map(asdict, self.kept))

    def add(self, shard: Shard) -> None:
        """Note that a shard is whole, and has its name."""
        _sync_folder(self._folder)
        self._write(asdict(shard))

    def finish(self, manifest: Manifest) -> None:
        """Write `dataset.json`, as all shards are there."""
        _remove_parts(self._folder)
        with written_whole(self._folder / FINISHED) as part, part.open("w") as file:
            json.dump(manifest.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self._folder)

    def _write(self, *lines: Mapping[str, Any]) -> None:
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def unfinished(
    folder: Path, settings: Mapping[str, Any], names: Sequence[str], *, overwrite: bool
) -> Iterator[Unfinished]:
    """The notes of a run that writes shards of these names. Half-written files of a dead run are removed.

    overwrite: remove earlier files of this program.

    Raises: ValueError for a folder with other data or settings, by name, with files of other programs, or with another
    writing process; OSError for a folder that cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / UNFINISHED
    with _locked(path) as file:
        before = Manifest.read(folder) or _noted(file)
        kept: list[Shard] = []
        mine: set[Any] = set()
        if before is not None and overwrite:
            mine = {
                entry.name for entry in folder.iterdir() if SHARD.fullmatch(entry.name) or INDEX.fullmatch(entry.name)
            }
        elif before is not None:
            _check_same(folder, before.settings, settings)
            mine = {*names, *map(index_of, names)}
            kept = [shard for shard in before.shards if shard.name in mine and _is_whole(folder, shard)]
        _check_alone(folder, mine)
        if len(kept) < len(names):
            (folder / FINISHED).unlink(missing_ok=True)
        for name in mine - {name for shard in kept for name in (shard.name, index_of(shard.name))}:
            (folder / name).unlink(missing_ok=True)
        _remove_parts(folder)
        try:
            yield Unfinished(folder, file, settings, kept)
        finally:
            with contextlib.suppress(OSError):  # another error is on its way
                _remove_parts(folder)
        path.unlink(missing_ok=True)  # not after an error: the next run continues from it


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process writes to {path.parent} now; wait for its end, or write elsewhere"
                ) from None
            except OSError:  # a file system without locks
                pass
            try:
                is_there = path.stat().st_ino == os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                is_there = False
            if not is_there:  # the process that held the lock has finished in between
                continue
            try:
                yield file
            finally:
                if not os.fstat(file.fileno()).st_size:  # refused: the folder may be another program's
                    path.unlink(missing_ok=True)
            return


def _noted(file: IO[str]) -> Manifest | None:
    """The notes of a former run; None without notes. A last line that was cut off counts for nothing."""
    file.seek(0)
    found = []
    for line in file:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    if not found or found[0].pop("version", None) != VERSION:
        return None
    return Manifest(found[0], tuple(Shard(**each) for each in found[1:]))


def _is_whole(folder: Path, shard: Shard) -> bool:
    """Whether its file is there as it was written."""
    path = folder / shard.name
    try:
        return path.stat().st_size == shard.nbytes and head_and_content(str(path))[1] == shard.content
    except FileNotFoundError:
        return False


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError where the folder was written with other data or settings."""
    changed = changes(before, json.loads(json.dumps(now)))
    if changed:
        lines = [f"{key} was {shown(old)} and is {shown(new)}" for key, (old, new) in changed.items()]
        raise ValueError(
            f"{folder} was written with other data or settings: {_listed(lines, '; ')}. Its shards cannot be kept: "
            "give the former settings, write to another folder, or start again there (--overwrite, overwrite=True)"
        )


def _check_alone(folder: Path, mine: set[Any]) -> None:
    """Raise ValueError where other programs have files in the folder: a reader of the folder would read these files."""
    ours = mine | {FINISHED, UNFINISHED}
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in ours)
    others = [name for name in others if not _PART.fullmatch(name)]
    if others:
        raise ValueError(
            f"{folder} holds {_listed(others, ', ')}, which this program did not write; write to a folder that is "
            "empty, or does not exist yet"
        )


def _listed(items: Sequence[str], separator: str) -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return separator.join(items[:_MAX_LISTED]) + more


def _remove_parts(folder: Path) -> None:
    for entry in folder.iterdir():
        if _PART.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make renames in the folder last when the host loses its power."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
