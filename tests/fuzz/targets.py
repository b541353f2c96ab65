"""Every format that is fuzzed, by name. Made lazily: a worker imports only what its jobs need."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Protocol


class Target(Protocol):
    """kinds: of mutation. check: what becomes of the mutant of a kind that rng makes, (outcome, detail)."""

    kinds: tuple[str, ...]

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]: ...


# (group size, compression): one record and many to a group, every codec that array_record has, columns
_ARRAY_RECORD = {
    "array_record 1": (1, "zstd"),
    "array_record 16": (16, "zstd"),
    "array_record 64 uncompressed": (64, "uncompressed"),
    "array_record 16 snappy": (16, "snappy"),
    "array_record 16 brotli": (16, "brotli"),
    "array_record 16 transposed": (16, "transpose"),
}
# (compression, whether pages carry checksums)
_PARQUET = {
    "parquet zstd, checksums": ("zstd", True),
    "parquet plain, checksums": ("none", True),
    "parquet plain": ("none", False),
    "parquet snappy": ("snappy", False),
}
_ROWS = ("csv", "jsonl", "tar")
_DECODERS = ("json", "msgpack", "tf.Example", "image", "raw", "fields")
NAMES = (*_ARRAY_RECORD, *_PARQUET, *_ROWS, "checkpoint", *(f"decoder {name}" for name in _DECODERS))


def make(name: str, directory: Path) -> Target:
    """The target of that name, with its files in a directory of its own."""
    directory = directory / name.replace(" ", "_")
    directory.mkdir(parents=True, exist_ok=True)
    made: Any
    if name in _ARRAY_RECORD:
        from tests.fuzz.array_record_target import ArrayRecordTarget

        made = ArrayRecordTarget(directory, *_ARRAY_RECORD[name])
    elif name in _PARQUET:
        from tests.fuzz.parquet_target import ParquetTarget

        made = ParquetTarget(directory, *_PARQUET[name])
    elif name in _ROWS:
        from tests.fuzz.rows_target import RowsTarget

        made = RowsTarget(directory, name)
    elif name == "checkpoint":
        from tests.fuzz.checkpoint_target import CheckpointTarget

        made = CheckpointTarget(directory)
    elif name == "misbehaving":
        from tests.fuzz.misbehaving_target import MisbehavingTarget

        made = MisbehavingTarget()
    else:
        from tests.fuzz.decoder_target import DecoderTarget

        made = DecoderTarget(directory, name.removeprefix("decoder "))
    return made
