"""TFRecord: records one behind the other, each with checksums of its length and of its bytes, read by index.

Source: tensorflow/core/lib/io/record_writer.h: uint64 length, uint32 masked crc32c of the length, the bytes, uint32
masked crc32c of these, all little-endian. A file has no index, so one walk over it finds where records begin.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.file_spans import RecordsInFiles, bounds_digest, content_of
from datarax_ray.read.formats.filesystems import find_on
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord-*-of-*", ".tfrecords-*-of-*")
# The walk reads this much at a time; from afar each jump over a record would be a request.
_LOCAL_BUFFER_NBYTES = 256 * 1024
_REMOTE_BUFFER_NBYTES = 8 * 2**20


class BrokenRecordError(ValueError):
    """The bytes of a record are not those that were written."""


@dataclass(frozen=True)
class TFRecordFile:
    """One file. bounds: int64 (records + 1,), where each begins, with its length, and the last ends. content: of some
    of its bytes (content_of).
    """

    path: str
    nbytes: int
    bounds: Indices = field(compare=False)
    content: str


class TFRecordReader(RecordsInFiles):
    """The records of many TFRecord files; see RecordsInFiles."""

    broken: type[Exception] = BrokenRecordError

    def __init__(self, filesystem: Any, files: Sequence[TFRecordFile]) -> None:
        self.files = tuple(files)
        super().__init__(
            {"filesystem": filesystem, "files": self.files},
            self.files,
            (len(file.bounds) - 1 for file in self.files),
            lambda file: (len(file.bounds), bounds_digest(file.bounds)),
        )

    @classmethod
    def of(cls, paths: Any, *, filesystem: Any = None) -> TFRecordReader:
        """Index everything that `paths` names (see filesystems.find_on), in parallel: every length, no record.

        Raises: FileNotFoundError; ValueError for what is no whole, uncompressed TFRecord file (all are listed), and
        where there is no record in all files together; ImportError without google-crc32c.
        """
        _masked_crc(b"")
        filesystem, found = find_on(paths, filesystem, _SUFFIXES)
        reader = cls(filesystem, inspect_all(partial(_indexed, filesystem), found, "indexed"))
        if not reader.num_records:
            raise ValueError(f"{nothing_in(found)}; a stream needs at least one")
        return reader

    @property
    def mean_nbytes(self) -> int:
        """Stored bytes of a record, on average."""
        return sum(file.nbytes for file in self.files) // self.num_records

    def read(self, records: Indices) -> list[bytes]:
        """The record at each index, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRecordError; OSError where a file is gone or its storage fails; ValueError where it is no longer
        the file that was indexed.
        """
        found: list[bytes] = []
        parts, where = self._by_file(records)
        for index, numbers in parts:
            bounds = self.files[index].bounds
            stored = self._spans.read(index, np.stack([bounds[numbers], bounds[numbers + 1]], axis=1))
            found += [self._checked(index, at, part) for at, part in zip(numbers.tolist(), stored, strict=True)]
        return [found[place] for place in where]

    def _checked(self, index: int, number: int, stored: bytes) -> bytes:
        """The record in these bytes: its length, its checksum, and both of them checked."""
        record = stored[_HEADER.size : -_FOOTER.size]
        length, crc = _HEADER.unpack_from(stored)
        is_whole = length == len(record) and crc == _masked_crc(stored[:8])
        if not is_whole or _FOOTER.unpack(stored[-_FOOTER.size :])[0] != _masked_crc(record):
            at = int(self.files[index].bounds[number])
            raise BrokenRecordError(
                f"the record at byte {at:,} is not what its checksum says: it was damaged. Copy the file again, or "
                "leave the record out with on_error='skip'"
            )
        return record


def _indexed(filesystem: Any, path: str) -> TFRecordFile:
    from pyarrow.fs import LocalFileSystem

    size = _LOCAL_BUFFER_NBYTES if isinstance(filesystem, LocalFileSystem) else _REMOTE_BUFFER_NBYTES
    with filesystem.open_input_file(path) as raw:
        nbytes, file = raw.size(), io.BufferedReader(raw, size)  # which closes raw with its own end
        try:
            bounds = _bounds(file, nbytes)
        except ValueError as error:
            raise ValueError(f"{path} cannot be indexed: {error}.{sniff.advice(raw, path, 'TFRecord')}") from error
        return TFRecordFile(path, nbytes, np.array(bounds, np.int64), content_of(raw, nbytes))


def _bounds(file: Any, nbytes: int) -> list[int]:
    """Where the records begin, and the last one ends. file: at its beginning. Raises: ValueError with the place."""
    bounds = [0]
    while bounds[-1] < nbytes:
        at = bounds[-1]
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ValueError(f"it ends at byte {nbytes:,}, within the length of a record: it was cut")
        length, crc = _HEADER.unpack(header)
        if crc != _masked_crc(header[:8]):
            raise ValueError(f"at byte {at:,} no record begins: the length there is not what its checksum says")
        bounds.append(at + _HEADER.size + length + _FOOTER.size)
        if bounds[-1] > nbytes:
            raise ValueError(
                f"the record at byte {at:,} goes on to byte {bounds[-1]:,}, the file to {nbytes:,}: it was cut"
            )
        file.seek(bounds[-1])
    return bounds


def _masked_crc(data: bytes) -> int:
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError("TFRecord's checksums need google-crc32c: pip install 'datarax-ray[tfrecord]'") from error
    return sniff.masked(google_crc32c.value(data))
