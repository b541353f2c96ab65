"""Folders of MDS shards: their index.json, checked against the files."""

from __future__ import annotations

import json
import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.files.filesystems import find_on, read_whole
from datarax_ray.read.files.paths import for_people
from datarax_ray.read.files.shards import policy, report_missing
from datarax_ray.read.formats.file_spans import IndexedFile, content_of
from datarax_ray.read.formats.inspecting import inspect_all

INDEX = "index.json"
_VERSION = 2
# MosaicML's names of what packs shards, and pyarrow's.
CODECS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}


class Column(NamedTuple):
    """size: bytes of each value, None where each has its own."""

    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True, kw_only=True)
class MDSShard(IndexedFile):
    """One shard. bounds: empty of a packed one, which is unpacked as a whole.

    codec: what the file is packed with, None for nothing. raw_nbytes: once it is unpacked.
    """

    num_samples: int
    columns: tuple[Column, ...]
    raw_nbytes: int
    codec: str | None

    @property
    def num_records(self) -> int:
        return self.num_samples

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.num_samples, "" if self.codec else super().identity[1]


def find_shards(paths: Any, filesystem: Any) -> tuple[Any, list[MDSShard]]:
    """The filesystem, and the shards with a sample of everything that `paths` names, each looked at.

    paths: folders with an index.json, or that file, as filesystems.find_on takes them.

    Raises: FileNotFoundError, also for a shard that is missing; ValueError for an index.json that is none of MDS, or
    names a file twice, for shards of other sizes than it says (all are listed), for columns that differ, and where
    there is no sample in all shards together.
    """
    named: Any = [paths] if isinstance(paths, str | os.PathLike) else paths
    if isinstance(named, Sequence) and all(isinstance(path, str | os.PathLike) for path in named):
        named = [_index_of(os.fspath(path)) for path in named]
    try:
        filesystem, found = find_on(named, filesystem, (INDEX,), named=paths)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}. MDS shards are found by the {INDEX} beside them; of a folder of splits, name one: DIR/train"
        ) from error
    listed = inspect_all(partial(_listed, filesystem), found, "read")
    entries = [entry for entries in listed for entry in entries if entry[1]["samples"]]
    if not entries:
        raise ValueError(f"there are 0 samples in {', '.join(map(str, found[:3]))}; a stream needs at least one")
    goes_without = policy() == "warn"  # of this thread
    known = inspect_all(
        lambda each: _inspect(filesystem, *each, goes_without), entries, name=lambda each: f"{each[0]}, a shard of it,"
    )
    shards = [shard for shard in known if shard is not None]
    if len(shards) < len(known):
        report_missing(f"{found[0]} names {len(known)} shards, and {len(known) - len(shards)} of them are missing")
    if not shards:
        raise FileNotFoundError(f"none of the shards that {found[0]} names is there")
    names = [[column.name for column in shard.columns] for shard in shards]
    for shard, its in zip(shards, names, strict=True):
        if its != names[0]:
            raise ValueError(
                f"{shards[0].path} has the columns {names[0]}, and {shard.path} has {its}; a source reads shards of "
                "the same columns"
            )
    return filesystem, shards


def bounds_of(data: Any, num_samples: int, nbytes: int) -> Indices:
    """Where each sample of a shard begins, and the last one ends: int64 (num_samples + 1,).

    data: its first 4 * (num_samples + 2) bytes, at least. nbytes: of the shard. Raises: ValueError for no such shard.
    """
    begin = 4 * (num_samples + 2)
    if nbytes < begin or (count := int.from_bytes(data[:4], "little")) != num_samples:
        count = count if nbytes >= begin else 0
        raise ValueError(f"it has {count:,} samples, and its {INDEX} says {num_samples:,}")
    bounds = np.frombuffer(data, "<u4", num_samples + 1, 4).astype(np.int64)
    if bounds[0] < begin or bounds[-1] != nbytes or (np.diff(bounds) < 0).any():
        raise ValueError("its samples do not lie one behind the other, up to its end: it is damaged, or no MDS shard")
    return bounds


