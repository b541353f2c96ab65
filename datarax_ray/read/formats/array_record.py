"""Reads records of ArrayRecord files by global index, batched, with every broken file found when it is opened.

Source: google/array_record, python/array_record_reader.cc. Three of its habits shape this file: the constructor never
raises (a broken file has ok() False), `read(list)` builds a table over the whole file on every call while
`read(start, stop)` does not, and readers do not pickle.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import operator
import os
import re
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from datarax_ray.plan.fingerprint import digest
from datarax_ray.plan.homes import Homes
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.orders.record_groups import RecordGroups
from datarax_ray.read.elements.columns import Columns
from datarax_ray.read.elements.fixed_records import FixedRecords
from datarax_ray.read.forked import OneProcess, ThreadLock
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.decoded_groups import DecodedGroups
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.paths import FileSlice, find
from datarax_ray.read.formats.remote.index import Index
from datarax_ray.read.formats.remote.mirrors import Mirrors, looked_at
from datarax_ray.read.formats.remote.ranges import REMOTE, Remote, is_url, read_tail, shown
from datarax_ray.read.formats.remote.read_ahead import ReadAhead
from datarax_ray.read.identity.contents import Stamp, difference, head_and_content, lasting_stamp, stamp
from datarax_ray.read.retry import retried
from datarax_ray.read.stream import MAX_NAMES

# Measured, on one core with zstd. `read(start, stop)` decodes each group that it touches: 4 us for one record in a
# group of its own, 14 to 18 us a record for 2 to 64 such groups at once, and the cheapest from about 1,024 on.
_LONG_RUN_GROUPS = 1024
# `read(list)` builds a table over the whole file and pays some 20 us for each of its first 100 groups, then decodes
# each group once; below these it is dearer than a range for each group, whatever is dropped from them.
_LIST_MIN_GROUPS = 64
_LIST_MIN_RECORDS_PER_GROUP = 3
_MAX_DESCRIPTORS = 2**16
_ROOM = 1024  # descriptors that are left to all else; a quarter of fewer than 4 times as many
_OPTIONS = "readahead_buffer_size:0"  # reads are by index: reading ahead of them is wasted
# What one pread takes in: a record of some KB with its header. With 32 KiB a record of 4 KB cost 0.8 us more; a longer
# one, or a group, is read past the buffer, so nothing was slower with 8.
_BUFFER_SIZE = 8 * 1024
# Of records that are read before they are copied to their places: so many are in the core's cache still. Measured,
# beside reading all of a block first: 64 B 2.4 us a record to 2.2, 4 KB 10.7 to 10.2, 150 KB 63 to 58.
_CACHED_NBYTES = 64 * 2**10
_MANY_FILES = 100  # on this machine, of which it is worth a file to know what they hold: to count one takes 0.4 ms
_THREADS = OneProcess("what reads ArrayRecord files")  # a reader in a forked process crashes
# "pread() failed: Input/output error; reading /data/a.array_record; at byte 15394"
_SYSTEM_CALL = re.compile(r"\w+\(\) failed: (?P<why>[^;]+)")
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


@dataclass(frozen=True)
class OpenFiles:
    """How many files stay open. One holds a descriptor, 2 KB, and 8 bytes of index for each group (measured).

    To open it again costs 50 us, and 60 ns for each group, where a read costs 4: so it is kept open where that is
    possible.

    most: of all readers in this process, None for what its limit on descriptors allows. index_nbytes: of one reader;
    more close a file for each that is opened. always: files that may be open whatever their indices take.
    """

    most: int | None = None
    index_nbytes: int = 512 * 2**20
    always: int = 256


@dataclass(frozen=True)
class RecordFile:
    """One opened and checked file. num_records: in the whole file. skip, take: the records used of it.

    head, content: digests of its first bytes, and of these and more (read.identity.contents): files are padded to 64
    KiB, so those of one dataset often have one size and count. "" where nobody took them. version, footer: of one
    behind a URL, what its storage calls this state of it, and where its footer begins; "" of one on this machine.
    stamp: of such a one, see contents.lasting_stamp.
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
        return shown(self.path) if self.version else self.path

    @property
    def index_nbytes(self) -> int:
        """What is held of it in memory while it is open: by array_record, and where its chunks lie behind a URL."""
        return 2048 + (24 if self.version else 8) * self.num_records // self.group_size


