"""Files in which each record lies by itself (TFRecord, tar, MDS): indexed once, then read by offset on any filesystem.

Every file is compared with what was indexed when it is opened, and with its stamp after every read.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.file_contents import sampled_spans
from datarax_ray.read.files import sniff
from datarax_ray.read.files.filesystems import changed, read_whole, stamp_of
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.laps import lap
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import Reader, ReaderTraits

MAX_OPEN_FILES = 256  # of 1,024 descriptors that a process often has
_REMOTE_BUFFER_NBYTES = 8 * 2**20
_TAIL_NBYTES = 64 * 1024  # for the digest; nothing that describes the rest stands there


class BrokenRecordError(ValueError):
    """The bytes of a record are there, and they are not what was written."""


@dataclass(frozen=True)
class IndexedFile:
    """A file whose records were found.

    bounds: where records begin and end: int64 (records + 1,) where each ends where the next begins, else (records, 2).
    firsts: int64 (records + 1,), where records lie in several runs of bytes: the first of each in `bounds`; else None.
    content: content_of the file when it was indexed. names: a digest of what else its records are; "" for their bounds.
    """

    path: str
    nbytes: int
    bounds: Indices = field(compare=False)
    content: str
    names: str = ""
    firsts: Indices | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.path

    @property
    def num_records(self) -> int:
        return len(self.bounds) - (self.bounds.ndim == 1) if self.firsts is None else len(self.firsts) - 1

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from others, beside its name, size and content."""
        bounds = hashlib.sha256(self.bounds.astype("<i8").tobytes()).hexdigest()[:16]
        return self.num_records, self.names or bounds

    def spans(self, numbers: Indices) -> Indices:
        """Where these records begin and end: int64 (k, 2)."""
        if self.bounds.ndim == 2:
            return self.bounds[numbers]
        return np.stack([self.bounds[numbers], self.bounds[numbers + 1]], axis=1)


def indexed(
    filesystem: Any, path: str, kind: str, walk: Callable[[Any, int], tuple[Any, str]], local_nbytes: int
) -> IndexedFile:
    """The file, by one walk over it from its beginning.

    walk: takes the open file and its size; gives bounds and names. kind: the format that was expected, for advice.
    local_nbytes: what the walk reads at a time on this machine. Elsewhere each jump would be a request, which takes as
    long as some megabytes do.

    Raises: ValueError with the path where the walk raises one.
    """
    from pyarrow.fs import LocalFileSystem

    is_local = isinstance(filesystem, LocalFileSystem)
    with filesystem.open_input_file(path) as raw:
        nbytes, file = raw.size(), io.BufferedReader(raw, local_nbytes if is_local else _REMOTE_BUFFER_NBYTES)
        try:
            bounds, names = walk(file, nbytes)
        except ValueError as error:
            raise ValueError(f"{path} cannot be indexed: {error}.{sniff.advice(raw, path, kind)}") from error
        return IndexedFile(path, nbytes, np.array(bounds, np.int64), content_of(raw, nbytes), names)


class FileSpans:
    """Bytes of files by offset. files: each with path, nbytes and content. content: gives a file's, as content_of.

    Several threads may read, at the same time, and close. Reading again opens again. pyarrow closes a file once nobody
    holds it: a thread that reads keeps its file open, so its descriptor never becomes the one of another file.
    """

    def __init__(self, filesystem: Any, files: Sequence[Any], content: Callable[[Any, int], str] | None = None) -> None:
        self._filesystem = filesystem
        self._files = files
        self._content = content or content_of
        self._open: OrderedDict[int, Any] = OrderedDict()  # pyarrow's files
        self._seen: dict[int, tuple[int | None, str]] = {}  # stamps of files that were found to be those indexed
        # of what is open, not of reading: pipelines over one source have threads of their own
        self._lock = ThreadLock()

    def read(self, index: int, spans: Indices, max_gap: int = 0) -> list[bytes]:
        """The bytes [start, stop) of a file, for each of these; of those without a gap between them, by one read.

        spans: int64 (k, 2), ascending, k >= 1. max_gap: the bytes between two of them that are read along.

        Raises: OSError where the file is gone or its storage fails; ValueError where it is no longer the file that was
        indexed.
        """
        with lap("storage"):
            return retried(lambda: self._read(index, spans, max_gap), self._files[index].path)

    def shut(self, index: int) -> None:
        """Close one file. Reading again opens it again."""
        with self._lock:
            self._open.pop(index, None)

    def close(self) -> None:
        """Close every open file. Reading again opens them again, and looks whether they are the same."""
        with self._lock:
            self._seen.clear()
            self._open.clear()

    def _read(self, index: int, spans: Indices, max_gap: int) -> list[bytes]:
        path = self._files[index].path
        with self._lock:
            file, seen = self._opened(index), self._seen[index]
        found: list[bytes] = []
        short: ConnectionError | None = None
        try:
            try:
                for run in np.split(spans, np.flatnonzero(spans[1:, 0] > spans[:-1, 1] + max_gap) + 1):
                    begin, end = int(run[0, 0]), int(run[-1, 1])
                    held = read_whole(file, begin, end)  # moves no position: Arrow's files allow it in any thread
                    found += [held[start - begin : stop - begin] for start, stop in run.tolist()]
            except ConnectionError as error:
                short = error
            if (now := stamp_of(self._filesystem, path)) != seen:  # of a file that was cut, less comes for good
                raise changed(path, f"it had (bytes, version) {seen}, and has {now}")
            if short is not None:
                raise short
        except Exception:
            with self._lock:
                self._open.pop(index, None)  # a connection that failed may fail for good
            raise
        return found

    def _opened(self, index: int) -> Any:
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        while len(self._open) >= MAX_OPEN_FILES:
            self._open.popitem(last=False)
        file = self._files[index]
        seen = stamp_of(self._filesystem, file.path)
        raw = self._filesystem.open_input_file(file.path)
        is_new = index not in self._seen or not seen[1]  # of one size, only its version tells it from another
        if is_new and self._content(raw, raw.size()) != file.content:
            raise ValueError(
                f"{file.path} had {file.nbytes:,} bytes when the source was made, and has {raw.size():,} others now; "
                "it was replaced, and reading on would mix two datasets. Put the original back and go on from the last "
                "state, or make a new source."
            )
        self._seen.setdefault(index, seen)
        self._open[index] = raw
        return raw


