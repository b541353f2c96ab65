"""Reads records of ArrayRecord files by global index, batched.

Source: google/array_record, python/array_record_reader.cc, whose own readers do not pickle. `read(list)` builds a table
over the whole file each time, `read(start, stop)` does not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.rows import FixedRecords
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.formats.array_record.files import THREADS, RecordFile, counted, system_error
from datarax_ray.read.formats.array_record.open_files import OpenFiles, max_open_files
from datarax_ray.read.formats.decoded_groups import BrokenRowGroupError, DecodedGroups
from datarax_ray.read.formats.file_spans import FilesReader
from datarax_ray.read.formats.inspecting import check_folders, nothing_in
from datarax_ray.read.formats.origins import origin_in
from datarax_ray.read.formats.remote.mirrors import Mirrors
from datarax_ray.read.formats.remote.pages import RemoteFile
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote
from datarax_ray.read.formats.remote.read_ahead import ReadAhead
from datarax_ray.read.retry import retried
from datarax_ray.read.reused_memory import ReusedMemory
from datarax_ray.read.stream import ReaderTraits

# Measured, on one core with zstd. `read(start, stop)` decodes each group that it touches: 4 us for one record in a
# group of its own, 14 to 18 us a record for 2 to 64 such groups at once, and the cheapest from about 1,024 on.
_LONG_RUN_GROUPS = 1024
# `read(list)` builds a table over the whole file and pays some 20 us for each of its first 100 groups, then decodes
# each group once; below these it is dearer than a range for each group, whatever is dropped from them.
_LIST_MIN_GROUPS = 64
_LIST_MIN_RECORDS_PER_GROUP = 3
# Of records that are read before they are copied to their places: so many are in the core's cache still. Measured,
# beside reading all of a block first: 64 B 2.4 us a record to 2.2, 4 KB 10.7 to 10.2, 150 KB 63 to 58.
CACHED_NBYTES = 64 * 2**10
# Records from this size on go to their rows one by one; of smaller ones a copy costs less than its call.
_ALONE_NBYTES = 2 * 2**10
# Blocks whose memory waits for the next ones; batches, which may show it, are let go of one by one.
_FREE_BLOCKS = 2
_UNEVEN = -1  # the size of records of several sizes


T = TypeVar("T")


class UnevenError(Exception):
    """Records of one size so far, and here is another."""


class ArrayRecordReader(FilesReader):
    """The records of many ArrayRecord files; see FilesReader. A file is opened when it is first read.

    room: for so many records of decoded groups, which then wait for the rest of their records to be asked for; 0 where
        that is not to be expected, and a group is decoded for what is asked of it now.
    remote: how files behind URLs are read.
    run: see groups.
    """

    def __init__(self, files: Sequence[RecordFile], room: int = 0, remote: Remote = REMOTE, run: int = 1) -> None:
        given = {"files": tuple(files), "room": room, "remote": remote, "run": run}
        super().__init__(given, [file.take for file in files], [file.skip for file in files])
        self._remote = remote
        self._mirrors: Mirrors | None = None  # where no file is behind a URL
        self._ahead: ReadAhead | None = None
        if any(file.version for file in self.files):
            mirrored = [RemoteFile(file.path, file.nbytes, file.version, file.footer) for file in self.files]
            self._mirrors = Mirrors(mirrored, remote)
            self._ahead = ReadAhead(self._mirrors, self._far_parts)
        self._open = OpenFiles(self.files, self._mirrors)
        self._room = room if self.group_size > 1 else 0
        self._run = run
        self._is_in_rows = self.group_size == 1
        self._decoded: DecodedGroups | None = None  # made with the first read
        self._asked = set[int]()  # groups that an expected read wants, until they are decoded
        self._size: int | None = None  # of all records so far; _UNEVEN once they are of several
        self._memory = ReusedMemory(_FREE_BLOCKS)
        self._lock = ThreadLock()  # pipelines over one source read in threads of their own
        self._decoding = ThreadLock()  # taken before the other

    @classmethod
    def of(cls, paths: Any, remote: Remote = REMOTE) -> ArrayRecordReader:
        """Open everything that `paths` names (see files.find), count it in parallel, and check it.

        Raises: FileNotFoundError; ValueError for files that are no complete ArrayRecord files (all are listed), for
        slices outside their file, and where there is no record in all files together.
        """
        files = counted(paths, remote)
        found = {file.path: (file.nbytes, file.content) for file in files}
        check_folders(found, found.__getitem__)
        if not sum(file.take for file in files):
            raise ValueError(
                f"{nothing_in([file.name for file in files])}; a stream needs at least one. Check that the writer "
                "wrote records and was closed."
            )
        return cls(files, remote=remote)

    @functools.cached_property
    def traits(self) -> ReaderTraits:
        return ReaderTraits(
            RuntimeError,  # array_record's word for a record that it cannot read
            group_size=self.group_size,
            keeps_groups=bool(self._room),
            reads_ahead=self._ahead is not None and self._remote.nbytes > 0,
        )

    @functools.cached_property
    def group_size(self) -> int:
        """Records that are stored together, in the file where these are most."""
        return max(file.group_size for file in self.files)

    @functools.cached_property
    def groups(self) -> RecordGroups:
        """Records that are stored together. Of a file where each is stored alone, as many count as one group as of the
        other files; and neighbours are joined until they hold `run` records.
        """
        sizes = []
        for file in self.files:
            step = file.group_size if file.group_size > 1 else self.group_size
            step *= -(-self._run // step)
            first, end = file.skip, file.skip + file.take
            cuts = np.arange(first // step * step, end + step, step)
            sizes.append(np.diff(np.unique(cuts.clip(first, end))))
        return RecordGroups(np.concatenate(sizes))

    def with_room_for(self, num_records: int, run: int = 1) -> ArrayRecordReader:
        """A reader of the same records that keeps decoded groups with so many, up to 512 MiB. run: see groups."""
        return ArrayRecordReader(**self._given | {"room": num_records, "run": run})

    def read(self, records: Indices) -> Sequence[bytes]:
        """The bytes of each record, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        A list; FixedRecords where the reader keeps groups, and all records were of one size so far.

        Raises: RuntimeError from array_record for a broken record, with the file's path in a note; OSError where a
        file is gone, StorageError where it cannot be read for long; ValueError where it is no longer the file that
        was counted, or changed while it was read.
        """
        THREADS.check()
        if self._ahead is None:
            with self._decoding if self._room else contextlib.nullcontext():
                return self._read_all(records)
        with self._decoding, self._ahead.reading(records):
            return self._read_all(records)

    def expect(self, records: Indices) -> None:
        """These records will be read soon, by one read, after those that were expected before: bytes behind URLs are
        asked for now, as far as there is room for them. Only the wait depends on whether the read comes.

        A read that was expected shows that those before it have come, or will not.
        """
        if self._ahead is not None and self.traits.reads_ahead and len(records):
            with self._decoding:
                self._ahead.expect(records)

    def read_rows(self, records: Indices) -> Sequence[bytes]:
        """As read, for callers that take FixedRecords: these come in writable memory, where records are stored alone
        and are of one size.
        """
        if not (self._is_in_rows and len(records)):
            return self.read(records)
        if self._size is None:
            found = self.read(records[:1] if self._ahead is None else records)  # a request for one would be one more
            self._size = len(found[0]) if len(set(map(len, found))) == 1 else _UNEVEN
            if self._ahead is not None:
                return found
        if (size := self._size) == _UNEVEN:
            return self.read(records)
        THREADS.check()
        try:
            if self._ahead is None:
                return self._read_rows(records, size)
            with self._decoding, self._ahead.reading(records):
                if self._mirrors is not None:
                    self._fetch(self._mirrors, list(self._by_file(np.unique(records))))
                return self._read_rows(records, size)
        except (UnevenError, MemoryError):  # the first record may be a thousand times as large as others
            self._size = _UNEVEN
            return self.read(records)

    def _read_rows(self, records: Indices, size: int) -> FixedRecords:
        """As read_rows, where all records are of one size. Raises: UnevenError where they are not."""
        places, first = np.argsort(records), 0
        with self._lock:
            rows = self._memory.empty((len(records), size), np.dtype(np.uint8))
        for index, chosen in self._by_file(records[places]):
            fill = functools.partial(read_to_rows, rows=rows, wanted=chosen, places=places[first : first + len(chosen)])
            first += len(chosen)
            sizes: list[int] = self._read_file(index, chosen, fill)
            if not {size}.issuperset(sizes):
                raise UnevenError
        return FixedRecords(rows)

    def origin(self, record: int) -> str:
        index = self._file_of(record)
        file = self.files[index]
        return origin_in(file.path, record - int(self._offsets[index]), file.nbytes)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data: names without directories (a dataset may move), slices, sizes, counts, contents."""
        return {
            "num_files": len(self.files),
            "num_records": self.num_records,
            "nbytes": sum(file.nbytes for file in self.files),
            "digest": digest(
                [[os.path.basename(f.name), f.skip, f.take, f.num_records, f.nbytes, f.head] for f in self.files]
            ),
            "content": digest([file.content for file in self.files]),
        }

    def close(self) -> None:
        # a read that runs may wait for its storage long, and still holds both
        self._decoded, self._asked = None, set()
        if self._ahead is not None:
            self._ahead.forget()
        with self._lock:
            self._memory = ReusedMemory(_FREE_BLOCKS)
            self._open.close_all()
            if self._mirrors is not None:
                self._mirrors.close()

    def _far_parts(self, records: Indices) -> list[Mapping[int, Indices]]:
        """What a read of these records wants of files behind URLs, beside groups that reads before it want: a part, or
        none.
        """
        needed = self._needed(records, self._asked)
        far = {index: wanted for index, wanted in self._by_file(needed) if self.files[index].version}
        return [far] if far else []

    def _needed(self, records: Indices, asked: set[int] | None = None) -> Indices:
        """The records whose stored bytes a read of these needs, ascending: whole groups, where these stay decoded.

        asked: groups to leave out; the other groups are added to them.
        """
        if not self._room:
            return np.unique(records)
        decoded = self._decoded or DecodedGroups(self.groups)
        starts, missing = self.groups.starts, decoded.missing(records).tolist()
        if asked is not None:
            missing = [group for group in missing if group not in asked]
            asked.update(missing)
        groups = [np.arange(starts[group], starts[group + 1]) for group in missing]
        return np.concatenate(groups) if groups else np.empty(0, np.int64)

    def _read_all(self, records: Indices) -> Sequence[bytes]:
        if self._room and len(records):
            with contextlib.suppress(BrokenRowGroupError):  # a record of it is broken: then each record is read alone
                return self._read_decoded(records)
        wanted, where = np.unique(records, return_inverse=True)
        found: list[bytes] = []
        parts = list(self._by_file(wanted))
        if self._mirrors is not None:
            self._fetch(self._mirrors, parts)
        for index, chosen in parts:
            found += self._read_chosen(index, chosen)
        if len(found) != len(wanted):
            raise ValueError(f"{self.files[0].name} and others: asked for {wanted}, got {len(found)} records")
        if len(where) < 2:
            return found
        return list(operator.itemgetter(*where.tolist())(found))

    def _read_decoded(self, records: Indices) -> Sequence[bytes]:
        if (decoded := self._decoded) is None:
            decoded = self._decoded = DecodedGroups(self.groups, max_rows=self._room)
        if self._mirrors is not None:
            self._fetch(self._mirrors, list(self._by_file(self._needed(records))))
        try:
            found = decoded.read(records, self._decode)
        except UnevenError:
            decoded.clear()  # these are in arrays of one size
            found = decoded.read(records, self._decode)
        (rows,) = found.values()
        return rows.tolist() if rows.dtype == object else FixedRecords(rows)

    def _decode(self, group: int) -> Columns:
        """The records of a group: uint8 (k, size) where records are of one size; bytes, as objects, where they differ.

        Raises: UnevenError at the first group that shows that they differ; BrokenRowGroupError.
        """
        self._asked.discard(group)
        start, stop = self.groups.starts[group : group + 2].tolist()
        index = self._file_of(start)
        first, end = (int(at - self._offsets[index]) for at in (start, stop))
        try:
            found = self._read_file(index, np.arange(first, end), lambda reader: reader.read(first, end))
        except RuntimeError as error:
            raise BrokenRowGroupError(str(error)) from error
        if self._size != _UNEVEN:
            size = len(found[0]) if self._size is None else self._size
            if {size} != set(map(len, found)):
                self._size = _UNEVEN
                raise UnevenError
            self._size = size
            return {"": np.ndarray((len(found), size), np.uint8, b"".join(found))}
        rows = np.empty(len(found), object)
        rows[:] = found
        return {"": rows}

    def _fetch(self, mirrors: Mirrors, parts: Sequence[tuple[int, Indices]]) -> None:
        """Have in memory what records of files behind URLs are decoded from: by requests at once, not file by file."""
        remote = {index: wanted for index, wanted in parts if self.files[index].version}
        remote = dict(itertools.islice(remote.items(), max_open_files() // 4))  # two descriptors each; or one by one
        for indices in mirrors.parts(remote):
            num_open = mirrors.num_open
            mirrors.open(indices)
            with self._lock:
                for index in indices:
                    self._open.reader_of(index)  # now, so that the ends of few files are in memory at a time
            if self._ahead is not None and mirrors.num_open > num_open:
                self._ahead.ask()  # for expected reads as well, now that the places of their chunks are known
            mirrors.fetch({index: remote[index] for index in indices})

    def _read_chosen(self, index: int, wanted: Indices) -> list[bytes]:
        """wanted: ascending indices within the file, distinct where records are stored in groups."""
        group_size = self.files[index].group_size
        ways: dict[str, Callable[[Any], list[bytes]]] = {
            "range": lambda reader: reader.read(int(wanted[0]), int(wanted[-1]) + 1),
            "list": lambda reader: reader.read(wanted.tolist()),
            "groups": lambda reader: read_groups(reader.read, wanted, group_size),
        }
        return self._read_file(index, wanted, ways[reading(wanted, group_size)])

    def _read_file(self, index: int, wanted: Indices, read: Callable[[Any], list[T]]) -> list[T]:
        """The result of read(reader): an item for each of these records of the file. wanted: ascending."""
        return retried(lambda: self._read_once(index, wanted, read), self.files[index].name)

    def _read_once(self, index: int, wanted: Indices, read: Callable[[Any], list[T]]) -> list[T]:
        """As _read_file, once. Bytes of a file behind a URL may have been bent on their way: only those that were
        fetched anew show that a record is broken.
        """
        with self._lock:  # no other thread may close the file; it may while a failed read waits to be tried again
            file, opened, count = self.files[index], self._open.reader_of(index), len(wanted)
            mirrors = self._mirrors if file.version else None
            for is_anew in (False,) if mirrors is None else (False, True):
                if mirrors is not None:
                    self._fetch(mirrors, [(index, wanted)])  # again where another thread closed it meanwhile
                try:
                    found = read(opened)
                except RuntimeError as error:
                    if mirrors is not None and not is_anew:
                        mirrors.forget(index, wanted)
                        continue
                    self._open.check_unchanged(index)
                    if failed := system_error(error, file.name, f" for records {wanted[0]} to {wanted[-1]}"):
                        self._open.close(index)
                        raise failed from error
                    error.add_note(f"while reading {count} records of {file.name}")
                    raise
                # afterwards: a file that was cut gives b"" without an error; no record is empty before it was looked at
                self._open.check_unchanged(index)
                if len(found) != count:
                    raise ValueError(f"{file.name}: asked for {count} records, got {len(found)}")
                return found
            raise AssertionError("the last attempt returns or raises")


def reading(wanted: Indices, group_size: int) -> Literal["range", "list", "groups"]:
    """The cheapest way to read these records of one file: one range, one list, or a range for each of their groups.

    wanted: int64 (k,), ascending, distinct unless group_size is 1, k >= 1.

    >>> reading(np.arange(0, 400_000, 100), group_size=1)
    'groups'
    >>> reading(np.arange(0, 62_500, 32), group_size=256)
    'list'
    >>> reading(np.arange(5_000, 9_000), group_size=1)
    'range'
    """
    if len(wanted) < _LIST_MIN_GROUPS * _LIST_MIN_RECORDS_PER_GROUP:
        return "groups"  # at once: of many small files, a read takes one or two records of each
    if len(wanted) >= _LONG_RUN_GROUPS * group_size and bool((np.diff(wanted) == 1).all()):
        return "range"
    num_groups = 1 + np.count_nonzero(np.diff(wanted // group_size))
    if group_size > 1 and num_groups >= _LIST_MIN_GROUPS and len(wanted) >= _LIST_MIN_RECORDS_PER_GROUP * num_groups:
        return "list"
    return "groups"


def read_groups(read: Callable[[int, int], list[bytes]], wanted: Indices, group_size: int) -> list[bytes]:
    """Read a range of each group, from its first wanted record to its last."""
    indices = wanted.tolist()
    if group_size == 1 or len(indices) == 1:
        return [read(index, index + 1)[0] for index in indices]
    cuts = (np.flatnonzero(np.diff(wanted // group_size)) + 1).tolist()
    found: list[bytes] = []
    for lo, hi in itertools.pairwise([0, *cuts, len(indices)]):
        start = indices[lo]
        records = read(start, indices[hi - 1] + 1)
        found += records if len(records) == hi - lo else [records[index - start] for index in indices[lo:hi]]
    return found


def read_to_rows(reader: Any, rows: np.ndarray, wanted: Indices, places: Indices) -> list[int]:
    """Read records of a file, each stored alone, to rows of their own, while the core's cache has them.

    rows: uint8 (n, size). wanted: ascending indices in the file. places: int64 (k,), the row of each.

    Returns the size of each record; one of another size leaves its row as it is.
    """
    size, indices = rows.shape[1], wanted.tolist()
    sizes: list[int] = []
    way = reading(wanted, 1)
    if way != "range" and size >= _ALONE_NBYTES:
        flat = rows.data.cast("B")
        for index, place in zip(indices, places.tolist(), strict=True):
            record = reader.read(index, index + 1)[0]
            sizes.append(len(record))
            if len(record) == size:
                flat[place * size : (place + 1) * size] = record
        return sizes
    step = len(indices) if way == "range" else max(1, CACHED_NBYTES // max(1, size))
    for lo in range(0, len(indices), step):
        if way == "range":
            found = reader.read(indices[0], indices[-1] + 1)
        else:
            found = [reader.read(index, index + 1)[0] for index in indices[lo : lo + step]]
        of_found = list(map(len, found))
        sizes += of_found
        if {size}.issuperset(of_found):
            rows[places[lo : lo + step]] = np.ndarray((len(found), size), np.uint8, b"".join(found))
    return sizes
