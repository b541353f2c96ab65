"""Mutated CSV, JSON lines and tar files, against what other libraries read from them."""

from __future__ import annotations

import io
import json
import random
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import webdataset
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from datarax_ray.read.block import Block
from datarax_ray.read.elements.columns import unstack
from datarax_ray.read.formats.text.blocks import TextReader
from datarax_ray.read.formats.text.json_syntax import JSONLines
from datarax_ray.read.formats.text.syntax import CSV
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from tests.fuzz import outcomes
from tests.fuzz.file_target import FileTarget
from tests.fuzz.mutations import splice
from tests.tars import joined_by_key

_ROWS = 200
# What decides where rows, values and members begin and end.
_MARKS = (*(b'"\n\r,{}[\\\xff\0'[i : i + 1] for i in range(10)), b"\xef\xbb\xbf", b"null", b"1e999", b"0" * 20)


class RowsTarget(FileTarget):
    """One file. None of these formats has a checksum of its data, so another oracle says what is in a mutant."""

    def __init__(self, directory: Path, name: str) -> None:
        suffix, written, self._open, self._oracle = _FORMATS[name]
        mutations = {"spliced": splice(written(5000)), "marks put in": _marks, "header made anew": _resummed}
        super().__init__(directory / f"mutant{suffix}", written(0), mutations)

    def open(self, path: str) -> Any:
        return self._open(path)

    def wanted(self, mutation: str) -> list[Any] | None:
        """What the oracle refuses may have good rows, and tells nothing of them."""
        return self._oracle(self.path)

    def wrong(self, mutation: str, how: str | None) -> str:
        return outcomes.WRONG if how is None else outcomes.OTHER

    def difference(self, block: Block, records: Sequence[int], wanted: Any) -> str:
        for record, row in zip(records, unstack(block.columns, len(records)), strict=True):
            if repr(_plain(row)) != repr(_plain(wanted[record])):
                return f"{record} is {_plain(row)!r:.200} instead of {_plain(wanted[record])!r:.200}"
        return ""


def _plain(value: Any) -> Any:
    """As Python has it, whatever arrays and scalars it came in; times by what they are counted from."""
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return value


def _csv(start: int) -> bytes:
    rows = [f'{i},{i * 0.5},"r{i}, ""x""\nnext",t{i}\n' for i in range(start, start + _ROWS)]
    return ("index,half,quoted,text\n" + "".join(rows)).encode()


def _jsonl(start: int) -> bytes:
    rows = [
        {"index": i, "half": i + 0.5, "text": f"é{i}", "list": [i, i], "in": {"b": i % 2 == 0}}
        for i in range(start, start + _ROWS)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _tar(start: int) -> bytes:
    file = io.BytesIO()
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(start, start + _ROWS):
            tar.format = formats[i % 3]
            name = f"d/{i}" if i % 3 == 0 else f"d/{'long' * 40}{i}"
            for extension, data in (("txt", f"text {i}".encode()), ("cls", str(i).encode())):
                info = tarfile.TarInfo(f"{name}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _by_arrow(read: Callable[[Any], Any]) -> Callable[[Path], list[Any] | None]:
    def oracle(path: Path) -> list[Any] | None:
        try:
            table = read(pa.py_buffer(path.read_bytes()))
            table.validate()  # of lists in JSON pyarrow (26.0) loses a null that comes first
            rows: list[Any] = table.to_pylist()
        except (pa.ArrowException, ValueError):
            return None
        # what is a time or a list of nulls is in other words in Arrow; the types that were written are compared
        plain = all(str(field.type) in _WRITTEN for field in table.schema)
        return rows if plain else None

    return oracle


_WRITTEN = ("int64", "double", "string", "bool", "list<item: int64>", "struct<b: bool>")


def _by_webdataset(path: Path) -> list[Any] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False))
        except Exception:  # of many kinds, for what it does not take either
            return None
    samples = [{name: part for name, part in sample.items() if name not in _OF_WEBDATASET} for sample in found]
    names = {name for sample in samples for name in sample}
    return [{name: sample.get(name) for name in names} for sample in joined_by_key(samples)]


_OF_WEBDATASET = ("__url__", "__local_path__")


def _read_csv(data: Any) -> Any:
    return arrow_csv.read_csv(
        pa.BufferReader(data),
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=1 << 24),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
    )


def _read_json(data: Any) -> Any:
    for line in data.to_pybytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.strip(b" \t\r") and not isinstance(json.loads(line), dict | None):
            raise ValueError("no object on a line, which Arrow may read together with others")
    return arrow_json.read_json(
        pa.BufferReader(data), read_options=arrow_json.ReadOptions(use_threads=False, block_size=1 << 24)
    )


# suffix, what writes a file, what opens it, what says what is in it
_FORMATS: dict[str, tuple[str, Callable[[int], bytes], Callable[[str], Any], Callable[[Path], list[Any] | None]]] = {
    "csv": (".csv", _csv, lambda path: TextReader.of(path, CSV()), _by_arrow(_read_csv)),
    "jsonl": (".jsonl", _jsonl, lambda path: TextReader.of(path, JSONLines()), _by_arrow(_read_json)),
    "tar": (".tar", _tar, lambda path: WebDatasetReader.of(path, missing="none"), _by_webdataset),
}


def _marks(file: bytes, rng: random.Random) -> bytes:
    """Some of what the formats are made of, put in or over what was there."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, mark = rng.randrange(len(file)), rng.choice(_MARKS)
        file = file[:at] + mark + file[at + rng.choice([0, 0, len(mark)]) :]
    return file


def _resummed(file: bytes, rng: random.Random) -> bytes:
    """A byte of a tar's header changed, under a checksum made anew."""
    at = rng.randrange(len(file) // 512) * 512
    block = bytearray(file[at : at + 512])
    if len(block) == 512:
        block[rng.randrange(512)] = rng.choice([0, 0x80, 0xFF, ord("9"), ord("L"), ord("x"), rng.randrange(256)])
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 256)
    return file[:at] + bytes(block) + file[at + 512 :]
