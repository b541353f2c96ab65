"""Mutated Parquet files, with page checksums and without, read through what an actor reads with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.formats.parquet.reader import ParquetReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.fuzz import outcomes
from tests.fuzz.mutations import MUTATIONS, Mutation, change, splice, truncate_at
from tests.fuzz.reading import read_through

_ROWS = 300
_ALLOWED = (ValueError, OSError)
# Mutations of the bytes of values alone, which a page's checksum covers; it covers no header and no footer.
_IN_VALUES = ("flipped bits", "overwritten")


class ParquetTarget:
    """One table in six row groups. has_checksums: of every page."""

    def __init__(self, directory: Path, compression: str, has_checksums: bool) -> None:
        self._path = directory / "mutant.parquet"
        self._has_checksums = has_checksums
        self._file, self._other = (_written(self._path, start, compression, has_checksums) for start in (0, 5000))
        self.mutations: dict[str, Mutation] = MUTATIONS | {
            "cut at a border": truncate_at(_borders),
            "spliced": splice(self._other),
            "swapped file": lambda file, rng: self._other,
            **{f"{kind} in values": _in_values(MUTATIONS[kind]) for kind in _IN_VALUES},
        }
        self.live = ("overwritten in place", "cut in place", "replaced", "deleted")
        self.kinds = (*self.mutations, *(f"while read: {how}" for how in self.live))

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        if kind.startswith("while read: "):
            return self._check_live(kind.removeprefix("while read: "), rng)
        self._path.write_bytes(self.mutations[kind](self._file, rng))
        try:
            reader = ParquetReader.of(str(self._path))
        except Exception as error:
            return outcomes.refusal(error, str(self._path), _ALLOWED)
        # Footers and page headers carry no checksum, so only changed values can be promised to be seen.
        wrong = outcomes.WRONG if kind.endswith("in values") and self._has_checksums else outcomes.OTHER
        if reader.num_records != _ROWS:
            return wrong, f"{reader.num_records} rows instead of {_ROWS}"
        return self._outcome(reader, 5000 if kind == "swapped file" else 0, 0, rng, wrong)

    def _check_live(self, how: str, rng: random.Random) -> tuple[str, str]:
        """The file changes after its footer was read, before or after the first rows were."""
        self._path.unlink(missing_ok=True)
        self._path.write_bytes(self._file)
        reader = ParquetReader.of(str(self._path))
        start = rng.choice([0, 50])
        if start:
            reader.read(np.arange(start))
        mutant = rng.choice(list(self.mutations.values()))(self._file, rng)
        change(self._path, how, mutant, lambda: rng.randrange(len(self._file)))
        return self._outcome(reader, 0, start, rng, outcomes.OTHER)

    def _outcome(
        self, reader: ParquetReader, first: int, start: int, rng: random.Random, wrong: str
    ) -> tuple[str, str]:
        description = IndexedStream(reader, order_of(_ROWS), 1, (), rng.choice(["raise", "skip"]))
        step = rng.choice([7, 50, 300])
        requests = [ReadRequest(at, min(at + step, _ROWS)) for at in range(start, _ROWS, step)]
        try:
            return read_through(
                description,
                requests,
                str(self._path),
                _ALLOWED,
                lambda block: _difference(block.columns, block.positions + first),
                wrong,
            )
        finally:
            reader.close()


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


def _difference(columns: Any, rows: np.ndarray) -> str:
    """The first column that does not hold these rows, "" where all do."""
    if columns is None:
        return ""
    wanted: dict[str, Any] = {
        "index": rows,
        "square": rows.astype(np.float32) ** 2,
        "name": np.array([f"r{i}" for i in rows.tolist()], object),
    }
    if sorted(columns) != sorted(wanted):
        return f"columns {sorted(columns)}"
    for name, want in wanted.items():
        if not np.array_equal(columns[name], want):
            return f"{name} is {columns[name][:5]!r}... instead of {want[:5]!r}..."
    return ""
