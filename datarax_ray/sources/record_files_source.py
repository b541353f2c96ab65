"""TFRecord, WebDataset's tar files and MDS as NNX sources: files whose records are read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from datarax_ray.plan.arguments import names
from datarax_ray.read.formats.mds.reader import MDSReader
from datarax_ray.read.formats.tfrecord import TFRecordReader
from datarax_ray.read.formats.webdataset.index import Missing
from datarax_ray.read.formats.webdataset.reader import DecodeExtensions, WebDatasetReader
from datarax_ray.sources.base.files import BlocksConfig, ColumnsSource, FilesSource, WindowsConfig, in_row_groups


@dataclass(frozen=True, kw_only=True)
class TFRecordSourceConfig(BlocksConfig):
    """How TFRecord files are read; endless unless num_epochs is given. See BlocksConfig for the fields.

    >>> TFRecordSourceConfig(shuffle=True, num_epochs=3).shuffle_block_size is None
    True
    """


class TFRecordSource(FilesSource[TFRecordSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The records of TFRecord files, as bytes, in an order that is a pure function of the position.

    paths: a file, glob, directory or URL (s3://, gs://, hf://, or another scheme of pyarrow or fsspec), a pathlib.Path,
        or a list of them, on one filesystem.
    filesystem: the pyarrow or fsspec filesystem of the paths; None to choose it by the URL.
    transforms: applied in this order; DecodeExample() for records of tf.train.Example.

    The files have no index: a new source walks over the lengths of all records, and reads remote files once as a whole.
    Every checksum is checked. Compressed files are refused: unpack them first.

    Raises: FileNotFoundError or ValueError at construction for paths without files, and for a cut or compressed file;
    ImportError without google-crc32c; RecordError from reading, for a damaged record or a transform that raises;
    ValueError for a file that was replaced, or changes while it is read.
    """

    config_type = TFRecordSourceConfig

    def _opened(self, config: TFRecordSourceConfig) -> tuple[TFRecordReader, dict[str, Any]]:
        reader = TFRecordReader.of(self.paths, filesystem=self.filesystem)
        return reader, {"block_size": config.shuffle_block_size}


@dataclass(frozen=True, kw_only=True)
class WebDatasetSourceConfig(BlocksConfig):
    """How tar files are read; endless unless num_epochs is given. See BlocksConfig for the other fields.

    decode: decode members by their extensions (DecodeExtensions) before any transform; False to keep bytes.
    fields: the members of a sample to read, and of a JSON member single fields, as "json.width"; None for all members.
    missing: what becomes of a sample that lacks one of the fields, or, where none are named, a member that any other
        sample has. With "error" the source refuses the files, and lists how many samples of each lack which; "skip"
        leaves such samples out, and the log counts them by file; "none" gives None. A field that a JSON object lacks is
        known only when the sample is read: then it is a broken record, unless missing is "none".

    >>> WebDatasetSourceConfig(shuffle=True, shuffle_block_size=100, num_epochs=3).decode
    True
    """

    decode: bool = True
    fields: Sequence[str] | None = None
    missing: Missing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fields is not None:
            object.__setattr__(self, "fields", names("fields", self.fields))
        if self.missing not in get_args(Missing):
            raise ValueError(f"missing is one of {', '.join(map(repr, get_args(Missing)))}, got {self.missing!r}")


class WebDatasetSource(FilesSource[WebDatasetSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The samples of tar files, as dicts of their members, in an order that is a pure function of the position.

    paths, filesystem: as of TFRecordSource; braces as in "shard-{000..009}.tar" are expanded.
    transforms: applied in this order; DecodeImage(field="jpg") for pictures.

    Samples are those of the `webdataset` package: "__key__", and the members of the key by extension, in lower case.
    Members of a key may lie apart. Every sample of a stream has the same fields (config.fields, config.missing); a
    transform may add or remove fields. A JSON object is one dict on the host, unless config.fields names fields of it.

    Raises: FileNotFoundError or ValueError at construction for paths without files, for a cut or compressed tar, and
    for samples that lack a member;
    RecordError from reading, for a member that does not decode by its extension, or a transform that raises; ValueError
    for a file that was replaced, or changes while it is read.
    """

    config_type = WebDatasetSourceConfig

    def _opened(self, config: WebDatasetSourceConfig) -> tuple[WebDatasetReader, dict[str, Any]]:
        fields, missing = config.fields, config.missing
        reader = WebDatasetReader.of(self.paths, filesystem=self.filesystem, fields=fields, missing=missing)
        chosen = {name: its for name, its in (reader.fields or {}).items() if its}
        if chosen and not config.decode:
            raise ValueError(f"fields names fields of {sorted(chosen)}, and decode=False reads no JSON; leave one out")
        decoders = (DecodeExtensions(json_fields=chosen, fills=missing == "none"),) if config.decode else ()
        return reader, {"block_size": config.shuffle_block_size, "decoders": decoders}


@dataclass(frozen=True, kw_only=True)
class MDSSourceConfig(WindowsConfig):
    """How MDS shards are read; endless unless num_epochs is given. See IndexedSourceConfig for the other fields.

    shuffle: one permutation of all samples in every epoch. Compressed shards are unpacked as a whole: each epoch has a
        new order of shards, and mixes samples within windows of shards.
    shuffle_window: compressed shards in a window; None for as many as hold 256 MiB unpacked, at least 1 and at most 64.
        All actors together hold one window in memory.
    shuffle_block_size: permute blocks of this many neighbouring samples, then samples within windows of 64 blocks. Each
        block is one read: faster for remote files. 1 is one permutation of all samples; slow for compressed shards.
    pickles_as_bytes: give columns of pickles as bytes, for a transform of your own that loads pickles of a writer whom
        you trust. By default such columns are refused.

    >>> MDSSourceConfig(shuffle=True, num_epochs=3).pickles_as_bytes
    False
    """

    unit: ClassVar[str] = "shards"
    pickles_as_bytes: bool = False


class MDSSource(ColumnsSource[MDSSourceConfig], pytree=False):  # type: ignore[call-arg]
    """The samples of MDS shards, as dicts of their columns, in an order that is a pure function of the position.

    paths, filesystem: as of TFRecordSource; a path is a folder with an index.json, or the index.json.
    columns: to read, None for all.
    transforms: applied in this order.

    The encoding of a column decides its values: text, Python's int and Decimal, NumPy's scalars and arrays, and JSON.
    Picture files (jpeg, png) stay bytes, for DecodeImage(field=...); a pil becomes its array. Of a shard that is there
    both compressed and uncompressed, the uncompressed file is read.

    Raises: FileNotFoundError or ValueError at construction for paths without files, for shards whose sizes or samples
    differ from index.json, and for columns that are unknown or hold pickles; RecordError from reading, for a damaged
    sample or shard, or a transform that raises; ValueError for a file that was replaced, or changes while it is read.
    """

    config_type = MDSSourceConfig

    def _opened(self, config: MDSSourceConfig) -> tuple[MDSReader, dict[str, Any]]:
        as_bytes = config.pickles_as_bytes
        reader = MDSReader.of(self.paths, filesystem=self.filesystem, columns=self.columns, pickles_as_bytes=as_bytes)
        if reader.traits.keeps_groups:
            return in_row_groups(config, reader)
        if config.shuffle_window is not None:
            raise ValueError("shuffle_window counts compressed shards, and none is; leave it out")
        return reader, {"block_size": config.shuffle_block_size}
