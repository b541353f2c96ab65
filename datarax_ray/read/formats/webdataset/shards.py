"""Tar files and the samples in them: where each begins and ends, found by one walk over the headers.

Source: the webdataset package, tariterators.py: a name is split at the first dot behind the last slash into key and
extension, consecutive members of one key are a sample, and what is no regular file, or below `__name__`, is left out.
Headers are read by Python's tarfile (GNU's and PAX's long names among them), one at a time: its own loop ends in
silence at a damaged one. A sample's bytes, cut out of the file, are a tar again, so that reading is the same walk.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike, fspath
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.file_spans import content_of
from datarax_ray.read.formats.filesystems import find_on
from datarax_ray.read.formats.inspecting import inspect_all
from datarax_ray.read.retry import retried

logger = logging.getLogger("datarax_ray")

KEY = "__key__"
_NAME = re.compile(r"(?P<key>(.*/)?[^.]+)\.(?P<extension>[^/]*)")
_META = re.compile(r"__[^/]*__(/|$)")
_BRACES = re.compile(r"\{((?P<first>\d+)\.\.(?P<last>\d+)|(?P<words>[^{}]*,[^{}]*))\}")
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


@dataclass
class Sample:
    """Consecutive members of one key, by extension, and the bytes [start, stop) of the tar that hold them."""

    key: str
    start: int
    stop: int
    members: dict[str, tarfile.TarInfo]


def find_shards(paths: Any, filesystem: Any) -> tuple[Any, tuple[Shard, ...]]:
    """The filesystem, and everything on it that `paths` names (see filesystems.find_on), indexed.

    Braces are expanded, as in "shard-{000..009}.tar" and "{train,test}.tar". Every header is read, which takes 13 us
    of one core each.

    Raises: FileNotFoundError; ValueError for what is no whole, uncompressed tar, or none of samples (all are listed),
    and where there is no sample in all files together.
    """
    named = _in_braces(paths)
    filesystem, found = retried(lambda: find_on(named, filesystem, (".tar",)), f"{paths} while it was looked up")

    def inspect(path: str) -> Shard:
        return retried(lambda: _inspect(filesystem, path), f"{path} while it was indexed")

    shards = tuple(inspect_all(inspect, found))
    if not any(len(shard.spans) for shard in shards):
        raise ValueError(
            f"there are 0 samples in {found[0]}"
            + (f" and {len(found) - 1} more files" if len(found) > 1 else "")
            + "; a stream needs at least one. Members of samples are regular files named key.extension."
        )
    return filesystem, shards


def expand_braces(path: str) -> list[str]:
    """The paths that a brace pattern stands for, in its order, as a shell would expand it; braces in braces are not.

    >>> expand_braces("{train,test}-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test-08.tar', 'test-09.tar', 'test-10.tar']
    >>> expand_braces("{}.tar")
    ['{}.tar']
    """
    found = _BRACES.search(path)
    if found is None:
        return [path]
    if found["words"] is not None:
        words = found["words"].split(",")
    else:
        first, last = int(found["first"]), int(found["last"])
        step = 1 if first <= last else -1
        is_padded = any(len(end) > 1 and end[0] == "0" for end in (found["first"], found["last"]))
        width = max(len(found["first"]), len(found["last"])) if is_padded else 1
        words = [f"{number:0{width}}" for number in range(first, last + step, step)]
    rest = expand_braces(path[found.end() :])
    return [path[: found.start()] + word + end for word in words for end in rest]


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
        if not info.isreg():
            if links is not None and (info.islnk() or info.issym()):
                links.append(info.name)
            continue
        key, extension = named["key"], named["extension"].lower()
        if info.issparse():
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


def _members(file: Any) -> Iterator[tuple[tarfile.TarInfo, int]]:
    """Every member, and where the next one begins."""
    tar = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
    info = tar.next()
    while info is not None:
        if odd := {"path", "size"} & tar.pax_headers.keys():
            raise ValueError(f"a global header gives every member that follows the same {' and '.join(sorted(odd))}")
        yield info, tar.offset
        file.seek(tar.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if not block:
            raise ValueError(
                f"it ends behind {info.name!r} without the zeros that end a tar: it was cut, or its writer was never "
                "closed. Write or copy it again; if nothing is missing, `truncate --size=+1024` adds them"
            )
        if not any(block) and len(block) == tarfile.BLOCKSIZE:
            break
        file.seek(tar.offset)
        info = tarfile.TarInfo.fromtarfile(tar)
    file.seek(tar.offset)
    while part := file.read(_LOCAL_BUFFER_NBYTES):
        if part.strip(b"\0"):
            raise ValueError("behind the zeros that end it there is more; join tars by `tar --concatenate`")


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
        return expand_braces(fspath(paths))
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | PathLike) for path in paths):
        return paths
    return list(chain.from_iterable(expand_braces(fspath(path)) for path in paths))
