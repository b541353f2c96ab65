"""Mutated ArrayRecord files, and forged ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datarax_ray.read.block import Block
from datarax_ray.read.decode import DecodeFields
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from tests.data import record, write_file
from tests.fuzz import outcomes, riegeli
from tests.fuzz.file_target import FileTarget
from tests.fuzz.mutations import splice, truncate_at

_RECORDS = 300
_FIELDS = ("index", "thrice", "mod", "square", "five")  # of tests.data.record


class ArrayRecordTarget(FileTarget):
    """One writer's options."""

    shuffles = ("none", "global")
    steps = (1, 40)
    transforms = (DecodeFields([(name, ("<i4", ())) for name in _FIELDS]),)

    def __init__(self, directory: Path, group_size: int, compression: str) -> None:
        path = directory / "mutant.array_record"
        self._rows, self._other_rows = ([record(i) for i in range(at, at + _RECORDS)] for at in (0, 5000))
        file, other = (
            write_file(path, rows, group_size, compression).read_bytes() for rows in (self._rows, self._other_rows)
        )
        mutations = {
            "cut at a border": truncate_at(riegeli.borders),
            "spliced": splice(other),
            "swapped file": lambda file, rng: other,
            "forged": riegeli.forge,
        }
        super().__init__(path, file, mutations)

    def open(self, path: str) -> ArrayRecordReader:
        return ArrayRecordReader.of(path)

    def wanted(self, mutation: str) -> list[bytes]:
        return self._other_rows if mutation == "swapped file" else self._rows

    def wrong(self, mutation: str, how: str | None) -> str:
        """A whole chunk of another file keeps its checksum, and a forged one has one: the format cannot tell."""
        is_whole = mutation == "swapped file" and how == "overwritten in place"
        return outcomes.OTHER if mutation in ("forged", "spliced") or is_whole else outcomes.WRONG

    def cuts(self) -> list[int]:
        return [*riegeli.borders(self.file)[:-1], 0, 1, 100, len(self.file) - 1]

    def difference(self, block: Block, records: Sequence[int], wanted: Any) -> str:
        for row, index in enumerate(records):
            got = b"".join(block.columns[name][row].astype("<i4").tobytes() for name in _FIELDS)
            if got != wanted[index]:
                return f"record {index} is {got.hex()} instead of {wanted[index].hex()}"
        return ""
