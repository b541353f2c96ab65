"""WebDataset's tar files as an NNX source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datarax_ray.read.formats.webdataset.extensions import DecodeExtensions
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from datarax_ray.sources.base.files import BlocksConfig, FilesSource


@dataclass(frozen=True, kw_only=True)
class WebDatasetSourceConfig(BlocksConfig):
    """How tar files are read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation over all samples of all files in every epoch. shuffle_block_size: shuffle blocks of this
    many consecutive samples, then samples within windows of 64 blocks, where shuffle is on; each block is one read,
    which pays where files are far away. None for single samples. decode: read members by their extensions
    (DecodeExtensions), before any transform; False leaves all of them bytes.

    >>> WebDatasetSourceConfig(shuffle=True, shuffle_block_size=100, num_epochs=3).decode
    True
    """

    decode: bool = True


class WebDatasetSource(FilesSource[WebDatasetSourceConfig], pytree=False):  # type: ignore[call-arg]
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

    def _opened(self, config: WebDatasetSourceConfig) -> tuple[WebDatasetReader, dict[str, Any]]:
        reader = WebDatasetReader.of(self.paths, filesystem=self.filesystem)
        decoders = (DecodeExtensions(),) if config.decode else ()
        return reader, {"block_size": config.shuffle_block_size, "decoders": decoders}
