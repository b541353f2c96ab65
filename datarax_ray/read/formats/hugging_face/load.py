"""Finding and opening Hugging Face datasets: by name on the hub, local files, saved folders; whole or streaming.

What may reach the network is here alone, and runs on the driver: actors get the dataset that was opened.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datarax_ray.plan.arguments import nearest
from datarax_ray.read.files import sniff
from datarax_ray.read.files.shards import check_shards, going_by, policy
from datarax_ray.read.formats.hugging_face import iterable_tree
from datarax_ray.read.formats.remote.clients import redacted

_STATE_FILE, _DICT_FILE = "state.json", "dataset_dict.json"  # what save_to_disk leaves, of a Dataset and a DatasetDict
_OF_DISKS = (
    "a folder of save_to_disk is mapped into memory, so it has to lie on a disk: copy it to one path on all hosts that "
    "read; or write it as Parquet once, datasets.load_from_disk(URL).to_parquet('s3://bucket/data.parquet'), which "
    "ParquetSource reads where it lies"
)
_NOT_OF_BUILDERS = {"num_proc", "verification_mode", "keep_in_memory", "save_infos"}  # how load_dataset goes on
# No dataset on the hub is named so: its name has one "/" at most, and no data file's suffix.
_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".tar", ".zip", ".gz", ".zst", ".npy")
_OFFLINE_LOCK = threading.Lock()  # the switch is the whole process's


@dataclass(frozen=True)
class NamedDataset:
    """A dataset that is known by its name.

    name: a folder made by save_to_disk, a folder of data files, a dataset on the hub, or one of the formats of
        `datasets` ("parquet", "json", ...) with data_files in download_kwargs.
    download_kwargs: for datasets.load_dataset; revision is "main" unless it is among them.
    local_files_only: never ask the hub, also not whether there is news.
    """

    name: str
    split: str
    data_dir: str | None = None
    download_kwargs: Mapping[str, Any] | None = None
    local_files_only: bool = False

    def load(self, *, streaming: bool) -> Any:
        """The `datasets.Dataset`, or with streaming the `datasets.IterableDataset`.

        Raises: ValueError where the folder has no such split; FileNotFoundError, ConnectionError and errors of
        `datasets` where there is no such dataset, with the remedy in a note.
        """
        if is_saved(self.name):
            return _load_saved(self.name, self.split, streaming)
        import datasets

        if not streaming:
            self._check_shards((self._builder().config.data_files or {}).get(self._base, ()))
        with self._asking() as kwargs:
            found = datasets.load_dataset(self.name, split=self.split, streaming=streaming, **kwargs)
        if streaming:
            self._check_shards(iterable_tree.files_of(found))
        return found

    def nbytes(self) -> int | None:
        """Bytes that the dataset takes once loaded, None where that is not known without downloading it.

        For a saved folder, the size of its Arrow files; for others the size on the dataset's card, of the split or of
        the whole dataset, or else the size of the local data files. Raises: as load.
        """
        if is_saved(self.name):
            files = os.scandir(_saved_folder(self.name, self.split))
            return sum(file.stat().st_size for file in files if file.name.endswith(".arrow"))
        builder, base = self._builder(), self._base
        splits = builder.info.splits or {}
        if base in splits and splits[base].num_bytes:
            return int(splits[base].num_bytes)
        if builder.info.dataset_size:
            return int(builder.info.dataset_size)
        paths = (builder.config.data_files or {}).get(base, ())
        return sum(map(os.path.getsize, paths)) if paths and all(map(os.path.isfile, paths)) else None

    @property
    def _base(self) -> str:
        """The split, without a slice of it."""
        return self.split.partition("[")[0]

    def _builder(self) -> Any:
        import datasets

        with self._asking() as kwargs:
            kwargs = {key: value for key, value in kwargs.items() if key not in _NOT_OF_BUILDERS}
            return datasets.load_dataset_builder(self.name, **kwargs)

    def _check_shards(self, files: Sequence[str]) -> None:
        """See check_shards. files: of the split. What is read of a dataset on the hub its author chose, perhaps as some
        of the shards, so a gap there is a warning.
        """
        named = (self.download_kwargs or {}).get("data_files")
        named = named.get(self._base) if isinstance(named, Mapping) else named
        if named is None:
            with going_by(policy() if os.path.isdir(self.name) else "warn"):
                check_shards(self.name, files)
        for path in map(os.fspath, [named] if isinstance(named, str | os.PathLike) else named or ()):
            if glob.has_magic(path):
                pattern = f"*{path.removeprefix('./')}"
                check_shards(path, fnmatch.filter(files, pattern), pattern)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[dict[str, Any]]:
        """The arguments of load_dataset, where it may ask the hub, and notes for its errors."""
        _check_local(self.name)
        kwargs = {"data_dir": self.data_dir, "revision": "main", **(self.download_kwargs or {})}
        if self.local_files_only:
            import datasets

            config = kwargs.get("download_config")
            config = datasets.DownloadConfig() if config is None else config.copy()
            config.local_files_only = True
            kwargs["download_config"] = config
        try:
            with offline() if self.local_files_only else contextlib.nullcontext():
                yield kwargs
        except (OSError, ValueError) as error:  # errors of `datasets` are FileNotFoundErrors and ConnectionErrors
            if self.local_files_only or isinstance(error, ConnectionError):
                error.add_note(
                    f"The Hugging Face hub is not asked (local_files_only), or not reached from here: {self.name!r} "
                    "must be a local folder, or be in the cache of `datasets` already (cache_dir in download_kwargs); "
                    "give a local folder (save_to_disk, or data files), or dataset="
                )
            raise


def select_columns(dataset: Any, include: Sequence[str] | None, exclude: Sequence[str] | None) -> Any:
    """The dataset with only the columns of `include`, or without those of `exclude`; not both.

    A stream that does not know its columns yet is looked into for the first element's. A column to leave out that is
    not there is a warning.

    Raises: ValueError where a column to keep is not there, or none is left.
    """
    if include is None and exclude is None:
        return dataset
    names = list(dataset.column_names or dataset._resolve_features().column_names or ())
    unknown = [key for key in (include or exclude or ()) if key not in names]
    if unknown and include is not None:
        raise ValueError(
            f"include_keys names the columns {unknown}, and the dataset has {names}; name columns that exist."
            f"{nearest(unknown, names)}"
        )
    if unknown:
        warnings.warn(
            f"exclude_keys names the columns {unknown}, which the dataset has not, so they are ignored; it has {names}."
            f"{nearest(unknown, names)}",
            stacklevel=2,
        )
    kept = [key for key in names if (key in include if include is not None else key not in (exclude or ()))]
    if not kept:
        raise ValueError(
            f"include_keys and exclude_keys leave none of the columns {names}; an element needs at least one"
        )
    return dataset.select_columns(kept)


def is_indexed(dataset: Any) -> bool:
    """Whether this is a map-style dataset, not a stream."""
    import datasets

    return isinstance(dataset, datasets.Dataset)


def as_stream(dataset: Any) -> Any:
    return dataset.to_iterable_dataset(num_shards=max(1, min(len(dataset), len(dataset.cache_files))))


def is_saved(name: Any) -> bool:
    """Whether this is a local folder that save_to_disk made, of a Dataset or a DatasetDict."""
    return any(os.path.isfile(os.path.join(name, file)) for file in (_STATE_FILE, _DICT_FILE))


def only_split(name: Any) -> str | None:
    """The split of one Dataset that save_to_disk wrote to this folder; None for any other name."""
    if not os.path.isfile(path := os.path.join(name, _STATE_FILE)):
        return None
    return (_read_json(path).get("_split") or "train").partition("[")[0]  # what a user builds has none, and is any


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """`datasets` without the hub. Its DownloadConfig(local_files_only=True) alone asks the hub five times first."""
    from datasets import config

    with _OFFLINE_LOCK:
        before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            config.HF_HUB_OFFLINE = before


def _load_saved(name: str, split: str, streaming: bool) -> Any:
    import datasets

    folder = _saved_folder(name, split)
    dataset = datasets.load_from_disk(folder)
    if "[" in split:
        instruction = datasets.ReadInstruction.from_spec(f"train[{split.partition('[')[2]}")
        parts = instruction.to_absolute({"train": len(dataset)})
        dataset = datasets.concatenate_datasets([dataset.select(range(part.from_, part.to)) for part in parts])
    return as_stream(dataset) if streaming else dataset


def _saved_folder(name: str, split: str) -> str:
    """The folder of one Dataset: of the split, where a DatasetDict was saved."""
    name, base = os.fspath(name), split.partition("[")[0]
    if (saved := only_split(name)) is not None:
        if saved != base:
            raise ValueError(
                f"{name} was saved from the split {saved!r}, or without one, and split={split!r} was asked for"
            )
        return name
    splits = _read_json(os.path.join(name, _DICT_FILE))["splits"]
    if base not in splits:
        raise ValueError(f"{name} has the splits {splits}, and split={split!r} was asked for")
    return os.path.join(name, base)


def _read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _check_local(name: str) -> None:
    """Raise an error for a file, and for a path to nothing, which `datasets` looks for on the hub, for a long time."""
    if os.path.isfile(name):
        raise ValueError(
            f"{name} is a file, and what is named is a folder of data files, a dataset on the hub or a format."
            + sniff.advice_at(name)
        )
    if "://" in name and not name.startswith("hf://"):
        raise ValueError(
            f"{redacted(name)} is a URL, and what is named is a folder on this machine, a dataset on the hub or a "
            f"format. Of data files give the format, from_hf('parquet', data_files=[...]), or take the source of it; "
            f"{_OF_DISKS}."
        )
    is_path = os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith(_SUFFIXES)
    if is_path and not name.startswith("hf://") and not os.path.isdir(name):
        raise FileNotFoundError(f"{name}: no such file or directory (seen from {os.getcwd()}), nor a dataset's name")
