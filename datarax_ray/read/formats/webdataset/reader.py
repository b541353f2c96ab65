"""Samples of tar files by global index: from what a user names to indexed files, and of each run of them the bytes."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import string
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.formats.file_spans import BrokenRecordError, IndexedFile, RecordsInFiles, indexed
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.webdataset.tar import BUFFER_NBYTES, KEY, samples

logger = logging.getLogger("datarax_ray")

_END = bytes(1024)  # ends a tar
_RANGE = re.compile(r"(-?\d+(?=\.\.-?\d)|[A-Za-z](?=\.\.[A-Za-z]))\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


class WebDatasetReader(RecordsInFiles):
    """The samples of many tar files; see RecordsInFiles.

    A sample is a dict of its key, as "__key__", and the bytes of each of its members, by extension.
    """

    @classmethod
    def of(cls, paths: Any, *, filesystem: Any = None) -> WebDatasetReader:
        """Index everything on the filesystem that `paths` names (see filesystems.find_on), in parallel.

        Braces are expanded, as in "shard-{000..009}.tar" and "{train,test}.tar". Every header is read, which takes 4 us
        of one core each.

        Raises: FileNotFoundError; ValueError for a pipe:, which would run a command; ValueError for what is no whole,
        uncompressed tar, or none of samples (all are listed), and where there is no sample in all files together.
        """
        filesystem, found = find_on(_in_braces(paths), filesystem, (".tar",), named=paths)
        reader = cls(filesystem, inspect_all(partial(_indexed, filesystem), found, "indexed"))
        if not reader.num_records:
            raise ValueError(
                f"{nothing_in(found, 'samples')}; a stream needs at least one. Members of samples are regular files "
                "named key.extension."
            )
        return reader

    def _record(self, index: int, number: int, stored: bytes) -> dict[str, Any]:
        file = self.files[index]
        where = f"{file.path}[{number}], at byte {file.bounds[number, 0]}"
        try:
            found = list(samples(io.BytesIO(stored + _END), len(stored)))
        except ValueError as error:
            raise BrokenRecordError(f"{where}: {error}") from error
        if len(found) != 1:
            raise BrokenRecordError(f"{where}: there are {len(found)} samples where one was when it was indexed")
        members = found[0].members.items()
        return {
            KEY: found[0].key,
            **{name: stored[info.offset_data : info.offset_data + info.size] for name, info in members},
        }


def named_by(path: str) -> list[str]:
    """What a path stands for: itself, where there is a file or folder of that name, else what its braces say."""
    return [path] if os.path.exists(path) else expand_braces(path)


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


def _in_braces(paths: Any) -> Any:
    """The paths with braces expanded; anything else as it is, for find_on to refuse."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | os.PathLike) for path in paths):
        return paths
    found = [name for path in paths for name in named_by(os.fspath(path))]
    if pipe := next((path for path in found if path.startswith("pipe:")), None):
        raise ValueError(
            f"{pipe!r} is a command, and nothing here runs one: it could not be read from its middle either. Give the "
            "URL of the file itself (gs://, s3://, https://, hf://), or the path where its storage is mounted"
        )
    return found


def _indexed(filesystem: Any, path: str) -> IndexedFile:
    return indexed(filesystem, path, "tar", partial(_walk, path), BUFFER_NBYTES)


def _walk(path: str, file: Any, nbytes: int) -> tuple[Any, str]:
    """Where the samples begin and end, (k, 2), and a digest of the names and sizes of all members."""
    bounds, names = [], hashlib.sha256()
    links: list[str] = []
    no_data: list[str] = []
    for sample in samples(file, nbytes, links, no_data):
        bounds.append((sample.start, sample.stop))
        for extension, member in sample.members.items():
            names.update(f"{sample.key}.{extension}\0{member.size}\0".encode("utf-8", "surrogateescape"))
    if no_data:
        logger.info("%s: skipped %d members that are no data, %r the first", path, len(no_data), no_data[0])
    if links:
        logger.warning(
            "%s: skipped %d links to files, %r the first, as webdataset does; their samples lack these members, or are "
            "missing. To have them, write the tar from copies (tar --dereference --hard-dereference).",
            path,
            len(links),
            links[0],
        )
    return np.array(bounds, np.int64).reshape(-1, 2), names.hexdigest()[:16]
