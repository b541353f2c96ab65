"""ArrayRecord files, opened, counted and checked: every broken one is found when it is opened.

Source: google/array_record, python/array_record_reader.cc. Its constructor never raises: a broken file has ok() False.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from datarax_ray.read.file_contents import (
    HEAD_NBYTES,
    NUM_PAGES,
    TAIL_NBYTES,
    head_and_content,
    lasting_stamp,
    sampled_spans,
)
from datarax_ray.read.files import sniff
from datarax_ray.read.files.paths import FileSlice, find
from datarax_ray.read.forked import OneProcess
from datarax_ray.read.formats.inspecting import inspect_all
from datarax_ray.read.formats.remote.chunks import NoArrayRecordError, chunks, footer_offset
from datarax_ray.read.formats.remote.clients import is_url, redacted
from datarax_ray.read.formats.remote.pages import Image
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, sampled

_OPTIONS = "readahead_buffer_size:0"  # reads are by index: reading ahead of them is wasted
# What one pread takes in: a record of some KB with its header. With 32 KiB a record of 4 KB cost 0.8 us more; a longer
# one, or a group, is read past the buffer, so nothing was slower with 8.
_BUFFER_SIZE = 8 * 1024
_TAIL_NBYTES = TAIL_NBYTES + (NUM_PAGES + 1) * HEAD_NBYTES  # so that of a small file, this is all
THREADS = OneProcess("what reads ArrayRecord files")  # a reader in a forked process crashes
# "pread() failed: Input/output error; reading /data/a.array_record; at byte 15394"
_SYSTEM_CALL = re.compile(r"\w+\(\) failed: (?P<why>[^;]+)")
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


@dataclass(frozen=True)
class RecordFile:
    """One opened and checked file. num_records: in the whole file. skip, take: the records used of it.

    head, content: digests of its first bytes, and of these and more (read.file_contents): files are padded to 64
        KiB, so those of one dataset often have one size and count.
    version, footer: of a file behind a URL, its version as its storage names it, and where its footer begins; "" of a
        file on this machine.
    stamp: of a file on this machine, see file_contents.lasting_stamp.
    """

    path: str
    num_records: int
    nbytes: int
    group_size: int
    skip: int
    take: int
    head: str = ""
    content: str = ""
    version: str = ""
    footer: int = 0
    stamp: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The path for people: of a URL, without what may be a secret in it."""
        return redacted(self.path) if self.version else self.path

    @property
    def index_nbytes(self) -> int:
        """Memory of the open file: the index of array_record, and, behind a URL, the places of its chunks."""
        return 2048 + (24 if self.version else 8) * self.num_records // self.group_size


def counted(paths: Any, remote: Remote = REMOTE) -> list[RecordFile]:
    """Everything that `paths` names, opened, counted and checked, many at a time. Raises: as ArrayRecordReader.of."""

    def inspect(part: FileSlice) -> RecordFile:
        return _cut(part, _counted_far(part.path, remote) if is_url(part.path) else _counted_here(part.path))

    return inspect_all(inspect, find(paths), "opened", lambda part: redacted(part.path))


def _counted_far(url: str, remote: Remote) -> RecordFile:
    THREADS.check()
    with _looked_at(url, remote) as (image, version, footer):
        try:
            return replace(_counted(image.path), path=url, version=version, footer=footer)
        except ValueError as error:
            raise ValueError(str(error).replace(image.path, redacted(url))) from error


@contextlib.contextmanager
def _looked_at(url: str, remote: Remote) -> Iterator[tuple[Image, str, int]]:
    """An image of an ArrayRecord file with its end, its footer and the bytes that file_contents digests; with the
    version of the file, and the offset of its footer.

    Raises: ValueError for what is no ArrayRecord file; as ranges.read_ranges.
    """
    footer = 0
    problem: NoArrayRecordError | None = None

    def spans(tail: bytes, nbytes: int) -> list[tuple[int, int]]:
        nonlocal footer, problem
        found = sampled_spans(nbytes)
        try:
            footer = footer_offset(tail, nbytes)
        except NoArrayRecordError as error:
            problem = error
            return found[:1]  # the head tells what it is instead
        return [*found, (footer, nbytes)]

    with sampled(url, remote, _TAIL_NBYTES, spans) as (image, version):
        try:
            if problem is not None:
                raise problem
            chunks(image.read(footer, image.nbytes), footer)
        except NoArrayRecordError as error:
            instead = sniff.advice_at(image.path, "ArrayRecord")
            raise sniff.incomplete(redacted(url), "ArrayRecord", error, instead) from error
        yield image, version, footer


def _counted_here(path: str) -> RecordFile:
    before = lasting_stamp(path) if os.path.isfile(path) else ""
    found = _counted(path)
    return replace(found, stamp=before) if before and lasting_stamp(path) == before else found


def _counted(path: str) -> RecordFile:
    reader = open_file(path)
    try:
        num_records = reader.num_records()
        group = re.search(r"group_size:([1-9]\d*)", reader.writer_options_string() or "")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: its header is no text ({error})") from error
    finally:
        reader.close()
    group_size = int(group[1]) if group else 1
    return RecordFile(path, num_records, os.path.getsize(path), group_size, 0, num_records, *head_and_content(path))


def _cut(part: FileSlice, file: RecordFile) -> RecordFile:
    """The file with its slice. Raises: ValueError for a slice beyond its end, or another number of records."""
    if part.expected is not None and part.expected != file.num_records:
        raise ValueError(
            f"{file.name} should hold {part.expected} records (examples_in_shard), and holds {file.num_records}"
        )
    take = file.num_records - part.skip if part.take is None else part.take
    if take < 0 or part.skip + take > file.num_records:
        raise ValueError(
            f"{file.name}: records [{part.skip}, {part.skip + max(take, 0)}) were asked for, "
            f"the file holds {file.num_records}"
        )
    return replace(file, skip=part.skip, take=take)


def open_file(path: str) -> Any:
    from array_record.python import array_record_module  # lazily: it starts 64 threads with the first reader

    THREADS.check()
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file (seen from {os.getcwd()})")
    reader = array_record_module.ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER_SIZE)
    if not reader.ok():
        raise sniff.incomplete(path, "ArrayRecord", _reason(reader, path), sniff.advice_at(path, "ArrayRecord"))
    return reader


def _reason(reader: Any, path: str) -> str:
    """Why a reader is not ok; the binding tells only when it is read, and not always then.

    Raises: OSError where it is the system that says so, and nothing in the file.
    """
    if os.path.getsize(path) == 0:
        return "it is empty (0 bytes)"
    try:
        reader.read([0])
    except RuntimeError as error:
        if failed := system_error(error, path):
            raise failed from error
        return str(error).removeprefix(path).lstrip(": ") or "its end is missing"
    return f"its end is missing ({os.path.getsize(path):,} bytes are there)"


def system_error(error: RuntimeError, path: str, what: str = "") -> OSError | None:
    """What the operating system said, where array_record tells of that in words: it is about no record.

    what: was to be read, for people.
    """
    said = _SYSTEM_CALL.match(str(error))
    if said is None:
        return None
    number = _NUMBERS.get(said["why"])
    return OSError(f"{path}: {said[0]}{what}") if number is None else OSError(number, f"{said[0]}{what}", path)
