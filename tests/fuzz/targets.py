"""Every format that is fuzzed, by name. Made lazily: a worker imports only what its jobs need."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any, Protocol


class Target(Protocol):
    """kinds: of mutation. check: what becomes of the mutant of a kind that rng makes, (outcome, detail)."""

    kinds: tuple[str, ...]

    def check(self, kind: str, rng: random.Random) -> tuple[str, str]: ...


# module and class of each target, and what it is made with beside its directory
_MADE: dict[str, tuple[str, tuple[Any, ...]]] = {
    # group size and compression: one record and many to a group, every codec that array_record has, columns
    "array_record 1": ("array_record_target.ArrayRecordTarget", (1, "zstd")),
    "array_record 16": ("array_record_target.ArrayRecordTarget", (16, "zstd")),
    "array_record 64 uncompressed": ("array_record_target.ArrayRecordTarget", (64, "uncompressed")),
    "array_record 16 snappy": ("array_record_target.ArrayRecordTarget", (16, "snappy")),
    "array_record 16 brotli": ("array_record_target.ArrayRecordTarget", (16, "brotli")),
    "array_record 16 transposed": ("array_record_target.ArrayRecordTarget", (16, "transpose")),
    # compression, and whether pages carry checksums
    "parquet zstd, checksums": ("parquet_target.ParquetTarget", ("zstd", True)),
    "parquet plain, checksums": ("parquet_target.ParquetTarget", ("none", True)),
    "parquet plain": ("parquet_target.ParquetTarget", ("none", False)),
    "parquet snappy": ("parquet_target.ParquetTarget", ("snappy", False)),
    **{name: ("rows_target.RowsTarget", (name,)) for name in ("csv", "jsonl", "tar")},
    "checkpoint": ("checkpoint_target.CheckpointTarget", ()),
    **{
        f"decoder {name}": ("decoder_target.DecoderTarget", (name,))
        for name in ("json", "msgpack", "tf.Example", "image", "raw", "fields")
    },
}
NAMES = tuple(_MADE)


def make(name: str, directory: Path) -> Target:
    """The target of that name, with its files in a directory of its own. Imports the modules of that target alone."""
    directory = directory / name.replace(" ", "_")
    directory.mkdir(parents=True, exist_ok=True)
    path, arguments = _MADE.get(name, ("misbehaving_target.MisbehavingTarget", ()))
    module, cls = path.split(".")
    made: Target = getattr(importlib.import_module(f"tests.fuzz.{module}"), cls)(directory, *arguments)
    return made
