"""What a folder of written shards holds, and of what it was made: `dataset.json`, which is renamed in last.

Until then `dataset.json.unfinished` stands there, and whoever writes holds it locked: lines of JSON, of which the first
says what is written, and every other one that a shard is whole. A run that was interrupted goes on from these.
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

from datarax_ray.plan.fingerprint import changes, shown
from datarax_ray.read.formats.written_folders import FINISHED, SHARD, UNFINISHED
from datarax_ray.read.identity.contents import head_and_content
from datarax_ray.read.written_whole import written_whole

VERSION = 1
_PART = re.compile(r"\.data-\d{5,}-of-\d{5,}\.\w+\.[0-9a-f]+\.part|\.dataset\.json\.[0-9a-f]+\.part")
_BESIDE = ("report.html",)  # which materialize writes anew
_MAX_LISTED = 5


@dataclass(frozen=True)
class Shard:
    """One file. start, stop: the run of records that it was made of. num_records: in it.

    content: a digest of some of its bytes (read.identity.contents). said: what reading the run said of it besides, a
    plain value; None for nothing.
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
    """What is in a folder. settings: plain values, what it was made of and how. shards: those that are whole."""

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
        """What stands in `dataset.json`; None where there is none. Raises: ValueError where it is none of ours."""
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


def is_whole(folder: Path, shard: Shard) -> bool:
    """Whether its file is there as it was written."""
    path = folder / shard.name
    try:
        return path.stat().st_size == shard.nbytes and head_and_content(str(path))[1] == shard.content
    except FileNotFoundError:
        return False


class Unfinished:
    """The notes of who writes to a folder. kept: shards of a former run that are whole."""

    def __init__(self, folder: Path, file: IO[str], kept: Iterable[Shard]) -> None:
        self._folder = folder
        self._file = file
        self.kept = tuple(kept)

    def add(self, shard: Shard) -> None:
        """Note that a shard is whole, and has its name."""
        _sync_folder(self._folder)
        self._file.write(json.dumps(asdict(shard)) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, manifest: Manifest) -> None:
        """Write `dataset.json`: what is written is all there."""
        _remove_parts(self._folder)
        with written_whole(self._folder / FINISHED) as part, part.open("w") as file:
            json.dump(manifest.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self._folder)


@contextlib.contextmanager
def unfinished(
    folder: Path, settings: Mapping[str, Any], names: Sequence[str], *, overwrite: bool
) -> Iterator[Unfinished]:
    """The notes of a run that writes shards of these names, to go on with; what a dead run left is removed.

    overwrite: begin anew, whatever was written there by this program.

    Raises: ValueError where the folder holds what was made of something else, or otherwise, with what differs; where it
    holds files of others; where another process writes there. OSError where it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / UNFINISHED
    with _locked(path) as file:
        before = Manifest.read(folder) or _noted(file)
        if before is not None and not overwrite:
            _check_same(folder, before.settings, settings)
        mine = {name for name in names if before is not None}
        if before is not None and overwrite:
            mine = {entry.name for entry in folder.iterdir() if SHARD.fullmatch(entry.name)}
        _check_alone(folder, mine)
        kept: list[Shard] = []
        if before is not None and not overwrite:
            kept = [shard for shard in before.shards if shard.name in mine and is_whole(folder, shard)]
        if before is None or overwrite or len(kept) < len(names):
            (folder / FINISHED).unlink(missing_ok=True)
        for name in mine - {shard.name for shard in kept}:
            (folder / name).unlink(missing_ok=True)
        _remove_parts(folder)
        file.seek(0)
        file.truncate()
        lines = [{"version": VERSION, **settings}, *map(asdict, kept)]
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
        try:
            yield Unfinished(folder, file, kept)
        finally:
            with contextlib.suppress(OSError):  # what has come is told
                _remove_parts(folder)
        path.unlink(missing_ok=True)  # not where an error has come: the next run goes on from it


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
                if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
                    continue
            except FileNotFoundError:  # who held it has finished in between
                continue
            try:
                yield file
            finally:
                if not os.fstat(file.fileno()).st_size:  # nothing was begun, of somebody else's folder perhaps
                    path.unlink(missing_ok=True)
            return


def _noted(file: IO[str]) -> Manifest | None:
    """What the notes of a former run say; None where there are none. A line that its end cut off says nothing."""
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


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError where what is there was made of other things, or otherwise."""
    lines = [
        f"{key} was {shown(old)} and is {shown(new)}"
        for key, (old, new) in changes(before, json.loads(json.dumps(now))).items()
    ]
    if not lines:
        return
    said = "; ".join(lines[:_MAX_LISTED])
    more = f" and {len(lines) - _MAX_LISTED} more" if len(lines) > _MAX_LISTED else ""
    raise ValueError(
        f"{folder} holds what was written of something else, or otherwise: {said}{more}. Its shards cannot be kept: "
        "give the former settings, write to another folder, or begin anew there (--overwrite, overwrite=True)"
    )


def _check_alone(folder: Path, mine: set[str]) -> None:
    """Raise ValueError where files of others stand in the folder: who reads it would read these as well."""
    ours = mine | {FINISHED, UNFINISHED, *_BESIDE}
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in ours)
    others = [name for name in others if not _PART.fullmatch(name)]
    if others:
        more = f" and {len(others) - _MAX_LISTED} more" if len(others) > _MAX_LISTED else ""
        raise ValueError(
            f"{folder} holds {', '.join(others[:_MAX_LISTED])}{more}, which this program did not write; write to a "
            "folder that is empty, or not there yet"
        )


def _remove_parts(folder: Path) -> None:
    for entry in folder.iterdir():
        if _PART.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """What was renamed in it stays so when the host loses its power."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
