"""The config and names that both Hugging Face sources share: the dataset, its split and its columns.

Source: datarax.sources.hf_eager_source and hf_streaming_source (SourceConfigBase and LocalFilesOnlyMixin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datarax_ray.plan.arguments import mapping
from datarax_ray.read.files.shards import MissingShards, check_policy, going_by
from datarax_ray.read.formats.arrow.types import OnNull
from datarax_ray.read.formats.hugging_face.load import NamedDataset, select_columns
from datarax_ray.sources.base.config import SHUFFLE_STREAM, SourceConfig

# Arguments of load_dataset that have a field of their own, with the field's name.
_OWN_FIELDS = {"path": "name", "split": "split", "data_dir": "data_dir", "streaming": "streaming"}


@dataclass(frozen=True, kw_only=True)
class HFConfig(SourceConfig):
    """Which dataset, split and columns; see SourceConfig for the other fields.

    name, split: as of datasets.load_dataset, or a folder made by save_to_disk; neither if the source gets a dataset.
    data_dir: the folder of the data files within the dataset.
    include_keys, exclude_keys: the columns to keep or to skip, not both; any iterable, kept as a tuple.
    shuffle: a new order in every epoch, by seed. It sets stochastic and stream_name, and needs no rngs.
    on_null: what becomes of nulls, in one word for all columns, or by column; see RowGroupsConfig. All rows of a
        dataset tell of nulls; of a stream the first rows tell, and a later null breaks its row.
    missing_shards: "error" for a folder or a glob of data_files with shards that their names promise and that are not
        there; "warn" to go on without them. What a dataset on the hub lacks by itself is a warning.
    num_epochs: -1 for endless; None for one pass, as in datarax (HFEagerSource describes further passes).
    download_kwargs: more arguments for load_dataset (`name` there is the dataset's configuration); revision is "main"
        unless given.
    local_files_only: never ask the hub.

    Raises: ValueError for contradictory fields, a name without a split, and for trust_remote_code.

    >>> HFConfig(name="digits", split="train", exclude_keys=["id"]).exclude_keys
    ('id',)
    """

    name: str | None = None
    split: str | None = None
    data_dir: str | None = None
    include_keys: Iterable[str] | None = None
    exclude_keys: Iterable[str] | None = None
    on_null: Any = None
    missing_shards: MissingShards = "error"
    shuffle: bool = False
    num_epochs: int | None = None  # type: ignore[assignment]  # None is 1 here, and says that nobody asked for it
    download_kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    local_files_only: bool = False

    def __post_init__(self) -> None:
        if self.shuffle and not self.stochastic:
            object.__setattr__(self, "stochastic", True)
            object.__setattr__(self, "stream_name", self.stream_name or SHUFFLE_STREAM)
        super().__post_init__()
        if (self.name is None) != (self.split is None):
            raise ValueError(required("split" if self.split is None else "name", type(self).__name__))
        if self.include_keys is not None and self.exclude_keys is not None:
            raise ValueError("Cannot specify both include_keys and exclude_keys: name the columns one way")
        for name in ("include_keys", "exclude_keys"):
            object.__setattr__(self, name, _keys(name, getattr(self, name)))
        OnNull.of(self.on_null)
        check_policy(self.missing_shards)
        if self.download_kwargs is not None:
            object.__setattr__(self, "download_kwargs", _checked_kwargs(self.download_kwargs))

    @property
    def num_passes(self) -> int:
        """Epochs in the stream, -1 for endless."""
        return 1 if self.num_epochs is None else self.num_epochs

    def named(self, source: str) -> NamedDataset:
        """The named dataset. Raises: ValueError where name or split is missing, for this source."""
        if not self.name or not self.split:
            raise ValueError(required("split" if self.name else "name", source))
        return NamedDataset(self.name, self.split, self.data_dir, self.download_kwargs, self.local_files_only)

    def load(self, source: str, *, streaming: bool, dataset: Any = None) -> Any:
        """The dataset, loaded unless given, with the kept columns.

        Raises: ValueError for a missing name or split without a dataset, and for unknown columns; errors of
        datasets.load_dataset.
        """
        return self.select(self.loaded(source, streaming=streaming) if dataset is None else dataset)

    def loaded(self, source: str, *, streaming: bool) -> Any:
        """The dataset as it is named, with all columns. Raises: as load."""
        with going_by(self.missing_shards):
            return self.named(source).load(streaming=streaming)

    def select(self, dataset: Any) -> Any:
        """The dataset with the kept columns. Raises: ValueError for unknown columns."""
        include, exclude = self.include_keys, self.exclude_keys
        return select_columns(
            dataset, None if include is None else tuple(include), None if exclude is None else tuple(exclude)
        )


class HFNamed:
    """The names of its dataset, as both Hugging Face sources have them."""

    config: Any  # an HFConfig
    dataset_name: str | None
    split_name: str | None

    def _take_names(self, config: HFConfig, dataset: Any) -> tuple[str, str]:
        """Set the names. Returns the dataset's label for errors, and the source's name where none is given."""
        self.dataset_name = config.name or getattr(getattr(dataset, "info", None), "dataset_name", None)
        split = getattr(dataset, "split", None)
        self.split_name = config.split or (None if split is None else str(split))
        known = [part for part in (self.dataset_name, self.split_name) if part] or ["dataset"]
        return "/".join(known), f"{type(self).__name__}({':'.join(known)})"

    def _kept_keys(self) -> set[str] | None:
        """The columns that are kept, None for all."""
        return None if self.config.include_keys is None else set(self.config.include_keys)

    def _dropped_keys(self) -> set[str] | None:
        """The columns that are skipped, None for none."""
        return None if self.config.exclude_keys is None else set(self.config.exclude_keys)

    @property
    def is_random_order(self) -> bool:
        """Whether every epoch is shuffled."""
        return self.config.shuffle

    def _names(self, key: str, dataset: Any) -> str:
        """The dataset and split, for a repr; of a dataset without a name its class."""
        name = self.dataset_name
        named = f"dataset={type(dataset).__name__}" if name is None else f"{key}={name!r}"
        return named if self.split_name is None else f"{named}, split={self.split_name!r}"


def required(name: str, who: str) -> str:
    return f"{name} is required for {who}, unless it is given dataset=, an already built one"


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
    mapping("download_kwargs", kwargs, "argument")
    if kwargs.get("trust_remote_code"):
        raise ValueError(
            "trust_remote_code is never passed on: a dataset is data here, never code from the hub. Use a dataset in a "
            "standard format (its parquet export, revision='refs/convert/parquet'), or build it and pass dataset="
        )
    for name, own in _OWN_FIELDS.items():
        if name in kwargs:
            raise ValueError(f"download_kwargs holds {name!r}; give it as {own}")
    return {name: value for name, value in kwargs.items() if name != "trust_remote_code"}
