"""What `materialize` recorded beside the elements: the stream they belong to, and the place of each source record."""

from __future__ import annotations

import bisect
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from datarax_ray.plan.fingerprint import DriftError, check_drift, code_changes, differences
from datarax_ray.plan.position import Yields
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote.ranges import read_small
from datarax_ray.read.formats.remote.urls import is_url, redacted
from datarax_ray.read.formats.written_folders import FINISHED, MAX_NBYTES, SHARD, UNFINISHED, check_shard

KEY = "materialized"
_VERSION = 1

_NAME = re.compile(r"(.*)\[(\d+)\](.*)", re.DOTALL)
# Usually one for each file. Above this number the origins are dropped, and errors name the materialised files.
_MAX_ORIGINS = 2**15


class Origin(NamedTuple):
    """The names of consecutive records from `first` on: "head[number]tail", where the number counts on.

    number: of the first record; None for one record whose name, the head, has no number.
    """

    first: int
    head: str
    number: int | None = None
    tail: str = ""

    def name(self, record: int) -> str:
        """The name of a record of this run."""
        return self.head if self.number is None else f"{self.head}[{self.number + record - self.first}]{self.tail}"


def origins_of(names: Iterable[str], first: int) -> list[Origin]:
    """The runs of these names of records, from the first record on.

    >>> origins_of(["a[8]", "a[9]", "a[10]", "b"], 3)
    [Origin(first=3, head='a', number=8, tail=''), Origin(first=6, head='b', number=None, tail='')]
    """
    found: list[Origin] = []
    for record, name in enumerate(names, first):
        if found and found[-1].name(record) == name:
            continue
        match = _NAME.fullmatch(name)
        found.append(Origin(record, match[1], int(match[2]), match[3]) if match else Origin(record, name))
    return found


@dataclass(frozen=True)
class Written:
    """The stream that was materialised.

    num_records: of the source.
    num_transforms: how many of the stream's transforms ran.
    files, transforms: their fingerprints.
    """

    num_records: int
    num_transforms: int
    files: Mapping[str, Any]
    transforms: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values: KEY of `made_from` in dataset.json."""
        return {"version": _VERSION, **asdict(self)}

    def check(self, live: Mapping[str, Any], where: str) -> list[str]:
        """Raise DriftError unless these are the files that were written. live: files and transforms of a source.

        Returns the names of the transforms whose code differs.
        """
        mine = {"files": self.files, "transforms": self.transforms}
        try:
            check_drift(mine, live)
        except DriftError as error:
            raise DriftError(
                f"{where} was not written of this source, so it holds other elements. Materialize the source again, to "
                "another folder, or give the source it was written of. The folder, and this source:"
                f"{differences(mine, live)}",
                error.differences,
            ) from None
        return code_changes(mine, live)


class Origins:
    """Where each record was when it was materialised."""

    def __init__(self, runs: Iterable[Origin]) -> None:
        runs = tuple(runs)
        self._runs = runs if len(runs) <= _MAX_ORIGINS else ()

    def name(self, record: int) -> str | None:
        """The name of a record in the source's own files; None where it is not known."""
        index = bisect.bisect_right(self._runs, record, key=lambda run: run.first) - 1
        return self._runs[index].name(record) if index >= 0 else None


def opened(path: str) -> tuple[ArrayRecordReader, Written, Origins]:
    """A reader of the records that were materialised to a folder or URL, the stream they belong to, and their origins.

    Raises: FileNotFoundError where nothing was written, or not to its end; ValueError for a folder that materialize did
    not write, and for files that changed since.
    """
    dataset = _dataset(path)
    plain = _materialized_in(dataset)
    if plain is None:
        raise ValueError(
            f"{redacted(path)} was not written by materialize; load({redacted(path)!r}) finds a reader for it"
        )
    if plain["version"] != _VERSION:
        raise ValueError(
            f"{redacted(path)} was materialized in version {plain['version']}, and this release reads {_VERSION}. "
            "Materialize the source again, or read the folder with the release that wrote it"
        )
    shards = dataset["shards"]
    if (count := sum(shard["num_records"] for shard in shards)) != dataset["num_records"]:
        raise ValueError(
            f"{redacted(path)}/{FINISHED} is damaged: its shards have {count} of {dataset['num_records']} records"
        )
    reader = ArrayRecordReader.of([f"{path.rstrip('/')}/{shard['name']}" for shard in shards])
    for shard, file in zip(shards, reader.files, strict=True):
        check_shard(file.name, shard, file.nbytes, file.content)
    written = Written(**{name: value for name, value in plain.items() if name != "version"})
    return reader, written, Origins(Origin(*each) for shard in shards for each in shard["said"]["origins"])


def is_materialized(paths: Any) -> bool:
    """Whether `paths` is one folder, on this machine or behind a URL, that materialize has written."""
    return _found(paths) is not None


def yields_in(paths: Any, num_records: int) -> Yields | None:
    """How many elements the records of a materialised folder hold.

    None for any other folder, and for one where more records are read than materialize wrote.
    """
    dataset = _found(paths)
    if dataset is None or dataset["num_records"] != num_records:
        return None
    statistics = [shard["said"]["statistics"] for shard in dataset["shards"]]
    num_elements, num_empty = (sum(each[name] for each in statistics) for name in ("num_elements", "num_left_out"))
    return Yields(num_elements == num_records and not num_empty, may_repeat=num_elements > num_records - num_empty)


def component_path(path: str, index: int) -> str:
    """The folder of a component of a mixture."""
    return f"{path.rstrip('/')}/component-{index}"


def _found(paths: Any) -> Mapping[str, Any] | None:
    """The dataset.json of the one folder that is named, where materialize has written it."""
    path = paths[0] if isinstance(paths, list | tuple) and len(paths) == 1 else paths
    if not isinstance(path, str | os.PathLike):
        return None
    path = os.fspath(path).removeprefix("file://")
    if is_url(path):
        is_folder = path.endswith("/") or not os.path.splitext(path)[1]
    else:  # another program may have a file of the name dataset.json
        is_folder = os.path.isdir(path) and any(map(SHARD.fullmatch, os.listdir(path)))
    if not is_folder:
        return None
    try:
        dataset = _dataset(path)
    except (FileNotFoundError, PermissionError):
        return None
    except ValueError:
        if is_url(path):
            return None
        raise
    return None if _materialized_in(dataset) is None else dataset


def _materialized_in(dataset: Mapping[str, Any]) -> Mapping[str, Any] | None:
    made_from = dataset.get("made_from")
    return made_from.get(KEY) if isinstance(made_from, Mapping) else None


def _dataset(path: str) -> Mapping[str, Any]:
    """The content of dataset.json."""
    name = f"{path.rstrip('/')}/{FINISHED}"
    try:
        found = json.loads(read_small(name, MAX_NBYTES))
        if not isinstance(found, Mapping):
            raise ValueError(f"it holds a {type(found).__name__}")
    except FileNotFoundError:
        begun = not is_url(path) and os.path.exists(f"{path.rstrip('/')}/{UNFINISHED}")
        why = "it was not written to its end: call materialize again, which goes on" if begun else "nothing was written"
        raise FileNotFoundError(f"{redacted(path)} has no {FINISHED}: {why}") from None
    except ValueError as error:
        raise ValueError(f"{redacted(name)} is damaged: {error}; copy the folder again, or write it again") from error
    return found