@dataclass(frozen=True)
class NodeFiles:
    """Files that lie on some nodes of a cluster alone, as these have looked at them; nobody else opens them.

    files: in the order of the stream. nodes: of each, the ids of the nodes that have it.
    """

    files: tuple[RecordFile, ...]
    nodes: tuple[frozenset[str], ...]

    def __repr__(self) -> str:
        num_nodes = len(frozenset().union(*self.nodes))
        return f"NodeFiles({len(self.files)} files on {num_nodes} nodes, {self.files[0].path} the first)"

    @classmethod
    def union(cls, found: Mapping[str, Sequence[Sequence[RecordFile]]]) -> NodeFiles:
        """The files of all nodes. found: of each node, what it has of each path that was named.

        What was named comes in its order, the files of one in that of their names; equal ones on several nodes are one.

        Raises: FileNotFoundError for what no node has, or where nothing has records; ValueError where two nodes have
        different files of one name.
        """
        homes: dict[tuple[Any, ...], dict[str, RecordFile]] = {}
        num_named = max((len(each) for each in found.values()), default=0)
        for named in range(num_named):
            for node, each in found.items():
                for file in each[named]:
                    homes.setdefault((named, file.path, file.skip, file.take), {})[node] = file
        for has in homes.values():
            (one, first), *others = has.items()
            for node, file in others:
                if file != first:
                    is_alike = (first.num_records, first.nbytes) == (file.num_records, file.nbytes)
                    raise ValueError(
                        f"{first.path} is not the same file on all nodes: {first.num_records} records in "
                        f"{first.nbytes:,} bytes on node {one[:12]}, {file.num_records} in {file.nbytes:,} on node "
                        f"{node[:12]}{' (others)' if is_alike else ''}; a stream could hold either. Give them "
                        "different names, or remove one"
                    )
        ordered = [homes[key] for key in sorted(homes)]
        files = tuple(next(iter(has.values())) for has in ordered)
        if not sum(file.take for file in files):
            raise FileNotFoundError(f"no node has a record of what was named; {len(found)} nodes were asked")
        return cls(files, tuple(frozenset(has) for has in ordered))

    def homes(self) -> Homes:
        """Which nodes have which records."""
        nodes = tuple(dict.fromkeys(self.nodes))
        starts = np.cumsum([0, *(file.take for file in self.files)]).tolist()
        home = [nodes.index(has) for has in self.nodes]
        names = tuple(
            tuple(file.path for file, has in zip(self.files, self.nodes, strict=True) if has == each) for each in nodes
        )
        return Homes(tuple(starts[:-1]), tuple(home), nodes, tuple(each[:MAX_NAMES] for each in names))


class _UnevenError(Exception):
    """Records of one size so far, and here is another."""


