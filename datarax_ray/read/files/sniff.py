"""The formats of files, one line each, and what bytes look like, by what formats begin and end with.

`load`, the commands, and the messages that name a source share the table KINDS. A new format is a line there.
A guess for people: what reads a file decides by itself whether it is one of its own. `load` chooses a source by it.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
_PICTURES = tuple(magic for name in IMAGES for _, magic in BY_NAME[name].magic)
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


_DELIMITERS, _MAX_LINES = ",\t;|", 20  # of CSV files, and lines that are looked at for them
_QUOTED = re.compile(r'"[^"]*"')
_TOKEN_LENGTH = 8  # more than a word or an escape of JSON has, which may be cut
_PAGE = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)
DECODERS = {  # by their names in datarax_ray
    "tf.train.Example": "DecodeExample",
    "msgpack": "DecodeMsgpack",
    "JSON": "DecodeJson",
    "PNG": "DecodeImage",
    "JPEG": "DecodeImage",
}


def file_format(head: bytes, tail: bytes = b"") -> str | None:
    """The format of a file; None for an unknown one. head: its first 4 KiB, or all of it. tail: its end.

    >>> file_format(b"PAR1...", b"...PAR1")
    'Parquet'
    >>> file_format(b'{"text": "a"}\\n{"text": "b"}\\n')
    'JSON lines'
    >>> file_format(b"name,label\\na,1\\nb,2\\n")
    'CSV'
    """
    for kind in KINDS:
        is_begun = any(head[offset:].startswith(magic) for offset, magic in kind.magic) or kind.test(head)
        if is_begun or (kind.ends and tail.endswith(kind.ends)):
            return kind.name
    return "HTML" if _PAGE.match(head) else _text_format(head)


def record_format(record: bytes) -> str | None:
    """The encoding of one record, None for no known one; a fixed layout (DecodeRaw, DecodeFields) has no mark.

    >>> record_format(b"\\x81\\xa1x\\x01")
    'msgpack'
    >>> record_format(b'{"x": 1}')
    'JSON'
    """
    found = file_format(record)
    if found is not None:
        return "JSON" if found in ("JSON lines", "JSON array") else None if found in ("CSV", "MDS") else found
    if _is_example(record):
        return "tf.train.Example"
    return "msgpack" if _is_msgpack_map(record) else None


def picture_in(value: Any) -> bytes | None:
    """The file of a PNG or JPEG that is this value, or is in it, a dict as Hugging Face has them; None without one."""
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"}:
        value = value["bytes"]
    return value if isinstance(value, bytes) and value.startswith(_PICTURES) else None


def delimiter(head: bytes) -> str:
    """What stands between the values of a CSV file that begins so: what splits its first lines into as many, or else
    what the first of them has most of.

    Raises: ValueError where two would split them into as many values, and into others.

    >>> delimiter(b"time (h, m, s);x\\n1;2\\n")
    ';'
    """
    text = head.decode("utf-8-sig", "replace")
    lines = _lines(text)
    if len(head) >= HEAD_NBYTES:
        lines = lines[:-1]  # the last one is cut
    fits: dict[str, int] = {}
    for each in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            found = {len(row) for row in csv.reader(lines[:_MAX_LINES], delimiter=each) if row}
            fits |= {each: max(found)} if len(found) == 1 else {}
    most = max(fits.values(), default=1)
    best = [each for each, count in fits.items() if count == most > 1]
    if len(best) > 1 and len(lines) > 1:
        raise ValueError(
            f"{best[0]!r} splits its first lines into {most} values each, and {best[1]!r} into {most} others; say "
            f"which it is: CSVSource(CSVSourceConfig(delimiter={best[1]!r}, num_epochs=1), paths)"
        )
    header = _QUOTED.sub("", text).replace("\r", "\n").partition("\n")[0]
    return best[0] if best else max(_DELIMITERS, key=header.count)


def advice(file: Any, path: str, wanted: str = "") -> str:
    """how_to_read of an open binary file; "" where it is what is wanted, or cannot be read."""
    try:
        found = file_format(*ends(file))
    except OSError:  # the message is about another error
        return ""
    if found == "text" and path.lower().endswith((".csv", ".tsv")):  # its first lines are broken, or have newlines
        found = "CSV"
    return "" if found == wanted else how_to_read(found, path)


def ends(file: Any) -> tuple[bytes, bytes]:
    """How an open binary file begins and ends, for file_format."""
    file.seek(0)
    head = file.read(HEAD_NBYTES)
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - TAIL_NBYTES))
    return head, file.read()


def advice_at(path: str, wanted: str = "") -> str:
    """The same of a local file."""
    try:
        with open(path, "rb") as file:
            return advice(file, path, wanted)
    except OSError:
        return ""


def incomplete(path: str, kind: str, why: object, instead: str) -> ValueError:
    """The error for a file that ends early. instead: the sentence of `advice`, "" for none."""
    advised = instead or " It was cut short, or its writer was never closed; write or copy it again."
    return ValueError(f"{path} is not a complete {kind} file: {why}.{advised}")


def how_to_read(found: str | None, path: str) -> str:
    """A sentence on what to do with a file of this format, with a space before it; "" for no known one.

    >>> how_to_read("Parquet", "a.parquet")
    ' It looks like a Parquet file: ParquetSource reads it.'
    """
    if found is None:
        return ""
    kind = found if found == NO_UTF_8 else f"{'an' if found[0] in 'AHM' else 'a'} {found} file"
    return f" It looks like {kind}: {BY_NAME[found].how.replace('PATH', path)}."


def how_to_decode(record: bytes, tried: str = "") -> str:
    """A sentence on what decodes this record, with a space before it; "" for no known encoding, and for the one tried.

    >>> how_to_decode(b'{"x": 1}')
    ' It looks like JSON: DecodeJson() decodes it.'
    """
    found = record_format(record)
    if found is None or found == tried:
        return ""
    if found in DECODERS:
        return f" It looks like {found}: {DECODERS[found]}() decodes it."
    return f" It looks like {found}: decode it in a transform of your own."


def _text_format(head: bytes) -> str | None:
    if not head.strip() or re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", head):
        return None
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # or a character is cut at the end
            num_other = sum(byte > 0x7F for byte in head)
            return NO_UTF_8 if num_other < len(head) / 8 else None  # Latin letters among others; else what is no text
        text = head[: error.start].decode("utf-8-sig")
    lines = _lines(text.strip())
    first, is_cut = lines[0].strip(), len(head) >= HEAD_NBYTES
    if not first:
        return None
    if first.startswith("{"):
        return "JSON lines" if _is_json(first) or (is_cut and len(lines) == 1) else "JSON"
    if re.match(r"\[\s*\{\s*\"", text.strip()):
        return "JSON array"
    if re.match(r"\[\s*\{\s*'", text.strip()) or (first.startswith("[") and _is_array(text, is_cut)):
        return "JSON"
    for separator in (",", "\t", ";"):
        counts = {line.count(separator) for line in lines[: max(2, len(lines) - 1)]}
        if len(lines) > 1 and counts != {0} and len(counts) == 1 and not _is_json(first):
            return "CSV"
    return "text"


def _lines(text: str) -> list[str]:
    """As readers of lines cut them: str.splitlines does so at more characters, which JSON and CSV have in values."""
    return re.split(r"\r\n|\r|\n", text)


def _is_array(text: str, is_cut: bool) -> bool:
    """Whether the text is one array of JSON, or begins one. is_cut: the file goes on behind the text."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return is_cut and (error.pos > len(text) - _TOKEN_LENGTH or text[error.pos] == '"')  # where a string begins
    except (ValueError, RecursionError):  # a number of thousands of digits, or great depth
        return True
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_example(record: bytes) -> bool:
    """Whether this is a message whose one field, of number 1, is a message as long as what follows."""
    length, at = _varint(record, 1)
    return record[:1] == b"\x0a" and at + length == len(record) and (not length or record[at : at + 1] == b"\x0a")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A protobuf's number at this place, and the place after it."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return -1, at


def _is_msgpack_map(record: bytes) -> bool:
    """Whether a msgpack map begins here, and its first key is text."""
    if not record:
        return False
    skipped = {0xDE: 3, 0xDF: 5}.get(record[0], 1 if 0x81 <= record[0] <= 0x8F else None)
    key = record[skipped : skipped + 1] if skipped else b""
    return bool(key) and (0xA0 <= key[0] <= 0xBF or key[0] in (0xD9, 0xDA))
