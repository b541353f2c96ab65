"""TFRecord, WebDataset's tar files and MDS as NNX sources: files whose records are read one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from flax import nnx

from datarax_ray.plan.arguments import names
from datarax_ray.read.formats.mds.reader import MDSReader
from datarax_ray.read.formats.tfrecord import TFRecordReader
from datarax_ray.read.formats.webdataset.extensions import DecodeExtensions
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from datarax_ray.sources.base.files import BlocksConfig, FilesSource, WindowsConfig, in_row_groups


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


@dataclass(frozen=True, kw_only=True)
class MDSSourceConfig(WindowsConfig):
    """How MDS shards are read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation over all samples in every epoch. Compressed shards are unpacked as a whole: they come in a
    new order in every epoch, with samples mixed within windows of them.
    shuffle_window: compressed shards in a window; None for as many as 256 MiB unpacked, at least 1 and at most 64. A
    window is in memory at once, over all actors. shuffle_block_size: shuffle blocks of this many consecutive samples,
    then samples within windows of 64 blocks; each block is one read, which pays where files are far away. 1 is one
    permutation of all samples, of compressed shards too, and slow there.
    pickles_as_bytes: give columns of pickles as their bytes, for a transform of your own that loads them, where you
    trust who wrote them; else they are refused.

    >>> MDSSourceConfig(shuffle=True, num_epochs=3).pickles_as_bytes
    False
    """

    unit: ClassVar[str] = "shards"
    pickles_as_bytes: bool = False


class MDSSource(FilesSource[MDSSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The samples of MDS shards, as dicts of their columns, in an order that is a pure function of the position.

    paths: a folder with an index.json, that file, a glob of these, a URL (s3://, gs://, hf://, whatever pyarrow or
        fsspec opens), a pathlib.Path, or a list of these, on one filesystem.
    columns: to read, None for all.
    filesystem: a pyarrow or fsspec filesystem that paths are on.
    transforms: applied in this order.

    A column is what its encoding says: text, Python's int and Decimal, NumPy's scalars and arrays, what was JSON. Files
    of pictures (jpeg, png) stay bytes, for DecodeImage(field=...); a pil becomes the array that it stores. Shards that
    are there both compressed and not are read as they are not.

    Raises: FileNotFoundError, ValueError at construction for paths that name nothing, shards of other sizes or samples
    than their index.json says, and columns that are unknown or hold pickles; RecordError from reading, for a sample or
    a compressed shard that is damaged, or a transform that raises; ValueError for a file that was replaced or is
    changed while it is read.
    """

    config_type = MDSSourceConfig
    beside = ("columns",)

    def __init__(
        self,
        config: MDSSourceConfig,
        paths: Any,
        *,
        transforms: Any = (),
        columns: Iterable[str] | None = None,
        filesystem: Any = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        self.columns = None if columns is None else names("columns", columns)
        super().__init__(config, paths, transforms=transforms, filesystem=filesystem, rngs=rngs, name=name)

    def _opened(self, config: MDSSourceConfig) -> tuple[MDSReader, dict[str, Any]]:
        as_bytes = config.pickles_as_bytes
        reader = MDSReader.of(self.paths, filesystem=self.filesystem, columns=self.columns, pickles_as_bytes=as_bytes)
        if reader.traits.keeps_groups:
            return in_row_groups(config, reader)
        if config.shuffle_window is not None:
            raise ValueError("shuffle_window counts compressed shards, and none is; leave it out")
        return reader, {"block_size": config.shuffle_block_size}