def _index_of(path: str) -> str:
    if ".mds" in posixpath.basename(path):
        raise ValueError(f"{for_people(path)} is a shard, which is read by the {INDEX} beside it: name its folder")
    return path if path.endswith(".json") else f"{path.rstrip('/')}/{INDEX}"


def _listed(filesystem: Any, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The folder, and what the index says of each shard."""
    with filesystem.open_input_file(path) as file:
        text = file.read()
    try:
        index = json.loads(text)
        entries = [_checked(entry) for entry in index["shards"]]
        names = Counter(entry["raw_data"]["basename"] for entry in entries)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"it names {twice[0]} more than once, as do indexes that were merged without the folders of their "
                "shards, so this file would be read again, and the other never. Give the folders as a list, or name "
                "FOLDER/FILE in the index"
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no index of MDS shards: {said}") from error
    return [(posixpath.dirname(path), entry) for entry in entries]


def _checked(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the index says of a shard. Raises: ValueError, KeyError, TypeError for what is none."""
    if (entry["format"], entry["version"]) != ("mds", _VERSION):
        raise ValueError(f"its shards are {entry['format']!r} of version {entry['version']!r}, no 'mds' of {_VERSION}")
    columns = entry["column_names"], entry["column_encodings"], entry["column_sizes"]
    if len({len(each) for each in columns}) != 1 or not all(isinstance(x, str) for each in columns[:2] for x in each):
        raise ValueError("it has not one name, one encoding and one size for each column")
    counts = [entry["samples"], *(size for size in columns[2] if size is not None)]
    for file in (entry["raw_data"], *filter(None, [entry.get("zip_data")])):
        counts.append(file["bytes"])
        parts = file["basename"].split("/")
        if ".." in parts or not all(parts) or "\\" in file["basename"]:  # it could be any file of this host
            raise ValueError(f"a shard's file is named {file['basename']!r}, which is not below it")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"a number of samples or bytes is none: {counts}")
    if entry.get("zip_data") is not None and (entry["compression"] or "").partition(":")[0] not in CODECS:
        raise ValueError(f"its shards are packed with {entry['compression']!r}; those known are {', '.join(CODECS)}")
    return entry


def _inspect(filesystem: Any, folder: str, entry: Mapping[str, Any], goes_without: bool) -> MDSShard | None:
    """The shard, unpacked where both files are there. None for a missing shard, if goes_without."""
    from pyarrow.fs import FileType

    file, packed, codec = entry["raw_data"], entry.get("zip_data"), None
    if packed is not None and filesystem.get_file_info(f"{folder}/{file['basename']}").type is not FileType.File:
        file, codec = packed, CODECS[entry["compression"].partition(":")[0]]
    path = f"{folder}/{file['basename']}"
    columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
    bounds = np.empty(0, np.int64)
    try:
        opened = filesystem.open_input_file(path)
    except FileNotFoundError as error:
        if goes_without:
            return None
        error.add_note(
            f"its {INDEX} names it. Bring it back; to go without, set missing_shards='warn' in the source's config"
        )
        raise
    with opened as raw:
        nbytes = raw.size()
        if nbytes != file["bytes"]:
            raise ValueError(
                f"{path} has {nbytes:,} bytes, and its {INDEX} says {file['bytes']:,}: it was cut, or is of another "
                "dataset. Copy it again"
            )
        if codec is None:
            try:
                bounds = bounds_of(
                    read_whole(raw, 0, min(nbytes, 4 * (entry["samples"] + 2))), entry["samples"], nbytes
                )
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        content = content_of(raw, nbytes)
    return MDSShard(
        path,
        nbytes,
        bounds,
        content,
        num_samples=entry["samples"],
        columns=tuple(Column(*each) for each in columns),
        raw_nbytes=entry["raw_data"]["bytes"],
        codec=codec,
    )
