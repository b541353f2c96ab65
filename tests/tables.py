"""Real Parquet files for tests: row i of all files together has index i."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet


def rows(start: int, stop: int) -> dict[str, Any]:
    """Every kind of column, made of the row's index alone."""
    index = np.arange(start, stop)
    return {
        "index": index,
        "square": index * index,
        "pair": pa.FixedSizeListArray.from_arrays(np.repeat(index, 2).astype(np.float32), 2),
        "name": [f"r{i}" for i in index],
        "ragged": [list(range(i % 4)) for i in index],
        "inner": [{"even": bool(i % 2 == 0), "text": f"t{i}"} for i in index],
    }


def write_tables(directory: Path, counts: Sequence[int], row_group: int = 4, **options: Any) -> list[Path]:
    """One file for each count, with row groups of so many rows."""
    paths, start = [], 0
    schema = pa.table(rows(0, 4)).schema  # a file without rows has it too
    for number, count in enumerate(counts):
        path = directory / f"part-{number:05d}.parquet"
        parquet.write_table(
            pa.table(rows(start, start + count), schema=schema), path, row_group_size=row_group, **options
        )
        paths.append(path)
        start += count
    return paths


class Doubled:
    """A transform of whole columns."""

    def map_columns(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"index": columns["index"], "double": columns["index"] * 2}


def ray_tensors(*, name: str = "ray.data.arrow_tensor_v2", told: bytes | None = None, **columns: Any) -> pa.Table:
    """Tensors, or None, as Ray Data's Parquet files have them: a list for each row, and the shape beside the field.

    told: how the shape is written; None for its JSON.
    """
    parts, arrays = [], []
    for key, rows in columns.items():
        first = np.asarray(rows[0])
        made = pa.large_list if name.endswith("_v2") else pa.list_
        arrays.append(
            pa.array([None if row is None else np.ravel(row) for row in rows], made(pa.from_numpy_dtype(first.dtype)))
        )
        shape = json.dumps(first.shape).encode() if told is None else told
        metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": shape}
        parts.append(pa.field(key, arrays[-1].type, metadata=metadata))
    return pa.table(arrays, pa.schema(parts))
