"""The byte ranges of the chunks of an ArrayRecord file, and their records, from the file's last bytes.

Source: google/riegeli, doc/riegeli_records_file_format.md; google/array_record, cpp/layout.proto. A file is chunks,
with a block header of 24 bytes at each multiple of 64 KiB, also within a chunk. The last 64 KiB are a chunk with the
offset of the footer, a chunk with the offsets of all others. A chunk is read from its own range alone. This module only
decides which bytes are fetched: array_record opens, decodes and checks them by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datarax_ray.plan.orders.cipher import Indices

POSTSCRIPT_NBYTES = 2**16
_BLOCK = 2**16
_BLOCK_HEADER = 24
_CHUNK_HEADER = 40
_MAX_FOOTER_NBYTES = 2**30  # of 50 million chunks; a damaged one may name any number
_MAGIC = 0x71930E704FDAE05E
_CODECS = {b"b": "brotli", b"z": "zstd", b"s": "snappy"}


class NoArrayRecordError(ValueError):
    """The last bytes of a file are not those of an ArrayRecord file."""


@dataclass(frozen=True)
class Chunks:
    """bounds: int64 (c + 1,); chunk i is the bytes [bounds[i], bounds[i + 1]). records: likewise, of its records."""

    bounds: Indices
    records: Indices

    def of(self, wanted: Indices) -> Indices:
        """The byte ranges, int64 (k, 2), ascending, of the chunks with these records. wanted: int64, ascending."""
        found = np.unique(np.searchsorted(self.records, wanted, side="right") - 1)
        return np.stack([self.bounds[found], self.bounds[found + 1]], axis=1)


def footer_offset(tail: bytes, nbytes: int) -> int:
    """The offset of the footer. tail: the last bytes of a file of `nbytes`, at least POSTSCRIPT_NBYTES of them."""
    if nbytes < POSTSCRIPT_NBYTES:
        raise NoArrayRecordError(f"it is shorter than the end of one ({nbytes:,} bytes)")
    try:
        fields = _fields(_records(tail, nbytes - len(tail), nbytes - POSTSCRIPT_NBYTES)[0][0])
        offset, magic = fields[:, 1].tolist()
    except (ValueError, IndexError, OverflowError) as error:
        raise NoArrayRecordError(f"its last 64 KiB say nothing of a footer ({error})") from error
    if magic != _MAGIC or not 0 < offset <= nbytes - POSTSCRIPT_NBYTES:
        raise NoArrayRecordError(f"its last 64 KiB name byte {offset:,} of {nbytes:,} as its footer's")
    return int(offset)


def chunks(footer: bytes, offset: int) -> Chunks:
    """The chunks of a file. footer: its bytes from this offset on, which footer_offset gave."""
    try:
        (_, places), count = _records(footer, offset, offset)  # first stands what the writer was told
        fields = _fields(places)
        starts, records = fields[fields[:, 0] == 0x08, 1], fields[fields[:, 0] == 0x18, 1]
    except (ValueError, IndexError, OverflowError) as error:
        raise NoArrayRecordError(f"its footer does not parse ({error})") from error
    if not len(starts) == len(records) == count - 1:
        raise NoArrayRecordError(f"its footer says where {len(starts)} chunks begin, with {len(records)} counts")
    bounds, counted = np.append(starts, offset).astype(np.int64), np.append(0, np.cumsum(records)).astype(np.int64)
    if bounds[0] < 0 or (np.diff(bounds) <= 0).any() or (np.diff(counted) <= 0).any():
        raise NoArrayRecordError("its footer names chunks that do not follow one another")
    return Chunks(bounds, counted)


def _records(data: bytes, begin: int, at: int) -> tuple[list[bytes], int]:
    """The first record of the chunk at this offset of the file, all others, joined, and the number of records.

    data: bytes of the file from `begin` on.
    """
    header, after = _plain(data, begin, at, _CHUNK_HEADER)
    nbytes, kind = int.from_bytes(header[8:16], "little"), header[24:25]
    count = int.from_bytes(header[25:32], "little")
    if kind != b"r" or nbytes > len(data):
        raise ValueError(f"a chunk of kind {kind!r} with {nbytes:,} bytes")
    body, _ = _plain(data, begin, after, nbytes)
    codec = body[:1]
    lead = 1 + int(np.flatnonzero(np.frombuffer(body[1:11], np.uint8) < 128)[0]) + 1
    end = lead + int(_varints(body[1:lead])[0])
    sizes = _varints(_unpacked(body[lead:end], codec))
    if len(sizes) != count or not count:
        raise ValueError(f"{len(sizes)} sizes for {count} records")
    values = _unpacked(body[end:], codec)
    if len(values) != int(sizes.sum()):
        raise ValueError(f"{len(values):,} bytes of records, of {int(sizes.sum()):,}")
    first = int(sizes[0])
    return [values[:first], values[first:]], count


def _plain(data: bytes, begin: int, at: int, count: int) -> tuple[bytes, int]:
    """`count` bytes from this offset of the file on, without the block headers between, and the offset after them."""
    found = bytearray()
    while len(found) < count:
        if at % _BLOCK == 0:
            at += _BLOCK_HEADER
        part = data[at - begin : at - begin + min(count - len(found), _BLOCK - at % _BLOCK)]
        if not part:
            raise ValueError(f"it ends at byte {at:,}")
        found += part
        at += len(part)
    return bytes(found), at


def _unpacked(data: bytes, codec: bytes) -> bytes:
    if codec == b"\0":
        return data
    import pyarrow as pa

    if codec not in _CODECS:
        raise ValueError(f"it is compressed as {codec!r}")
    head = np.frombuffer(data[:10], np.uint8)
    lead = int(np.flatnonzero(head < 128)[0]) + 1
    size = int(_varints(data[:lead])[0])
    if not 0 <= size <= _MAX_FOOTER_NBYTES:
        raise ValueError(f"{size:,} bytes of it are compressed")
    try:
        return bytes(pa.decompress(data[lead:], size, _CODECS[codec], asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def _fields(message: bytes) -> Indices:
    """The (tag, value) pairs, int64 (k, 2), of messages whose fields are all varints, one after the other."""
    return _varints(message).reshape(-1, 2)


def _varints(data: bytes) -> Indices:
    """These bytes as varints. Vectorised: a footer has three for each chunk, and there may be a million chunks.

    >>> _varints(bytes([1, 0x96, 1, 0])).tolist()
    [1, 150, 0]
    """
    octets = np.frombuffer(data, np.uint8)
    if not len(octets):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(octets < 128)
    starts = np.append(0, ends[:-1] + 1)
    if not len(ends) or ends[-1] != len(octets) - 1 or (ends - starts).max() > 9:
        raise ValueError("no varints")
    place = np.arange(len(octets)) - np.repeat(starts, ends - starts + 1)
    shifted = (octets & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, starts).astype(np.int64)
