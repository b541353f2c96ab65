"""Real tar files for tests: sample i of all files together has index i. Imports no jax."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_tars(directory: Path, counts: Sequence[int]) -> list[Path]:
    """One file for each count, of samples with the members index.id and square.txt."""
    paths, start = [], 0
    for number, count in enumerate(counts):
        members = [
            (f"s{i:05d}.{extension}", data.encode())
            for i in range(start, start + count)
            for extension, data in (("id", f"{i}"), ("square.txt", f"{i * i}"))
        ]
        paths.append(write_tar(directory / f"shard-{number:03d}.tar", members))
        start += count
    return paths


def indexed_square(sample: dict[str, Any]) -> dict[str, Any]:
    return {"index": sample["id"], "square": int(sample["square.txt"])}


def joined_by_key(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the members of a key that lie apart in one sample, unless it would have two of one extension."""
    found: list[dict[str, Any]] = []
    for sample in samples:
        same = next((each for each in reversed(found) if each["__key__"] == sample["__key__"]), {"__key__": ""})
        if same.keys() & sample.keys() == {"__key__"} and same["__key__"]:
            same.update(sample)
        else:
            found.append(sample)
    return found
