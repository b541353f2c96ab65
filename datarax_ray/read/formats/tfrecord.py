"""TFRecord: records one behind the other, each with checksums of its length and of its bytes, read by index.

Source: tensorflow/core/lib/io/record_writer.h: uint64 length, uint32 masked crc32c of the length, the bytes, uint32
masked crc32c of these, all little-endian. A file has no index, so one walk over it finds where records begin.
"""

from __future__ import annotations

import struct
from typing import Any

from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.files.sniff import masked
from datarax_ray.read.formats.file_spans import BrokenRecordError, IndexedFile, RecordsInFiles, indexed
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord-*-of-*", ".tfrecords-*-of-*")
_BUFFER_NBYTES = 256 * 1024  # what the walk over a local file reads at a time


class TFRecordReader(RecordsInFiles):
    """The records of many TFRecord files; see RecordsInFiles."""

    @classmethod
    def of(cls, paths: Any, *, filesystem: Any = None) -> TFRecordReader:
        """Index everything that `paths` names (see filesystems.find_on), in parallel: every length, no record.

        Raises: FileNotFoundError; ValueError for what is no whole, uncompressed TFRecord file (all are listed), and
        where there is no record in all files together; ImportError without google-crc32c.
        """
        _masked_crc(b"")
        filesystem, found = find_on(paths, filesystem, _SUFFIXES)

        def inspect(path: str) -> IndexedFile:
            return indexed(filesystem, path, "TFRecord", _walk, _BUFFER_NBYTES)

        reader = cls(filesystem, inspect_all(inspect, found, "indexed"))
        if not reader.num_records:
            raise ValueError(f"{nothing_in(found)}; a stream needs at least one")
        return reader

    def _record(self, index: int, number: int, stored: bytes) -> bytes:
        record = stored[_HEADER.size : -_FOOTER.size]
        length, crc = _HEADER.unpack_from(stored)
        is_whole = length == len(record) and crc == _masked_crc(stored[:8])
        if not is_whole or _FOOTER.unpack(stored[-_FOOTER.size :])[0] != _masked_crc(record):
            at = int(self.files[index].bounds[number])
            raise BrokenRecordError(
                f"the record at byte {at:,} is not what its checksum says: it was damaged. Copy the file again, or "
                "skip the record with on_error='skip'"
            )
        return record


def _walk(file: Any, nbytes: int) -> tuple[list[int], str]:
    """Where the records begin, and the last one ends; and no names. Raises: ValueError with the place."""
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
    return bounds, ""


def _masked_crc(data: bytes) -> int:
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError("TFRecord's checksums need google-crc32c: pip install 'datarax-ray[tfrecord]'") from error
    return masked(google_crc32c.value(data))
