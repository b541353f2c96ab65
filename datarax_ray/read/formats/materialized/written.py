"""What `materialize` recorded beside the elements: the stream they belong to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from datarax_ray.plan.fingerprint import DriftError, check_drift, code_changes, differences
from datarax_ray.plan.position import Yields
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.inspecting import FINISHED, MAX_NBYTES, SHARD, UNFINISHED, check_shard
from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.remote.ranges import read_small

KEY = "materialized"
_VERSION = 1


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


def opened(path: str) -> tuple[ArrayRecordReader, Written]:
    """A reader of the records that were materialised to a folder or URL, and the stream they belong to.

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
    return reader, written


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
