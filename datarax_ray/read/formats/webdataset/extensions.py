"""What a member's extension says of its bytes, and the transform that reads them so."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from datarax_ray.read.decode.rows import json_value
from datarax_ray.read.elements.columns import HostDict
from datarax_ray.read.formats.webdataset.tar import KEY


def _npy(data: bytes) -> np.ndarray:
    array: np.ndarray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def _npz(data: bytes, max_nbytes: int) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        if (nbytes := sum(info.file_size for info in arrays.zip.infolist())) > max_nbytes:
            raise ValueError(_TOO_LARGE.format(nbytes, max_nbytes))
        return dict(arrays)


def _unpacked(data: bytes, max_nbytes: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(max_nbytes + 1)
    if len(found) > max_nbytes:
        raise ValueError(_TOO_LARGE.format(len(found), max_nbytes))
    return found


_TOO_LARGE = "it unpacks to {:,} bytes or more, and max_unpacked_nbytes is {:,}"
_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), lambda data: _whole(json_value(data))),
    "npy": _npy,
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

    max_unpacked_nbytes: what a member in gz or npz may unpack to, at most; else it is refused before memory is full.
    json_fields: of JSON members, the fields to read of their objects, which are fields of the element then.
    fills: give None for such a field where an object lacks it, in place of an error.

    >>> DecodeExtensions().map({"__key__": "7", "cls": b"3", "seg.txt": b"abc", "jpg": b"..."})
    {'__key__': '7', 'cls': 3, 'seg.txt': 'abc', 'jpg': b'...'}
    """

    max_unpacked_nbytes = 2**30  # far above a sample's, and what a few MB of zeros in gz would exceed

    def __init__(
        self,
        max_unpacked_nbytes: int | None = None,
        *,
        json_fields: Mapping[str, Sequence[str]] | None = None,
        fills: bool = False,
    ) -> None:
        if max_unpacked_nbytes is not None:
            self.max_unpacked_nbytes = max_unpacked_nbytes
        self._json_fields, self._fills = dict(json_fields or {}), fills

    def map(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Raises: ValueError for bytes that are not what their extension says, naming the member."""
        limit, key = self.max_unpacked_nbytes, sample[KEY]
        found = {
            name: value if name == KEY or value is None else _decoded(key, name, value, limit)
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


def _decoded(key: str, name: str, data: bytes, max_unpacked_nbytes: int) -> Any:
    kind = name.rpartition(".")[2]
    try:
        if kind == "gz":
            data = _unpacked(data, max_unpacked_nbytes)
            kind = name[:-3].rpartition(".")[2]
        if kind == "npz":
            return _npz(data, max_unpacked_nbytes)
        return _READERS[kind](data) if kind in _READERS else data
    except Exception as error:  # of the readers' many kinds; all are about these bytes
        raise ValueError(
            f"{f'{key}.{name}'!r}, {len(data)} bytes that begin {data[:16]!r}, is no {kind}: {type(error).__name__}: "
            f"{error}. WebDatasetSourceConfig(decode=False) leaves it as it is, for a transform of your own"
        ) from error
