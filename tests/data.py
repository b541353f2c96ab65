"""Real ArrayRecord files for tests, and transforms that workers can import. Imports no jax."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter


def write_file(path: Path, records: Iterable[bytes], group_size: int = 1, compression: str = "zstd") -> Path:
    writer = ArrayRecordWriter(str(path), f"group_size:{group_size},{compression}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write_files(directory: Path, counts: Sequence[int], group_size: int = 4) -> list[Path]:
    """One file for each count; record i of all files together is `record(i)`."""
    paths, start = [], 0
    for index, count in enumerate(counts):
        path = directory / f"part-{index:05d}.array_record"
        paths.append(write_file(path, map(record, range(start, start + count)), group_size))
        start += count
    return paths


def records_of(folder: Path) -> list[bytes]:
    """Those of all files in it, by array_record's own reader."""
    found: list[bytes] = []
    for path in sorted(folder.glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        found += reader.read_all()
        reader.close()
    return found


def record(index: int) -> bytes:
    """20 bytes: the index, and what depends on it."""
    return np.array([index, 3 * index, index % 7, index * index % 1009, 5], "<i4").tobytes()


def noise(seed: int, size: int = 4000) -> bytes:
    """A record that does not compress."""
    return np.random.default_rng(seed).bytes(size)


def decode(stored: bytes) -> dict[str, Any]:
    """An element with a dense array, a number, a string and a ragged list."""
    values = np.frombuffer(stored, "<i4")
    index = int(values[0])
    return {"values": values.copy(), "index": index, "name": f"r{index}", "ragged": list(range(index % 4))}


def array_records(paths: Any, *transforms: Any, **config: Any) -> Any:
    """A source of these files: decoded, shuffled, for two epochs, unless it is given otherwise. None: no transform."""
    from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule  # these load jax

    options = ArrayRecordSourceConfig(**{"shuffle_files": True, "num_epochs": 2} | config)
    given = [each for each in transforms or [decode] if each is not None]
    return ArrayRecordSourceModule(options, paths, transforms=given)


def noise_of(batches: Iterable[Any]) -> list[Any]:
    """Of each batch the positions, and the bytes of what AddNoise gave."""
    return [[batch.positions.tolist(), batch.columns["noise"].tobytes()] for batch in batches]


class Copies:
    def flat_map(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        return [element | {"copy": copy} for copy in range(element["index"] % 3)]


class Tokens:
    """A document whose tokens say which record it is of, and which of its tokens they are."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.arange(element["index"] % 9 + 1, dtype=np.int32) + 100 * element["index"]}


class DropThirds:
    def filter(self, element: dict[str, Any]) -> bool:
        return element["index"] % 3 != 0


class AddNoise:
    """Adds a random number; not twice the same for two positions."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return element | {"noise": rng.random(2, dtype=np.float32)}


def enlarge(element: dict[str, Any]) -> dict[str, Any]:
    """Adds 64 KB."""
    return element | {"image": np.zeros(2**16, np.uint8)}


class FailAt:
    """Raises on these elements."""

    def __init__(self, *indices: int) -> None:
        self.indices = frozenset(indices)

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        if int(element["index"]) in self.indices:
            raise ZeroDivisionError(f"cannot divide element {element['index']}")
        return element


def loaded_modules(actor: Any) -> list[str]:
    """The top-level modules of the process that calls this."""
    return sorted({name.partition(".")[0] for name in sys.modules})


class Squares:
    """A data source of one's own: n elements, their index and its square."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "square": index * index}

    def __repr__(self) -> str:
        return f"Squares({self.n})"


def stored_index(element: dict[str, Any]) -> dict[str, Any]:
    return {"index": element["index"], "square": element["index"] ** 2}


class Called:
    """Leaves a byte in a file for every element that it sees."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def map(self, element: Any) -> Any:
        with self.path.open("ab") as file:
            file.write(b".")
        return element


def in_memory(data: Any, transforms: Any = (), **config: Any) -> Any:
    """The source of data in memory, of one epoch unless that is given."""
    from datarax_ray import RandomAccessSource, RandomAccessSourceConfig  # with them comes JAX

    return RandomAccessSource(RandomAccessSourceConfig(**{"num_epochs": 1} | config), data, transforms=transforms)
