"""The stream again, as a plain loop over single records: raw array_record reads in the order of Grain's own function.

Shares no code with datarax_ray: it is what the product is tested against.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader


def stored(paths: Sequence[Any]) -> list[bytes]:
    """Every record of the files, read sequentially."""
    out: list[bytes] = []
    for path in paths:
        reader = ArrayRecordReader(str(path))
        out += [reader.read() for _ in range(reader.num_records())]
        reader.close()
    return out


def order(n: int, epoch: int, seed: int | None, rounds: int = 8) -> list[int]:
    """One epoch's records; seed None for file order. Not for n = 4**k + 1, where Grain's is no permutation."""
    if seed is None:
        return list(range(n))
    return [*_shuffled(n, (seed + epoch) % 2**32, rounds)]


@functools.cache
def _shuffled(n: int, seed: int, rounds: int) -> list[int]:
    """Grain walks on until it is below n: of few records one takes milliseconds."""
    from grain.experimental import index_shuffle

    return [index_shuffle(i, max_index=n - 1, seed=seed, rounds=rounds) for i in range(n)]


def elements(
    records: Sequence[bytes], *, seed: int | None, num_epochs: int, transforms: Sequence[Any], rng_seed: int
) -> Iterator[tuple[int, Any]]:
    """(position, element) of every survivor; transforms of tests/data.py."""
    n = len(records)
    for epoch in range(num_epochs):
        for offset, index in enumerate(order(n, epoch, seed)):
            position = epoch * n + offset
            element: Any = records[index]
            keep = True
            for number, transform in enumerate(transforms):
                if hasattr(transform, "filter"):
                    keep = keep and transform.filter(element)
                elif hasattr(transform, "random_map"):
                    bits = np.random.Philox(
                        key=np.array([rng_seed, number], np.uint64), counter=np.array([0, 0, position, 0], np.uint64)
                    )
                    element = transform.random_map(element, np.random.Generator(bits))
                elif hasattr(transform, "map"):
                    element = transform.map(element)
                else:
                    element = transform(element)
                if not keep:
                    break
            if keep:
                yield position, element


def batches(
    stream: Iterator[tuple[int, Any]], batch_size: int, stop: int, drop_remainder: bool = False
) -> list[tuple[int, dict[str, Any]]]:
    """(position after the batch, {field: list of values}) of every batch of dict elements."""
    out, rows, last = [], [], 0
    for position, element in stream:
        rows.append(element)
        last = position + 1
        if len(rows) == batch_size:
            out.append((last, {key: [row[key] for row in rows] for key in rows[0]}))
            rows = []
    if rows and not drop_remainder:
        out.append((stop, {key: [row[key] for row in rows] for key in rows[0]}))
    return out


def assert_same(got: Any, want: dict[str, list[Any]]) -> None:
    """A batch of columns holds exactly these rows, in this order."""
    assert sorted(got) == sorted(want)
    for key, values in want.items():
        column = np.asarray(got[key])
        if isinstance(values[0], np.ndarray):
            assert column.tobytes() == np.stack(values).tobytes(), key
        else:
            assert column.tolist() == values, key
