"""The benchmark's datasets: kinds of records in ArrayRecord files, written once and kept in a cache directory.

Record i of a dataset is a function of i alone. Every record can be told from the others by `identify`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

NUM_FILES = 4  # each of 1, 2 and 4 actors or processes owns whole files
_IMAGE_SIDE = 256


@dataclass(frozen=True)
class Kind:
    """One kind of records. num_records: in the dataset by default. nbytes: of one decoded. field: its name there.

    group_size: records that are stored together; of those that are, the groups are shuffled, not single records.
    storage: array_record's options beside it.
    """

    name: str
    num_records: int
    batch_size: int
    nbytes: int
    field: str
    write: Callable[[int, int], Iterator[bytes]]
    group_size: int = 1
    storage: str = "zstd:3"

    def decoder(self) -> Any:
        """The transform that decodes a record, the same work for everyone who decodes."""
        from datarax_ray.read.decode import DecodeImage, DecodeRaw

        if self.write is _small:
            return DecodeRaw("int64", (8,), field=self.field)
        if self.write is _tokens:
            return DecodeRaw("int32", (1024,), field=self.field)
        if self.write is _large:
            return DecodeRaw("uint8", (self.nbytes,), field=self.field)
        return DecodeImage((_IMAGE_SIDE, _IMAGE_SIDE, 3), field=self.field)

    def decode_row(self, record: bytes) -> np.ndarray:
        """One record decoded by itself, as a Grain user would write it."""
        if self.name == "jpeg":
            decoded: np.ndarray = self.decoder().map(record)[self.field]
            return decoded
        return np.frombuffer(record, {_small: np.int64, _tokens: np.int32, _large: np.uint8}[self.write])

    def rows(self, batch: Any) -> np.ndarray:
        """The decoded records of a batch, as whoever delivers them has it."""
        rows: np.ndarray = batch if isinstance(batch, np.ndarray) else batch.columns[self.field]
        assert rows.dtype.kind in "iu", rows.dtype
        return rows

    def identify(self, rows: np.ndarray) -> np.ndarray:
        """A number for each decoded record, int64 (k,): its index where it holds one, else the sum of its pixels."""
        if self.name == "jpeg":
            return rows.reshape(len(rows), -1).sum(axis=1, dtype=np.int64)
        if self.name == "large":
            return np.ascontiguousarray(rows[:, :8]).view(np.int64)[:, 0]
        return rows[:, 0].astype(np.int64)


def _small(start: int, stop: int) -> Iterator[bytes]:
    """8 int64: the index and random numbers of a few bytes, as in rows of features."""
    rows = np.random.default_rng(start).integers(0, 2**24, (stop - start, 8))
    rows[:, 0] = np.arange(start, stop)
    for row in rows:
        yield row.tobytes()


def _tokens(start: int, stop: int) -> Iterator[bytes]:
    """1,024 int32: the index and tokens in a text's distribution, rare ones rare."""
    for index in range(start, stop):
        row = np.minimum(np.random.default_rng(index).zipf(1.2, 1024), 50_000).astype("<i4")
        row[0] = index
        yield row.tobytes()


def _large(start: int, stop: int) -> Iterator[bytes]:
    """The index and noise that no codec makes smaller, of the size of a 224 x 224 picture in bytes."""
    for index in range(start, stop):
        yield np.int64(index).tobytes() + np.random.default_rng(index).bytes(224 * 224 * 3 - 8)


def _jpeg(start: int, stop: int) -> Iterator[bytes]:
    """256 x 256 photographs, nearly: clouds of several scales with edges and grain; about 17 KB each."""
    import cv2

    for index in range(start, stop):
        rng = np.random.default_rng(index)
        image = np.zeros((_IMAGE_SIDE, _IMAGE_SIDE, 3), np.float32)
        for octave in range(2, 7):
            noise = rng.normal(0, 90 / octave, (2**octave, 2**octave, 3)).astype(np.float32)
            image += cv2.resize(noise, (_IMAGE_SIDE, _IMAGE_SIDE), interpolation=cv2.INTER_CUBIC)
        for _ in range(6):
            (x, y, radius), colour = rng.integers(10, 246, 3).tolist(), rng.normal(0, 80, 3).tolist()
            cv2.circle(image, (x, y), radius // 4, colour, -1)
        image += rng.normal(128, 6, image.shape)
        yield cv2.imencode(".jpg", np.clip(image, 0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("small", 400_000, 1024, 64, "data", _small),
        Kind("tokens", 40_000, 256, 4096, "data", _tokens),
        Kind("small256", 1_600_000, 8192, 64, "data", _small, 256),
        Kind("tokens256", 60_000, 1024, 4096, "data", _tokens, 256),
        Kind("large", 4_000, 64, 224 * 224 * 3, "data", _large, storage="uncompressed"),
        Kind("jpeg", 3_000, 64, _IMAGE_SIDE**2 * 3, "image", _jpeg),
    )
}


def dataset(kind: Kind, num_records: int, cache_dir: Path) -> list[str]:
    """Paths of the dataset's files, in order; writes them unless they are there. Whole or not at all."""
    return written_once(cache_dir / f"{kind.name}-{num_records}", partial(_write, kind, num_records))


def written_once(directory: Path, write: Callable[[Path], None]) -> list[str]:
    """Paths of the files in a directory, in order; `write(scratch)` makes them unless they are there."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            write(scratch)
            scratch.rename(directory)
        except BaseException:
            shutil.rmtree(scratch)
            raise
    return [str(path) for path in sorted(directory.iterdir())]


def warm(paths: list[str]) -> int:
    """Read the files into the page cache; their bytes."""
    return sum(len(Path(path).read_bytes()) for path in paths)


def _write(kind: Kind, num_records: int, directory: Path) -> None:
    from array_record.python import array_record_module

    print(f"writing {num_records} {kind.name} records once ...", file=sys.stderr)
    cuts = [num_records * index // NUM_FILES for index in range(NUM_FILES + 1)]
    for index, (start, stop) in enumerate(pairwise(cuts)):
        path = directory / f"{kind.name}.array_record-{index:05d}-of-{NUM_FILES:05d}"
        writer = array_record_module.ArrayRecordWriter(str(path), f"group_size:{kind.group_size},{kind.storage}")
        for record in kind.write(start, stop):
            writer.write(record)
        writer.close()
