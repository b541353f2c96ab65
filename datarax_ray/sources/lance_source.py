"""A Lance dataset as an NNX source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import mapping, names, whole
from datarax_ray.read.formats.lance import LanceReader
from datarax_ray.sources.base.files import BlocksConfig
from datarax_ray.sources.base.indexed import IndexedSourceModule


@dataclass(frozen=True, kw_only=True)
class LanceSourceConfig(BlocksConfig):
    """How a Lance dataset is read; endless unless num_epochs is given. See BlocksConfig for the other fields.

    version: of the dataset; None for the latest when the source is made, which its states then name.
    columns: to read, None for all. fill_nulls: what to put in place of nulls, by field; see RowGroupsConfig.

    >>> LanceSourceConfig(shuffle=True, version=3, columns=["x"]).columns
    ('x',)
    """

    version: int | None = None
    columns: tuple[str, ...] | None = None
    fill_nulls: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version is not None:
            object.__setattr__(self, "version", whole("version", self.version, ", or None for the latest"))
        if self.columns is not None:
            object.__setattr__(self, "columns", names("columns", self.columns))
        if self.fill_nulls is not None:
            mapping("fill_nulls", self.fill_nulls, "field")


class LanceSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The rows of one version of a Lance dataset, as dicts of their columns, in an order by position.

    paths: the folder of the dataset, or its URL. storage_options: for the URL, as `lance.dataset` takes them.
    transforms: applied in this order; without those that take single elements, rows stay whole columns from the file
    to the batch. Needs the extra: pip install 'datarax-ray[lance]'.

    A state names the version: rows that are appended later, deleted or compacted change nothing in a stream that goes
    on. A new source reads the latest version; a state of an older one is refused there, and
    LanceSourceConfig(version=...) resumes it, as long as the version is not cleaned up.

    Raises: ImportError without pylance; ValueError at construction for what is no dataset, and for a version or column
    that is not there; RecordError from reading, for a null without a place or a transform that raises.
    """

    config_type = LanceSourceConfig

    def __init__(
        self,
        config: LanceSourceConfig,
        paths: str | os.PathLike[str],
        *,
        transforms: Any = (),
        storage_options: Mapping[str, str] | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(paths, str | os.PathLike):
            raise TypeError(f"paths is one Lance dataset, a path or URL, got {type(paths).__name__}; mix several")
        reader = LanceReader.of(paths, config.version, config.columns, config.fill_nulls, storage_options)
        super().__init__(
            replace(config, version=reader.version),  # a copy reads the same version
            {"paths": paths, "storage_options": storage_options},
            reader,
            block_size=config.shuffle_block_size,
            transforms=transforms,
            rngs=rngs,
            name=name,
        )
