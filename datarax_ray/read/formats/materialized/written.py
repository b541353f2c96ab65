"""What stands beside materialised elements: which stream they are of, and where each of its records was."""

from __future__ import annotations

import bisect
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from datarax_ray.plan.fingerprint import DriftError, check_drift, differences
from datarax_ray.plan.position import Yields
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote.ranges import read_small
from datarax_ray.read.formats.remote.urls import is_url, redacted
from datarax_ray.read.formats.written_folders import FINISHED, MAX_NBYTES, SHARD, UNFINISHED, check_shard

KEY = "materialized"
_VERSION = 1

_ANEW = "copy the folder anew, or write it anew"
_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)  # the last one
# Runs of origins: one for each file of most formats. Where records have names of their own, as in tar files, nearly
# every one is a run: then where they are now is told.
_MAX_ORIGINS = 2**15


class Origin(NamedTuple):
    """Of consecutive records: the first, and its name, of which the number counts on; None for a name without one.

    width: of the number, where it has leading zeros, else 0.
    """

    first: int
    head: str
    number: int | None
    width: int
    tail: str

    def name(self, record: int) -> str:
        """That of a record of these."""
        return self.head if self.number is None else f"{self.head}{self._number(record):0{self.width}}{self.tail}"

    def goes_on_in(self, other: Origin) -> bool:
        """Whether the other one, of the records behind these, tells nothing that this one does not."""
        return self.number is not None and other == Origin(
            other.first, self.head, self._number(other.first), self.width, self.tail
        )

    def _number(self, record: int) -> int:
        return (self.number or 0) + record - self.first


def origins_of(names: Iterable[str], first: int) -> list[Origin]:
    """The origins of records from the first on, as few as tell the name of each.

    >>> origins_of(["a[8]", "a[9]", "a[10]", "b"], 3)
    [Origin(first=3, head='a[', number=8, width=0, tail=']'), Origin(first=6, head='b', number=None, width=0, tail='')]
    """
    found: list[Origin] = []
    for record, name in enumerate(names, first):
        if found and found[-1].number is not None and found[-1].name(record) == name:
            continue
        match = _NUMBER.fullmatch(name)
        if match is None:
            found.append(Origin(record, name, None, 0, ""))
            continue
        head, digits, tail = match.groups()
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        found.append(Origin(record, head, int(digits), width, tail))
    return found


@dataclass(frozen=True)
class Written:
    """num_records: of the source.
    num_transforms: how many of the stream's transforms were run on them.
    files, transforms: what identifies both.
    origins: where the records were; () where that is not known.
    """

    num_records: int
    num_transforms: int
    files: Mapping[str, Any]
    transforms: Mapping[str, Any]
    origins: tuple[Origin, ...] = ()

    def origin(self, record: int) -> str | None:
        """Where a record was when it was read, for people; None where that is not known."""
        if not self.origins:
            return None
        return self.origins[bisect.bisect_right(self.origins, record, key=lambda each: each.first) - 1].name(record)

    def to_json(self) -> dict[str, Any]:
        """What identifies it, as plain values: KEY of what dataset.json says that the files were made from."""
        return {"version": _VERSION, **{each.name: getattr(self, each.name) for each in fields(self)[:-1]}}

    def check(self, live: Mapping[str, Any], where: str) -> list[str]:
        """Raise DriftError unless these are the files that were written. live: files and transforms of a source.

        Returns the names of the transforms whose code differs.
        """
        own = {"files": self.files, "transforms": self.transforms}
        try:
            return check_drift(own, live)
        except DriftError as error:
            raise DriftError(
                f"{where} was not written of this source, so it holds other elements. Materialize the source anew, to "
                f"another folder, or give the one that it was written of. What it has, and this source:"
                f"{differences(own, live)}",
                error.differences,
            ) from None


