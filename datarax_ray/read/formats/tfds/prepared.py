"""Finds what TensorFlow Datasets prepared as ArrayRecord files, and the records of a split, without TensorFlow.

A prepared dataset is a directory, on a disk or behind a URL, data_dir/name[/config]/version, with dataset_info.json
(splits and their shards), features.json and the shards. Source: tensorflow_datasets/core: dataset_info.py, naming.py,
read_only_builder.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.read.formats.paths import FileSlice
from datarax_ray.read.formats.remote.clients import filesystem_of
from datarax_ray.read.formats.remote.ranges import by_client, read_small
from datarax_ray.read.formats.remote.urls import is_url, redacted
from datarax_ray.read.formats.tfds.splits import shard_parts

_INFO, _FEATURES = "dataset_info.json", "features.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_NAME = re.compile(r"(?P<name>[\w-]+)(/(?P<config>[\w.-]+))?(:(?P<version>[\d.*]+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MAX_NBYTES = 2**26  # of a file of JSON behind a URL; of datasets with thousands of shards and labels they have one MB


@dataclass(frozen=True)
class Prepared:
    """One version of a dataset. features: features.json as it is written."""

    directory: str
    name: str
    version: str
    templates: Mapping[str, str] = field(hash=False)
    lengths: Mapping[str, tuple[int, ...]] = field(hash=False)
    features: Mapping[str, Any] = field(hash=False)

    def files(self, split: str) -> tuple[FileSlice, ...]:
        """The files and records of a split or sum of slices of splits; see read.formats.tfds.splits.

        Raises: ValueError where the split means no records, or there is none of this name.
        """
        parts = shard_parts(split, self.lengths)
        if not parts:
            raise ValueError(
                f"split {split!r} of {redacted(self.directory)} has no records; a stream needs at least one"
            )
        return tuple(
            FileSlice(self._path(part.split, part.shard), part.skip, part.take, self.lengths[part.split][part.shard])
            for part in parts
        )

    def _path(self, split: str, shard: int) -> str:
        num_shards = len(self.lengths[split])
        values = {
            "DATASET": self.name,
            "SPLIT": split,
            "FILEFORMAT": "array_record",
            "SHARD_INDEX": f"{shard:05d}",
            "NUM_SHARDS": f"{num_shards:05d}",
            "SHARD_X_OF_Y": f"{shard:05d}-of-{num_shards:05d}",
        }
        name = re.sub(r"\{(\w+)\}", lambda field: values.get(field[1], field[0]), self.templates[split])
        if "{" in name or os.path.isabs(name) or ".." in name.split("/"):
            raise ValueError(
                f"{redacted(self.directory)}: the shards of {split!r} are said to be {name!r}, which names no file in "
                "it"
            )
        return os.path.join(self.directory, name)


def find_prepared(name_or_builder: Any, data_dir: str | os.PathLike[str] | None = None) -> Prepared:
    """The prepared dataset that is meant.

    name_or_builder: "name", "name/config", "name:1.2.3", "name/config:1.*.*", looked for in data_dir (TFDS_DATA_DIR,
    else ~/tensorflow_datasets); the directory of a version itself; or a tfds builder. Without a version, the highest.
    data_dir, or the directory, may be a URL; names are found where its storage lists what is there.

    Raises: FileNotFoundError where there is no such dataset, with what there is; ValueError for one in another file
    format than ArrayRecord.
    """
    directory = _directory(name_or_builder, data_dir)
    info = _read(directory, _INFO)
    if info.get("fileFormat") != "array_record":
        raise ValueError(
            f"{redacted(directory)} is prepared as {info.get('fileFormat', 'tfrecord')}, which cannot be read by "
            "index; prepare it with tfds.builder(name, file_format='array_record').download_and_prepare(), or convert "
            "it with `tfds convert_format --out_file_format=array_record`"
        )
    splits = {split["name"]: split for split in info.get("splits", ())}
    return Prepared(
        directory,
        info["name"],
        info["version"],
        {name: split.get("filepathTemplate") or _TEMPLATE for name, split in splits.items()},
        {name: tuple(map(int, split.get("shardLengths", ()))) for name, split in splits.items()},
        _read(directory, _FEATURES),
    )


def _directory(name_or_builder: Any, data_dir: str | os.PathLike[str] | None) -> str:
    if not isinstance(name_or_builder, str | os.PathLike):
        found = getattr(name_or_builder, "data_dir", None)  # of a builder: its version's own directory
        if not isinstance(found, str | os.PathLike):
            raise TypeError(f"a dataset is a name, a directory or a tfds builder, got {type(name_or_builder).__name__}")
        return os.fspath(found)
    path = os.path.expanduser(os.fspath(name_or_builder))
    match = _NAME.fullmatch(os.fspath(name_or_builder))
    if match is None or os.path.isfile(os.path.join(path, _INFO)):
        return path
    root = os.path.expanduser(os.fspath(data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")))
    folder = os.path.join(root, match["name"])
    folders = _folders(folder)
    if folders is None:
        raise FileNotFoundError(
            f"{redacted(folder)}: no dataset {match['name']!r} is prepared in {redacted(root)}, only "
            f"{_folders(root) or []}; give data_dir, or prepare it with tfds (file_format='array_record')"
        )
    config = match["config"] or _default_config(folder, folders)
    return _version(os.path.join(folder, config) if config else folder, match["version"])


def _default_config(folder: str, folders: list[str]) -> str | None:
    """None for a dataset without configurations. folders: that are in it."""
    if any(map(_VERSION.fullmatch, folders)):
        return None
    metadata = _stored(os.path.join(folder, ".config", "metadata.json"))
    if metadata is not None and (said := json.loads(metadata).get("defaultConfigName")):
        return str(said)
    if len(folders) != 1:
        raise FileNotFoundError(
            f"{redacted(folder)} has the configurations {folders}; name one, as '{{name}}/{{config}}'"
        )
    return folders[0]


def _version(folder: str, wanted: str | None) -> str:
    there = filter(_VERSION.fullmatch, _folders(folder) or [])
    versions = sorted(there, key=lambda version: [*map(int, version.split("."))])
    pattern = re.escape(wanted or "*").replace(r"\*", r"[\d.]+")
    fitting = [version for version in versions if re.fullmatch(pattern, version)]
    if not fitting:
        raise FileNotFoundError(f"{redacted(folder)}: no version {wanted or ''} is prepared here, only {versions}")
    return os.path.join(folder, fitting[-1])


def _folders(path: str) -> list[str] | None:
    """The directories in one, sorted; None where there is no such one."""
    if not is_url(path):
        if not os.path.isdir(path):
            return None
        names = [entry.name for entry in os.scandir(path) if entry.is_dir()]
    else:
        client = filesystem_of(path)
        client.invalidate_cache()  # kept for the process, and most keep listings without an end
        try:
            name = client._strip_protocol(path).rstrip("/") + "/"
            found = by_client(path, "listing it", lambda: client.ls(name, detail=True))
        except FileNotFoundError:
            return None
        names = [each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory"]
    return sorted(name for name in names if not name.startswith("."))


def _read(directory: str, name: str) -> dict[str, Any]:
    path = os.path.join(directory, name)
    stored = _stored(path)
    if stored is None:
        raise FileNotFoundError(
            f"{redacted(directory)} is no dataset that tfds prepared: it has no {name}; prepare it with tfds "
            "(file_format='array_record'), or give the directory of a version"
        )
    try:
        found = json.loads(stored)
    except ValueError as error:
        raise ValueError(f"{redacted(path)} is no JSON: {error}; prepare the dataset again") from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{redacted(path)} holds a {type(found).__name__}, not what tfds writes; prepare the dataset again"
        )
    return found


def _stored(path: str) -> bytes | None:
    """What a small file holds; None where there is none."""
    try:
        return read_small(path, _MAX_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
