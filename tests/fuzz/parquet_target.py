"""Mutated Parquet files, with page checksums and without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray.read.block import Block
from datarax_ray.read.formats.parquet.reader import ParquetReader
from tests.fuzz import outcomes
from tests.fuzz.file_target import FileTarget
from tests.fuzz.mutations import MUTATIONS, Mutation, splice, truncate_at

_ROWS = 300
# Mutations of the bytes of values alone, which a page's checksum covers; it covers no header and no footer.
_IN_VALUES = ("flipped bits", "overwritten")


class ParquetTarget(FileTarget):
    """One table in six row groups. has_checksums: of every page."""

    def __init__(self, directory: Path, compression: str, has_checksums: bool) -> None:
        path = directory / "mutant.parquet"
        self._has_checksums = has_checksums
        file, other = (_written(path, start, compression, has_checksums) for start in (0, 5000))
        mutations = {
            "cut at a border": truncate_at(_borders),
            "spliced": splice(other),
            "swapped file": lambda file, rng: other,
            **{f"{kind} in values": _in_values(MUTATIONS[kind]) for kind in _IN_VALUES},
        }
        super().__init__(path, file, mutations)

    def open(self, path: str) -> ParquetReader:
        return ParquetReader.of(path)

    def wanted(self, mutation: str) -> np.ndarray:
        return np.arange(_ROWS) + (5000 if mutation == "swapped file" else 0)

    def wrong(self, mutation: str, how: str | None) -> str:
        """Footers and page headers carry no checksum, so only changed values can be promised to be seen."""
        is_seen = how is None and mutation.endswith("in values") and self._has_checksums
        return outcomes.WRONG if is_seen else outcomes.OTHER

    def difference(self, block: Block, records: Sequence[int], wanted: Any) -> str:
        """The first column that does not hold these rows."""
        rows = wanted[records]
        columns: dict[str, Any] = {
            "index": rows,
            "square": rows.astype(np.float32) ** 2,
            "name": np.array([f"r{i}" for i in rows.tolist()], object),
        }
        if sorted(block.columns) != sorted(columns):
            return f"columns {sorted(block.columns)}"
        for name, want in columns.items():
            if not np.array_equal(block.columns[name], want):
                return f"{name} is {block.columns[name][:5]!r}... instead of {want[:5]!r}..."
        return ""


def _written(path: Path, start: int, compression: str, has_checksums: bool) -> bytes:
    rows = np.arange(start, start + _ROWS)
    table = pa.table({"index": rows, "square": rows.astype(np.float32) ** 2, "name": [f"r{i}" for i in rows.tolist()]})
    options: dict[str, Any] = {"compression": compression, "write_page_checksum": has_checksums}
    pq.write_table(table, path, row_group_size=50, use_dictionary=["name"], **options)
    return path.read_bytes()


def _borders(file: bytes) -> list[int]:
    """Where column chunks begin, and the footer and its length."""
    footer = pq.ParquetFile(pa.BufferReader(file)).metadata
    starts = [footer.row_group(i).column(j).data_page_offset for i in range(footer.num_row_groups) for j in range(3)]
    return [0, 4, *starts, len(file) - 8 - int.from_bytes(file[-8:-4], "little"), len(file) - 8, len(file) - 4]


def _in_values(mutation: Mutation) -> Mutation:
    """The mutation, of the last bytes of one column chunk: its values, behind the page's header."""

    def mutated(file: bytes, rng: random.Random) -> bytes:
        footer = pq.ParquetFile(pa.BufferReader(file)).metadata
        chunk = footer.row_group(rng.randrange(footer.num_row_groups)).column(rng.randrange(2))
        end = chunk.data_page_offset + chunk.total_compressed_size
        begin = end - chunk.total_compressed_size // 2
        return file[:begin] + mutation(file[begin:end], rng) + file[end:]

    return mutated
