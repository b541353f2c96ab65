"""The Parquet benchmark's datasets: three kinds of rows in four files, written once and kept in a cache directory.

Every row has an `index` of its own, a function of where it stands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.data import written_once

NUM_FILES = 4


@dataclass(frozen=True)
class Table:
    """One kind of rows. num_rows: by default. row_group: rows in one. nbytes: of a decoded row. columns: of a range."""

    name: str
    num_rows: int
    batch_size: int
    row_group: int
    nbytes: int
    columns: Callable[[int, int], dict[str, Any]]
    # Some seconds at Ray Data's best. Not many more: given 100 epochs as one list of files it reads ahead without end,
    # and its rate falls to a third.
    epochs: int = 12

    @staticmethod
    def rows(batch: Any) -> np.ndarray:
        """The number of each row of a batch, which identifies it."""
        rows: np.ndarray = (batch if isinstance(batch, dict) else batch.columns)["index"]
        return rows

    @staticmethod
    def identify(rows: np.ndarray) -> np.ndarray:
        return rows


def _small(start: int, stop: int) -> dict[str, Any]:
    """8 int64, random numbers of a few bytes, as in rows of features."""
    values = np.random.default_rng(start).integers(0, 2**24, (7, stop - start))
    return {"index": np.arange(start, stop), **{f"x{i}": column for i, column in enumerate(values)}}


def _tokens(start: int, stop: int) -> dict[str, Any]:
    """1,024 int32 in a text's distribution, rare ones rare."""
    import pyarrow as pa

    values = np.minimum(np.random.default_rng(start).zipf(1.2, 1024 * (stop - start)), 50_000).astype(np.int32)
    return {"index": np.arange(start, stop), "tokens": pa.FixedSizeListArray.from_arrays(values, 1024)}


def _text(start: int, stop: int) -> dict[str, Any]:
    """A text of some 200 characters and a label: what stays on the host as objects."""
    rng = np.random.default_rng(start)
    words = np.array(["ray", "actor", "window", "position", "an", "of", "the", "checkpoint"])
    chosen = words[rng.integers(0, len(words), (stop - start, 36))].tolist()
    return {
        "index": np.arange(start, stop),
        "text": [" ".join(row) for row in chosen],
        "label": np.arange(start, stop) % 7,
    }


TABLES = {
    table.name: table
    for table in (
        # more than one window of the block order, as any dataset that is worth it
        Table("small", 4_000_000, 4096, 100_000, 64, _small, epochs=5),
        Table("tokens", 40_000, 256, 1_000, 4104, _tokens),
        Table("text", 200_000, 1024, 10_000, 220, _text),
    )
}


def tables(table: Table, num_rows: int, cache_dir: Path) -> list[str]:
    """Paths of the dataset's files, in order; writes them unless they are there. Whole or not at all."""
    return written_once(cache_dir / f"parquet-{table.name}-{num_rows}", partial(_write, table, num_rows))


def _write(table: Table, num_rows: int, directory: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    print(f"writing {num_rows} {table.name} rows once ...", file=sys.stderr)
    cuts = [num_rows * index // NUM_FILES for index in range(NUM_FILES + 1)]
    for index, (start, stop) in enumerate(pairwise(cuts)):
        columns = pa.table(table.columns(start, stop))
        parquet.write_table(columns, directory / f"{table.name}-{index:05d}.parquet", row_group_size=table.row_group)
