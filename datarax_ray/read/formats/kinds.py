"""The formats of files, one line each: how a file of it begins, which source reads it, what else to do with it.

`load`, the commands, and the messages that name a source share this table. A new format is a line here.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

HEAD_NBYTES = 4096  # of a file, to tell its format
TAIL_NBYTES = 8
NO_UTF_8 = "text, not in UTF-8"
IMAGES = ("PNG", "JPEG")
PACKED = "compressed text"  # which its first bytes do not tell from other compressed files
OF_TEXT = ("CSV", "JSON lines", "JSON array", "text")

# Of Riegeli's file signature the first block's header. Source: google/riegeli, doc/riegeli_records_file_format.md.
_RIEGELI = bytes.fromhex("83af70d10d884a3f0000000000000000")
_MDS_JSON = b'{"column_encodings"'  # as its writer sorts it
_MDS_INDEX = re.compile(rb"\s*\{[^{]{0,40}\"shards\":\s*\[\s*[\]{]")


@dataclass(frozen=True)
class Kind:
    """One format of files.

    source: the class in datarax_ray.sources that reads it; "" for none. advice: what else reads it, or what to do with
    it; PATH is the file's. magic: bytes at an offset, one of which every file of it has. ends: bytes at the end. test:
    of the first 4 KiB, where no magic number tells.
    block_size: `shuffle_block_size` of its source that is worth a try where single records are slow; None for none.
    """

    name: str
    source: str = ""
    advice: str = ""
    magic: tuple[tuple[int, bytes], ...] = ()
    ends: bytes = b""
    test: Callable[[bytes], bool] = lambda head: False
    block_size: int | str | None = None

    @property
    def how(self) -> str:
        """A sentence on what reads a file of it, without an end."""
        return f"{self.source} reads it{', ' * bool(self.advice)}{self.advice}" if self.source else self.advice


def _is_tfrecord(head: bytes) -> bool:
    return len(head) >= 12 and int.from_bytes(head[8:12], "little") == masked(_crc32c(head[:8]))


def _is_mds(head: bytes) -> bool:
    """Whether it is an index, or a shard: a number of samples, then where each begins, behind these numbers and some
    JSON.
    """
    if _MDS_INDEX.match(head):
        return b'"version"' in head
    if 0 not in head[:8]:  # as in text: there are not 16 million samples, nor as many bytes before the first
        return False
    begin = 4 * (int.from_bytes(head[:4], "little") + 2)
    if begin + len(_MDS_JSON) <= len(head):
        return head[begin:].startswith(_MDS_JSON)
    bounds = struct.unpack(f"<{HEAD_NBYTES // 4 - 1}I", head[4:]) if len(head) == HEAD_NBYTES else ()
    return bool(bounds) and bounds[0] > begin and all(first <= last for first, last in itertools.pairwise(bounds))


def _is_npz(head: bytes) -> bool:
    """Whether it is a zip file whose first file is an array."""
    return head.startswith(b"PK\x03\x04") and head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy")


def by_datasets(builder: str) -> str:
    return f'from_hf("{builder}", data_files="PATH") reads it'


_ARROW = tuple((0, magic) for magic in (b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"))  # the last one of a stream
_UTF_16 = ((0, b"\xff\xfe"), (0, b"\xfe\xff"))  # byte order marks, as Excel writes text
_FOLDERS = 'load("imagefolder:DIR") reads folders of them, one for each class'
_UNPACK = "unpack it first"
_ARRAYS = "of np.load('PATH') RandomAccessSource takes its arrays"

# The first that fits is taken. Formats of text, at the end, come after all others.
KINDS = (
    Kind("ArrayRecord", "ArrayRecordSourceModule", magic=((0, _RIEGELI),), block_size="auto"),
    Kind("Parquet", "ParquetSource", magic=((0, b"PAR1"),), ends=b"PAR1"),
    Kind("tar", "WebDatasetSource", magic=((257, b"ustar"),), block_size=256),
    Kind("TFRecord", "TFRecordSource", "with DecodeExample() for tf.train.Example", test=_is_tfrecord),
    Kind("MDS", "MDSSource", "by its folder", test=_is_mds),
    Kind("Lance", "LanceSource", "by its folder", ends=b"LANC"),
    Kind("Arrow", advice=by_datasets("arrow"), magic=_ARROW),
    Kind("PNG", advice=_FOLDERS, magic=((0, b"\x89PNG\r\n\x1a\n"),)),
    Kind("JPEG", advice=_FOLDERS, magic=((0, b"\xff\xd8\xff"),)),
    Kind("NumPy", advice=_ARRAYS, magic=((0, b"\x93NUMPY"),)),
    Kind("NumPy zip", advice=_ARRAYS, test=_is_npz),
    Kind("HDF5", advice="RandomAccessSource takes its arrays", magic=((0, b"\x89HDF\r\n\x1a\n"),)),
    Kind("gzip", advice=_UNPACK, magic=((0, b"\x1f\x8b"),)),
    Kind("zstd", advice=_UNPACK, magic=((0, b"\x28\xb5\x2f\xfd"),)),
    Kind("xz", advice=_UNPACK, magic=((0, b"\xfd7zXZ\x00"),)),
    Kind("bzip2", advice=_UNPACK, magic=((0, b"BZh"),)),
    Kind("zip", advice=_UNPACK, magic=((0, b"PK\x03\x04"),)),
    Kind(NO_UTF_8, advice="convert it to UTF-8, by iconv -f UTF-16 (or LATIN1, ...) -t UTF-8 PATH", magic=_UTF_16),
    Kind("HTML", advice="a server gives one for a folder, whose URL ends with a slash, or where one has to log in"),
    Kind("CSV", "CSVSource"),
    Kind("JSON lines", "JSONLinesSource", 'as does from_hf("json", data_files="PATH")'),
    Kind("JSON array", "JSONLinesSource"),
    Kind("JSON", advice=by_datasets("json")),
    Kind("text", "TextLinesSource", 'as does from_hf("text", data_files="PATH")'),
    Kind(PACKED, "TextStreamSource"),
)
BY_NAME = {kind.name: kind for kind in KINDS}
READ = {kind.name: kind for kind in KINDS if kind.source}  # those that a source reads
# How a note beside the data may look.
UNSURE = (None, "text", NO_UTF_8, "JSON", "JSON array")


def masked(crc: int) -> int:
    """TFRecord's checksum, of a crc32c. Source: tensorflow/core/lib/hash/crc32c.h."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    """Of a few bytes, without a library. Source: RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
