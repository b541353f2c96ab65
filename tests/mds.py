"""MDS shards for tests, written from their description by encoders of their own. Imports no jax.

Source: docs.mosaicml.com/projects/streaming, Dataset Format. tests/sources/mds has shards that MosaicML's writer wrote.
"""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

FIXED = {"int": 8, "uint32": 4, "float32": 4}
ENCODE: dict[str, Callable[[Any], bytes]] = {
    "int": lambda value: struct.pack("<q", value),
    "uint32": lambda value: struct.pack("<I", value),
    "float32": lambda value: struct.pack("<f", value),
    "str": str.encode,
    "bytes": bytes,
    "png": bytes,
    "pkl": bytes,
    "json": lambda value: json.dumps(value).encode(),
    # int32, whose length of one axis is a byte
    "ndarray": lambda value: bytes([33, 1 << 2, len(value)]) + np.asarray(value, "<i4").tobytes(),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True),
    "br": lambda data: pa.compress(data, "brotli", asbytes=True),
}


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    shard_size: int = 10,
    compression: str | None = None,
) -> Path:
    """The samples in shards of so many. columns: name to encoding. Returns the folder."""
    folder.mkdir(exist_ok=True)
    names = sorted(columns)
    told = {
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [FIXED.get(columns[name]) for name in names],
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
    shards = []
    for number, start in enumerate(range(0, len(samples), shard_size)):
        stored = []
        for sample in samples[start : start + shard_size]:
            values = [ENCODE[columns[name]](sample[name]) for name in names]
            sizes = [len(v) for name, v in zip(names, values, strict=True) if columns[name] not in FIXED]
            stored.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
        config = json.dumps(told, sort_keys=True).encode()
        begin = 4 * (len(stored) + 2) + len(config)
        ends = np.cumsum([begin, *map(len, stored)]).astype("<u4")
        data = struct.pack("<I", len(stored)) + ends.tobytes() + config + b"".join(stored)
        name = f"shard.{number:05d}.mds"
        entry = {**told, "samples": len(stored), "raw_data": {"basename": name, "bytes": len(data), "hashes": {}}}
        entry["zip_data"] = None
        if compression is not None:
            name, data = f"{name}.{compression}", PACK[compression.partition(":")[0]](data)
            entry["zip_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / name).write_bytes(data)
        shards.append(entry)
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))
    return folder
