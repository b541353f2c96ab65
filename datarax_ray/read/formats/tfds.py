"""What TensorFlow Datasets prepared as ArrayRecord files, and the records of a split, without TensorFlow.

A prepared dataset is a directory, on a disk or behind a URL, data_dir/name[/config]/version, with dataset_info.json
(splits and their shards), features.json and the shards. Source: tensorflow_datasets/core: dataset_info.py, naming.py,
read_only_builder.py, splits.py (ReadInstruction, rounding "closest"), utils/shard_utils.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.read.files.paths import FileSlice
from datarax_ray.read.files.shards import report_missing
from datarax_ray.read.formats.inspecting import is_there
from datarax_ray.read.formats.remote.clients import filesystem_of, is_url, redacted
from datarax_ray.read.formats.remote.ranges import by_client, read_small

_INFO, _FEATURES = "dataset_info.json", "features.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_NAME = re.compile(r"(?P<name>[\w-]+)(/(?P<config>[\w.-]+))?(:(?P<version>[\d.*]+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
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
        """The files and records of a split or sum of slices of splits; see shard_parts.

        Raises: ValueError where the split means no records, or there is none of this name.
        """
        parts = shard_parts(split, self.lengths)
        if not parts:
            raise ValueError(
                f"split {split!r} of {redacted(self.directory)} has no records; a stream needs at least one"
            )
        return tuple(
            FileSlice(self._path(name, shard), skip, take, self.lengths[name][shard])
            for name, shard, skip, take in parts
        )

    def there(self, files: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
        """These files without missing shards, which are reported (see report_missing)."""
        gone = {each.path for each in files if not is_there(each.path)}
        if gone:
            names = ", ".join(sorted(map(os.path.basename, gone)))
            report_missing(f"{redacted(self.directory)}: {len(gone)} of the {len(files)} shards are missing: {names}")
        if len(gone) == len(files):
            raise FileNotFoundError(f"{redacted(self.directory)}: none of the shards of this split is there")
        return tuple(each for each in files if each.path not in gone)

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
                f"{redacted(self.directory)}: the shards of {split!r} are named {name!r}, which names no file in it"
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
        return dict(json.loads(stored))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{redacted(path)} is no JSON of tfds: {error}; prepare the dataset again") from error


def _stored(path: str) -> bytes | None:
    """What a small file holds; None where there is none."""
    try:
        return read_small(path, _MAX_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def shard_parts(spec: str, lengths: Mapping[str, Sequence[int]]) -> list[tuple[str, int, int, int]]:
    """The parts of shards that a split means, in their order: split, shard, first record, number of records.

    lengths: records in each shard, by split. A percentage p is record round(p * num_records / 100), a half going to the
    even one.

    Raises: ValueError for a split that is not there, a slice that is none, or one outside the split.

    >>> shard_parts("train[:50%]+test", {"train": [6, 5], "test": [2]})
    [('train', 0, 0, 6), ('test', 0, 0, 2)]
    >>> shard_parts("train[5:8]", {"train": [6, 5]})
    [('train', 0, 5, 1), ('train', 1, 0, 2)]
    """
    found = []
    for part in re.split(r"\s*\+\s*", spec):
        for split in lengths if part == "all" else (part,):
            name, start, stop = _interval(split, lengths)
            begin = 0
            for shard, length in enumerate(lengths[name]):
                lo, hi = max(start, begin), min(stop, begin + length)
                if lo < hi:
                    found.append((name, shard, lo - begin, hi - lo))
                begin += length
    return found


def _interval(spec: str, lengths: Mapping[str, Sequence[int]]) -> tuple[str, int, int]:
    """The split, and its records [start, stop)."""
    match = _SPLIT.fullmatch(spec)
    bounds = [_BOUND.fullmatch(bound) for bound in (match["slice"] or "0:").split(":")] if match else []
    if match is None or not all(bounds) or len(bounds) > 2 or not any(bound and bound["value"] for bound in bounds):
        raise ValueError(
            f"split {spec!r} is none of 'train', 'train[100:200]', 'train[:80%]', 'train[2shard]', 'all', and sums of "
            "these"
        )
    name, values = match["name"], [bound["value"] for bound in bounds if bound]
    if name == "all":
        raise ValueError(f"split {spec!r}: 'all' cannot be sliced; slice each split, as in 'train[:10%]+test[:10%]'")
    if name not in lengths:
        raise ValueError(f"there is no split {name!r}, only {list(lengths)}")
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), None)  # "[50:80%]" is 50% to 80%
    if len(values) == 1:
        if unit != "shard":
            raise ValueError(f"split {spec!r}: one record is [n:n+1], and one percent [n%:n+1%]; only shards are [n]")
        values.append(str(int(values[0]) + 1))
    total = sum(lengths[name])
    try:
        start, stop = _absolute(values, unit, lengths[name])
    except ValueError as error:
        raise ValueError(f"split {spec!r}: {error}") from error
    if abs(start) > total or abs(stop) > total:
        raise ValueError(f"split {spec!r} is records [{start}, {stop}), and {name} has {total}")
    return name, start if start >= 0 else total + start, stop if stop >= 0 else total + stop


def _absolute(values: Sequence[str | None], unit: str | None, lengths: Sequence[int]) -> tuple[int, int]:
    total = sum(lengths)
    first, last = values
    if unit == "%":
        start, stop = float(first or 0), float(last or 100)
        if max(abs(start), abs(stop)) > 100:
            raise ValueError(f"percentages are from -100 to 100, got {start:g} and {stop:g}")
        return round(start * total / 100), round(stop * total / 100)
    if unit == "shard":
        end = len(lengths) if last is None else int(last)
        return sum(lengths[: int(first or 0)]), sum(lengths[: end if end > 0 else len(lengths) + end])
    return int(first or 0), total if last is None else int(last)
