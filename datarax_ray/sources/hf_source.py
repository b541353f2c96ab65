"""The Hugging Face sources, where datarax has them, and from_hf, which takes the one that fits a dataset.

Source: datarax.sources.hf_source and datarax.sources.from_hf.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import named_arguments
from datarax_ray.read.elements.transforms import OnError
from datarax_ray.read.files.shards import MissingShards
from datarax_ray.read.formats.hugging_face.load import is_saved, only_split
from datarax_ray.read.skipped_records import MAX_SHARE
from datarax_ray.sources.hf_eager_source import HFEagerConfig, HFEagerSource
from datarax_ray.sources.hf_streaming_source import HFStreamingConfig, HFStreamingSource

__all__ = ["HFEagerConfig", "HFEagerSource", "HFStreamingConfig", "HFStreamingSource", "from_hf"]

# datarax's documented limit for loading a dataset as a whole. Beyond it, downloading and preparing it before the first
# batch takes minutes, and streaming begins at once.
MAX_EAGER_NBYTES = 10**9


@named_arguments
def from_hf(
    name: Any,
    split: str | None = None,
    *,
    eager: bool | None = None,
    streaming: bool | None = None,
    shuffle: bool = False,
    seed: int = 42,
    rngs: nnx.Rngs | None = None,
    data_dir: str | None = None,
    data_files: Any = None,
    include_keys: Iterable[str] | None = None,
    exclude_keys: Iterable[str] | None = None,
    download_kwargs: Mapping[str, Any] | None = None,
    local_files_only: bool = False,
    on_null: Any = None,
    missing_shards: MissingShards = "error",
    num_epochs: int | None = None,
    transforms: Any = (),
    on_error: OnError = "raise",
    max_skipped: int | float | None = MAX_SHARE,
    skipped_path: str | None = None,
) -> HFEagerSource | HFStreamingSource:
    """An HFEagerSource where the dataset is known to be below 1 GB, else an HFStreamingSource.

    name: as of HFConfig, a dataset on the hub or a local folder; or a built datasets.Dataset (eager) or
        datasets.IterableDataset (streaming), which needs no split, or a dict of them by split.
    split: may be left out where there is one, of a folder of one saved Dataset, and of data_files that name none.
    data_files: a path, a list, or a dict of these by split, for a name like "json" or "text", or of a dataset's own.
    eager, streaming: True or False decides; with None the size decides, which is looked up without downloading the
        dataset.
    seed: of the order, in both. The others: as in HFConfig and SourceConfig.

    Raises: ValueError where a split is missing, where data_files would not be read, and where eager and streaming
    contradict each other or the dataset; what the sources raise.

    >>> import datasets
    >>> from_hf(datasets.Dataset.from_dict({"x": [1, 2, 3]}), num_epochs=-1)
    HFEagerSource(dataset=Dataset, num_records=3, shuffle=False, seed=42, num_epochs=-1 (endless))
    """
    dataset = None if isinstance(name, str) or hasattr(name, "__fspath__") else name
    if isinstance(dataset, Mapping) and split in dataset:
        dataset = dataset[split]
    if data_files is not None:
        if "data_files" in (download_kwargs or {}):
            raise ValueError("data_files is given twice, also in download_kwargs")
        if dataset is not None or is_saved(name):
            what = "a dataset that is built" if dataset is not None else f"the saved dataset {str(name)!r}"
            raise ValueError(
                f"data_files={data_files!r} names the files of a dataset, and {what} has its own: they would not be "
                "read. Give data_files alone, with a name like 'json'"
            )
        if "/" not in str(name):  # a format; a dataset's own files are relative to it
            _check_found(data_files, data_dir or "")
        download_kwargs = {**(download_kwargs or {}), "data_files": data_files}
    if dataset is None and not split:
        named = (download_kwargs or {}).get("data_files")
        split = only_split(name) if named is None or isinstance(named, Mapping) else "train"
        if not split:
            say = next(iter(named), "train") if isinstance(named, Mapping) else "train"
            raise ValueError(
                f"split is required for from_hf({str(name)!r}): write from_hf({str(name)!r}, {str(say)!r}), say"
            )
    fields: dict[str, Any] = {
        "name": str(name) if dataset is None else None,
        "split": split if dataset is None else None,
        "data_dir": data_dir,
        "include_keys": include_keys,
        "exclude_keys": exclude_keys,
        "download_kwargs": download_kwargs,
        "local_files_only": local_files_only,
        "on_null": on_null,
        "missing_shards": missing_shards,
        "shuffle": shuffle,
        "seed": seed,
        "num_epochs": num_epochs,
        "on_error": on_error,
        "max_skipped": max_skipped,
        "skipped_path": skipped_path,
    }
    config = HFEagerConfig(**fields)
    if _is_eager(config, dataset, eager, streaming):
        return HFEagerSource(config, rngs=rngs, dataset=dataset, transforms=transforms)
    streamed = HFStreamingConfig(streaming=True, **fields)
    return HFStreamingSource(streamed, rngs=rngs, dataset=dataset, transforms=transforms)


def _check_found(data_files: Any, data_dir: str) -> None:
    """Raise FileNotFoundError for globs of local files that match none: `datasets` makes an empty dataset of them."""
    if "://" in data_dir:
        return
    named = data_files.values() if isinstance(data_files, Mapping) else [data_files]
    for path in (path for each in named for path in ([each] if isinstance(each, str | os.PathLike) else each)):
        whole = os.path.join(os.path.expanduser(data_dir), path)
        is_local_glob = glob.has_magic(whole) and "://" not in whole
        if is_local_glob and not os.path.exists(whole) and not glob.glob(whole, recursive=True):
            raise FileNotFoundError(f"data_files: no file matches {whole!r} (seen from {os.getcwd()})")


def _is_eager(config: HFEagerConfig, dataset: Any, eager: bool | None, streaming: bool | None) -> bool:
    if eager is not None and streaming is not None and eager == streaming:
        raise ValueError(f"eager={eager} and streaming={streaming} contradict each other: a source is one of the two")
    wanted = eager if eager is not None else None if streaming is None else not streaming
    if dataset is None:
        named = config.named("from_hf")
        if wanted is not None:
            return wanted
        nbytes = named.nbytes()
        return nbytes is not None and nbytes < MAX_EAGER_NBYTES
    has_rows = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if wanted and not has_rows:
        raise ValueError(
            f"the {type(dataset).__name__} is a stream without random access, so it cannot be read eagerly; leave "
            "eager out, or build it as a datasets.Dataset"
        )
    return has_rows if wanted is None else wanted
