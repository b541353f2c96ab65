"""What the configurations of both Hugging Face sources share: which dataset it is, and which of its columns.

Source: datarax.sources.hf_eager_source and hf_streaming_source (SourceConfigBase and LocalFilesOnlyMixin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.read import hugging_face
from datarax_ray.sources.config import ErrorsConfig

# Arguments of load_dataset that have a field of their own, with the field's name.
_OWN_FIELDS = {"path": "name", "split": "split", "data_dir": "data_dir", "streaming": "streaming"}


@dataclass(frozen=True, kw_only=True)
class HFConfig(ErrorsConfig):
    """Which dataset, split and columns; see ErrorsConfig, EpochsConfig and SourceConfig for the other fields.

    name, split: as of datasets.load_dataset, or a folder made by save_to_disk; not needed where the source is given a
    dataset. data_dir: of the data files within it. include_keys, exclude_keys: the columns to keep or to leave out, not
    both; any iterable, kept as a tuple. shuffle: another order in every epoch, by seed. num_epochs: 1, as datarax's
    sources give one pass; -1 for endless. download_kwargs: more arguments for load_dataset (`name` there is the
    dataset's configuration); revision is "main" unless given. local_files_only: never ask the hub.

    Raises: ValueError for fields that contradict each other, and for trust_remote_code.

    >>> HFConfig(name="digits", split="train", exclude_keys=["id"]).exclude_keys
    ('id',)
    """

    name: str | None = None
    split: str | None = None
    data_dir: str | None = None
    include_keys: Iterable[str] | None = None
    exclude_keys: Iterable[str] | None = None
    shuffle: bool = False
    num_epochs: int = 1
    download_kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    local_files_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_keys is not None and self.exclude_keys is not None:
            raise ValueError("Cannot specify both include_keys and exclude_keys: name the columns one way")
        for name in ("include_keys", "exclude_keys"):
            object.__setattr__(self, name, _keys(name, getattr(self, name)))
        if self.download_kwargs is not None:
            object.__setattr__(self, "download_kwargs", _checked_kwargs(self.download_kwargs))

    def check_named(self, source: str) -> tuple[str, str]:
        """Name and split. Raises: ValueError where one is missing; source is who needs them."""
        for name in ("name", "split"):
            if not getattr(self, name):
                raise ValueError(f"{name} is required for {source}, unless it is given dataset=, an already built one")
        assert self.name is not None
        assert self.split is not None
        return self.name, self.split

    def load(self, source: str, *, streaming: bool, dataset: Any = None) -> Any:
        """The dataset, loaded unless it is given, with the columns that are kept.

        Raises: ValueError where name or split is missing and no dataset is given, and where columns are not there;
        what datasets.load_dataset raises.
        """
        return self.select(self.open(source, streaming=streaming) if dataset is None else dataset)

    def open(self, source: str, *, streaming: bool) -> Any:
        """The dataset with all its columns. Raises: as load."""
        name, split = self.check_named(source)
        return hugging_face.load(
            name,
            split,
            streaming=streaming,
            data_dir=self.data_dir,
            download_kwargs=self.download_kwargs,
            local_files_only=self.local_files_only,
        )

    def select(self, dataset: Any) -> Any:
        """The dataset with the columns that are kept. Raises: ValueError where columns are not there."""
        include, exclude = self.include_keys, self.exclude_keys
        return hugging_face.select_columns(
            dataset, None if include is None else tuple(include), None if exclude is None else tuple(exclude)
        )


def _keys(name: str, keys: Iterable[str] | None) -> tuple[str, ...] | None:
    if keys is None:
        return None
    if isinstance(keys, str):
        raise ValueError(f"{name} is a list of columns, got the str {keys!r}; write [{keys!r}]")
    found = tuple(sorted(keys) if isinstance(keys, set | frozenset) else keys)
    if not found or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{name} must name at least one column, each by a str, got {found}")
    return found


def _checked_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if kwargs.get("trust_remote_code"):
        raise ValueError(
            "trust_remote_code is never passed on: a dataset is data here, never code from the hub. Use a dataset in a "
            "standard format (its parquet export, revision='refs/convert/parquet'), or build it and pass dataset="
        )
    for name, own in _OWN_FIELDS.items():
        if name in kwargs:
            raise ValueError(f"download_kwargs holds {name!r}; {own} is where that is said")
    return {name: value for name, value in kwargs.items() if name != "trust_remote_code"}
