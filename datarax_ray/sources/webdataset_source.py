"""WebDataset's tar files as an NNX source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flax import nnx

from datarax_ray.read.formats.paths import kept
from datarax_ray.read.formats.webdataset.extensions import DecodeExtensions
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from datarax_ray.sources.base.config import check_shuffled
from datarax_ray.sources.base.indexed import IndexedSourceConfig, IndexedSourceModule


@dataclass(frozen=True, kw_only=True)
class WebDatasetSourceConfig(IndexedSourceConfig):
    """How tar files are read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation over all samples of all files in every epoch. shuffle_block_size: shuffle blocks of this
    many consecutive samples, then samples within windows of 64 blocks, where shuffle is on; each block is one read,
    which pays where files are far away. None for single samples. decode: read members by their extensions
    (DecodeExtensions), before any transform; False leaves all of them bytes.

    >>> WebDatasetSourceConfig(shuffle=True, shuffle_block_size=100, num_epochs=3).decode
    True
    """

    shuffle: bool = False
    shuffle_block_size: int | None = None
    decode: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shuffled(self, "shuffle_block_size")


class WebDatasetSource(IndexedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The samples of tar files, as dicts of their members, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
    list of these, on one filesystem; braces as in "shard-{000..009}.tar" are expanded. filesystem: a pyarrow or fsspec
    filesystem that paths are on. transforms: applied in this order; DecodeImage(field="jpg") for pictures.

    A sample is what the `webdataset` package makes of the same files: "__key__", and each of the consecutive members of
    that key by its extension, in lower case. Every sample of a stream has the same fields; a transform may fill in what
    is missing, or leave out what is too much.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, and for what is no whole,
    uncompressed tar; RecordError from reading, for a member that is not what its extension says, or a transform that
    raises; ValueError for a file that was replaced or is changed while it is read.
    """

    config_type = WebDatasetSourceConfig

    def __init__(
        self,
        config: WebDatasetSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.paths = paths = kept(paths)
        self.filesystem = filesystem
        super().__init__(
            config,
            {"paths": paths, "filesystem": filesystem},
            WebDatasetReader.of(paths, filesystem=filesystem),
            shuffle=config.shuffle,
            block_size=config.shuffle_block_size,
            decoders=(DecodeExtensions(),) if config.decode else (),
            transforms=transforms,
            rngs=rngs,
            name=name,
        )