def opened(path: str) -> tuple[ArrayRecordReader, Written]:
    """What reads the records that were written to a folder, or lie behind the URL of one, and of what they are.

    Raises: FileNotFoundError where nothing was written, or not to its end; ValueError where it is something else, or
    its files are not those that were written.
    """
    told = _told(path)
    plain = told.get("made_from", {}).get(KEY) if isinstance(told.get("made_from"), Mapping) else None
    if plain is None:
        raise ValueError(
            f"{redacted(path)} was written by something else than materialize; load({redacted(path)!r}) finds what "
            "reads it"
        )
    version = plain["version"]
    if version != _VERSION:
        raise ValueError(
            f"{redacted(path)} was materialized by another release: its version of that is {version}, this one reads "
            f"{_VERSION}. Materialize the source anew, or read it with the release that wrote it"
        )
    shards = told["shards"]
    if (held := sum(shard["num_records"] for shard in shards)) != told["num_records"]:
        raise ValueError(
            f"{redacted(path)}/{FINISHED} is damaged: its shards have {held} of {told['num_records']} records"
        )
    reader = ArrayRecordReader.of([f"{path.rstrip('/')}/{shard['name']}" for shard in shards])
    for shard, file in zip(shards, reader.files, strict=True):
        check_shard(file.name, shard, file.nbytes, file.content)
    origins = [Origin(*each) for shard in shards for each in shard["said"]["origins"]]
    known = {each.name: plain[each.name] for each in fields(Written)[:-1]}
    return reader, Written(**known, origins=tuple(origins) if len(origins) <= _MAX_ORIGINS else ())


def is_materialized(paths: Any) -> bool:
    """Whether it is one folder, of this machine or behind a URL, that materialize has written."""
    return bool(_materialized(paths))


def yields_in(paths: Any, num_records: int) -> Yields | None:
    """How many elements the stored records of such a folder hold; None where it is none, or other records are read."""
    told = _materialized(paths)
    if told.get("num_records") != num_records:
        return None
    said = [shard["said"]["statistics"] for shard in told["shards"]]
    num_elements, num_empty = (sum(each[name] for each in said) for name in ("num_elements", "num_left_out"))
    return Yields(num_elements == num_records and not num_empty, may_repeat=num_elements > num_records - num_empty)


def _materialized(paths: Any) -> Mapping[str, Any]:
    """What dataset.json says of the one folder that is named, where materialize has written it; else {}."""
    path = paths[0] if isinstance(paths, list | tuple) and len(paths) == 1 else paths
    if not isinstance(path, str | os.PathLike):
        return {}
    path = os.fspath(path).removeprefix("file://")
    if is_url(path) and not path.endswith("/") and os.path.splitext(path)[1]:  # a file
        return {}
    # somebody else may have a file of that name
    if not is_url(path) and not (os.path.isdir(path) and any(map(SHARD.fullmatch, os.listdir(path)))):
        return {}
    try:
        told = _told(path)
    except (FileNotFoundError, PermissionError):
        return {}
    except ValueError:
        if is_url(path):
            return {}
        raise
    made_from = told.get("made_from")
    return told if isinstance(made_from, Mapping) and KEY in made_from else {}


def component_path(path: str, index: int) -> str:
    """Where a component of a mixture is."""
    return f"{path.rstrip('/')}/component-{index}"


def _told(path: str) -> Mapping[str, Any]:
    """What dataset.json says."""
    name = f"{path.rstrip('/')}/{FINISHED}"
    try:
        found = json.loads(read_small(name, MAX_NBYTES))
    except FileNotFoundError:
        begun = not is_url(path) and os.path.exists(f"{path.rstrip('/')}/{UNFINISHED}")
        why = "it was not written to its end: call materialize again, which goes on" if begun else "nothing was written"
        raise FileNotFoundError(f"{redacted(path)} has no {FINISHED}: {why}") from None
    except ValueError as error:
        raise ValueError(f"{redacted(name)} is damaged: {error}; {_ANEW}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{redacted(name)} is damaged: it holds a {type(found).__name__}; {_ANEW}")
    return found
