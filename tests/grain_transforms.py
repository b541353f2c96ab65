"""Grain transforms that workers can import, for any element: a number, a tree, or a batch of them."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import grain.python as grain
import jax
import numpy as np


class Point(NamedTuple):
    x: Any
    y: Any


def number_of(element: Any) -> int:
    """A number that depends on the whole element, and nothing else."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(element)]
    return zlib.crc32(b"".join(pickle.dumps((str(a.dtype), a.shape, a.tolist())) for a in leaves))


class Tree(grain.MapTransform):
    """Every kind of leaf that stacks, in every kind of container; keys out of order."""

    def map(self, element: Any) -> Any:
        number = number_of(element) % 1000
        return {
            "z": element,
            "a": Point(np.float32(number), [number, number / 7, bool(number % 2)]),
            "text": ("x" * (number % 4), b"y" * (number % 3)),
            "none": None,
            "array": np.full((2, 3), number, np.int16),
            "zero_d": np.array(number % 256, np.uint8),
        }


class Uneven(grain.MapTransform):
    """Elements of two dtypes, that Grain promotes where they meet in one batch."""

    def map(self, element: Any) -> Any:
        number = number_of(element) % 5
        return {"u": number if number % 2 else number / 2, "big": 2**62 * number}


class Noise(grain.RandomMapTransform):
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def random_map(self, element: Any, rng: np.random.Generator | None) -> Any:
        return (element, -1.0 if rng is None else self.scale * rng.random(), 0 if rng is None else rng.integers(9))


class Keep(grain.FilterTransform):
    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def filter(self, element: Any) -> Any:
        return number_of(element) % self.modulus  # its truth is what counts


class Repeat(grain.experimental.FlatMapTransform):
    """Each element up to three times, or never."""

    max_fan_out = 3

    def flat_map(self, element: Any) -> Iterator[Any]:
        return ((number, element) for number in range(number_of(element) % 4))


class Fragile(grain.MapTransform):
    """Raises for some elements."""

    def map(self, element: Any) -> Any:
        if number_of(element) % 23 == 0:
            raise ValueError("too fragile")
        return [element]


class WithIndex(grain.MapWithIndexTransform):
    def map_with_index(self, index: int, element: Any) -> Any:
        return (index, element)


class FailOn(grain.MapTransform):
    """Raises for elements that hold this number."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def map(self, element: Any) -> Any:
        if self.bad in np.asarray(jax.tree.leaves(element)[0]):
            raise ZeroDivisionError(f"cannot divide {self.bad}")
        return element


def as_list(values: list[Any]) -> Any:
    """A batch_fn for what does not stack."""
    return {"values": list(values), "count": len(values)}


class Backwards:
    """A sampler of one's own: from the last record to the first, with a generator and an index of its own."""

    def __init__(self, num_records: int) -> None:
        self.num_records = num_records

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        if index >= self.num_records:
            raise IndexError(index)
        rng = np.random.default_rng(index)
        return grain.RecordMetadata(index=2 * index, record_key=self.num_records - 1 - index, rng=rng)


class Letters:
    """A data source with a batched read, which must be entered before, and counts what is read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.is_open = False
        self.calls: list[list[int]] = []

    def __enter__(self) -> Letters:
        self.is_open = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.is_open = False

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[str]:
        assert self.is_open
        self.calls.append(indices)
        return [chr(ord("a") + index % 26) * (index // 26 + 1) for index in indices]

    def __repr__(self) -> str:
        return f"Letters({self.count})"


def assert_same(got: Any, want: Any, path: str = "") -> None:
    """The same value: types, order of keys, dtypes, shapes, bytes, and whether arrays may be written to."""
    assert type(got) is type(want), (path, type(got), type(want))
    if isinstance(want, dict):
        assert list(got) == list(want), (path, list(got), list(want))
        for key in want:
            assert_same(got[key], want[key], f"{path}.{key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), path
        for number, (left, right) in enumerate(zip(got, want, strict=True)):
            assert_same(left, right, f"{path}[{number}]")
    elif isinstance(want, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        assert got.tobytes() == want.tobytes() if want.dtype != object else got.tolist() == want.tolist(), path
        assert got.flags.writeable == want.flags.writeable, path
    else:
        assert got == want, path


def run(outputs: Iterable[Any], limit: int = 200) -> tuple[list[Any], bool]:
    """Its outputs, at most `limit`, and whether a ValueError ended them."""
    found: list[Any] = []
    try:
        found.extend(islice(outputs, limit))
    except ValueError:
        return found, True
    return found, False


class Stuck:
    """A data source that no process can be sent."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return int(index)

    def __getstate__(self) -> Any:
        raise RuntimeError("this stays here")

    def __repr__(self) -> str:
        return f"Stuck({self.count})"


class StuckMap(grain.MapTransform):
    """A transform that no process can be sent."""

    def __init__(self, added: int) -> None:
        self.added = added

    def map(self, element: int) -> int:
        return element + self.added

    def __getstate__(self) -> Any:
        raise RuntimeError("this stays here")


class Visited:
    """A data source that notes in files, one for each process, when it is entered and left."""

    def __init__(self, count: int, directory: Path) -> None:
        self.count = count
        self.directory = directory

    def _note(self, what: str) -> None:
        with (self.directory / str(os.getpid())).open("a") as file:
            file.write(f"{what}\n")

    def __enter__(self) -> Visited:
        self._note("entered")
        return self

    def __exit__(self, *error: object) -> None:
        self._note("left")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        return f"Visited({self.count})"