class FilesReader(Reader):
    """The records of many files under one index, [0, num_records), in the order of the files.

    A reader pickles as its arguments, so only the first one looks at all files. Several threads may read, and close.

    given: the arguments, with the files as "files".
    counts, skips: of each file, how many records are read, and how many are skipped before these.
    """

    def __init__(self, given: dict[str, Any], counts: Sequence[int], skips: Sequence[int]) -> None:
        self.files = tuple(given["files"])
        self._given = given
        self._starts = np.cumsum([0, *counts])
        self.name_firsts = self._starts[:-1]
        self._offsets = self._starts[:-1] - np.array(skips, np.int64)  # an index minus this is a number in the file

    @property
    def num_records(self) -> int:
        return int(self._starts[-1])

    @property
    def mean_nbytes(self) -> int:
        return sum(file.nbytes for file in self.files) // max(1, sum(file.num_records for file in self.files))

    def locate(self, record: int) -> str:
        """Where a record is, for people: "path[number in the file]"."""
        index = self._file_of(record)
        return f"{self.files[index].name}[{record - int(self._offsets[index])}]"

    def _file_of(self, record: int) -> int:
        return int(np.searchsorted(self._starts, record, side="right")) - 1

    def _by_file(self, wanted: Indices) -> Iterator[tuple[int, Indices]]:
        """The files of these records, each with the numbers of its records in the file. wanted: ascending."""
        bounds = np.searchsorted(wanted, self._starts)
        counts = np.diff(bounds)
        touched = np.flatnonzero(counts)
        numbers = wanted - np.repeat(self._offsets[touched], counts[touched])
        for index, lo, hi in zip(touched.tolist(), bounds[touched].tolist(), bounds[touched + 1].tolist(), strict=True):
            yield index, numbers[lo:hi]

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class RecordsInFiles(FilesReader):
    """The records of indexed files. options: what a kind of reader takes beside the files."""

    def __init__(self, filesystem: Any, files: Sequence[Any], **options: Any) -> None:
        given = {"filesystem": filesystem, "files": tuple(files)} | options
        super().__init__(given, [file.num_records for file in files], [0] * len(files))
        self._spans = FileSpans(filesystem, self.files)

    @property
    def traits(self) -> ReaderTraits:
        return ReaderTraits(BrokenRecordError)

    def read(self, records: Indices) -> list[Any]:
        """The record at each index, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        Raises: BrokenRecordError for a damaged record; OSError where a file is gone or its storage fails; ValueError
        where it is no longer the file that was indexed.
        """
        wanted, where = np.unique(records, return_inverse=True)
        stored: list[tuple[int, int, bytes]] = []
        for index, numbers in self._by_file(wanted):
            stored += zip(itertools.repeat(index), numbers.tolist(), self._stored(index, numbers), strict=False)
        return [self._record(*stored[place]) for place in where.tolist()]

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories, sizes, counts, bounds, some bytes of each file."""
        return files_fingerprint(self.files, self.num_records, lambda file: file.identity)

    def close(self) -> None:
        self._spans.close()

    def _stored(self, index: int, numbers: Indices) -> list[bytes]:
        """The bytes of records of one file. numbers: in the file, ascending."""
        return self._spans.read(index, self.files[index].spans(numbers))

    def _record(self, index: int, number: int, stored: bytes) -> Any:
        """The record with this number in a file, out of its bytes. Raises: BrokenRecordError."""
        raise NotImplementedError


def files_fingerprint(files: Sequence[Any], num_records: int, of: Callable[[Any], Sequence[Any]]) -> dict[str, Any]:
    """The identity of indexed files, in any folder. of: the identity of one file, beside its name and size."""
    return {
        "num_files": len(files),
        "num_records": num_records,
        "nbytes": sum(file.nbytes for file in files),
        "digest": digest([[os.path.basename(file.path), file.nbytes, *of(file)] for file in files]),
        "content": digest([file.content for file in files]),
    }


def content_of(raw: Any, nbytes: int) -> str:
    """A digest of some bytes of a file of this size; see file_contents. raw: it, opened by pyarrow."""
    content = hashlib.sha256()
    for start, stop in sampled_spans(nbytes, _TAIL_NBYTES):
        content.update(read_whole(raw, start, stop))
    return content.hexdigest()[:16]
