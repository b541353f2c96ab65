"""The stream that is put through chaos: small records, a filter, a random map; and its digest, in one process.

Imports no jax: its transforms run in actors.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datarax_ray.feed.batches import HostBatch
from datarax_ray.read.elements.columns import leaves
from tests.data import write_file

BATCH_SIZE = 1024
NUM_FILES = 8


def write(directory: Path, num_records: int) -> list[Path]:
    """Files of 8 bytes a record, its index."""
    bounds = np.linspace(0, num_records, NUM_FILES + 1).astype(int)
    return [
        write_file(
            directory / f"part-{number}.array_record", (i.to_bytes(8, "little") for i in range(lo, hi)), group_size=256
        )
        for number, (lo, hi) in enumerate(itertools.pairwise(bounds.tolist()))
    ]


class Decode:
    def decode(self, records: list[bytes]) -> dict[str, np.ndarray]:
        return {"index": np.frombuffer(b"".join(records), "<i8")}


class DropSevenths:
    def filter(self, element: dict[str, Any]) -> bool:
        return int(element["index"]) % 7 != 0


class Jitter:
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"index": element["index"], "noise": np.float32(rng.random())}


TRANSFORMS = (Decode(), DropSevenths(), Jitter())


class Delivered:
    """What came out: a digest of every byte in order, and how often each record came."""

    def __init__(self, num_records: int) -> None:
        self._hash = hashlib.sha256()
        self.counts = np.zeros(num_records, np.int64)
        self.num_rows = 0

    def add(self, batch: HostBatch) -> None:
        for path, column in [(("position",), batch.positions), *leaves(batch.columns)]:
            self._hash.update(".".join(path).encode())
            self._hash.update(np.ascontiguousarray(column).tobytes())
        np.add.at(self.counts, batch.columns["index"], 1)
        self.num_rows += batch.num_rows

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def lost_and_repeated(self, num_epochs: int) -> tuple[int, int]:
        """Rows too few and too many, by plain counting: every record but the sevenths, once in each epoch."""
        want = np.where(np.arange(len(self.counts)) % 7 != 0, num_epochs, 0)
        return int(np.maximum(want - self.counts, 0).sum()), int(np.maximum(self.counts - want, 0).sum())


def deliver(batches: Iterator[HostBatch], num_records: int) -> Delivered:
    delivered = Delivered(num_records)
    for batch in batches:
        delivered.add(batch)
    return delivered
