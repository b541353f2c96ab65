"""The index of tar files: where the members of each sample lie, and what becomes of samples that lack one.

One walk over the headers finds the runs of members of one key. Source: the webdataset package, tariterators.py: a name
is split at the first dot behind the last slash into key and extension; links, folders and what lies below `__name__`
are skipped. Unlike webdataset, notes and leftovers (README.md, __MACOSX/._1.jpg) are skipped too, and members of one
key are a sample also where they lie apart, as in a tar that was written without --sort=name. A key that comes again
with an extension that its sample has already begins another sample, as in webdataset.
Python's tarfile reads the headers, one at a time: its own loop ends in silence at a damaged one. The bytes of runs, cut
out of the file, are a tar again, so that reading is the same walk.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from datarax_ray.plan.arguments import nearest
from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.files.listing import is_no_data
from datarax_ray.read.formats.file_spans import IndexedFile, indexed

KEY = "__key__"
BUFFER_NBYTES = 32 * 1024  # what the walk over a local file reads at a time: longer members are jumped over
_NAME = re.compile(r"(?P<key>(.*/)?[^.]+)\.(?P<extension>[^/]*)")
_META = re.compile(r"__[^/]*__(/|$)")
_ZEROS = bytes(tarfile.BLOCKSIZE)


class Member(NamedTuple):
    """A member by its headers. offset: of the first header. offset_data, size: of the data."""

    name: str
    offset: int
    offset_data: int
    size: int
    kind: str  # regular, sparse, link or other

    @property
    def stop(self) -> int:
        """Where the next member begins."""
        return self.offset_data + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


@dataclass
class Sample:
    """Consecutive members of one key, by extension, and the bytes [start, stop) of the tar that hold them."""

    key: str
    start: int
    stop: int
    members: dict[str, Member]


def samples(
    file: Any, nbytes: int, links: list[str] | None = None, no_data: list[str] | None = None
) -> Iterator[Sample]:
    """The samples of an open file of so many bytes, which is a tar from its beginning to its end.

    links: gets the names of links that would be members of samples; they hold no data, and are skipped.
    no_data: gets the names of members that are never data, and are skipped.

    Raises: ValueError, which names the member, for what is damaged, cut, sparse, or twice in one sample.
    """
    sample, name = None, "the beginning"
    members = _members(file)
    while True:
        try:
            info, stop = next(members)
        except StopIteration:
            break
        except (tarfile.TarError, ArithmeticError, MemoryError, RecursionError) as error:
            raise ValueError(f"behind {name} there is no header of a member ({error})") from error
        name = repr(info.name)
        if not info.offset < stop <= nbytes:
            raise ValueError(f"{name} goes on to byte {stop:,} and the file to {nbytes:,}: it was cut, or is damaged")
        named = _NAME.fullmatch(info.name)
        if named is None or _META.match(info.name):
            continue
        if is_no_data(info.name):
            if no_data is not None:
                no_data.append(info.name)
            continue
        if info.kind in ("link", "other"):
            if links is not None and info.kind == "link":
                links.append(info.name)
            continue
        key, extension = named["key"], named["extension"].lower()
        if info.kind == "sparse":
            raise ValueError(f"{name} is stored as a sparse file, without its holes; write the tar without --sparse")
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = Sample(key, info.offset, stop, {})
        if extension in sample.members or extension == KEY:
            raise ValueError(
                f"{name} is the second {extension!r} of the sample {key!r}, and one of them would be lost; give each "
                "sample a key of its own, and each of its members an extension"
            )
        sample.members[extension] = info
        sample.stop = stop
    if sample is not None:
        yield sample


def _members(file: Any) -> Iterator[tuple[Member, int]]:
    """Every member, and where the next one begins. file: at its beginning."""
    tar = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")  # reads the first header
    info, at = tar.next(), 0
    while info is not None:  # else the zeros that end it are all there is
        found, at = _member_of(info), tar.offset
        if odd := {"path", "size"} & tar.pax_headers.keys():
            raise ValueError(f"a global header gives every member that follows the same {' and '.join(sorted(odd))}")
        yield found, at
        file.seek(at)
        block = file.read(tarfile.BLOCKSIZE)
        if not block:
            raise ValueError(
                f"it ends behind {found.name!r} without the zeros that end a tar: it was cut, or its writer was never "
                "closed. Write or copy it again; if nothing is missing, `truncate --size=+1024` adds them"
            )
        if block == _ZEROS:
            break
        file.seek(at)
        info = tarfile.TarInfo.fromtarfile(tar)
    file.seek(at)
    while part := file.read(BUFFER_NBYTES):
        if part.strip(b"\0"):
            raise ValueError("behind the zeros that end it there is more; join tars by `tar --concatenate`")


def _member_of(info: tarfile.TarInfo) -> Member:
    kind = "link" if info.islnk() or info.issym() else "other"
    if info.isreg():
        kind = "sparse" if info.issparse() else "regular"
    return Member(info.name, info.offset, info.offset_data, info.size, kind)


logger = logging.getLogger("datarax_ray")

Missing = Literal["error", "skip", "none"]
# Of each member that is read, the fields of its JSON object that are; () for the whole member.
Fields = dict[str, tuple[str, ...]]

JSON = ("json", "jsn")
_MAX_LISTED = 10


@dataclass(frozen=True)
class IndexedTar:
    """A file and the extensions of its samples. kinds: the sets of these that occur. of: int64 (k,), the set of each
    sample, by its place in `kinds`.
    """

    file: IndexedFile
    kinds: tuple[frozenset[str], ...]
    of: Indices

    def lacking(self, member: str) -> Indices:
        """The samples without this member: int64 (k,)."""
        return np.flatnonzero(np.array([member not in kind for kind in self.kinds], bool)[self.of])

    def without(self, dropped: Indices) -> IndexedFile:
        kept = np.ones(len(self.of), bool)
        kept[dropped] = False
        if self.file.firsts is None:
            return replace(self.file, bounds=self.file.bounds[kept])
        counts = np.diff(self.file.firsts)
        firsts = np.cumsum([0, *counts[kept]])
        return replace(self.file, bounds=self.file.bounds[np.repeat(kept, counts)], firsts=firsts)


def index_tar(filesystem: Any, fields: Iterable[str] | None, path: str) -> IndexedTar:
    """Walk over the headers of a tar. fields: to be read, as they are asked for; None for all.

    Raises: ValueError with the path for what is no whole tar.
    """
    wanted = None if fields is None else {name for field in fields for name in (field, field.partition(".")[0])}
    walk = _Walk(path, wanted)
    file = indexed(filesystem, path, "tar", walk, BUFFER_NBYTES)
    firsts = None if len(walk.counts) == sum(walk.counts) else np.cumsum([0, *walk.counts])
    kinds = {kind: index for index, kind in enumerate(walk.kinds)}
    of = np.array([kinds[kind] for kind in walk.extensions], np.int64)
    return IndexedTar(replace(file, firsts=firsts), tuple(kinds), of)


class _Walk:
    """A walk over the headers of a tar. extensions, counts: of each sample, and of the runs of bytes that it lies in.

    kinds: each set of extensions, for itself, so that equal ones are one object.
    """

    def __init__(self, path: str, wanted: set[str] | None) -> None:
        self._path, self._wanted = path, wanted
        self.extensions: list[frozenset[str]] = []
        self.kinds: dict[frozenset[str], frozenset[str]] = {}
        self.counts: list[int] = []

    def __call__(self, file: Any, nbytes: int) -> tuple[Indices, str]:
        """The runs of all samples, int64 (m, 2), and a digest of the names and sizes of all members."""
        names = hashlib.sha256()
        at_of: dict[str, int] = {}  # the last sample of each key
        runs: list[tuple[int, int, int]] = []
        whole: dict[int, tuple[int, int, int]] = {}  # of samples without a member that is wanted: they have a key
        links: list[str] = []
        no_data: list[str] = []
        for part in samples(file, nbytes, links, no_data):
            for extension, member in part.members.items():
                names.update(f"{part.key}.{extension}\0{member.size}\0".encode("utf-8", "surrogateescape"))
            found, at = frozenset(part.members), at_of.get(part.key, -1)
            if at < 0 or not found.isdisjoint(self.extensions[at]):
                at_of[part.key] = at = len(self.extensions)
                self.extensions.append(frozenset())
                whole[at] = at, part.start, part.stop
            found |= self.extensions[at]
            self.extensions[at] = self.kinds.setdefault(found, found)
            wanted = [part.members[name] for name in part.members if self._wanted is None or name in self._wanted]
            if wanted:
                runs.append((at, wanted[0].offset, wanted[-1].stop))
                whole.pop(at, None)
        self._log(links, no_data)
        found_runs = np.array([*runs, *whole.values()], np.int64).reshape(-1, 3)
        self.counts = np.bincount(found_runs[:, 0], minlength=len(self.extensions)).tolist()
        return found_runs[np.argsort(found_runs[:, 0], kind="stable"), 1:], names.hexdigest()[:16]

    def _log(self, links: list[str], no_data: list[str]) -> None:
        if no_data:
            logger.info("%s: skipped %d members that are no data, %r the first", self._path, len(no_data), no_data[0])
        if links:
            logger.warning(
                "%s: skipped %d links to files, %r the first, as webdataset does; their samples lack these members, or "
                "are missing. To have them, write the tar from copies (tar --dereference --hard-dereference).",
                self._path,
                len(links),
                links[0],
            )


def fields_of(tars: Sequence[IndexedTar], asked: Sequence[str] | None) -> Fields:
    """The members to read; all that there are where nobody asks for some.

    Raises: ValueError for a field that no sample has.

    >>> tars = [IndexedTar(None, (frozenset({"jpg", "json"}),), np.zeros(1, np.int64))]
    >>> fields_of(tars, ["jpg", "json.width", "json.height"])
    {'jpg': (), 'json': ('width', 'height')}
    """
    known = sorted({extension for tar in tars for kind in tar.kinds for extension in kind})
    fields: Fields = {}
    for field in known if asked is None else dict.fromkeys(asked):
        member, _, key = field.partition(".")
        its = () if field in known else (*fields.get(member, ()), key)
        if field in known:
            member = field
        elif field == KEY:
            continue
        elif not key or member not in JSON or member not in known:
            raise ValueError(
                f"fields names {field!r}, and no sample has such a member. The members are {', '.join(known)}."
                f"{nearest([field], known)} One field of a JSON member is 'json.width', say"
            )
        if member in fields and (() in (its, fields[member])):
            raise ValueError(f"fields names {member!r} and fields of it; give the whole object, or fields of it")
        fields[member] = its
    return fields


def whole_samples(
    tars: Sequence[IndexedTar], fields: Sequence[str], missing: Missing, is_named: bool
) -> list[IndexedFile]:
    """The files, without the samples that are skipped. fields: members that each sample should have.

    is_named: whether the user named the fields. Raises: ValueError for samples that lack one, with missing="error", and
    where every sample lacks one.
    """
    files, said, num_dropped = [], [], 0
    for tar in tars:
        lacks = {field: found for field in fields if missing != "none" and len(found := tar.lacking(field))}
        dropped = np.unique(np.concatenate([np.empty(0, np.int64), *lacks.values()]))
        num_dropped += len(dropped)
        path, total = tar.file.path, len(tar.of)
        said += [f"{name} in {path} ({len(its):,} of {total:,}, [{its[0]}] the first)" for name, its in lacks.items()]
        if len(dropped) and missing == "skip":
            lacked = ", ".join(lacks)
            logger.warning(
                "%s: skipped %d of %d samples, [%d] the first: they lack %s",
                path,
                len(dropped),
                total,
                dropped[0],
                lacked,
            )
        files.append(tar.without(dropped) if len(dropped) else tar.file)
    total = sum(len(tar.of) for tar in tars)
    if said and (missing == "error" or num_dropped == total):
        more = f"\n  and {len(said) - _MAX_LISTED} more" if len(said) > _MAX_LISTED else ""
        listed = "".join(f"\n  {each}" for each in said[:_MAX_LISTED]) + more
        common = [f for f in fields if all(f in kind for tar in tars for kind in tar.kinds)]
        named = f", fields={tuple(common)} reads the members that all samples have" if common else ""
        what = "a member that fields names" if is_named else "a member that other samples have"
        raise ValueError(
            f"{num_dropped:,} of {total:,} samples lack {what}, and would stack with no others:{listed}\n"
            f"In WebDatasetSourceConfig missing='skip' leaves them out, missing='none' gives None for the member{named}"
        )
    return files