class ArrayRecordReader:
    """The records of many ArrayRecord files under one index, [0, num_records), in the order of the files.

    Opens files lazily, closes them, and pickles (what is pickled is the list of files with their counts, so only the
    first reader counts them). Several threads may read, and close.

    keep: how many files stay open. remote: how those behind URLs are read. room: for so many records of decoded groups,
    which then wait for the rest of their records to be asked for; 0 where that is not to be expected, and a group is
    decoded for what is asked of it now. run: see groups. homes: which nodes have which records, None where all do.
    """

    broken: type[Exception] = RuntimeError  # array_record's word for a record that it cannot read

    def __init__(
        self,
        files: Sequence[RecordFile],
        keep: OpenFiles = OpenFiles(),
        room: int = 0,
        remote: Remote = REMOTE,
        run: int = 1,
        homes: Homes | None = None,
    ) -> None:
        self.files = tuple(files)
        self.homes = homes
        self._remote = remote
        self._mirrors = Mirrors(self.files, remote)
        self._has_remote = any(file.version for file in self.files)
        self._ahead = ReadAhead(self._mirrors, self._far_parts)
        self._keep = keep
        self._room = room if self.group_size > 1 else 0
        self._run = run
        self._is_in_rows = self.group_size == 1
        self._decoded: DecodedGroups | None = None  # made with the first read
        self._sizes: set[int] = set()  # of records that are to lie in one array, until there are two
        self._starts = np.cumsum([0, *(file.take for file in self.files)])
        # what to take from an index, to have that within the file
        self._offsets = self._starts[:-1] - np.array([file.skip for file in self.files], np.int64)
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._kept: dict[int, Any] = {}  # of those of these that are read where they are kept on a disk, too
        # of files that were opened, and found to be those that were counted; every read looks whether they still are
        self._seen: dict[int, Stamp] = {}
        self._index_nbytes = 0
        self._lock = ThreadLock()  # pipelines over one source read in threads of their own
        self._decoding = ThreadLock()  # taken before the other
        _READERS[id(self)] = self

    @classmethod
    def of(cls, paths: Any, keep: OpenFiles = OpenFiles(), remote: Remote = REMOTE) -> ArrayRecordReader:
        """Open everything that `paths` names (see files.find), count it in parallel, and check it.

        Raises: FileNotFoundError; ValueError for files that are no complete ArrayRecord files (all are listed), for
        slices outside their file, and where there is no record in all files together.
        """
        if isinstance(paths, NodeFiles):
            return cls(paths.files, keep, remote=remote, homes=paths.homes())
        files = counted(paths, remote)
        if not sum(file.take for file in files):
            raise ValueError(
                f"{nothing_in([file.name for file in files])}; a stream needs at least one. Check that the writer "
                "wrote records and was closed."
            )
        return cls(files, keep, remote=remote)

    @property
    def num_records(self) -> int:
        return int(self._starts[-1])

    @property
    def mean_nbytes(self) -> int:
        """Compressed bytes of a record, on average."""
        return sum(file.nbytes for file in self.files) // max(1, sum(file.num_records for file in self.files))

    @property
    def keeps_groups(self) -> bool:
        return bool(self._room)

    @property
    def reads_ahead(self) -> bool:
        """Whether it is of use to say what will be read; see expect."""
        return self._has_remote and self._remote.nbytes > 0

    @property
    def group_size(self) -> int:
        """Records that are stored together, in the file where these are most."""
        return max(file.group_size for file in self.files)

    @functools.cached_property
    def groups(self) -> RecordGroups:
        """Records that are stored together; of a file where each stands alone, as many as of others.

        As many as hold `run` records, neighbours in a file, count as one.
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
        return ArrayRecordReader(self.files, self._keep, num_records, self._remote, run, self.homes)

    def read(self, records: Indices) -> Sequence[bytes]:
        """The bytes of each record, in the order asked. records: int64 (k,), in [0, num_records), repeats allowed.

        A list; FixedRecords where the reader keeps groups, and all records were of one size so far.

        Raises: RuntimeError from array_record for a broken record, with the file's path in a note; OSError where a
        file is gone, StorageError where it cannot be read for long; ValueError where it is no longer the file that
        was counted, or changed while it was read.
        """
        _THREADS.check()
        if not self._has_remote:
            with self._decoding if self._room else contextlib.nullcontext():
                return self._read_all(records)
        with self._decoding, self._ahead.reading(records):
            return self._read_all(records)

    def expect(self, records: Indices) -> None:
        """These will be read soon, at once, after what was expected before: bytes that are far are asked for now, as
        far as there is room for them. Nothing but the wait depends on whether it comes so.

        A read that was expected says that those before it have come, or will not.
        """
        if self.reads_ahead and len(records):
            with self._decoding:
                self._ahead.expect(records)

    def read_rows(self, records: Indices) -> Sequence[bytes]:
        """As read, for who takes FixedRecords: records that are stored alone, where these are of one size, in writable
        memory.
        """
        if self._is_in_rows and len(records) and not self._sizes:
            found = self.read(records if self._has_remote else records[:1])  # a request for one alone would be one more
            self._sizes |= set(map(len, found))
            if self._has_remote:
                return found
        sizes = self._sizes.copy()  # as other threads add to it
        if not (self._is_in_rows and len(records) and len(sizes) == 1):
            return self.read(records)
        _THREADS.check()
        (size,) = sizes
        try:
            if not self._has_remote:
                return self._read_rows(records, size)
            with self._decoding, self._ahead.reading(records):
                self._fetch(list(self._by_file(np.unique(records))))
                return self._read_rows(records, size)
        except (_UnevenError, MemoryError):  # the first may be a thousand times as large as others
            self._sizes.add(-1)
            return self.read(records)

    def _read_rows(self, records: Indices, size: int) -> FixedRecords:
        """As read_rows, where all records are of one size. Raises: _UnevenError where they are not."""
        places, first = np.argsort(records), 0
        found: list[bytes] = []  # of files that have few of them: copied together
        rows = np.empty((len(records), size), np.uint8)
        for index, chosen in self._by_file(records[places]):
            is_much = len(chosen) * size >= _CACHED_NBYTES
            if found and (is_much or len(found) * size >= _CACHED_NBYTES):
                _put(rows, places[first : first + len(found)], found)
                first, found = first + len(found), []
            if is_much:
                its_places = places[first : first + len(chosen)]
                self._read_file(index, chosen, partial(_copy_to, rows, its_places, chosen))
                first += len(chosen)
            else:
                found += self._read_file(index, chosen, partial(_read_alone, chosen))
        _put(rows, places[first:], found)
        return FixedRecords(rows)

    def locate(self, record: int) -> str:
        """Where a record is, for people: "path[index in the file]"."""
        index = int(np.searchsorted(self._starts, record, side="right")) - 1
        file = self.files[index]
        return f"{file.name}[{record - int(self._starts[index]) + file.skip}]"

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
        """Close every open file, and forget what was decoded. Reading again opens them again."""
        # a read that runs has its own hold of both, and may wait for its storage long
        self._decoded = None
        self._ahead.forget()
        with self._lock:
            self._seen.clear()
            while self._open:
                self._shut(next(iter(self._open)))
            self._mirrors.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "keep": self._keep,
            "room": self._room,
            "remote": self._remote,
            "run": self._run,
            "homes": self.homes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _far_parts(self, records: Indices) -> list[Mapping[int, Indices]]:
        """What a read of these wants of files behind URLs, as one."""
        parts = self._by_file(self._needed(records))
        far = {i: chosen for i, chosen in parts if self.files[i].version and not self._mirrors.is_kept(i, chosen)}
        return [far] if far else []

    def _needed(self, records: Indices) -> Indices:
        """The records of which stored bytes are needed to read these, ascending."""
        if not self._room:
            return np.unique(records)
        decoded = self._decoded or DecodedGroups(self.groups)
        starts = self.groups.starts
        groups = [np.arange(starts[group], starts[group + 1]) for group in decoded.missing(records).tolist()]
        return np.concatenate(groups) if groups else np.empty(0, np.int64)

    def _read_all(self, records: Indices) -> Sequence[bytes]:
        if self._room and len(records):
            return self._read_kept(records)
        wanted, where = np.unique(records, return_inverse=True)
        found: list[bytes] = []
        parts = list(self._by_file(wanted))
        self._fetch(parts)
        for index, chosen in parts:
            found += self._read_chosen(index, chosen)
        if len(found) != len(wanted):
            raise ValueError(f"{self.files[0].name} and others: asked for {wanted}, got {len(found)} records")
        if len(where) < 2:
            return found
        return list(operator.itemgetter(*where.tolist())(found))

    def _read_kept(self, records: Indices) -> Sequence[bytes]:
        """As read, out of decoded groups."""
        if (decoded := self._decoded) is None:
            decoded = self._decoded = DecodedGroups(self.groups, max_rows=self._room)
        if self._has_remote:
            self._fetch(list(self._by_file(self._needed(records))))
        try:
            found = decoded.read(records, self._decode)
        except _UnevenError:
            decoded.clear()  # these are in arrays of one size
            found = decoded.read(records, self._decode)
        (rows,) = found.values()
        return rows.tolist() if rows.dtype == object else FixedRecords(rows)

    def _decode(self, group: int) -> Columns:
        """The records of a group: uint8 (k, size) where records are of one size; bytes, as objects, where they differ.

        Raises: _UnevenError at the first group that shows that they differ.
        """
        start, stop = self.groups.starts[group : group + 2].tolist()
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        first, end = (int(at - self._offsets[index]) for at in (start, stop))
        found = self._read_file(index, np.arange(first, end), lambda reader: reader.read(first, end))
        if len(self._sizes) < 2:
            self._sizes |= set(map(len, found))
            if len(self._sizes) > 1:
                raise _UnevenError
            (size,) = self._sizes
            return {"": np.ndarray((len(found), size), np.uint8, b"".join(found))}
        rows = np.empty(len(found), object)
        rows[:] = found
        return {"": rows}

    def _by_file(self, wanted: Indices) -> Iterator[tuple[int, Indices]]:
        """Each file that has some of these records, with the indices of those within it. wanted: ascending."""
        bounds = np.searchsorted(wanted, self._starts)
        counts = np.diff(bounds)
        touched = np.flatnonzero(counts)
        within = wanted - np.repeat(self._offsets[touched], counts[touched])
        for index, lo, hi in zip(touched.tolist(), bounds[touched].tolist(), bounds[touched + 1].tolist(), strict=True):
            yield index, within[lo:hi]

    def _fetch(self, parts: Sequence[tuple[int, Indices]]) -> None:
        """Have in memory what all of these are decoded from, of files behind URLs: by requests at once, not in turn."""
        remote = {index: wanted for index, wanted in parts if self.files[index].version}
        remote = dict(itertools.islice(remote.items(), _max_open_readers() // 4))  # two descriptors each; or in turn
        for indices in self._mirrors.parts(remote):
            self._mirrors.open(indices)
            with self._lock:
                for index in indices:
                    self._reader(index)  # at once, so that the ends of few files are in memory at a time
            kept = {index for index in indices if self._mirrors.is_kept(index, remote[index])}
            self._mirrors.fetch({index: remote[index] for index in indices if index not in kept})

    def _read_chosen(self, index: int, wanted: Indices) -> list[bytes]:
        """wanted: ascending, distinct indices within the file."""
        group_size = self.files[index].group_size

        def read(reader: Any) -> list[bytes]:
            match reading(wanted, group_size):
                case "range":
                    found = reader.read(int(wanted[0]), int(wanted[-1]) + 1)
                case "list":
                    found = reader.read(wanted.tolist())
                case "groups":
                    found = _read_groups(reader.read, wanted, group_size)
            return found

        return self._read_file(index, wanted, read)

    def _read_file(self, index: int, wanted: Indices, read: Callable[[Any], list[bytes]]) -> list[bytes]:
        """What read(reader) gives: the records with these indices in the file, ascending."""

        def alone() -> list[bytes]:
            with self._lock:  # no other thread may close the file; it may while a failed read waits to be tried again
                return self._read_once(index, wanted, read)

        return retried(alone, self.files[index].name)

    def _read_once(self, index: int, wanted: Indices, read: Callable[[Any], list[bytes]]) -> list[bytes]:
        file, reader, count = self.files[index], self._reader(index), len(wanted)
        if (kept := self._kept_reader(index, wanted)) is not None:
            try:
                found = read(kept)
                is_cut = self._mirrors.kept_nbytes(index) != file.nbytes  # then records are b""
                if len(found) == count and not is_cut:
                    return found
            except RuntimeError:  # damaged there, perhaps: it comes anew
                self._mirrors.forget(index, wanted)
        if file.version:
            self._fetch([(index, wanted)])  # again where another thread closed it meanwhile
        try:
            try:
                found = read(reader)
            except RuntimeError:
                if not file.version:
                    raise
                self._mirrors.forget(index, wanted)  # bytes that were bent on their way are no broken record: once more
                self._fetch([(index, wanted)])
                found = read(reader)
        except RuntimeError as error:
            self._check_unchanged(index)
            if failed := _system_error(error, file.name, f" for records {wanted[0]} to {wanted[-1]}"):
                self._shut(index)
                raise failed from error
            error.add_note(f"while reading {count} records of {file.name}")
            raise
        # afterwards: a file that was cut gives b"" without an error, and no record is empty before it was looked at
        self._check_unchanged(index)
        if len(found) != count:
            raise ValueError(f"{file.name}: asked for {count} records, got {len(found)}")
        return found

    def _reader(self, index: int) -> Any:
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        while self._open and self._is_full():
            self._shut(next(iter(self._open)))
        reader = self._opened(index)
        try:
            self._check_replaced(index, reader)
        except Exception:
            reader.close()
            raise
        self._open[index] = reader
        self._index_nbytes += self.files[index].index_nbytes
        return reader

    def _kept_reader(self, index: int, wanted: Indices) -> Any:
        """What reads these records where they are kept on a disk; None where they are not."""
        if not (self.files[index].version and self._mirrors.is_kept(index, wanted)):
            return None
        if index not in self._kept and (path := self._mirrors.kept_path(index)):
            with contextlib.suppress(OSError, ValueError):  # its end is damaged there
                self._kept[index] = _open(path)
        return self._kept.get(index)

    def _opened(self, index: int) -> Any:
        if not self.files[index].version:
            return _open(self.files[index].path)
        self._mirrors.open([index])
        with self._mirrors.opening(index) as path:
            return _open(path)

    def _shut(self, index: int) -> None:
        self._open.pop(index).close()
        if (kept := self._kept.pop(index, None)) is not None:
            kept.close()
        self._mirrors.shut(index)
        self._index_nbytes -= self.files[index].index_nbytes

    def _is_full(self) -> bool:
        """Whether one more file is to be opened only when another was closed."""
        readers = [found for reference in _READERS.valuerefs() if (found := reference()) is not None]
        most = _max_open_readers() if self._keep.most is None else self._keep.most
        return sum(len(reader._open) + len(reader._kept) + reader._mirrors.num_open for reader in readers) >= most or (
            len(self._open) >= self._keep.always and self._index_nbytes >= self._keep.index_nbytes
        )

    def _check_replaced(self, index: int, reader: Any) -> None:
        """Refuse a file that is not the one that was counted; once, later its stamp tells, and of one behind a URL
        every answer.
        """
        if index in self._seen or self.files[index].version:
            return
        file = self.files[index]
        seen = stamp(file.path)
        is_same = file.stamp and file.stamp == lasting_stamp(file.path)
        content = file.content if is_same else head_and_content(file.path)[1] if file.content else ""
        found = reader.num_records(), seen[1], content
        if found != (file.num_records, file.nbytes, file.content):
            raise ValueError(
                f"{file.path} held {file.num_records} records in {file.nbytes:,} bytes when the source was made and "
                f"holds {found[0]}{' others' if found[0] == file.num_records else ''} in {found[1]:,} now; it was "
                "replaced, and reading on would mix two datasets. Put the original back and go on from the last "
                "state, or make a new source."
            )
        self._seen[index] = seen

    def _check_unchanged(self, index: int) -> None:
        """Refuse what was read of a file that is no longer what it was when it was opened."""
        if self.files[index].version:
            return
        path, seen = self.files[index].path, self._seen[index]
        now = stamp(path)
        if now != seen:
            raise ValueError(
                f"{path} changed while it was read: {difference(seen, now)}. What it gives now may be cut, or of two "
                "files, so nothing of this read is taken. Put the original back (by renaming, never in place) and go "
                "on from the last state, or make a new source."
            )


# All readers of this process, which share its descriptors: the components of a mixture have one each. By id, as a dict
# gives a list of what is in it at once; a WeakSet that grew in another thread meanwhile would raise RuntimeError, which
# is array_record's word for a broken record.
_READERS: weakref.WeakValueDictionary[int, ArrayRecordReader] = weakref.WeakValueDictionary()


@functools.cache
def _max_open_readers() -> int:
    """How many files may be open; of the limit on descriptors, which is raised as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # a sandbox that forbids it: the limit stays as it was
            pass
    limit = _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, _MAX_DESCRIPTORS)
    return limit - min(_ROOM, limit // 4)


def reading(wanted: Indices, group_size: int) -> Literal["range", "list", "groups"]:
    """The cheapest way to read these records of one file: one range, one list, or a range for each of their groups.

    wanted: int64 (k,), ascending, distinct, k >= 1.

    >>> reading(np.arange(0, 400_000, 100), group_size=1)
    'groups'
    >>> reading(np.arange(0, 62_500, 32), group_size=256)
    'list'
    >>> reading(np.arange(5_000, 9_000), group_size=1)
    'range'
    """
    if len(wanted) < _LIST_MIN_GROUPS * _LIST_MIN_RECORDS_PER_GROUP:
        return "groups"  # at once: of many small files, a read takes one or two records of each
    if len(wanted) == wanted[-1] - wanted[0] + 1 and len(wanted) >= _LONG_RUN_GROUPS * group_size:
        return "range"
    num_groups = 1 + np.count_nonzero(np.diff(wanted // group_size))
    if num_groups >= _LIST_MIN_GROUPS and len(wanted) >= _LIST_MIN_RECORDS_PER_GROUP * num_groups:
        return "list"
    return "groups"


def _read_groups(read: Callable[[int, int], list[bytes]], wanted: Indices, group_size: int) -> list[bytes]:
    """One range for each group, from the first to the last record wanted of it."""
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


def _copy_to(rows: np.ndarray, places: Indices, wanted: Indices, reader: Any) -> Any:
    """Copy records of a file, ascending, each of which is stored alone, to rows of their own, some at a time.

    wanted: int64 (k,), indices in the file, some perhaps twice. places: int64 (k,), the row of each.

    Raises: _UnevenError where one is of another size than a row.
    """
    size = rows.shape[1]
    is_range = len(wanted) >= _LONG_RUN_GROUPS and bool((np.diff(wanted) == 1).all())
    step = len(wanted) if is_range else max(1, _CACHED_NBYTES // max(1, size))
    for lo in range(0, len(wanted), step):
        some = wanted[lo : lo + step]
        found = reader.read(int(some[0]), int(some[-1]) + 1) if is_range else _read_groups(reader.read, some, 1)
        _put(rows, places[lo : lo + step], found)
    return wanted


def _read_alone(wanted: Indices, reader: Any) -> list[bytes]:
    """Records of a file, ascending, each of which is stored alone."""
    return _read_groups(reader.read, wanted, 1)


def _put(rows: np.ndarray, places: Indices, found: Sequence[bytes]) -> None:
    """Write records to rows of their own. places: int64 (k,), the row of each. Raises: _UnevenError."""
    if not {rows.shape[1]}.issuperset(map(len, found)):
        raise _UnevenError
    rows[places] = np.ndarray((len(found), rows.shape[1]), np.uint8, b"".join(found))


def _open(path: str) -> Any:
    from array_record.python import array_record_module  # lazily: it starts 64 threads with the first reader

    _THREADS.check()
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file (seen from {os.getcwd()})")
    reader = array_record_module.ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER_SIZE)
    if not reader.ok():
        raise ValueError(
            f"{path} is not a complete ArrayRecord file: {_reason(reader, path)}."
            + (
                sniff.advice_at(path, "ArrayRecord")
                or " It was cut short, or its writer was never closed; write or copy it again."
            )
        )
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
        if failed := _system_error(error, path):
            raise failed from error
        return str(error).removeprefix(path).lstrip(": ") or "its end is missing"
    return f"its end is missing ({os.path.getsize(path):,} bytes are there)"


def _system_error(error: RuntimeError, path: str, what: str = "") -> OSError | None:
    """What the operating system said, where array_record tells of that in words: it is about no record.

    what: was to be read, for people.
    """
    said = _SYSTEM_CALL.match(str(error))
    if said is None:
        return None
    number = _NUMBERS.get(said["why"])
    return OSError(f"{path}: {said[0]}{what}") if number is None else OSError(number, f"{said[0]}{what}", path)


def counted(paths: Any, remote: Remote = REMOTE) -> list[RecordFile]:
    """Everything that `paths` names, opened, counted and checked, many at a time. Raises: as ArrayRecordReader.of."""
    return counted_parts(find(paths), remote)


def counted_parts(parts: Sequence[FileSlice], remote: Remote = REMOTE) -> list[RecordFile]:
    """As counted, of what was found."""
    index = Index()
    index_here = index if len(parts) >= _MANY_FILES else None

    def inspect(part: FileSlice) -> RecordFile:
        is_far = is_url(part.path)
        return _cut(part, _counted_far(part, remote, index) if is_far else _counted_here(part.path, index_here))

    found = inspect_all(inspect, parts, "opened", lambda part: shown(part.path))
    index.save()
    return found


def _counted_far(part: FileSlice, remote: Remote, index: Index) -> RecordFile:
    """All of a file behind a URL, by what is known of it where it is still that version; else it is looked at."""
    url, known = part.path, index.find(part.path)
    if known is not None and (part.version or read_tail(url, 1, remote).version) == known["version"]:
        return RecordFile(url, **known)
    _THREADS.check()
    with looked_at(url, remote) as (image, version, footer):
        try:
            found = replace(_counted(image.path), path=url, version=version, footer=footer)
        except ValueError as error:
            raise ValueError(str(error).replace(image.path, shown(url))) from error
    index.add(url, known_of(found))
    return found


def known_of(file: RecordFile) -> dict[str, Any]:
    """What an index keeps of it."""
    return {name: value for name, value in vars(file).items() if name not in ("path", "stamp")}


def _counted_here(path: str, index: Index | None) -> RecordFile:
    """All of a file on this machine, by what is known of it where nobody has changed it; else it is looked at."""
    name, before = f"file://{os.path.abspath(path)}", lasting_stamp(path) if os.path.isfile(path) else ""
    known = index.find(name) if index is not None and before else None
    if known is not None and known["version"] == before:
        return RecordFile(path, **known["file"], stamp=before)
    found = _counted(path)
    if not before or lasting_stamp(path) != before:  # who reads it will tell
        return found
    if index is not None:
        index.add(name, {"version": before, "file": known_of(found)})
    return replace(found, stamp=before)


def _counted(path: str) -> RecordFile:
    """All of a file on this machine."""
    reader = _open(path)
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
    """The records of a file that are taken. Raises: ValueError where it has not so many."""
    if part.expected is not None and part.expected != file.num_records:
        raise ValueError(
            f"{file.name} was said to hold {part.expected} records (examples_in_shard) and holds {file.num_records}"
        )
    take = file.num_records - part.skip if part.take is None else part.take
    if take < 0 or part.skip + take > file.num_records:
        raise ValueError(
            f"{file.name}: records [{part.skip}, {part.skip + max(take, 0)}) were asked for, "
            f"the file holds {file.num_records}"
        )
    return replace(file, skip=part.skip, take=take)
