"""Samples of tar files by global index: from what a user names to indexed files, and of each run of them the bytes."""

from __future__ import annotations

import io
import os
import re
import string
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.formats.file_spans import BrokenRecordError, IndexedFile, RecordsInFiles
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.webdataset.index import Fields, Missing, fields_of, index_tar, whole_samples
from datarax_ray.read.formats.webdataset.tar import KEY, samples
from datarax_ray.read.stream import ReaderTraits

_END = bytes(1024)  # ends a tar
_GAP_NBYTES = 32 * 1024  # between members that are read: to read it along takes less than another read
_ALIKE = (
    "make it so in a transform; in WebDatasetSourceConfig fields=('jpg', 'json.width') chooses members, and fields of "
    "JSON, for every sample"
)
_RANGE = re.compile(r"(-?\d+(?=\.\.-?\d)|[A-Za-z](?=\.\.[A-Za-z]))\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


class WebDatasetReader(RecordsInFiles):
    """The samples of many tar files; see RecordsInFiles.

    A sample is a dict of its key, as "__key__", and the bytes of each of its members, by extension. fields: the members
    of a sample, None for those that it lacks; None for the members that are there.
    """

    def __init__(self, filesystem: Any, files: Sequence[IndexedFile], fields: Fields | None = None) -> None:
        super().__init__(filesystem, files, fields=fields)
        self.fields = fields

    @classmethod
    def of(
        cls, paths: Any, *, filesystem: Any = None, fields: Sequence[str] | None = None, missing: Missing = "error"
    ) -> WebDatasetReader:
        """Index everything on the filesystem that `paths` names (see filesystems.find_on), in parallel.

        Braces are expanded, as in "shard-{000..009}.tar" and "{train,test}.tar". Every header is read, which takes 4 us
        of one core each.

        fields, missing: see WebDatasetSourceConfig.

        Raises: FileNotFoundError; ValueError for a pipe:, which would run a command; ValueError for what is no whole,
        uncompressed tar, or none of samples (all are listed), where there is no sample in all files together, and for
        samples that lack a member.
        """
        filesystem, found = find_on(_in_braces(paths), filesystem, (".tar",), named=paths)
        tars = inspect_all(partial(index_tar, filesystem, fields), found, "indexed")
        if not any(len(tar.of) for tar in tars):
            raise ValueError(
                f"{nothing_in(found, 'samples')}; a stream needs at least one. Members of samples are regular files "
                "named key.extension."
            )
        known = fields_of(tars, fields)
        files = whole_samples(tars, list(known), missing, is_named=fields is not None)
        is_even = all(len(kind) == len(known) for tar in tars for kind in tar.kinds)
        return cls(filesystem, files, None if fields is None and (is_even or missing == "skip") else known)

    @property
    def traits(self) -> ReaderTraits:
        return ReaderTraits(BrokenRecordError, alike=_ALIKE)

    def fingerprint(self) -> dict[str, Any]:
        """See RecordsInFiles; with the members that are read, where they are not those that are there."""
        return super().fingerprint() | ({} if self.fields is None else {"columns": digest(sorted(self.fields.items()))})

    def _stored(self, index: int, numbers: Indices) -> list[bytes]:
        file = self.files[index]
        if file.firsts is None:
            return self._spans.read(index, file.spans(numbers), _GAP_NBYTES)
        runs = [
            np.arange(start, stop) for start, stop in zip(file.firsts[numbers], file.firsts[numbers + 1], strict=True)
        ]
        spans = file.bounds[np.concatenate(runs)]
        order = np.argsort(spans[:, 0])
        found = dict(zip(order.tolist(), self._spans.read(index, spans[order], _GAP_NBYTES), strict=True))
        parts = iter(range(len(spans)))
        return [b"".join(found[next(parts)] for _ in run) for run in runs]

    def _record(self, index: int, number: int, stored: bytes) -> dict[str, Any]:
        file = self.files[index]
        begin = file.bounds[number if file.firsts is None else file.firsts[number], 0]
        where = f"{file.path}[{number}], at byte {begin}"
        try:
            found = list(samples(io.BytesIO(stored + _END), len(stored)))
        except ValueError as error:
            raise BrokenRecordError(f"{where}: {error}") from error
        if len(found) != 1:
            raise BrokenRecordError(f"{where}: there are {len(found)} samples where one was when it was indexed")
        members = found[0].members
        element: dict[str, Any] = {KEY: found[0].key}
        for name in members if self.fields is None else self.fields:
            info = members.get(name)
            element[name] = None if info is None else stored[info.offset_data : info.offset_data + info.size]
        return element


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
