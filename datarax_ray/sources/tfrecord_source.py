"""TFRecord files as an NNX source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datarax_ray.read.formats.tfrecord import TFRecordReader
from datarax_ray.sources.base.files import BlocksConfig, FilesSource


@dataclass(frozen=True, kw_only=True)
class TFRecordSourceConfig(BlocksConfig):
    """How TFRecord files are read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation over all records of all files in every epoch. shuffle_block_size: shuffle blocks of this
    many consecutive records, then records within windows of 64 blocks, where shuffle is on; each block is one read,
    which pays for small records and where files are far away. None for single records.

    >>> TFRecordSourceConfig(shuffle=True, num_epochs=3).shuffle_block_size is None
    True
    """


class TFRecordSource(FilesSource[TFRecordSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The records of TFRecord files, as bytes, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, whatever pyarrow or fsspec opens), a pathlib.Path, or a
    list of these, on one filesystem. filesystem: a pyarrow or fsspec filesystem that paths are on. transforms: applied
    in this order; DecodeExample() for records of tf.train.Example.

    The files have no index, so a walk over the lengths of all records finds them when the source is made; of remote
    files it reads everything once. Every checksum is looked at. Compressed files are refused: unpack them first.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, and for what is no whole file;
    ImportError without google-crc32c; RecordError from reading, for a damaged record or a transform that raises;
    ValueError for a file that was replaced or is changed while it is read.
    """

    config_type = TFRecordSourceConfig

    def _opened(self, config: TFRecordSourceConfig) -> tuple[TFRecordReader, dict[str, Any]]:
        reader = TFRecordReader.of(self.paths, filesystem=self.filesystem)
        return reader, {"block_size": config.shuffle_block_size}
