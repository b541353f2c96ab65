"""Tar files and the samples in them: where each begins and ends, found by one walk over the headers.

Source: the webdataset package, tariterators.py: a name is split at the first dot behind the last slash into key and
extension, consecutive members of one key are a sample, and what is no regular file, or below `__name__`, is left out.
Headers of plain files are read here, all others (GNU's and PAX's long names among them) by Python's tarfile, one at a
time: its own loop ends in silence at a damaged one. A sample's bytes, cut out of the file, are a tar again, so that
reading is the same walk.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import string
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from os import PathLike, fspath
from os.path import exists
from typing import Any, NamedTuple
from weakref import WeakValueDictionary
from zlib import adler32

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.file_spans import content_of
from datarax_ray.read.formats.filesystems import find_on
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.identity.contents import Stamp, stamp

logger = logging.getLogger("datarax_ray")

KEY = "__key__"
_NAME = re.compile(r"(?P<key>(.*/)?[^.]+)\.(?P<extension>[^/]*)")
_META = re.compile(r"__[^/]*__(/|$)")
_RANGE = re.compile(r"(-?\d+(?=\.\.-?\d)|[A-Za-z](?=\.\.[A-Za-z]))\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
# Mode, owner, group, size, time, checksum and the type of a regular file, in the octal that tar, tarfile and webdataset
# write; and the numbers of a device, which such a file has not.
_PLAIN_NUMBERS = re.compile(
    rb"(?:[0-7]{7}[ \0]|[0-7]{6} \0){3}(?P<size>[0-7]{11})[ \0][0-7]{11}[ \0](?P<checksum>[0-7]{6}\0 |[0-7]{7}[ \0])0"
)
_PLAIN_DEVICES = (bytes(16), b"0000000\0" * 2, b"000000 \0" * 2)
_ZEROS = bytes(tarfile.BLOCKSIZE)
# The walk reads this much at a time. Here members longer than it are jumped over; elsewhere each jump would be a
# request, which takes as long as some megabytes do.
_LOCAL_BUFFER_NBYTES = 32 * 1024
_REMOTE_BUFFER_NBYTES = 8 * 2**20


@dataclass(frozen=True)
class Shard:
    """One tar file. spans: int64 (samples, 2), where each begins, with its first header, and where it ends.

    names: a digest of the names and sizes of all members. content: of some of its bytes (content_of).
    """

    path: str
    nbytes: int
    spans: Indices = field(compare=False)
    names: str
    content: str


_KNOWN: WeakValueDictionary[tuple[str, Stamp], Shard] = WeakValueDictionary()  # what some source holds, by file


class Member(NamedTuple):
    """What a header says: where it begins, with those before it that belong to it, and where the data are."""

    name: str
    offset: int
    offset_data: int
    size: int
    kind: str  # regular, sparse, link or other


@dataclass
class Sample:
    """Consecutive members of one key, by extension, and the bytes [start, stop) of the tar that hold them."""

    key: str
    start: int
    stop: int
    members: dict[str, Member]


def find_shards(paths: Any, filesystem: Any) -> tuple[Any, tuple[Shard, ...]]:
    """The filesystem, and everything on it that `paths` names (see filesystems.find_on), indexed.

    Braces are expanded, as in "shard-{000..009}.tar" and "{train,test}.tar". Every header is read, which takes 4 us
    of one core each; of a local file that another source in this process holds, and nobody changed, none is.

    Raises: FileNotFoundError; ValueError for a pipe:, which would run a command; ValueError for what is no whole,
    uncompressed tar, or none of samples (all are listed), and where there is no sample in all files together.
    """
    filesystem, found = find_on(_in_braces(paths), filesystem, (".tar",), named=paths)
    shards = tuple(inspect_all(partial(_indexed, filesystem), found, "indexed"))
    if not any(len(shard.spans) for shard in shards):
        raise ValueError(
            f"{nothing_in(found, 'samples')}; a stream needs at least one. Members of samples are regular files named "
            "key.extension."
        )
    return filesystem, shards


def named_by(path: str) -> list[str]:
    """What a path stands for: itself, where there is a file or folder of that name, else what its braces say."""
    return [path] if exists(path) else expand_braces(path)


def expand_braces(path: str) -> list[str]:
    """The paths that a brace pattern stands for, in the order of a shell and of the braceexpand package.

    >>> expand_braces("{train,test}-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test-08.tar', 'test-09.tar', 'test-10.tar']
    >>> expand_braces("{a,b{1..2},{x..z..2}}{}.tar")
    ['a{}.tar', 'b1{}.tar', 'b2{}.tar', 'x{}.tar', 'z{}.tar']
    """
    cuts: list[int] = []  # the first brace, the commas between it and the one that closes it, and that
    depth = 0
    for at, letter in enumerate(path):
        if letter == "{":
            depth += 1
            cuts = cuts or [at]
        elif letter == "}" and depth:
            depth -= 1
            if not depth:
                cuts.append(at)
                break
        elif letter == "," and depth == 1:
            cuts.append(at)
    else:
        return [path]
    inside = path[cuts[0] + 1 : cuts[-1]]
    if len(cuts) > 2:
        words = [word for first, last in pairwise(cuts) for word in expand_braces(path[first + 1 : last])]
    elif found := _RANGE.fullmatch(inside):
        words = _words_of(*found.groups())
    else:
        words = [f"{{{word}}}" for word in expand_braces(inside)]
    return [path[: cuts[0]] + word + end for word in words for end in expand_braces(path[cuts[-1] + 1 :])]


def _words_of(first: str, last: str, step: str | None) -> list[str]:
    """The words from the first to the last, which are both numbers or both letters."""
    is_number = not first.isalpha()
    start, stop = (int(end) if is_number else _LETTERS.index(end) for end in (first, last))
    sign = 1 if start < stop else -1
    found = range(start, stop + sign, sign * (int(step or 1) or 1))
    if not is_number:
        return [_LETTERS[number] for number in found]
    is_padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-")[0] == "0" for end in (first, last))
    width = max(len(first), len(last)) if is_padded else 1
    return [f"{number:0{width}}" for number in found]


def samples(file: Any, nbytes: int, links: list[str] | None = None) -> Iterator[Sample]:
    """The samples of an open file of so many bytes, which is a tar from its beginning to its end.

    links: gets the names of links that would be members of samples; they hold no data, and are left out.

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
    tar: tarfile.TarFile | None = None  # made for the first header that is not plain; it reads that of the file first
    found, at = _plain_member(file.read(tarfile.BLOCKSIZE), 0), 0
    while True:
        if found is None:
            if tar is None:
                file.seek(0)
                tar = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
            file.seek(at)
            info = tar.next() if at == 0 else tarfile.TarInfo.fromtarfile(tar)
            if info is None:  # the zeros that end it are all there is
                break
            found, at = _member_of(info), tar.offset
        else:
            at = found.offset_data + -(-found.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if tar and (odd := {"path", "size"} & tar.pax_headers.keys()):
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
        found = None if tar and tar.pax_headers else _plain_member(block, at)
    file.seek(at)
    while part := file.read(_LOCAL_BUFFER_NBYTES):
        if part.strip(b"\0"):
            raise ValueError("behind the zeros that end it there is more; join tars by `tar --concatenate`")


def _member_of(info: tarfile.TarInfo) -> Member:
    kind = "link" if info.islnk() or info.issym() else "other"
    if info.isreg():
        kind = "sparse" if info.issparse() else "regular"
    return Member(info.name, info.offset, info.offset_data, info.size, kind)


def _plain_member(block: bytes, at: int) -> Member | None:
    """What tarfile makes of a header of a regular file with nothing unusual in it, at less cost; None of any other."""
    numbers = _PLAIN_NUMBERS.fullmatch(block, 100, 157)
    if numbers is None or len(block) < tarfile.BLOCKSIZE or block[329:345] not in _PLAIN_DEVICES:
        return None
    # adler32 begins with a sum of bytes, which is exact for 256 of them
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - (adler32(block[148:156]) & 0xFFFF) - 1
    if total + 8 * ord(" ") != int(numbers["checksum"].rstrip(b"\0 "), 8):
        return None
    name = block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    prefix = block[345:500].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    data = at + tarfile.BLOCKSIZE
    return Member(f"{prefix}/{name}" if prefix else name, at, data, int(numbers["size"], 8), "regular")


def _indexed(filesystem: Any, path: str) -> Shard:
    """The shard, as it is known of a local file: one that changed unseen is found out when it is opened."""
    from pyarrow.fs import LocalFileSystem

    if not isinstance(filesystem, LocalFileSystem):
        return _inspect(filesystem, path)
    key = path, stamp(path)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = _inspect(filesystem, path)
    return found


def _inspect(filesystem: Any, path: str) -> Shard:
    from pyarrow.fs import LocalFileSystem

    is_local = isinstance(filesystem, LocalFileSystem)
    spans, names = [], hashlib.sha256()
    links: list[str] = []
    with filesystem.open_input_file(path) as raw:
        nbytes = raw.size()
        file = io.BufferedReader(raw, _LOCAL_BUFFER_NBYTES if is_local else _REMOTE_BUFFER_NBYTES)
        try:
            for sample in samples(file, nbytes, links):
                spans.append((sample.start, sample.stop))
                for extension, member in sample.members.items():
                    names.update(f"{sample.key}.{extension}\0{member.size}\0".encode("utf-8", "surrogateescape"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be indexed: {error}.{sniff.advice(raw, path, 'tar')}") from error
        content = content_of(raw, nbytes)
    if links:
        logger.warning(
            "%s: left out %d links to files, %r the first, as webdataset does; their samples lack these members, or "
            "are not there. To have them, write the tar from copies (tar --dereference --hard-dereference).",
            path,
            len(links),
            links[0],
        )
    return Shard(path, nbytes, np.array(spans, np.int64).reshape(-1, 2), names.hexdigest()[:16], content)


def _in_braces(paths: Any) -> Any:
    """The paths with braces expanded; anything else as it is, for find_on to refuse."""
    if isinstance(paths, str | PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | PathLike) for path in paths):
        return paths
    found = list(chain.from_iterable(named_by(fspath(path)) for path in paths))
    if pipe := next((path for path in found if path.startswith("pipe:")), None):
        raise ValueError(
            f"{pipe!r} is a command, and nothing here runs one: it could not be read from its middle either. Give the "
            "URL of the file itself (gs://, s3://, https://, hf://), or the path where its storage is mounted"
        )
    return found
