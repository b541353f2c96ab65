"""A dataset that TensorFlow Datasets prepared as ArrayRecord files, as an NNX source that needs no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.read.decode.tfds import DecodeTfds, tfds_leaves
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote.urls import redacted
from datarax_ray.read.formats.tfds.prepared import find_prepared
from datarax_ray.sources.base.indexed import IndexedSourceModule
from datarax_ray.sources.base.remote import RemoteFilesConfig


@dataclass(frozen=True, kw_only=True)
class TFDSSourceConfig(RemoteFilesConfig):
    """How a prepared dataset is read; endless unless num_epochs is given. See RemoteFilesConfig for the other fields.

    shuffle: one permutation over all records in every epoch.
    """


class TFDSSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of a split, decoded to what its features say, as tfds.data_source gives them.

    name_or_builder: "mnist", "mnist:3.0.1", "name/config", a version's directory or its URL, or a tfds builder.
    split: "train", "train[:80%]", "train[1shard]+test" and the like, with the arithmetic of tfds.
    data_dir: where it was prepared, a folder or a URL (gs://, s3://); None for TFDS_DATA_DIR, else
        ~/tensorflow_datasets.
    skip_decoding: images, by path, that stay encoded bytes.
    transforms: of elements. Images need the extra: pip install 'datarax-ray[tfds]'.

    Numbers of a known shape are arrays; text is bytes; sequences of any length are lists (PadTo makes them dense).
    The order without shuffle is that of the files, which tfds shuffled when it prepared them.

    Raises: FileNotFoundError, ValueError, TypeError at construction for a dataset or split that is not there, another
    file format than ArrayRecord, and features that are not read here.
    """

    config_type = TFDSSourceConfig

    def __init__(
        self,
        config: TFDSSourceConfig,
        name_or_builder: Any,
        split: str = "train",
        *,
        data_dir: str | os.PathLike[str] | None = None,
        skip_decoding: Iterable[str] = (),
        transforms: Any = (),
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        skip_decoding = tuple(skip_decoding)
        prepared = find_prepared(name_or_builder, data_dir)
        decode = DecodeTfds(tfds_leaves(prepared.features, skip_decoding))
        reader = ArrayRecordReader.of(prepared.files(split), remote=config.remote)
        config.tell_requests(reader.files, by_group=not config.shuffle, has_blocks=False)
        super().__init__(
            config,
            {"name_or_builder": prepared.directory, "split": split, "skip_decoding": skip_decoding},
            reader,
            decoders=(decode,),
            transforms=transforms,
            rngs=rngs,
            name=name,
        )
        self.directory, self.split_name, self.version = prepared.directory, split, prepared.version

    def _reads(self) -> str:
        return f"directory={redacted(self.directory)!r}, split={self.split_name!r}"
