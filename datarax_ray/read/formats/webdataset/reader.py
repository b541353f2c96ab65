"""Samples of tar files by global index: from what a user names to indexed files, and of each run of them the bytes.

DecodeExtensions is the transform that reads members by their extensions.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from braceexpand import braceexpand

from datarax_ray.plan.orders.cipher import Indices
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.decode.rows import json_value
from datarax_ray.read.elements.columns import HostDict
from datarax_ray.read.files.filesystems import find_on
from datarax_ray.read.formats.file_spans import BrokenRecordError, IndexedFile, RecordsInFiles
from datarax_ray.read.formats.inspecting import inspect_all, nothing_in
from datarax_ray.read.formats.webdataset.index import KEY, Fields, Missing, fields_of, index_tar, samples, whole_samples
from datarax_ray.read.stream import ReaderTraits

_END = bytes(1024)  # ends a tar
_GAP_NBYTES = 32 * 1024  # between members that are read: to read it along takes less than another read
_MAX_UNPACKED_NBYTES = 2**30  # far above a sample's; a few MB of zeros in gz would exceed it
_ALIKE = (
    "make it so in a transform; in WebDatasetSourceConfig fields=('jpg', 'json.width') chooses members, and fields of "
    "JSON, for every sample"
)


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
        """See RecordsInFiles; with the members to read, where the user or `missing` chose them."""
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
    """The paths that a path with braces stands for. An existing file or folder of this name stands for itself.

    >>> named_by("{train,test}-{08..09}.tar"), named_by("{.tar")
    (['train-08.tar', 'train-09.tar', 'test-08.tar', 'test-09.tar'], ['{.tar'])
    """
    if os.path.exists(path):
        return [path]
    try:
        return list(braceexpand(path, escape=False))
    except ValueError:  # a brace without another
        return [path]


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


def _npy(data: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _npz(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        _check_size(sum(info.file_size for info in arrays.zip.infolist()))
        return dict(arrays)


def _unpacked(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(_MAX_UNPACKED_NBYTES + 1)
    _check_size(len(found))
    return found


def _check_size(nbytes: int) -> None:
    if nbytes > _MAX_UNPACKED_NBYTES:
        raise ValueError(f"it unpacks to {nbytes:,} bytes or more, and {_MAX_UNPACKED_NBYTES:,} are the most")


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), lambda data: _whole(json_value(data))),
    "npy": _npy,
    "npz": _npz,
}


def _whole(value: Any) -> Any:
    """A JSON value as one value of an element: objects of metadata seldom have the same fields."""
    return HostDict(value) if type(value) is dict else value


class DecodeExtensions:
    """Read the members of a sample by the last part of their extensions, as `webdataset`'s `.decode()` does.

    txt, text, transcript: str. cls, cls2, index, inx, id: int. json, jsn: what Python's json gives; an object stays
    one dict on the host. npy: an array. npz: a dict of arrays. Before ".gz", what is in it. All others stay bytes:
    pictures are for DecodeImage(field="jpg"), and pickles, torch's among them, are never loaded, as nothing in data is
    to be run. A member that is None stays None.

    A member in gz or npz that unpacks to more than 1 GiB is refused.

    json_fields: of JSON members, the fields to read of their objects, which are fields of the element then.
    fills: give None for such a field where an object lacks it, in place of an error.

    >>> DecodeExtensions().map({"__key__": "7", "cls": b"3", "seg.txt": b"abc", "jpg": b"..."})
    {'__key__': '7', 'cls': 3, 'seg.txt': 'abc', 'jpg': b'...'}
    """

    def __init__(self, *, json_fields: Mapping[str, Sequence[str]] | None = None, fills: bool = False) -> None:
        self._json_fields, self._fills = dict(json_fields or {}), fills

    def map(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Raises: ValueError for bytes that are not what their extension says, naming the member."""
        key = sample[KEY]
        found = {
            name: value if name == KEY or value is None else _decoded(key, name, value)
            for name, value in sample.items()
        }
        for name, fields in self._json_fields.items():
            found[name] = self._chosen(f"{key}.{name}", found[name], fields)
        return found

    def _chosen(self, where: str, value: Any, fields: Sequence[str]) -> dict[str, Any]:
        held = {} if value is None else value
        if not isinstance(held, dict):
            raise ValueError(
                f"{where!r} is a {type(value).__name__}, no object, and its fields {list(fields)} are to be read"
            )
        if not self._fills and (lacking := [field for field in fields if field not in held]):
            raise ValueError(
                f"{where!r} lacks {lacking}, and has {sorted(held)}. In WebDatasetSourceConfig missing='none' gives "
                "None for a field, and on_error='skip' leaves such samples out"
            )
        return {field: held.get(field) for field in fields}


def _decoded(key: str, name: str, data: bytes) -> Any:
    kind = name.rpartition(".")[2]
    try:
        if kind == "gz":
            data = _unpacked(data)
            kind = name[:-3].rpartition(".")[2]
        return _READERS[kind](data) if kind in _READERS else data
    except Exception as error:  # of the readers' many kinds; all are about these bytes
        raise ValueError(
            f"{f'{key}.{name}'!r}, {len(data)} bytes that begin {data[:16]!r}, is no {kind}: {type(error).__name__}: "
            f"{error}. WebDatasetSourceConfig(decode=False) leaves it as it is, for a transform of your own"
        ) from error
