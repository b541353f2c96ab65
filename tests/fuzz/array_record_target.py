"""Mutated ArrayRecord files, read through what an actor reads with: reader, order, decoder, blocks."""

from __future__ import annotations

import random
from pathlib import Path

from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.plan.partitions import ReadRequest
from datarax_ray.read.block import Block
from datarax_ray.read.decode import DecodeFields
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.streams.indexed import IndexedStream
from tests.data import record, write_file
from tests.fuzz import outcomes, riegeli
from tests.fuzz.mutations import MUTATIONS, change, splice, truncate_at
from tests.fuzz.reading import read_through

_RECORDS = 300
_FIELDS = ("index", "thrice", "mod", "square", "five")  # of tests.data.record
_ALLOWED = (ValueError, OSError)
_FORGED = "forged"
_SPLICED = "spliced"
_SWAPPED = "swapped file"


class ArrayRecordTarget:
    """One writer's options. Made in a directory of its own; `check` may be called any number of times."""

    def __init__(self, directory: Path, group_size: int, compression: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "mutant.array_record"
        self._rows = [record(i) for i in range(_RECORDS)]
        self._other_rows = [record(i) for i in range(5000, 5000 + _RECORDS)]
        self._file, self._other = (
            write_file(self._path, rows, group_size, compression).read_bytes()
            for rows in (self._rows, self._other_rows)
        )
        self._transforms = (DecodeFields([(name, ("<i4", ())) for name in _FIELDS]),)
        self.mutations = MUTATIONS | {
            "cut at a border": truncate_at(riegeli.borders),
            _SPLICED: splice(self._other),
            _SWAPPED: lambda file, rng: self._other,
            _FORGED: riegeli.forge,
        }
        self.live = ("overwritten in place", "cut in place", "replaced", "deleted")
        self.kinds = (*self.mutations, *(f"while read: {how}" for how in self.live))

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]:
        if kind.startswith("while read: "):
            return self._check_live(kind.removeprefix("while read: "), rng)
        self._path.write_bytes(self.mutations[kind](self._file, rng))
        return self._read(kind, rng)

    def _read(self, kind: str, rng: random.Random) -> tuple[str, str]:
        try:
            reader = ArrayRecordReader.of(str(self._path))
        except Exception as error:
            return outcomes.refusal(error, str(self._path), _ALLOWED)
        rows = self._other_rows if kind == _SWAPPED else self._rows
        # A whole chunk of another file keeps its checksum, and a forged one has one: the format cannot tell.
        wrong = outcomes.OTHER if kind in (_FORGED, _SPLICED) else outcomes.WRONG
        if reader.num_records != _RECORDS:
            return wrong, f"{reader.num_records} records instead of {_RECORDS}"
        try:
            return self._outcome(self._description(reader, rng), 0, rng, rows, wrong)
        finally:
            reader.close()

    def _check_live(self, how: str, rng: random.Random) -> tuple[str, str]:
        """The file changes after it was counted, before or after the first records were read."""
        self._path.unlink(missing_ok=True)
        self._path.write_bytes(self._file)
        reader = ArrayRecordReader.of(str(self._path))
        description = self._description(reader, rng)
        try:
            start = rng.choice([0, 64])
            if start:
                description.read(ReadRequest(0, start))
            mutation = rng.choice([kind for kind in self.mutations if kind not in (_FORGED, _SPLICED)])
            mutant = self.mutations[mutation](self._file, rng)
            cuts = [*riegeli.borders(self._file)[:-1], 0, 1, 100, len(self._file) - 1]
            change(self._path, how, mutant, lambda: rng.choice(cuts))
            # Another file's bytes in an open one's place: its chunks' checksums hold.
            is_seen = how != "overwritten in place" or mutation != _SWAPPED
            return self._outcome(description, start, rng, self._rows, outcomes.WRONG if is_seen else outcomes.OTHER)
        finally:
            reader.close()

    def _description(self, reader: ArrayRecordReader, rng: random.Random) -> IndexedStream:
        order = order_of(reader.num_records, rng.randrange(100), rng.choice(["none", "global"]))
        return IndexedStream(reader, order, 1, self._transforms, rng.choice(["raise", "skip"]))

    def _outcome(
        self, description: IndexedStream, start: int, rng: random.Random, rows: list[bytes], wrong: str
    ) -> tuple[str, str]:
        step = rng.choice([1, 40, _RECORDS])
        stop = _RECORDS if step > 1 else start + 40
        requests = [ReadRequest(at, min(at + step, _RECORDS)) for at in range(start, stop, step)]
        return read_through(
            description, requests, str(self._path), _ALLOWED, lambda block: _difference(description, block, rows), wrong
        )


def _difference(description: IndexedStream, block: Block, rows: list[bytes]) -> str:
    """The first row of a block that is not the stored one, "" where there is none."""
    records = description.order.records(block.positions).tolist()
    for row, index in enumerate(records):
        got = b"".join(block.columns[name][row].astype("<i4").tobytes() for name in _FIELDS)
        if got != rows[index]:
            return f"record {index} is {got.hex()} instead of {rows[index].hex()}"
    return ""
