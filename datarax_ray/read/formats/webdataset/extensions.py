"""What a member's extension says of its bytes, and the transform that reads them so."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from datarax_ray.read.decode.rows import refuse_depth
from datarax_ray.read.formats.webdataset.shards import KEY


def _json(data: bytes) -> Any:
    value = json.loads(data)
    refuse_depth({"": value}, "JSON value")
    return value


def _npy(data: bytes) -> np.ndarray:
    array: np.ndarray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def _npz(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": _npy,
    "npz": _npz,
}


class DecodeExtensions:
    """Read the members of a sample by the last part of their extensions, as `webdataset`'s `.decode()` does.

    txt, text, transcript: str. cls, cls2, index, inx, id: int. json, jsn: what Python's json gives. npy: an array. npz:
    a dict of arrays. Before ".gz", what is in it. All others stay bytes: pictures are for DecodeImage(field="jpg"), and
    pickles, torch's among them, are never loaded, as nothing in data is to be run.

    >>> DecodeExtensions().map({"__key__": "7", "cls": b"3", "seg.txt": b"abc", "jpg": b"..."})
    {'__key__': '7', 'cls': 3, 'seg.txt': 'abc', 'jpg': b'...'}
    """

    def map(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Raises: ValueError for bytes that are not what their extension says, naming the member."""
        return {name: value if name == KEY else _decoded(sample[KEY], name, value) for name, value in sample.items()}


def _decoded(key: str, name: str, data: bytes) -> Any:
    kind = name.rpartition(".")[2]
    try:
        if kind == "gz":
            data = gzip.decompress(data)
            kind = name[:-3].rpartition(".")[2]
        return _READERS[kind](data) if kind in _READERS else data
    except Exception as error:  # of the readers' many kinds; all are about these bytes
        raise ValueError(
            f"{f'{key}.{name}'!r}, {len(data)} bytes that begin {data[:16]!r}, is no {kind}: {type(error).__name__}: "
            f"{error}. WebDatasetSourceConfig(decode=False) leaves it as it is, for a transform of your own"
        ) from error
